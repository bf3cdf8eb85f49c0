"""What tests of jobs that wait for others have in common."""

from __future__ import annotations

import msgspec

from ingot.jobs import Job, JobStatus
from tests.conformance.job_endings import all_events
from tests.factories import Bench

BLOCKED, QUEUED, RUNNING = JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING
SUCCEEDED, DEAD, CANCELED = JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED


async def events_of(bench: Bench, job: Job) -> list[tuple[str, str]]:
    """What was told of a job: names and statuses."""
    told = []
    for event in await all_events(bench):
        news = msgspec.json.decode(event.data)
        if news.get("id") == job.id:
            told.append((event.name, news["status"]))
    return told
