"""Work straight from PostgreSQL, without a server in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Final

from ingot.engines.postgres.direct import Direct, Said
from ingot.engines.postgres.rows import STATUSES
from ingot.jobs import checks
from ingot.jobs.crew import Heard
from ingot.jobs.errors import LeaseLost
from ingot.jobs.model import JobStatus
from ingot.jobs.ports import Beat, LogEntry
from ingot.kernel.clock import MICROS, to_datetime
from ingot.kernel.errors import IngotError
from ingot.kernel.hidden import Unshown
from ingot.kernel.waits import wait_for, wait_until
from ingot.wire.jobs import Broke, Released, SettleAnswer, Snoozed, Succeeded
from ingot.wire.workers import HeldAnswer, HeldJob, WorkerBeatAnswer
from ingot.worker.ports import Ending, Work

LOOK_SECONDS: Final = 1.0
LOOK_SECONDS_MIN: Final = 0.02  # However often we are told that there may be work.
BEATS_PER_LEASE: Final = 3
CONNECTIONS_MAX: Final = 4
NO_RESULT: Final = (b"", b"null")

Matter = tuple[str, int, bool]  # A job, its fence, and whether it is lost; otherwise it is to stop.


class Entrance(Unshown, frozen=True, kw_only=True):
    """The database, the instance of the role that comes to it, and for how long what it claims is good."""

    url: str
    instance: str
    lease_seconds: float
    pooled: bool = False


class PostgresBoard:
    """A database as a worker sees it."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self._direct: Direct | None = None
        self._opening = asyncio.Lock()
        self._told: frozenset[Matter] = frozenset()
        self._told_drain = False
        self._draining = False
        self._waiting: dict[str, asyncio.Event] = {}
        self._hint = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def register(self, types: Sequence[str]) -> float:
        """See `Board`."""
        await (await self._database()).register(types, version=version("ingot"))
        return self._entrance.lease_seconds / BEATS_PER_LEASE

    async def claim(self, type: str, *, limit: int, wait_seconds: float) -> list[Work]:
        """See `Board`."""
        database = await self._database()
        deadline = asyncio.get_running_loop().time() + wait_seconds
        ready = asyncio.Event()
        while not self._draining:
            ready.clear()
            claims = await database.claim(type, min(limit, checks.CLAIM_JOBS_MAX))
            if claims or not await self._until_ready(type, ready, deadline):
                return [Work(job=claim.job, timeout_seconds=claim.timeout_seconds) for claim in claims]
        return []

    async def beat(self, held: Sequence[HeldJob], *, wait_seconds: float) -> WorkerBeatAnswer:
        """See `Board`. What was told before is no news."""
        database = await self._database()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        beats = [_beat(job) for job in held]
        await database.append_logs([_entry(job) for job in held if job.log])
        heard = await database.hear(beats)
        while not self._is_news(heard) and (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(LOOK_SECONDS, left))
            heard = await database.look(beats)
        self._told, self._told_drain = _matters(heard), heard.drain
        return WorkerBeatAnswer(jobs=[HeldAnswer.of(one) for one in heard.jobs], drain=heard.drain)

    async def settle(self, endings: Sequence[Ending]) -> list[SettleAnswer]:
        """See `Board`."""
        rows = await (await self._database()).settle([_said(ending) for ending in endings])
        answers = []
        for number, ending in enumerate(endings):
            row = rows.get(number) or LeaseLost("the attempt is ours no more")
            if isinstance(row, IngotError):
                answers.append(SettleAnswer(id=ending.id, code=row.code, detail=row.detail))
                continue
            _, status, attempts, run_at = row
            again_at = None if run_at is None else to_datetime(run_at)
            known, queued = STATUSES[status], status == JobStatus.QUEUED
            answers.append(
                SettleAnswer(id=ending.id, status=known, attempts=attempts, will_retry=queued, run_at=again_at)
            )
        return answers

    async def drain(self) -> None:
        """See `Board`."""
        self._draining = True
        for ready in self._waiting.values():
            ready.set()

    async def leave(self) -> None:
        """See `Board`."""
        await (await self._database()).leave()

    async def close(self) -> None:
        """See `Board`."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        if self._direct is not None:
            await self._direct.close()

    async def _database(self) -> Direct:
        async with self._opening:
            if self._direct is None:
                self._direct = await Direct.open(
                    self._entrance.url,
                    instance=self._entrance.instance,
                    lease=round(self._entrance.lease_seconds * MICROS),
                    connections=CONNECTIONS_MAX,
                    pooled=self._entrance.pooled,
                )
            return self._direct

    # -- waiting for work -----------------------------------------------------------------------------------

    async def _until_ready(self, type: str, ready: asyncio.Event, deadline: float) -> bool:
        """Wait for work of a type; whether there may be some."""
        self._waiting[type] = ready
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_on())
        try:
            return await wait_until(ready, deadline)
        finally:
            del self._waiting[type]

    async def _look_on(self) -> None:
        """Look for work about once a second, and when we are told that there may be some, for all that wait."""
        database, loop = await self._database(), asyncio.get_running_loop()
        while self._waiting:
            await database.listen(self._hint.set)
            self._hint.clear()
            looked_at = loop.time()
            with suppress(IngotError):  # It is looked again.
                for type in await database.ready(list(self._waiting)):
                    if (ready := self._waiting.get(type)) is not None:
                        ready.set()
            await wait_for(self._hint, LOOK_SECONDS * random.uniform(0.9, 1.1))
            await asyncio.sleep(looked_at + LOOK_SECONDS_MIN - loop.time())

    # -- what is news ---------------------------------------------------------------------------------------

    def _is_news(self, heard: Heard) -> bool:
        return not _matters(heard) <= self._told or (heard.drain and not self._told_drain)


def _matters(heard: Heard) -> frozenset[Matter]:
    return frozenset((one.job_id, one.fence, one.lost) for one in heard.jobs if one.lost or one.cancel_requested)


def _beat(job: HeldJob) -> Beat:
    done = job.progress
    if done is None:
        return Beat(job_id=job.id, fence=job.fence, lease=0)
    stage = checks.error_text(done.stage)[: checks.STAGE_CHARS_MAX]
    return Beat(job_id=job.id, fence=job.fence, lease=0, percent=done.percent, stage=stage)


def _entry(job: HeldJob) -> LogEntry:
    return LogEntry(job_id=job.id, fence=job.fence, text=checks.log_text(job.log), offset=job.log_offset or 0)


def _said(ending: Ending) -> Said:
    """An ending as a row of `ingot.worker_settle`: outcome, whether to try again, delay, exit code, error, result."""
    match ending:
        case Succeeded():
            result = bytes(ending.result)
            return ending.id, ending.fence, "succeeded", True, 0, None, None, None if result in NO_RESULT else result
        case Broke():
            error = checks.error_text(ending.error)
            return ending.id, ending.fence, "failed", ending.retry, 0, ending.exit_code, error, None
        case Snoozed():
            return ending.id, ending.fence, "snoozed", True, round(ending.seconds * MICROS), None, None, None
        case Released():
            return ending.id, ending.fence, "released", True, 0, None, None, None
