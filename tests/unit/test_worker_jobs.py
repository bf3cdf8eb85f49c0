"""The job that a handler works on."""

from __future__ import annotations

import gc
import weakref
from datetime import UTC, datetime

import msgspec

from ingot.jobs.model import Job, JobStatus, Source
from ingot.worker.job import WorkerJob

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(
    id="job", tenant="tenant", type="plain", status=JobStatus.RUNNING, priority=3, payload=msgspec.Raw(b"null"),
    run_at=NOW, attempts=1, failures=0, crashes=0, max_attempts=5, fence=1, source=Source.MANUAL, depth=0,
    created_at=NOW,
)  # fmt: skip


def test_a_job_without_files_is_freed_without_the_garbage_collector() -> None:
    job = WorkerJob(JOB)
    job.progress(50, "half")
    assert job.outputs == []
    freed = weakref.ref(job)
    gc.disable()
    try:
        del job
        assert freed() is None
    finally:
        gc.enable()
