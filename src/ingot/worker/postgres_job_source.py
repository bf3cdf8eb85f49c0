"""Work straight from PostgreSQL, without a server in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Final

from ingot.engines.postgres.job_rows import STATUSES
from ingot.engines.postgres.worker_database import SettleValues, WorkerDatabase
from ingot.jobs import checks
from ingot.jobs.errors import LeaseLost
from ingot.jobs.model import JobStatus
from ingot.jobs.ports import AttemptHeartbeat, LogEntry
from ingot.jobs.worker_model import HeartbeatAnswer
from ingot.kernel.clock import MICROS, to_datetime
from ingot.kernel.errors import IngotError
from ingot.kernel.redaction import NoRepr
from ingot.kernel.waits import wait_for, wait_until
from ingot.wire.jobs import AttemptFailed, AttemptReleased, AttemptSnoozed, AttemptSucceeded, SettleResult
from ingot.wire.workers import JobHeartbeat, JobLeaseStatus, WorkerHeartbeatResponse
from ingot.worker.ports import ClaimedJob, ReportedOutcome

POLL_SECONDS: Final = 1.0
POLL_SECONDS_MIN: Final = 0.02  # However often we are told that there may be work.
HEARTBEATS_PER_LEASE: Final = 3
CONNECTIONS_MAX: Final = 4
EMPTY_RESULTS: Final = (b"", b"null")

StopNotice = tuple[str, int, bool]  # A job, its fence, and whether it is lost; otherwise it is to stop.


class WorkerLogin(NoRepr, frozen=True, kw_only=True):
    """The database, the instance of the role that comes to it, and for how long what it claims is good."""

    url: str
    instance: str
    lease_seconds: float
    pooled: bool = False


class PostgresJobSource:
    """A database as a worker sees it."""

    def __init__(self, entrance: WorkerLogin) -> None:
        self._login = entrance
        self._connection: WorkerDatabase | None = None
        self._connect_lock = asyncio.Lock()
        self._reported_notices: frozenset[StopNotice] = frozenset()
        self._reported_drain = False
        self._draining = False
        self._ready_events: dict[str, asyncio.Event] = {}
        self._notified = asyncio.Event()
        self._poll_task: asyncio.Task[None] | None = None

    async def register(self, types: Sequence[str]) -> float:
        """See `Board`."""
        await (await self._connect()).register(types, version=version("ingot"))
        return self._login.lease_seconds / HEARTBEATS_PER_LEASE

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[ClaimedJob]:
        """See `Board`."""
        database = await self._connect()
        deadline = asyncio.get_running_loop().time() + wait_seconds
        ready = asyncio.Event()
        while not self._draining:
            ready.clear()
            claims = await database.claim(type, min(limit, checks.CLAIM_JOBS_MAX))
            if claims or not await self._wait_until_ready(type, ready, deadline):
                return [ClaimedJob(job=claim.job, timeout_seconds=claim.timeout_seconds) for claim in claims]
        return []

    async def heartbeat(self, held: Sequence[JobHeartbeat], *, wait_seconds: float) -> WorkerHeartbeatResponse:
        """See `Board`. What was told before is no news."""
        database = await self._connect()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        beats = [_lease_renewal(job) for job in held]
        await database.append_logs([_log_entry(job) for job in held if job.log])
        heard = await database.heartbeat(beats)
        while not self._has_changed(heard) and (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(POLL_SECONDS, left))
            heard = await database.read_status(beats)
        self._reported_notices, self._reported_drain = _stop_notices(heard), heard.drain
        return WorkerHeartbeatResponse(jobs=[JobLeaseStatus.of(one) for one in heard.jobs], drain=heard.drain)

    async def settle(self, endings: Sequence[ReportedOutcome]) -> list[SettleResult]:
        """See `Board`."""
        rows = await (await self._connect()).settle([_settle_row(ending) for ending in endings])
        answers = []
        for number, ending in enumerate(endings):
            row = rows.get(number) or LeaseLost("the attempt is ours no more")
            if isinstance(row, IngotError):
                answers.append(SettleResult(id=ending.id, code=row.code, detail=row.detail))
                continue
            _, status, attempts, run_at = row
            again_at = None if run_at is None else to_datetime(run_at)
            known, queued = STATUSES[status], status == JobStatus.QUEUED
            answers.append(
                SettleResult(id=ending.id, status=known, attempts=attempts, will_retry=queued, run_at=again_at)
            )
        return answers

    async def drain(self) -> None:
        """See `Board`."""
        self._draining = True
        for ready in self._ready_events.values():
            ready.set()

    async def leave(self) -> None:
        """See `Board`."""
        await (await self._connect()).unregister()

    async def close(self) -> None:
        """See `Board`."""
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
                )
            return self._connection

    # -- waiting for work -----------------------------------------------------------------------------------

    async def _wait_until_ready(self, type: str, ready: asyncio.Event, deadline: float) -> bool:
        """Wait for work of a type; whether there may be some."""
        self._ready_events[type] = ready
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll_loop())
        try:
            return await wait_until(ready, deadline)
        finally:
            del self._ready_events[type]

    async def _poll_loop(self) -> None:
        """Look for work about once a second, and when we are told that there may be some, for all that wait."""
        database, loop = await self._connect(), asyncio.get_running_loop()
        while self._ready_events:
            await database.listen(self._notified.set)
            self._notified.clear()
            looked_at = loop.time()
            with suppress(IngotError):  # It is looked again.
                for type in await database.ready_types(list(self._ready_events)):
                    if (ready := self._ready_events.get(type)) is not None:
                        ready.set()
            await wait_for(self._notified, POLL_SECONDS * random.uniform(0.9, 1.1))
            await asyncio.sleep(looked_at + POLL_SECONDS_MIN - loop.time())

    # -- what is news ---------------------------------------------------------------------------------------

    def _has_changed(self, heard: HeartbeatAnswer) -> bool:
        return not _stop_notices(heard) <= self._reported_notices or (heard.drain and not self._reported_drain)


def _stop_notices(heard: HeartbeatAnswer) -> frozenset[StopNotice]:
    return frozenset((one.job_id, one.fence, one.lost) for one in heard.jobs if one.lost or one.cancel_requested)


def _lease_renewal(job: JobHeartbeat) -> AttemptHeartbeat:
    done = job.progress
    if done is None:
        return AttemptHeartbeat(job_id=job.id, fence=job.fence, lease=0)
    stage = checks.error_text(done.stage)[: checks.STAGE_CHARS_MAX]
    return AttemptHeartbeat(job_id=job.id, fence=job.fence, lease=0, percent=done.percent, stage=stage)


def _log_entry(job: JobHeartbeat) -> LogEntry:
    return LogEntry(job_id=job.id, fence=job.fence, text=checks.log_text(job.log), offset=job.log_offset or 0)


def _settle_row(ending: ReportedOutcome) -> SettleValues:
    """An ending as a row of `ingot.worker_settle`: outcome, whether to try again, delay, exit code, error, result."""
    match ending:
        case AttemptSucceeded():
            result = bytes(ending.result)
            return (
                ending.id,
                ending.fence,
                "succeeded",
                True,
                0,
                None,
                None,
                None if result in EMPTY_RESULTS else result,
            )
        case AttemptFailed():
            error = checks.error_text(ending.error)
            return ending.id, ending.fence, "failed", ending.retry, 0, ending.exit_code, error, None
        case AttemptSnoozed():
            return ending.id, ending.fence, "snoozed", True, round(ending.seconds * MICROS), None, None, None
        case AttemptReleased():
            return ending.id, ending.fence, "released", True, 0, None, None, None
