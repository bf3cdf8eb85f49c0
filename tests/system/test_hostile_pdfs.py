"""Hostile PDFs fail at most their own job, with a clear error, and the worker keeps running."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ingot.client.errors import JobDead
from ingot.client.synchronous.job import SyncJob
from tests.hostile_pdfs import HOSTILE, good
from tests.system.deployment import Deployment, LoggedProcess, deploy, wait_until_finished

pytestmark = pytest.mark.long

HostileJobs = tuple[Deployment, LoggedProcess, dict[str, SyncJob]]
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
HARMLESS = sorted(HOSTILE.keys() - REFUSED.keys())  # They claim large resources but need few.


@pytest.fixture(scope="module")
def hostile_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileJobs]:
    """A server, a worker, and a job for each hostile file."""
    with deploy(tmp_path_factory.mktemp("hostile")) as deployment:
        worker = deployment.start_worker(app=APP)
        jobs = {
            name: deployment.client.submit("pdf", file={f"{name}.pdf": make()}, max_attempts=1)
            for name, make in HOSTILE.items()
        }
        yield deployment, worker, jobs


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_pdf_fails_with_a_clear_error(hostile_jobs: HostileJobs, name: str) -> None:
    _, worker, jobs = hostile_jobs
    with pytest.raises(JobDead):
        jobs[name].wait("240s")
    assert re.search(REFUSED[name], jobs[name].error or ""), jobs[name].error
    assert jobs[name].data.attempts == 1
    assert worker.is_running


@pytest.mark.parametrize("name", HARMLESS)
def test_a_hostile_pdf_that_needs_few_resources_is_converted(hostile_jobs: HostileJobs, name: str) -> None:
    _, _, jobs = hostile_jobs
    assert jobs[name].wait("240s").result["pages"] == 1


def test_a_good_pdf_is_converted_after_all_hostile_ones(hostile_jobs: HostileJobs) -> None:
    deployment, worker, jobs = hostile_jobs
    wait_until_finished(jobs.values(), seconds=240)
    done = deployment.client.submit("pdf", file={"good.pdf": good()}).wait("60s")
    assert "A good page." in done.outputs["good.md"].text()
    assert worker.is_running
