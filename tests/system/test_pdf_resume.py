"""A worker is killed while it converts a document: the next attempt resumes at the last finished page."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from ingot.client.synchronous.job import SyncJob
from scripts.make_samples import scan
from tests.providers.programs import fonts, tesseract
from tests.system.deployment import deploy
from tests.waiting import until

pytestmark = [pytest.mark.tesseract, pytest.mark.fonts, pytest.mark.long]

APP = "tests.system.limited_handlers:worker"
PAGES = 10
WORDS = "The next meeting is in June."


def scanned_pages() -> bytes:
    """Return a PDF of ten scanned pages, which take a while to read."""
    fonts()
    image, output_file = io.BytesIO(), io.BytesIO()
    scan().save(image, "JPEG", quality=45)
    canvas = Canvas(output_file, pagesize=(528, 365), invariant=1)
    for _ in range(PAGES):
        canvas.drawImage(ImageReader(image), 0, 0, 528, 365)
        canvas.showPage()
    canvas.save()
    return output_file.getvalue()


def page_reached(job: SyncJob) -> int:
    progress = job.refresh().data.progress
    return 0 if progress is None else int(progress.stage.split()[1])


@pytest.mark.parametrize(("type", "output"), [("pdf", "minutes.md"), ("ocr", "minutes.txt")])
def test_a_document_resumes_at_the_page_where_its_worker_was_killed(tmp_path: Path, type: str, output: str) -> None:
    tesseract()
    with deploy(tmp_path, lease_seconds=2) as deployment:
        first = deployment.start_worker(app=APP)
        job = deployment.client.submit(type, file={"minutes.pdf": scanned_pages()})
        until(lambda: page_reached(job) >= 3, seconds=120, why="page 3 is finished")
        first.kill()
        deployment.start_worker(app=APP)
        done = job.wait("200s")
        assert (done.data.attempts, done.data.crashes) == (2, 1)
        assert 3 <= done.result["resumed_at"] <= PAGES
        assert done.outputs[output].text().count(WORDS) == PAGES
