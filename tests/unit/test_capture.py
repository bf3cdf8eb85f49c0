"""Captured output of handlers."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from ingot.jobs.model import Job, JobStatus, Source
from ingot.worker.capture import capture_job_output, capture_process_output
from ingot.worker.job import WorkerJob

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(
    id="job", tenant="tenant", type="print", status=JobStatus.RUNNING, priority=3, payload=msgspec.Raw(b"null"),
    run_at=NOW, attempts=1, failures=0, crashes=0, max_attempts=5, fence=1, source=Source.MANUAL, depth=0,
    created_at=NOW,
)  # fmt: skip


def test_a_log_record_that_cannot_be_formatted_does_not_fail_the_job() -> None:
    job = WorkerJob(JOB)
    with capture_process_output():
        log_handler = logging.getLogger().handlers[-1]
        with capture_job_output(job):
            log_handler.handle(logging.makeLogRecord({"msg": "%d items", "args": ("three",)}))
            log_handler.handle(logging.makeLogRecord({"msg": "%d items", "args": (3,), "name": "mine"}))
    log = job.pending_update().log
    assert "Logging error" in log
    assert log.endswith("mine: 3 items\n")
