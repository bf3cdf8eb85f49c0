"""Queries about jobs: single jobs, lists, counts, logs, history and explanations."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypedDict, Unpack

import msgspec

from ingot.identity.ports import GetTenant
from ingot.jobs import checks
from ingot.jobs.attempt_logs import JobFollowers
from ingot.jobs.errors import AttemptNotFound, BatchNotFound, JobNotFound
from ingot.jobs.explanation import NO_WORKERS, WORKERS_SHOWN_MAX, KnownWorkers, explain, without_other_jobs
from ingot.jobs.files import JobFile, ListJobFiles
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.metrics import LANES_MAX, TENANTS_MAX, Depth, Load, StoreDescription
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
    DescribeStore,
    GetBatch,
    GetJob,
    GetWaitState,
    GetWorker,
    JobFilter,
    JobStore,
    ListAttempts,
    ListHistory,
    ListJobs,
    ListQueueDepths,
    ListWorkers,
    ListWorkersOfType,
    PreviewRetention,
    ReadLog,
    SummarizeJobs,
)
from ingot.jobs.worker_model import WorkerStatus, silent_seconds
from ingot.kernel import validation
from ingot.kernel.clock import MICROS
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX, Page, check_limit, decode_cursor, encode_cursor
from ingot.kernel.waits import wait_for

PAGE_BYTES_MAX: Final = 1024 * 1024  # Payloads, metadata and results of a page. Its last job may exceed this.
FIRST_QUERY_JOBS_MAX: Final = 64
WORKERS_OF_TYPE_MAX: Final = 100
POLL_SECONDS_MIN: Final = 0.1
POLL_SECONDS_MAX: Final = 1.0


class JobFilters(TypedDict, total=False):
    """Filters that select jobs. A job must match all of them.

    `created_after` is inclusive, `created_before` is exclusive.
    """

    status: JobStatus | None
    type: str | None
    tag: str | None
    source: Source | None
    created_after: datetime | None
    created_before: datetime | None


class JobQueries:
    """The methods of `Jobs` that only read."""

    def __init__(self, store: JobStore, *, lease_seconds: float) -> None:
        self._store = store
        self._silent_after = round(silent_seconds(lease_seconds) * MICROS)
        self.job_followers = JobFollowers()  # Callers that wait until a job is finished.
        self._closing = False

    async def get(self, tenant: str, job_id: str) -> Job:
        """Return the current state of a job. Raises `JobNotFound`, also for a job of another tenant."""
        job = await self._store.run(GetJob(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))
        if job is None:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        return job

    async def wait(self, tenant: str, job_id: str, *, seconds: float) -> Job:
        """Return the job when it is finished, or its state after `seconds`. Raises `JobNotFound`.

        A job that ends in this process is returned at once. A job that ends in another process is found by polling.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + validation.check_seconds(seconds, name="wait_seconds", maximum=checks.WAIT_SECONDS_MAX)
        pause = POLL_SECONDS_MIN
        with self.job_followers.follow(job_id) as woken:
            while True:
                woken.clear()
                job = await self.get(tenant, job_id)
                if job.status in FINISHED or now() >= deadline or self._closing:
                    return job
                await wait_for(woken, min(pause, deadline - now()))
                pause = min(2 * pause, POLL_SECONDS_MAX)

    async def list(
        self,
        tenant: str,
        *,
        cursor: str | None = None,
        limit: int = PAGE_ROWS_DEFAULT,
        **filters: Unpack[JobFilters],
    ) -> Page[Job]:
        """Return a page of the jobs of a tenant that match all filters, newest first.

        A page may be short although more jobs follow. Raises `InvalidCursor` for a cursor of another list.
        """
        job_filter = _job_filter(tenant, **filters)
        bound_to = ("jobs", *(None if value is None else str(value) for value in msgspec.structs.astuple(job_filter)))
        before = (
            None if cursor is None else decode_cursor(validation.check_text(cursor, name="cursor"), bound_to=bound_to)
        )
        jobs, position = await _read_page(self._store, job_filter, before, check_limit(limit))
        return Page(items=jobs, next_cursor=None if position is None else encode_cursor(position, bound_to=bound_to))

    async def attempts(self, tenant: str, job_id: str) -> Sequence[Attempt]:
        """Return the attempts of a job, oldest first. Raises `JobNotFound`."""
        attempts = await self._store.run(ListAttempts(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))
        if not attempts:
            await self.get(tenant, job_id)
        return attempts

    async def log(self, tenant: str, job_id: str, *, attempt: int | None = None, after: int = 0) -> JobLog:
        """Return the log of an attempt, by default the newest, from the character `after` on.

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
            raise AttemptNotFound(f"there is no attempt {attempt} of this job, which has had {job.attempts} attempts")
        return log

    async def files(self, tenant: str, job_id: str) -> Sequence[JobFile]:
        """Return the files of a job, ordered by kind and name. Raises `JobNotFound`."""
        return await self._store.run(ListJobFiles(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))

    async def summary(self, tenant: str, **filters: Unpack[JobFilters]) -> Summary:
        """Count the jobs of a tenant that match all filters, by status.

        With filters by status and type, the counts are exact. With other filters, a bounded number of jobs is examined,
        newest first. Then `more` is true if there may be others, and `oldest_queued_seconds` is `None`.
        """
        job_filter = _job_filter(tenant, **filters)
        if job_filter == JobFilter(tenant=job_filter.tenant, status=job_filter.status, type=job_filter.type):
            summary = await self._store.run(SummarizeJobs(tenant=job_filter.tenant, type=job_filter.type))
        else:
            matching, more = await self._store.run(CountMatchingJobs(where=job_filter))
            counts = {status: matching.get(status, 0) for status in JobStatus}
            running = counts[JobStatus.RUNNING]
            summary = Summary(counts=counts, running=running, oldest_queued_seconds=None, more=more)
        return summary if job_filter.status is None else _narrow_to_status(job_filter.status, summary)

    async def depths(self) -> Sequence[Depth]:
        """Count the jobs of all tenants by status, and measure how long the oldest ready job of each has waited.

        The cost is bounded.
        """
        return await self._store.run(ListQueueDepths(tenants_max=TENANTS_MAX, lanes_max=LANES_MAX))

    async def load(self) -> Load:
        """Measure the current load of the store."""
        return await self._store.measure_load()

    async def describe_store(self) -> StoreDescription:
        """Read the version, the schema and the size of the database. On PostgreSQL, this looks at every file of it."""
        return await self._store.run(DescribeStore())

    async def explain(
        self,
        tenant: str,
        job_id: str,
        *,
        names_workers: bool = True,
        names_jobs: bool = True,
        all_tenants: bool = False,
    ) -> Explanation:
        """Explain why a job is not running or how it ended, as text and as data. Raises `JobNotFound`.

        Without `names_workers`, waiting jobs are explained without the names of workers. Without `names_jobs`, the
        state of other jobs is not mentioned. With `all_tenants`, shared workers and those of other tenants that run
        this type are named as well.
        """
        waiting = await self._store.run(GetWaitState(tenant=checks.tenant_id(tenant), job_id=checks.job_id(job_id)))
        if waiting is None:
            raise JobNotFound(f"there is no job {job_id[:64]!r} in this tenant")
        workers = await self._known_workers(waiting.job, all_tenants=all_tenants)
        if not names_jobs:
            waiting = without_other_jobs(waiting)
        return explain(waiting, workers, named=names_workers, shared_named=all_tenants)

    async def _known_workers(self, job: Job, *, all_tenants: bool) -> KnownWorkers:
        """Return the registered workers that matter for the explanation of a queued or running job."""
        silent_after = self._silent_after
        if job.status is JobStatus.RUNNING and job.worker_id is not None:
            for owner in (job.tenant, None):
                command = GetWorker(tenant=owner, worker_id=job.worker_id, silent_after=silent_after)
                if (worker := await self._store.run(command)) is not None:
                    return KnownWorkers(of_type=[worker])
        if job.status is not JobStatus.QUEUED:
            return NO_WORKERS
        query = ListWorkersOfType(
            tenant=job.tenant, type=job.type, limit=WORKERS_OF_TYPE_MAX, silent_after=silent_after
        )
        of_type = await self._store.run(query)
        if any(worker.status is WorkerStatus.ONLINE for worker in of_type):
            return KnownWorkers(of_type=of_type)
        others = ListWorkers(tenant=job.tenant, after=None, limit=PAGE_ROWS_MAX, silent_after=silent_after)
        return KnownWorkers(
            silent_seconds=silent_after / MICROS,
            of_type=of_type,
            of_tenant=await self._store.run(others),
            elsewhere=await self._workers_elsewhere(query) if all_tenants else (),
        )

    async def _workers_elsewhere(self, query: ListWorkersOfType) -> Sequence[tuple[str, str]]:
        """Return some workers of other tenants that run a type, each with the slug of its tenant."""
        query = msgspec.structs.replace(query, of_other_tenants=True, limit=WORKERS_SHOWN_MAX)
        workers = []
        for worker in await self._store.run(query):
            tenant = await self._store.run(GetTenant(id_or_slug=worker.tenant or ""))
            if tenant is not None:
                workers.append((tenant.slug, worker.id))
        return workers

    async def batch(self, tenant: str, batch: str) -> Batch:
        """Count the jobs of a batch. Raises `BatchNotFound`."""
        name = validation.check_length(
            validation.check_text(batch, name="batch"), name="batch", chars_max=checks.BATCH_CHARS_MAX
        )
        counts = await self._store.run(GetBatch(tenant=checks.tenant_id(tenant), batch=name))
        if counts is None:
            raise BatchNotFound(f"there is no batch {name!r} in this tenant")
        return counts

    async def preview_retention(self, tenant: str) -> Sequence[RetentionPreview]:
        """Count the finished jobs of a tenant that collections would remove now, by type. Changes nothing."""
        return await self._store.run(PreviewRetention(tenant=checks.tenant_id(tenant)))

    async def history(
        self, tenant: str, *, type: str | None = None, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[HistoryEntry]:
        """Return a page of the history entries of a tenant's removed jobs, last finished first.

        Raises `InvalidCursor`.
        """
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
        """Count a tenant's jobs by type and status, exactly. Zeros are omitted."""
        return await self._store.run(CountJobs(tenant=checks.tenant_id(tenant)))


async def _read_page(
    store: JobStore, job_filter: JobFilter, before: str | None, limit: int
) -> tuple[list[Job], str | None]:
    """Read jobs until there are `limit` jobs or `PAGE_BYTES_MAX` bytes of them.

    The first query is small. The size of the next ones follows from the average size of the jobs read so far.
    """
    jobs: list[Job] = []
    total_bytes, query_limit = 0, min(limit, FIRST_QUERY_JOBS_MAX)
    while True:
        query_jobs, before = await store.run(ListJobs(where=job_filter, before=before, limit=query_limit))
        jobs += query_jobs
        total_bytes += sum(len(job.payload) + len(job.metadata) + len(job.result) for job in query_jobs)
        if before is None or len(query_jobs) < query_limit or len(jobs) == limit or total_bytes >= PAGE_BYTES_MAX:
            return jobs, before
        jobs_that_fit = round((PAGE_BYTES_MAX - total_bytes) * len(jobs) / max(1, total_bytes))
        query_limit = min(limit - len(jobs), max(1, jobs_that_fit))


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
    """Return a filter whose fields are all valid."""
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
    """Reduce a summary to one status."""
    jobs = summary.counts[status]
    age = summary.oldest_queued_seconds if status is JobStatus.QUEUED else None
    running = jobs if status is JobStatus.RUNNING else 0
    return Summary(counts={status: jobs}, running=running, oldest_queued_seconds=age, more=summary.more)
