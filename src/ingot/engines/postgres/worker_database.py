"""The database as a worker sees it that comes with a role of its own: one function for each thing it may do."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg
import msgspec

from ingot.engines.postgres.connection import (
    SERVER_ROLE,
    UNREACHABLE_ERRORS,
    Connection,
    Database,
    Record,
    endpoint_of,
    open_pool,
    translate_error,
)
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import claim_of
from ingot.engines.postgres.lane_cache import HINT_SECONDS, Position, repeat_interval
from ingot.engines.postgres.listener import CHANNEL
from ingot.engines.postgres.migrate import expect_known, migrations
from ingot.engines.postgres.sql import SQL
from ingot.engines.worker_rows import lease_status
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Claim
from ingot.jobs.ports import AttemptHeartbeat, ClaimJobs, LogEntry
from ingot.jobs.worker_model import HeartbeatAnswer
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IngotError, InvalidInput, StoreError, StoreMisconfigured
from ingot.kernel.logs import configure_logs

REJECTED_VALUE_ERRORS: Final = (
    asyncpg.DataError,
    asyncpg.CharacterNotInRepertoireError,
    asyncpg.ProgramLimitExceededError,
)
DEFAULT_SETTLE_VALUES: Final = (
    ...,
    ...,
    ...,
    True,
    0,
    None,
    None,
    None,
)  # Of what is said of an attempt; the first are always sent.
LOG_CHARS_PER_CALL_MAX: Final = 1024 * 1024
NO_POSITION: Final = (None, None, None)
CLOSE_SECONDS_MAX: Final = 5.0
ROLE_HINT: Final = "Make one for its tenant with `ingot database worker-role`, and name it in INGOT_DATABASE_URL."

SettleValues = tuple[str, int, str, bool | None, int | None, int | None, str | None, bytes | None]


class ClaimHint(msgspec.Struct):
    """How far a type was claimed, and when its lane was last looked into from the front.

    A claim that begins there walks over nothing that was taken. What comes before it waits until a scan from the front,
    once a second, or more seldom where that costs much.
    """

    after: Position | None = None
    full_scan_at: float = 0.0
    full_scan_interval_seconds: float = 0.0

    def is_fresh(self) -> bool:
        """Whether a claim may begin there."""
        return self.after is not None and time.monotonic() - self.full_scan_at < self.full_scan_interval_seconds


class WorkerDatabase:
    """What the role of a worker may do, as one of its instances. Made by `open`; used on one event loop."""

    def __init__(self, db: Database, url: str, *, tenant: str, role: str, instance: str, lease: int) -> None:
        self._db = db
        self._url = url
        self._instance = instance
        self._tenant = tenant
        self._lease = lease
        self._host, self._pid = socket.gethostname(), os.getpid()
        self.worker_id = f"{role}/{instance}"
        self._listener: asyncpg.Connection[Record] | None = None
        self._hints: dict[str, ClaimHint] = {}

    @classmethod
    async def open(
        cls, url: str, *, instance: str, lease: int, connections: int, pooled: bool = False
    ) -> WorkerDatabase:
        """Come to the database with this role. A lease is for so many microseconds.

        Raises `StoreTooNew`, `StoreMisconfigured`, or `StoreError` when the server cannot be reached.
        """
        configure_logs()  # Tracebacks must not show the URL, which may hold a password.
        pool = await open_pool(url, pooled=pooled, connections=connections, connection_class=Connection)
        try:
            async with pool.acquire() as connection, connection.transaction():
                role, tenant = await _check_session(connection)
        except BaseException as error:
            await pool.close()
            if isinstance(error, (*UNREACHABLE_ERRORS, asyncpg.PostgresError)):
                raise translate_error(error, action="used", endpoint=endpoint_of(url)) from error
            raise
        return cls(Database(pool, pooled=pooled), url, tenant=tenant, role=role, instance=instance, lease=lease)

    async def close(self) -> None:
        """Let the connections go."""
        self._db.stop_retrying()
        if self._listener is not None and not self._listener.is_closed():
            await self._listener.close(timeout=CLOSE_SECONDS_MAX)
        try:
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._db.pool.close()
        except TimeoutError:
            self._db.pool.terminate()

    async def register(self, types: Sequence[str], *, version: str | None = None) -> None:
        """The instance is there, and can do this."""
        await self._db.call(CALL.worker_register, self._instance, types, self._host, version)

    async def claim(self, type: str, limit: int) -> list[Claim]:
        """Lease up to so many jobs of a type. Those whose answer was lost go back after a while, uncounted."""
        hint = self._hints.setdefault(type, ClaimHint())
        rows = await self._claim(type, limit, hint) if hint.is_fresh() else []
        if not rows:
            hint.after = None
            began = time.monotonic()
            rows = await self._claim(type, limit, hint)
            hint.full_scan_at = time.monotonic()
            hint.full_scan_interval_seconds = repeat_interval(hint.full_scan_at - began, minimum=HINT_SECONDS)
        # With fewer than asked for, the next begins at the front.
        hint.after = (rows[-1]["priority"], rows[-1]["run_at"], rows[-1]["id"]) if len(rows) == limit else None
        lane = Lane(type, self._tenant, "")
        asked = ClaimJobs(worker_id=self.worker_id, types=(type,), tenant=self._tenant, limit=limit, lease=self._lease)
        return [claim_of(row, lane, asked) for row in rows]

    async def _claim(self, type: str, limit: int, hint: ClaimHint) -> list[Record]:
        row = (self._instance, self._host, self._pid, limit, self._lease, *(hint.after or NO_POSITION))
        return await self._db.call(CALL.worker_claim, [type], *row, once=True)

    async def heartbeat(self, beats: Sequence[AttemptHeartbeat]) -> HeartbeatAnswer:
        """Renew these leases, give back what is held and not named, and tell how both they and the worker stand."""
        percents, stages = [beat.percent for beat in beats], [beat.stage for beat in beats]
        row = (self._instance, self._lease, *_leases_of(beats), percents, stages)
        return _heartbeat_answer(beats, await self._db.call(CALL.worker_hear, *row))

    async def read_status(self, beats: Sequence[AttemptHeartbeat]) -> HeartbeatAnswer:
        """The same, and nothing is done."""
        return _heartbeat_answer(beats, await self._db.call(CALL.worker_look, self._instance, *_leases_of(beats)))

    async def append_logs(self, entries: Iterable[LogEntry]) -> None:
        """Append to these logs, as far as their attempts are ours."""
        some: list[LogEntry] = []
        for entry in entries:
            if sum(len(one.text) for one in some) + len(entry.text) > LOG_CHARS_PER_CALL_MAX:
                await self._append(some)
                some = []
            some.append(entry)
        if some:
            await self._append(some)

    async def _append(self, entries: list[LogEntry]) -> None:
        texts, offsets = [entry.text for entry in entries], [entry.offset for entry in entries]
        await self._db.call(CALL.worker_append_logs, *_leases_of(entries), texts, offsets)

    async def settle(self, said: Sequence[SettleValues]) -> dict[int, Record | InvalidInput]:
        """Record how attempts ended; what became of those that are ours, by their place among them.

        What the database does not take of one keeps it from none of the others.
        """
        try:
            rows = await self._db.call(
                CALL.worker_settle, *map(_column, zip(*said, strict=True), DEFAULT_SETTLE_VALUES)
            )
        except StoreError as error:
            if not isinstance(error.__cause__, REJECTED_VALUE_ERRORS):
                raise
            if len(said) == 1:
                return {0: InvalidInput(str(error.__cause__))}
            each = [await self.settle([one]) for one in said]
            return {number: answer[0] for number, answer in enumerate(each) if answer}
        return {row["place"] - 1: row for row in rows}

    async def ready_types(self, types: Sequence[str]) -> list[str]:
        """Of these types, those of which there is work."""
        return [type for (type,) in await self._db.call(CALL.worker_ready, types)]

    async def unregister(self) -> None:
        """Give back what the instance holds, and forget it."""
        with suppress(WorkerNotFound):
            while not (await self._db.call(CALL.worker_leave, self._instance))[0][0]:
                pass

    async def listen(self, hear: Callable[[], None]) -> None:
        """Be told when there may be work, from now on. Called again it listens anew, if that is needed."""
        if self._db.pooled or (self._listener is not None and not self._listener.is_closed()):
            return
        with suppress(*UNREACHABLE_ERRORS, asyncpg.PostgresError):  # It is only a hint.
            self._listener = await asyncpg.connect(self._url)
            await self._listener.add_listener(CHANNEL, lambda *_: hear())


def _column(values: tuple[Any, ...], usual: Any) -> tuple[Any, ...] | None:
    """A column of what was said; one of nothing but what is taken for granted is not sent."""
    return None if values.count(usual) == len(values) else values


def _leases_of(calls: Sequence[AttemptHeartbeat | LogEntry]) -> tuple[list[str], list[int]]:
    return [call.job_id for call in calls], [call.fence for call in calls]


def _heartbeat_answer(beats: Sequence[AttemptHeartbeat], rows: Sequence[Record]) -> HeartbeatAnswer:
    jobs = [lease_status(beat) for beat in beats]
    drain = False
    for number, expires_at, cancel_requested, draining in rows:
        if number is None:
            drain = draining
        else:
            jobs[number - 1] = lease_status(beats[number - 1], to_datetime(expires_at), cancel=cancel_requested)
    return HeartbeatAnswer(jobs=jobs, drain=drain)


async def _check_session(connection: Any) -> tuple[str, str]:
    """The role and its tenant: a worker's, in a database that we know."""
    user, sync, has_schema, is_worker, says_hello = await connection.fetchrow(SQL.about_worker)
    known = migrations()[-1].number
    if user == SERVER_ROLE:
        raise StoreMisconfigured(
            f"INGOT_DATABASE_URL names {SERVER_ROLE}, which is the role of servers; a worker has one of its own.",
            hint=f"{ROLE_HINT} Or leave it out: then the worker comes to the server over HTTP.",
        )
    if not has_schema:
        raise StoreMisconfigured(
            "There is nothing of Ingot's in this database.",
            hint="Check the database's name in INGOT_DATABASE_URL; a server with INGOT_DATABASE_OWNER_URL prepares it.",
        )
    if not is_worker:
        raise StoreMisconfigured(f"The role {user!r} is no worker's.", hint=ROLE_HINT)
    if sync == "off":
        raise StoreMisconfigured(
            f"The role {user!r} has synchronous_commit off.", hint="Switch it on: what is acknowledged must be durable."
        )
    if not says_hello:
        raise _schema_too_old("older than this program", known)
    try:
        role, tenant, newest = await connection.fetchrow(CALL.worker_hello)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreMisconfigured(f"The database refused us: {error}.", hint=ROLE_HINT) from error
    except asyncpg.RaiseError as error:
        raise StoreMisconfigured(f"The database refused us: {error}.") from error
    if newest < expect_known(newest):
        raise _schema_too_old(f"at schema {newest}", known)
    return role, tenant


def _schema_too_old(stands: str, needed: int) -> IngotError:
    return StoreMisconfigured(
        f"The database is {stands}; this program needs schema {needed}.",
        hint="Migrate it: start a server of this version with INGOT_DATABASE_OWNER_URL.",
    )
