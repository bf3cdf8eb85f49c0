"""Files that nobody means well with cost their own job, at most: it says why, and the worker goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ingot.client.errors import JobDead
from ingot.client.synchronous.job import SyncJob
from tests.hostile_pdfs import HOSTILE, good
from tests.system.deployment import Crew, Process, all_of, crew

pytestmark = pytest.mark.long

Place = tuple[Crew, Process, dict[str, SyncJob]]
APP = "tests.system.limited_handlers:worker"
MEMORY = "the handler process .* ran out of memory|MemoryError"
REFUSED = {
    "many-pages": "100000 pages",
    "endless-tree": "the file is damaged",
    "deep-forms": MEMORY,
    "huge-image": "page 1 .* 50000 × 50000 pixels",
    "flate-bomb": MEMORY,
    "looping-objects": "the file is damaged",
    "zip-bomb": "the file is not a PDF: it looks like a ZIP archive",
}
HARMLESS = sorted(HOSTILE.keys() - REFUSED.keys())  # They ask for much, and get little.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server, a worker, and all hostile files in its hands."""
    with crew(tmp_path_factory.mktemp("hostile")) as one:
        worker = one.work(app=APP)
        jobs = {
            name: one.client.submit("pdf", file={f"{name}.pdf": make()}, max_attempts=1)
            for name, make in HOSTILE.items()
        }
        yield one, worker, jobs


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_pdf_fails_with_a_clear_error(place: Place, name: str) -> None:
    _, worker, jobs = place
    with pytest.raises(JobDead):
        jobs[name].wait("240s")
    assert re.search(REFUSED[name], jobs[name].error or ""), jobs[name].error
    assert jobs[name].data.attempts == 1
    assert worker.runs


@pytest.mark.parametrize("name", HARMLESS)
def test_a_hostile_pdf_that_needs_few_resources_is_converted(place: Place, name: str) -> None:
    _, _, jobs = place
    assert jobs[name].wait("240s").result["pages"] == 1


def test_a_good_pdf_is_converted_after_all_hostile_ones(place: Place) -> None:
    one, worker, jobs = place
    all_of(jobs.values(), seconds=240)
    done = one.client.submit("pdf", file={"good.pdf": good()}).wait("60s")
    assert "A good page." in done.outputs["good.md"].text()
    assert worker.runs
