"""Looking at jobs: one, many, in numbers, and why they are where they are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypedDict, Unpack

import msgspec

from ingot.jobs import checks
from ingot.jobs.attempt_logs import JobFollowers
from ingot.jobs.errors import AttemptNotFound, BatchNotFound, JobNotFound
from ingot.jobs.explanation import explain
from ingot.jobs.files import JobFile, ListJobFiles
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.metrics import LANES_MAX, TENANTS_MAX, Depth, Load
from ingot.jobs.model import (
    Attempt,
    Batch,
    Explanation,
    HistoryEntry,
    Job,
    JobLog,
    JobStatus,
    RetentionPreview,
    Source,
    Summary,
)
from ingot.jobs.ports import (
    CountJobs,
    CountMatchingJobs,
    GetBatch,
    GetJob,
    GetWaitState,
    JobFilter,
    JobStore,
    ListAttempts,
    ListHistory,
    ListJobs,
    ListQueueDepths,
    PreviewRetention,
    ReadLog,
    SummarizeJobs,
)
from ingot.kernel import validation
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor, encode_cursor
from ingot.kernel.waits import wait_for

PAGE_BYTES_MAX: Final = 4 * 1024 * 1024  # Of payloads, metadata and results; the last job of a page may go beyond.
FIRST_QUERY_JOBS_MAX: Final = 64
POLL_SECONDS_MIN: Final = 0.1
POLL_SECONDS_MAX: Final = 1.0


class JobFilters(TypedDict, total=False):
    """Which jobs are meant: those that fit every filter.

    Jobs made at `created_after` are meant, those made at `created_before` are not.
    """

    status: JobStatus | None
    type: str | None
    tag: str | None
    source: Source | None
    created_after: datetime | None
    created_before: datetime | None


class JobQueries:
    """The part of `Jobs` that changes nothing."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self.job_followers = JobFollowers()  # Of jobs, until they are finished.
        self._closing = False

    async def get(self, tenant: str, job_id: str) -> Job:
        """The job as it stands. Raises `JobNotFound`, for another tenant's job too."""
        job = await self._store.run(GetJob(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))
        if job is None:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return job

    async def wait(self, tenant: str, job_id: str, *, seconds: float) -> Job:
        """The job once it is finished, or as it stands after so many seconds. Raises `JobNotFound`.

        What ends in this process is told at once; what ends elsewhere is found by looking again.
        """
        now = asyncio.get_running_loop().time
        until = now() + validation.check_seconds(seconds, name="wait_seconds", maximum=checks.WAIT_SECONDS_MAX)
        pause = POLL_SECONDS_MIN
        with self.job_followers.follow(job_id) as news:
            while True:
                news.clear()
                job = await self.get(tenant, job_id)
                if job.status in FINISHED or now() >= until or self._closing:
                    return job
                await wait_for(news, min(pause, until - now()))
                pause = min(2 * pause, POLL_SECONDS_MAX)

    async def list(
        self,
        tenant: str,
        *,
        cursor: str | None = None,
        limit: int = PAGE_ROWS_DEFAULT,
        **filters: Unpack[JobFilters],
    ) -> Page[Job]:
        """A page of a tenant's jobs that fit every filter given, newest first.

        A page may be short although there are more. Raises `InvalidCursor` for a cursor of another list.
        """
        where = _job_filter(tenant, **filters)
        bound_to = ("jobs", *(None if value is None else str(value) for value in msgspec.structs.astuple(where)))
        before = (
            None if cursor is None else decode_cursor(validation.check_text(cursor, name="cursor"), bound_to=bound_to)
        )
        jobs, position = await _read_page(self._store, where, before, check_limit(limit))
        return Page(items=jobs, next_cursor=None if position is None else encode_cursor(position, bound_to=bound_to))

    async def attempts(self, tenant: str, job_id: str) -> Sequence[Attempt]:
        """The attempts of a job, oldest first. Raises `JobNotFound`."""
        attempts = await self._store.run(ListAttempts(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))
        if not attempts:
            await self.get(tenant, job_id)
        return attempts

    async def log(self, tenant: str, job_id: str, *, attempt: int | None = None, after: int = 0) -> JobLog:
        """What an attempt wrote from the character `after` on; without an `attempt`, the newest.

        Raises `JobNotFound` or `AttemptNotFound`.
        """
        if attempt is not None:
            validation.check_integer(attempt, name="attempt", minimum=0, maximum=validation.NUMBER_MAX)
        validation.check_integer(after, name="after", minimum=0, maximum=validation.NUMBER_MAX)
        log = await self._store.run(
            ReadLog(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id), attempt=attempt, after=after)
        )
        if log is None:
            job = await self.get(tenant, job_id)
            raise AttemptNotFound(f"the job has had {job.attempts} attempts, and none with the number {attempt}")
        return log

    async def files(self, tenant: str, job_id: str) -> Sequence[JobFile]:
        """The files of a job, by kind and name. Raises `JobNotFound`."""
        return await self._store.run(ListJobFiles(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))

    async def summary(self, tenant: str, **filters: Unpack[JobFilters]) -> Summary:
        """Counts of a tenant's jobs that fit every filter given, by status.

        By status and type they are exact. For the other filters a bounded number of jobs is looked at, newest first,
        and `more` tells when there are others; how long work has been waiting is not told then.
        """
        where = _job_filter(tenant, **filters)
        if where == JobFilter(tenant=where.tenant, status=where.status, type=where.type):
            found = await self._store.run(SummarizeJobs(tenant=where.tenant, type=where.type))
        else:
            fitting, more = await self._store.run(CountMatchingJobs(where=where))
            counts = {each: fitting.get(each, 0) for each in JobStatus}
            running = counts[JobStatus.RUNNING]
            found = Summary(counts=counts, running=running, oldest_queued_seconds=None, more=more)
        return found if where.status is None else _narrow_to_status(where.status, found)

    async def depths(self) -> Sequence[Depth]:
        """The jobs of all tenants by status, and how long the oldest ready of each has waited. Bounded in cost."""
        return await self._store.run(ListQueueDepths(tenants_max=TENANTS_MAX, lanes_max=LANES_MAX))

    async def load(self) -> Load:
        """How much the store has to do at this moment."""
        return await self._store.measure_load()

    async def explain(self, tenant: str, job_id: str) -> Explanation:
        """Why a job is not running, in words and as data. Raises `JobNotFound`."""
        waiting = await self._store.run(GetWaitState(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))
        if waiting is None:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return explain(waiting)

    async def batch(self, tenant: str, batch: str) -> Batch:
        """The jobs enqueued under this name, in numbers. Raises `BatchNotFound`."""
        name = validation.check_length(
            validation.check_text(batch, name="batch"), name="batch", chars_max=checks.BATCH_CHARS_MAX
        )
        found = await self._store.run(GetBatch(tenant=checks.tenant_id(tenant), batch=name))
        if found is None:
            raise BatchNotFound(f"there is no batch {name!r} in this tenant")
        return found

    async def preview_retention(self, tenant: str) -> Sequence[RetentionPreview]:
        """What collections would remove of a tenant's finished jobs now, by type. Changes nothing."""
        return await self._store.run(PreviewRetention(tenant=checks.tenant_id(tenant)))

    async def history(
        self, tenant: str, *, type: str | None = None, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[HistoryEntry]:
        """A page of what is kept of a tenant's removed jobs, last finished first. Raises `InvalidCursor`."""
        tenant, type = checks.tenant_id(tenant), checks.filter_text(type, name="type")
        bound_to = ("history", tenant, type)
        before = (
            None if cursor is None else decode_cursor(validation.check_text(cursor, name="cursor"), bound_to=bound_to)
        )
        entries, position = await self._store.run(
            ListHistory(tenant=tenant, type=type, before=before, limit=check_limit(limit))
        )
        return Page(items=entries, next_cursor=None if position is None else encode_cursor(position, bound_to=bound_to))

    async def counts(self, tenant: str) -> Mapping[str, Mapping[JobStatus, int]]:
        """Exact counts of a tenant's jobs by type and status. What there is none of is left out."""
        return await self._store.run(CountJobs(tenant=checks.tenant_id(tenant)))


async def _read_page(store: JobStore, where: JobFilter, before: str | None, limit: int) -> tuple[list[Job], str | None]:
    """Read on until there are enough jobs, or enough bytes of them: first a few, then by what those weigh."""
    jobs: list[Job] = []
    weight, step = 0, min(limit, FIRST_QUERY_JOBS_MAX)
    while True:
        found, before = await store.run(ListJobs(where=where, before=before, limit=step))
        jobs += found
        weight += sum(len(job.payload) + len(job.metadata) + len(job.result) for job in found)
        if before is None or len(found) < step or len(jobs) == limit or weight >= PAGE_BYTES_MAX:
            return jobs, before
        step = min(limit - len(jobs), max(1, round((PAGE_BYTES_MAX - weight) * len(jobs) / max(1, weight))))


def _job_filter(
    tenant: object,
    *,
    status: object = None,
    type: object = None,
    tag: object = None,
    source: object = None,
    created_after: object = None,
    created_before: object = None,
) -> JobFilter:
    """A filter whose every value can be used."""
    return JobFilter(
        tenant=checks.tenant_id(tenant),
        status=None if status is None else checks.status(status),
        type=checks.filter_text(type, name="type"),
        tag=checks.filter_text(tag, name="tag"),
        source=None if source is None else checks.source(source),
        created_after=checks.timestamp(created_after),
        created_before=checks.timestamp(created_before),
    )


def _narrow_to_status(status: JobStatus, summary: Summary) -> Summary:
    """What a summary tells about one status."""
    jobs = summary.counts[status]
    age = summary.oldest_queued_seconds if status is JobStatus.QUEUED else None
    running = jobs if status is JobStatus.RUNNING else 0
    return Summary(counts={status: jobs}, running=running, oldest_queued_seconds=age, more=summary.more)
