"""What tests of the files of jobs have in common."""

from __future__ import annotations

from typing import Any

from ingot.jobs import Claim, Job, JobStatus
from tests.conformance.blob_fixture import OWNER, BlobFixture, id_of

BLOCKED, QUEUED, RUNNING = JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING
SUCCEEDED, CANCELED = JobStatus.SUCCEEDED, JobStatus.CANCELED
DATA = b"what jobs read"
BLOB = id_of(DATA)
SIZE = len(DATA)


async def claim(blobs: BlobFixture, job: Job | None = None, *, worker: str = "worker") -> Claim:
    """The next job, which is this one."""
    (found,) = await blobs.bench.jobs.claim(worker, ["noop"])
    assert job is None or found.job.id == job.id
    blobs.jobs.setdefault(found.job.id, OWNER)
    return found


async def upload(blobs: BlobFixture, claim: Claim, name: str, data: bytes, file: str = "output") -> str:
    """Upload a file of an attempt, and answer the id of its upload."""
    for_job: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": file, "name": name}
    begun = await blobs.begin(len(data), **for_job)
    await blobs.finish(begun.upload.id, data)
    return begun.upload.id


async def status(blobs: BlobFixture, job: Job) -> JobStatus:
    """How a job stands."""
    return (await blobs.bench.reload(job)).status
