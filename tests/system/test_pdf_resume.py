"""A worker that is killed in the middle of a document: the next attempt goes on at the page that was reached."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from ingot.client.synchronous.job import SyncJob
from scripts.make_samples import scan
from tests.providers.programs import fonts, tesseract
from tests.system.deployment import crew
from tests.waiting import until

pytestmark = [pytest.mark.tesseract, pytest.mark.fonts, pytest.mark.long]

APP = "tests.system.limited_handlers:worker"
PAGES = 10
WORDS = "The next meeting is in June."


def scanned_pages() -> bytes:
    """Ten pages that take their time: each has to be read."""
    fonts()
    picture, made = io.BytesIO(), io.BytesIO()
    scan().save(picture, "JPEG", quality=45)
    canvas = Canvas(made, pagesize=(528, 365), invariant=1)
    for _ in range(PAGES):
        canvas.drawImage(ImageReader(picture), 0, 0, 528, 365)
        canvas.showPage()
    canvas.save()
    return made.getvalue()


def page_reached(job: SyncJob) -> int:
    progress = job.refresh().data.progress
    return 0 if progress is None else int(progress.stage.split()[1])


@pytest.mark.parametrize(("type", "output"), [("pdf", "minutes.md"), ("ocr", "minutes.txt")])
def test_a_document_resumes_at_the_page_where_its_worker_was_killed(tmp_path: Path, type: str, output: str) -> None:
    tesseract()
    with crew(tmp_path, lease_seconds=2) as one:
        first = one.work(app=APP)
        job = one.client.submit(type, file={"minutes.pdf": scanned_pages()})
        until(lambda: page_reached(job) >= 3, seconds=120, why="page 3 was reached")
        first.kill()
        one.work(app=APP)
        done = job.wait("200s")
        assert (done.data.attempts, done.data.crashes) == (2, 1)
        assert 3 <= done.result["resumed_at"] <= PAGES
        assert done.outputs[output].text().count(WORDS) == PAGES
