"""The job source of a worker that connects to PostgreSQL directly, without a server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from ingot.engines.postgres.job_rows import STATUSES
from ingot.engines.postgres.worker_database import SettleValues, WorkerDatabase
from ingot.jobs import checks
from ingot.jobs.errors import LeaseLost
from ingot.jobs.model import JobStatus
from ingot.jobs.ports import AttemptHeartbeat, LogEntry
from ingot.jobs.worker_model import HeartbeatAnswer, heartbeat_seconds
from ingot.kernel.build import read_build
from ingot.kernel.clock import MICROS, to_datetime
from ingot.kernel.errors import IngotError
from ingot.kernel.redaction import NoRepr
from ingot.kernel.waits import wait_for, wait_until
from ingot.settings import LEASE_SECONDS
from ingot.wire.jobs import AttemptFailed, AttemptReleased, AttemptSnoozed, AttemptSucceeded, SettleResult
from ingot.wire.workers import JobHeartbeat, JobLeaseStatus, WorkerHeartbeatResponse
from ingot.worker.ports import ClaimedJob, ReportedOutcome

POLL_SECONDS: Final = 1.0
POLL_SECONDS_MIN: Final = 0.02  # Minimum interval between polls, however many notifications arrive.
CONNECTIONS_MAX: Final = 4
EMPTY_RESULTS: Final = (b"", b"null")

StopNotice = tuple[str, int, bool]  # A job ID, its fence, and whether the lease is lost (else the job was canceled).


class WorkerLogin(NoRepr, frozen=True, kw_only=True):
    """How a worker connects: the database URL, its instance name, and the duration of its leases.

    Without files, the worker claims only jobs that have no input files and no payload in a blob.
    """

    url: str
    instance: str
    lease_seconds: float
    pooled: bool = False
    with_files: bool = True


class PostgresJobSource:
    """Claims and settles jobs in a database. See `JobSource`."""

    def __init__(self, login: WorkerLogin) -> None:
        self._login = login
        self._connection: WorkerDatabase | None = None
        self._connect_lock = asyncio.Lock()
        self._reported_notices: frozenset[StopNotice] = frozenset()
        self._reported_drain = False
        self._draining = False
        self._ready_events: dict[str, asyncio.Event] = {}
        self._notified = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None

    async def register(self, types: Sequence[str]) -> float:
        """See `JobSource`."""
        await (await self._connect()).register(types, version=read_build().version)
        # Servers show a worker as silent after their own leases, which may be shorter than those of the worker.
        return heartbeat_seconds(min(self._login.lease_seconds, LEASE_SECONDS))

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:
        """See `JobSource`."""
        database = await self._connect()
        deadline = asyncio.get_running_loop().time() + wait_seconds
        ready = asyncio.Event()
        while not self._draining:
            ready.clear()
            claims = await database.claim(type, min(limit, checks.CLAIM_JOBS_MAX))
            if claims or not await self._wait_until_ready(type, ready, deadline):
                return [ClaimedJob(job=claim.job, timeout_seconds=claim.timeout_seconds) for claim in claims]
        return []

    async def heartbeat(self, heartbeats: Sequence[JobHeartbeat], *, wait_seconds: float) -> WorkerHeartbeatResponse:
        """See `JobSource`. A stop request that was returned before does not end the wait again."""
        database = await self._connect()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        renewals = [_lease_renewal(job) for job in heartbeats]
        await database.append_logs([_log_entry(job) for job in heartbeats if job.log])
        status = await database.heartbeat(renewals)
        while not self._has_changed(status) and (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(POLL_SECONDS, left))
            status = await database.read_status(renewals)
        self._reported_notices, self._reported_drain = _stop_notices(status), status.drain
        return WorkerHeartbeatResponse(jobs=[JobLeaseStatus.of(job) for job in status.jobs], drain=status.drain)

    async def settle(self, outcomes: Sequence[ReportedOutcome]) -> list[SettleResult]:
        """See `JobSource`."""
        rows = await (await self._connect()).settle([_settle_row(outcome) for outcome in outcomes])
        results = []
        for number, outcome in enumerate(outcomes):
            row = rows.get(number) or LeaseLost("the attempt has lost its job")
            if isinstance(row, IngotError):
                results.append(SettleResult(id=outcome.id, code=row.code, detail=row.detail))
                continue
            _, status, attempts, run_at = row
            next_run_at = None if run_at is None else to_datetime(run_at)
            new_status, queued = STATUSES[status], status == JobStatus.QUEUED
            results.append(
                SettleResult(id=outcome.id, status=new_status, attempts=attempts, will_retry=queued, run_at=next_run_at)
            )
        return results

    async def drain(self) -> None:
        """See `JobSource`."""
        self._draining = True
        for ready in self._ready_events.values():
            ready.set()

    async def leave(self) -> None:
        """See `JobSource`."""
        await (await self._connect()).unregister()

    async def close(self) -> None:
        """See `JobSource`."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait({self._poll_task})
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self) -> WorkerDatabase:
        async with self._connect_lock:
            if self._connection is None:
                self._connection = await WorkerDatabase.open(
                    self._login.url,
                    instance=self._login.instance,
                    lease=round(self._login.lease_seconds * MICROS),
                    connections=CONNECTIONS_MAX,
                    pooled=self._login.pooled,
                    with_files=self._login.with_files,
                )
            return self._connection

    # -- waiting for ready jobs -----------------------------------------------------------------------------

    async def _wait_until_ready(self, type: str, ready: asyncio.Event, deadline: float) -> bool:
        """Wait until jobs of this type may be ready. Return `False` if the deadline passed."""
        self._ready_events[type] = ready
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll_loop())
        try:
            return await wait_until(ready, deadline)
        finally:
            del self._ready_events[type]

    async def _poll_loop(self) -> None:
        """Poll for ready jobs about once a second, and after notifications, for all waiting claims."""
        database, loop = await self._connect(), asyncio.get_running_loop()
        was_notified = False
        while self._ready_events:
            await database.listen(self._notified.set)
            self._notified.clear()
            polled_at = loop.time()
            with suppress(IngotError):  # The next poll tries again.
                types = list(self._ready_events)
                if not was_notified or len(types) > 1:  # A claim of one type is as cheap as this call.
                    types = await database.ready_types(types)
                for type in types:
                    if (ready := self._ready_events.get(type)) is not None:
                        ready.set()
            was_notified = await wait_for(self._notified, POLL_SECONDS * random.uniform(0.9, 1.1))
            await asyncio.sleep(polled_at + POLL_SECONDS_MIN - loop.time())

    # -- stop requests --------------------------------------------------------------------------------------

    def _has_changed(self, status: HeartbeatAnswer) -> bool:
        return not _stop_notices(status) <= self._reported_notices or (status.drain and not self._reported_drain)


def _stop_notices(status: HeartbeatAnswer) -> frozenset[StopNotice]:
    return frozenset((job.job_id, job.fence, job.lost) for job in status.jobs if job.lost or job.cancel_requested)


def _lease_renewal(job: JobHeartbeat) -> AttemptHeartbeat:
    progress = job.progress
    if progress is None:
        return AttemptHeartbeat(job_id=job.id, fence=job.fence, lease=0)
    stage = checks.error_text(progress.stage)[: checks.STAGE_CHARS_MAX]
    return AttemptHeartbeat(job_id=job.id, fence=job.fence, lease=0, percent=progress.percent, stage=stage)


def _log_entry(job: JobHeartbeat) -> LogEntry:
    return LogEntry(job_id=job.id, fence=job.fence, text=checks.log_text(job.log), offset=job.log_offset or 0)


def _settle_row(outcome: ReportedOutcome) -> SettleValues:
    """Convert an outcome to a row of `ingot.worker_settle`: outcome, retry, delay, exit code, error, result."""
    match outcome:
        case AttemptSucceeded():
            result = bytes(outcome.result)
            return (
                outcome.id,
                outcome.fence,
                "succeeded",
                True,
                0,
                None,
                None,
                None if result in EMPTY_RESULTS else result,
            )
        case AttemptFailed():
            error = checks.error_text(outcome.error)
            name = "timed_out" if outcome.timed_out else "failed"
            return outcome.id, outcome.fence, name, outcome.retry, 0, outcome.exit_code, error, None
        case AttemptSnoozed():
            return outcome.id, outcome.fence, "snoozed", True, round(outcome.seconds * MICROS), None, None, None
        case AttemptReleased():
            return outcome.id, outcome.fence, "released", True, 0, None, None, None
