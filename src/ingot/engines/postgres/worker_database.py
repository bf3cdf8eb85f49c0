"""The database for a worker that connects with a role of its own and calls one SQL function for each operation."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import asyncpg
import msgspec

from ingot.engines.postgres.command_scope import run_in_scope
from ingot.engines.postgres.connection import (
    SERVER_ROLE,
    UNREACHABLE_ERRORS,
    Connection,
    Database,
    Record,
    close_connection,
    open_pool,
    opening,
)
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import claim_of
from ingot.engines.postgres.lane_cache import HINT_SECONDS, Position, repeat_interval
from ingot.engines.postgres.listener import connect_listener
from ingot.engines.postgres.pooler import reject_transaction_pooler
from ingot.engines.postgres.schema_check import MIGRATE_HINT, SchemaWatch, check_schema
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
# The default of each field of `SettleValues`. Fields with `...` have no default and are always sent.
DEFAULT_SETTLE_VALUES: Final = (..., ..., ..., True, 0, None, None, None)
RELEASED_VALUES: Final = ("released", True, 0, None, None, None)
LOG_CHARS_PER_CALL_MAX: Final = 1024 * 1024
NO_POSITION: Final = (None, None, None)
SCHEMA_CHECK_SECONDS: Final = 5.0
WORKER_GROUP: Final = "ingot_worker"
ROLE_HINT: Final = "Create a worker role with `ingot database worker-role`, and use its URL as INGOT_DATABASE_URL."

SettleValues = tuple[str, int, str, bool | None, int | None, int | None, str | None, bytes | None]


class ClaimHint(msgspec.Struct):
    """How far jobs of a type were claimed, and when their lane was last scanned from its start.

    A claim that begins at `after` skips the jobs that were claimed before. Jobs that are inserted before this position
    wait until the next scan from the start: once a second, or less often if such a scan is slow.
    """

    after: Position | None = None
    full_scan_at: float = 0.0
    full_scan_interval_seconds: float = 0.0

    def is_fresh(self) -> bool:
        """Return whether a claim can begin at `after`."""
        return self.after is not None and time.monotonic() - self.full_scan_at < self.full_scan_interval_seconds


class WorkerDatabase:
    """The operations of one instance of a worker role. Created by `open`, and used on one event loop."""

    def __init__(
        self, db: Database, url: str, *, tenant: str, role: str, instance: str, lease: int, with_files: bool
    ) -> None:
        self._db = db
        self._url = url
        self._instance = instance
        self._tenant = tenant
        self._lease = lease
        self._with_files = with_files
        self._host, self._pid = socket.gethostname(), os.getpid()
        self.worker_id = f"{role}/{instance}"
        self._listener: asyncpg.Connection[Record] | None = None
        self._hints: dict[str, ClaimHint] = {}
        self._watch = SchemaWatch(db, WORKER_GROUP)
        self._schema_checked_at = time.monotonic()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        instance: str,
        lease: int,
        connections: int,
        pooled: bool = False,
        with_files: bool = True,
    ) -> WorkerDatabase:
        """Connect with the role in the URL. `lease` is the duration of leases in microseconds.

        Unless `with_files`, jobs with input files or with payloads in blobs are not claimed.

        Raises `StoreTooNew`, `StoreMisconfigured`, or `StoreError` if the server cannot be reached.
        """
        configure_logs()  # Tracebacks must not show the URL, which may contain a password.
        pool = await open_pool(url, pooled=pooled, connections=connections, connection_class=Connection)
        with opening(url, pool):
            database = Database(pool, pooled=pooled)
            if not pooled:
                await database.inspect(partial(reject_transaction_pooler, url=url), in_transaction=False)
            role, tenant = await database.inspect(_check_session)
        return cls(database, url, tenant=tenant, role=role, instance=instance, lease=lease, with_files=with_files)

    async def close(self) -> None:
        """Close all connections."""
        self._db.stop_retrying()
        if self._listener is not None:
            await close_connection(self._listener)
        await self._db.close()

    async def register(self, types: Sequence[str], *, version: str | None = None) -> None:
        """Register the instance with the job types that it runs."""
        await self._db.call(CALL.worker_register, self._instance, types, self._host, version)

    async def claim(self, type: str, limit: int) -> list[Claim]:
        """Lease up to `limit` jobs of a type.

        If the response is lost, later heartbeats do not list these jobs, and so release them. This counts against
        nothing. Jobs of a response that cannot be used are released at once.
        """
        return await run_in_scope(partial(self._claim_jobs, type), limit)

    async def _claim_jobs(self, type: str, limit: int) -> list[Claim]:
        if time.monotonic() - self._schema_checked_at > SCHEMA_CHECK_SECONDS:
            await self.check_schema()
        hint = self._hints.setdefault(type, ClaimHint())
        rows = await self._claim(type, limit, hint) if hint.is_fresh() else []
        if not rows:
            hint.after = None
            began = time.monotonic()
            rows = await self._claim(type, limit, hint)
            hint.full_scan_at = time.monotonic()
            hint.full_scan_interval_seconds = repeat_interval(
                hint.full_scan_at - began, hint.full_scan_interval_seconds, minimum=HINT_SECONDS
            )
        # After a claim that found fewer jobs than the limit, the next claim begins at the start of the lane.
        hint.after = (rows[-1]["priority"], rows[-1]["run_at"], rows[-1]["id"]) if len(rows) == limit else None
        lane = Lane(type, self._tenant, "")
        command = ClaimJobs(
            worker_id=self.worker_id, types=(type,), tenant=self._tenant, limit=limit, lease=self._lease
        )
        try:
            return [claim_of(row, lane, command) for row in rows]
        except Exception as error:
            with suppress(IngotError):
                await self.settle([(row["id"], row["fence"], *RELEASED_VALUES) for row in rows])
            raise StoreError("A claimed job could not be read. All jobs of the claim were released.") from error

    async def check_schema(self) -> None:
        """Check whether this program still fits the schema. While it does not, calls raise `SchemaMismatch`."""
        await self._watch.run_once()
        self._schema_checked_at = time.monotonic()

    async def _claim(self, type: str, limit: int, hint: ClaimHint) -> list[Record]:
        arguments = (self._instance, self._host, self._pid, limit, self._lease, *(hint.after or NO_POSITION))
        return await self._db.call(CALL.worker_claim, [type], *arguments, self._with_files, once=True)

    async def heartbeat(self, beats: Sequence[AttemptHeartbeat]) -> HeartbeatAnswer:
        """Renew these leases, release the other jobs of the instance, and return the status of leases and worker."""
        percents, stages = [beat.percent for beat in beats], [beat.stage for beat in beats]
        arguments = (self._instance, self._lease, *_leases_of(beats), percents, stages)
        return _heartbeat_answer(beats, await self._db.call(CALL.worker_hear, *arguments))

    async def read_status(self, beats: Sequence[AttemptHeartbeat]) -> HeartbeatAnswer:
        """Return the status of these leases and of the worker. Renews and releases nothing."""
        return _heartbeat_answer(beats, await self._db.call(CALL.worker_look, self._instance, *_leases_of(beats)))

    async def append_logs(self, entries: Iterable[LogEntry]) -> None:
        """Append to the logs of attempts. Entries of attempts that the worker does not hold are ignored."""
        batch: list[LogEntry] = []
        for entry in entries:
            if sum(len(batched.text) for batched in batch) + len(entry.text) > LOG_CHARS_PER_CALL_MAX:
                await self._append(batch)
                batch = []
            batch.append(entry)
        if batch:
            await self._append(batch)

    async def _append(self, entries: list[LogEntry]) -> None:
        texts, offsets = [entry.text for entry in entries], [entry.offset for entry in entries]
        await self._db.call(CALL.worker_append_logs, *_leases_of(entries), texts, offsets)

    async def settle(self, outcomes: Sequence[SettleValues]) -> dict[int, Record | InvalidInput]:
        """Record the outcomes of attempts, and return the result of each by its index in `outcomes`.

        Attempts that have lost their lease have no result. If the database rejects a value of one outcome, that outcome
        results in `InvalidInput`, and the others are recorded.
        """
        try:
            rows = await self._db.call(
                CALL.worker_settle, *map(_column_or_none, zip(*outcomes, strict=True), DEFAULT_SETTLE_VALUES)
            )
        except StoreError as error:
            if not isinstance(error.__cause__, REJECTED_VALUE_ERRORS):
                raise
            if len(outcomes) == 1:
                return {0: InvalidInput(str(error.__cause__))}
            results = [await self.settle([outcome]) for outcome in outcomes]
            return {index: result[0] for index, result in enumerate(results) if result}
        return {row["place"] - 1: row for row in rows}

    async def ready_types(self, types: Sequence[str]) -> list[str]:
        """Return those of these types that have ready jobs. A process that waits for jobs polls with this."""
        await self.check_schema()
        return [type for (type,) in await self._db.call(CALL.worker_ready, types)]

    async def unregister(self) -> None:
        """Release the jobs of the instance and remove it."""
        with suppress(WorkerNotFound):
            while not (await self._db.call(CALL.worker_leave, self._instance))[0][0]:
                pass

    async def listen(self, callback: Callable[[], None]) -> None:
        """Call `callback()` whenever jobs may be ready. Another call of `listen` reconnects if necessary."""
        if self._db.pooled or (self._listener is not None and not self._listener.is_closed()):
            return
        with suppress(*UNREACHABLE_ERRORS, asyncpg.PostgresError):  # Notifications are only hints.
            self._listener = await connect_listener(self._url, lambda *_: callback())


def _column_or_none(values: tuple[Any, ...], default: Any) -> tuple[Any, ...] | None:
    """Return the values of a column, or `None` if all of them are the default, so that they need not be sent."""
    return None if values.count(default) == len(values) else values


def _leases_of(entries: Sequence[AttemptHeartbeat | LogEntry]) -> tuple[list[str], list[int]]:
    return [entry.job_id for entry in entries], [entry.fence for entry in entries]


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
    """Check the role and the schema of a session, and return its worker role and tenant."""
    user, synchronous_commit, has_schema, is_worker, has_hello = await connection.fetchrow(SQL.about_worker)
    if user == SERVER_ROLE:
        raise StoreMisconfigured(
            f"INGOT_DATABASE_URL uses the role {SERVER_ROLE}, which is only for servers.",
            hint=f"{ROLE_HINT} Or unset it, so that the worker connects to the server over HTTP.",
        )
    if not has_schema:
        raise StoreMisconfigured(
            "This database does not contain the schema of Ingot.",
            hint="Check the database name in INGOT_DATABASE_URL. A server with INGOT_DATABASE_OWNER_URL creates the "
            "schema when it starts.",
        )
    if not is_worker:
        raise StoreMisconfigured(f"The role {user!r} is not a worker role.", hint=ROLE_HINT)
    if synchronous_commit == "off":
        raise StoreMisconfigured(
            f"synchronous_commit is off for the role {user!r}.",
            hint="Turn it on, because acknowledged changes must be durable.",
        )
    if not has_hello:
        raise StoreMisconfigured("The schema of the database is older than this program.", hint=MIGRATE_HINT)
    await check_schema(connection, WORKER_GROUP)
    try:
        role, tenant, newest = await connection.fetchrow(CALL.worker_hello)
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreMisconfigured(f"The database rejected the worker: {error}.", hint=ROLE_HINT) from error
    except asyncpg.RaiseError as error:
        raise StoreMisconfigured(f"The database rejected the worker: {error}.") from error
    await check_schema(connection, WORKER_GROUP, newest=newest)
    return role, tenant
