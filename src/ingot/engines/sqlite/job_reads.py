"""Reads of jobs: single jobs, pages, attempts, logs, counters, and the reasons why a job waits."""

from __future__ import annotations

import msgspec

from ingot.engines.jobs import scopes_of
from ingot.engines.queue_depth import depth_of, summary_of
from ingot.engines.sqlite.job_pages import PAGE_ROWS_MAX, JobPageReader
from ingot.engines.sqlite.job_rows import JobRow, JobState, LoggedAttempt, job_of
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import as_json
from ingot.engines.sqlite.writer_state import ALL_TYPES
from ingot.jobs import ports
from ingot.jobs.attempt_logs import LogChunk, join_chunks
from ingot.jobs.metrics import Depth
from ingot.jobs.model import JOBS_AHEAD_MAX, Attempt, Batch, Job, JobLog, JobStatus, LimitUsage, Summary, WaitState
from ingot.kernel.clock import to_datetime, to_datetime_or_none

COUNTED_PAGES_MAX = 10_000 // PAGE_ROWS_MAX
ROWS_PER_QUERY = 50  # Decoding more at once would keep the event loop from running for long.
SUMMARY_LANES_MAX = 1_000  # Lanes that are searched for the oldest ready job.


def get_job(reader: Reader, command: ports.GetJob) -> Job | None:
    """Read a job of a tenant."""
    with reader.snapshot():  # The number and the job are read in one snapshot.
        number = reader.execute(SQL.number_of_job, command.job_id, command.tenant).get
        jobs = [] if number is None else _whole_jobs(reader, [number])
    return jobs[0] if jobs else None


def _whole_jobs(reader: Reader, numbers: list[int]) -> list[Job]:
    jobs: list[Job] = []
    for start in range(0, len(numbers), ROWS_PER_QUERY):
        chunk = numbers[start : start + ROWS_PER_QUERY]
        rows = {row.state.number: row for row in reader.read(list[JobRow], SQL.whole_jobs, as_json(chunk))}
        jobs += [job_of(rows[number].state, rows[number].body) for number in chunk]
    return jobs


def list_jobs(reader: Reader, command: ports.ListJobs) -> tuple[list[Job], str | None]:
    """Read a page of jobs, newest first, and the position to continue from."""
    pages = JobPageReader(reader.connection, reader.writer_state.number_of(command.where.tenant), command.where)
    with reader.snapshot():
        numbers, position = pages.read(command.before, command.limit)
        jobs = _whole_jobs(reader, numbers)
    return jobs, position


def count_matching_jobs(reader: Reader, command: ports.CountMatchingJobs) -> tuple[dict[JobStatus, int], bool]:
    """Count the jobs that match a filter by status, and report whether there may be more."""
    pages = JobPageReader(reader.connection, reader.writer_state.number_of(command.where.tenant), command.where)
    matching: list[int] = []
    position: str | None = None
    with reader.snapshot():
        for _ in range(COUNTED_PAGES_MAX):
            numbers, position = pages.read(position, PAGE_ROWS_MAX)
            matching += numbers
            if position is None:
                break
        counts = reader.read(dict[JobStatus, int], SQL.count_jobs_by_status, as_json(matching))
    return counts, position is not None


def list_attempts(reader: Reader, command: ports.ListAttempts) -> list[Attempt]:
    """Read the attempts of a job, oldest first."""
    return reader.read(list[Attempt], SQL.attempts_of_job, command.job_id, command.tenant)


def read_log(reader: Reader, command: ports.ReadLog) -> JobLog | None:
    """Read the log of an attempt, up to the next gap."""
    after = command.after
    with reader.snapshot():  # One snapshot, so that the log of a finished job is complete.
        attempt = reader.find(LoggedAttempt, SQL.logged_attempt, command.job_id, command.tenant, command.attempt)
        chunks = attempt and reader.read(list[LogChunk], SQL.chunks_of_log, attempt.job, attempt.fence, after)
    if attempt is None:
        return None
    start, text = join_chunks(chunks or [], after=after)
    return JobLog(
        job_id=attempt.job_id,
        attempt=attempt.number,
        fence=attempt.fence,
        start=start,
        to=start + len(text),
        text=text,
        live=attempt.live,
        attempts=attempt.attempts,
        status=attempt.status,
    )


def summarize_jobs(reader: Reader, command: ports.SummarizeJobs) -> Summary:
    """Count the jobs of a tenant by status, and find the job that has been ready longest."""
    tenant = reader.writer_state.number_of(command.tenant)
    with reader.snapshot():
        counts = reader.read(dict[JobStatus, int], SQL.counts_by_status, tenant, command.type or ALL_TYPES)
        oldest = reader.execute(SQL.oldest_ready, tenant, command.type, SUMMARY_LANES_MAX).get
    return summary_of(counts, oldest, reader.clock.micros())


def count_jobs(reader: Reader, command: ports.CountJobs) -> dict[str, dict[JobStatus, int]]:
    """Count the jobs of a tenant by type and status."""
    counts: dict[str, dict[JobStatus, int]] = {}
    tenant = reader.writer_state.number_of(command.tenant)
    for type, status, jobs in reader.read(list[tuple[str, JobStatus, int]], SQL.counts_by_type, tenant):
        counts.setdefault(type, {})[status] = jobs
    return counts


def list_queue_depths(reader: Reader, command: ports.ListQueueDepths) -> list[Depth]:
    """Count the jobs of all tenants by status, and find the jobs that have been ready longest."""
    tenants_max = command.tenants_max
    with reader.snapshot():
        counts = reader.read(list[tuple[str | None, dict[JobStatus, int]]], SQL.queue_depths, tenants_max)
        rows = reader.read(list[tuple[str | None, int]], SQL.oldest_ready_by_tenant, tenants_max, command.lanes_max)
    oldest, now = dict(rows), reader.clock.micros()
    return [depth_of(tenant, tenant_counts, oldest.get(tenant), now) for tenant, tenant_counts in counts]


def get_batch(reader: Reader, command: ports.GetBatch) -> Batch | None:
    """Read the counters of a batch."""
    reader.writer_state.check_tenant(command.tenant)
    return reader.find(Batch, SQL.batch_of_tenant, command.tenant, command.batch)


def get_wait_state(reader: Reader, command: ports.GetWaitState) -> WaitState | None:
    """Read what keeps a job from running."""
    wait_state = None
    with reader.snapshot():
        number = reader.execute(SQL.number_of_job, command.job_id, command.tenant).get
        for row in [] if number is None else reader.read(list[JobRow], SQL.whole_jobs, as_json([number])):
            wait_state = _wait_state_of(reader, row)
    return wait_state


def _wait_state_of(reader: Reader, row: JobRow) -> WaitState:
    state = row.state
    times = (reader.writer_state.requested_at.get((state.type, tenant)) for tenant in (state.tenant, None))
    claimed_at = max((at for at in times if at is not None), default=None)
    now = to_datetime(reader.clock.micros())
    job, last_claim_at = job_of(state, row.body), to_datetime_or_none(claimed_at)
    wait_state = WaitState(job=job, now=now, limit_key=state.limit_key, last_claim_at=last_claim_at)
    if state.status is JobStatus.CANCELED or (state.status is JobStatus.RUNNING and state.cancel_requested):
        parents = reader.read(list[tuple[str, JobStatus]], SQL.failed_parents, state.number)
        by = reader.execute(SQL.canceled_by, state.number).get
        return msgspec.structs.replace(wait_state, parents=parents, canceled_by=by)
    if state.status is JobStatus.BLOCKED:
        parents = reader.read(list[tuple[str, JobStatus]], SQL.open_parents, state.number)
        uploads = reader.read(list[str], SQL.names_of_awaited_inputs, state.id)
        return msgspec.structs.replace(wait_state, parents=parents, uploads=uploads)
    if state.status is not JobStatus.QUEUED:
        return wait_state
    lane = (state.type, reader.writer_state.number_of(state.tenant), state.limit_key)
    position = (state.priority, state.run_at, state.id)
    ahead = reader.execute(SQL.count_ready_before, *lane, *position, JOBS_AHEAD_MAX).get
    pause = reader.writer_state.pauses.get((state.tenant, state.type))
    return msgspec.structs.replace(wait_state, jobs_ahead=ahead, pause=pause, limits=_limits(reader, state))


def _limits(reader: Reader, state: JobState) -> list[LimitUsage]:
    """Return the limits of a job, from the widest to the narrowest, and the running jobs under each."""
    concurrency_limits = reader.writer_state.concurrency_limits(state.tenant, state.type)
    number = reader.writer_state.number_of(state.tenant)
    limits: list[LimitUsage] = []
    for scope, maximum, type, key in scopes_of(concurrency_limits, state.type, state.limit_key):
        running, holders = reader.read(tuple[int, list[str]], SQL.running_under_limit, number, type, key)
        limits.append(LimitUsage(scope=scope, maximum=maximum, running=running, holders=holders))
    return limits
