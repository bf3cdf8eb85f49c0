"""Connections: how they are opened, how a call is made on one, and what its errors mean to us."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

import asyncpg
import msgspec

from ingot.blobs.errors import (
    BlobNotFound,
    KeyChanged,
    KeyExists,
    KeyNotFound,
    ObjectsElsewhere,
    QuotaExceeded,
    UploadEnded,
    UploadNotFound,
    UploadTaken,
)
from ingot.identity.credentials import CredentialExists, CredentialNotFound, TokenNotFound
from ingot.identity.model import TenantExists, TenantNotFound
from ingot.identity.people import MemberByGroup, MemberNotFound, SessionNotFound, SignInRefused, UserNotFound
from ingot.jobs.errors import (
    DuplicateJob,
    JobFinished,
    JobLimitExceeded,
    JobNotFinished,
    JobNotFound,
    JobNotQueued,
    LeaseLost,
    RateLimited,
    WorkerNotFound,
)
from ingot.jobs.files import FileNotFound
from ingot.kernel.errors import (
    IdempotencyMismatch,
    IngotError,
    InvalidInput,
    OutcomeUnknown,
    StorageFull,
    StoreBusy,
    StoreError,
    StoreMisconfigured,
)
from ingot.kernel.ids import is_id
from ingot.kernel.logs import report
from ingot.records.model import RecordChanged, RecordNotFound, TooManyRecords

Record = asyncpg.Record
CONNECTIONS_MAX: Final = 10
SERVER_ROLE: Final = "ingot_server"
RETRY_SECONDS_MAX: Final = 20.0  # How long a call goes on against a server that is away.
RETRY_PAUSE_SECONDS_MAX: Final = 0.5
CALL_SECONDS_MAX: Final = 60.0  # A server that does not answer for so long is taken for gone.
CONFLICTS_MAX: Final = 50
# Reads that find what they need by an index, all as of one moment.
BEGIN_SNAPSHOT: Final = """
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
    SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off
"""

T = TypeVar("T")

if TYPE_CHECKING:
    PlainConnection = asyncpg.Connection[Record]
else:
    PlainConnection = asyncpg.Connection  # Generic in its stubs only.

# The server went away or is coming up: the call may be sent again.
UNREACHABLE_ERRORS = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
# The same before anything was sent.
NOT_SENT_ERRORS = (
    ConnectionRefusedError,
    FileNotFoundError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)
# Another transaction was in the way and nothing was done: the same call again meets a new state.
CONFLICT_ERRORS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.UniqueViolationError)


def _quota_exceeded(about: str) -> QuotaExceeded:
    scope, *numbers = about.split()
    usage, limit, asked = map(int, numbers)
    return QuotaExceeded(scope="tenant" if scope == "tenant" else "token", usage=usage, limit=limit, requested=asked)


def _duplicate_job(message: str, about: str) -> DuplicateJob:
    """An order is told as an application is, in JSON; a retry is told the id of the holder."""
    holder = msgspec.json.decode(about)["holder_id"] if about.startswith("{") else about
    return DuplicateJob(message, holder_id=holder)


ERRORS_BY_SQLSTATE: Final[dict[str, Callable[[str, str], IngotError]]] = {
    "IN001": lambda message, _: JobNotFound(message),
    "IN002": lambda message, _: JobFinished(message),
    "IN003": lambda message, _: JobNotFinished(message),
    "IN004": lambda message, _: JobNotQueued(message),
    "IN005": _duplicate_job,
    "IN006": lambda message, _: TenantNotFound(message),
    "IN007": lambda message, _: TenantExists(message),
    "IN008": lambda message, _: JobLimitExceeded(message),
    "IN009": lambda message, wait: RateLimited(message, retry_after_seconds=float(wait)),
    "IN010": lambda message, _: TokenNotFound(message),
    "IN011": lambda message, _: CredentialNotFound(message),
    "IN012": lambda message, _: CredentialExists(message),
    "IN020": lambda message, _: WorkerNotFound(message),
    "IN030": lambda message, _: SignInRefused(message),
    "IN031": lambda message, _: UserNotFound(message),
    "IN032": lambda message, _: MemberNotFound(message),
    "IN033": lambda message, _: MemberByGroup(message),
    "IN034": lambda message, _: SessionNotFound(message),
    "IN040": lambda message, _: InvalidInput(message),
    "IN042": lambda message, _: IdempotencyMismatch(message),
    "IN044": lambda message, _: UploadNotFound(message),
    "IN046": lambda message, _: UploadTaken(message),
    "IN047": lambda message, _: LeaseLost(message),
    "IN048": lambda message, _: BlobNotFound(message),
    "IN049": lambda _, about: _quota_exceeded(about),
    "IN051": lambda _, __: ObjectsElsewhere(),
    "IN061": lambda _, key: KeyExists.for_key(key),
    "IN062": lambda message, _: KeyChanged(message),
    "IN063": lambda message, _: KeyNotFound(message),
    "IN065": lambda message, _: UploadEnded(message),
    "IN069": lambda message, _: FileNotFound(message),
    "IN070": lambda message, _: RecordNotFound(message),
    "IN071": lambda _, version: RecordChanged(version=int(version)),
    "IN072": lambda message, _: TooManyRecords(message),
    "IN073": lambda message, _: StoreError(message, hint="Make orders with new_job; nothing was changed."),
}


class RowAlreadyExists(Exception):
    """A new row met one that is there; `maybe_ours` when the call was sent before and its answer was lost."""

    def __init__(self, *, maybe_ours: bool) -> None:
        super().__init__()
        self.maybe_ours = maybe_ours


class Connection(PlainConnection):
    """A connection of our pool. What we set is set for a transaction only, so there is nothing to reset."""

    def get_reset_query(self) -> str:
        """Nothing: a reset would cost a round trip for every call."""
        return ""


class Database:
    """A pool of connections, and the two ways to use it: `call` a function, or `read` as a tenant."""

    def __init__(self, pool: asyncpg.Pool[Record], *, pooled: bool, owns_pool: bool = True) -> None:
        self.pool = pool
        self._owns_pool = owns_pool
        self.closing = asyncio.Event()
        self.unreachable = False
        self.pooled = pooled

    def stop_retrying(self) -> None:
        """Wait no longer for a server that is away, from now on."""
        self.closing.set()

    async def close(self) -> None:
        """Close the connections, unless the pool belongs to the caller."""
        if self._owns_pool:
            await self.pool.close()

    async def call_timed(self, statement: str, *values: Any) -> tuple[list[Record], float]:
        """The same as `call`, and the seconds it took, without those spent waiting for a server that was away."""
        seconds = 0.0

        async def attempt() -> list[Record]:
            nonlocal seconds
            began = time.monotonic()
            rows = await self._call(statement, values)
            seconds = time.monotonic() - began
            return rows

        return await self._retry(attempt), seconds

    async def call(self, statement: str, *values: Any, once: bool = False, read_only: bool = False) -> list[Record]:
        """Run one statement, durable when it returns; sent again while the server is away.

        One that must not be done twice is for `once`: it raises `OutcomeUnknown` when its answer was lost. One that
        only `reads` may be refused at any try.
        """
        return await self._retry(lambda: self._call(statement, values), once=once, read_only=read_only)

    async def insert(self, statement: str, *values: Any) -> tuple[list[Record], bool]:
        """The same for new rows, and whether it was sent more than once. Raises `AlreadyThere` when a row is there."""
        tries = 0

        async def attempt() -> list[Record]:
            nonlocal tries
            tries += 1
            return await self._call(statement, values)

        return await self._retry(attempt, unique=True), tries > 1

    async def call_maybe_repeated(self, statement: str, *values: Any) -> tuple[list[Record], bool]:
        """The same as `call`, and whether it may have been done before: it was sent, and its answer was lost."""
        maybe_done = False

        async def attempt() -> list[Record]:
            nonlocal maybe_done
            try:
                return await self._call(statement, values)
            except UNREACHABLE_ERRORS as error:
                maybe_done = maybe_done or not isinstance(error, NOT_SENT_ERRORS)
                raise

        return await self._retry(attempt), maybe_done

    async def read(self, tenant: str, statement: str, *values: Any) -> list[Record]:
        """Run a statement that sees the rows of one tenant."""
        return (await self._retry(lambda: self._read(tenant, [(statement, values)])))[0]

    async def read_snapshot(self, tenant: str, reads: Callable[[Any], Awaitable[T]]) -> T:
        """Run several statements that see the rows of one tenant, all as they were at one moment."""
        return await self._retry(lambda: self._read_snapshot(tenant, reads))

    async def call_and_read(
        self, call: str, values: tuple[Any, ...], tenant: str, read: str, *of: Any, once: bool
    ) -> tuple[list[Record], list[Record]]:
        """Call a function and read on, in one transaction; answers what both answered.

        What may be done `once` is not sent again after a loss.
        """
        answers = await self._retry(lambda: self._read(tenant, [(call, values), (read, of)]), once=once)
        return answers[0], answers[1]

    async def _call(self, statement: str, values: tuple[Any, ...]) -> list[Record]:
        async with self.pool.acquire() as connection:
            if not self.pooled:
                return await connection.fetch(statement, *values)
            async with connection.transaction():  # A proxy keeps a server for us only inside a transaction.
                return await connection.fetch(statement, *values)

    async def _read(self, tenant: str, steps: list[tuple[str, tuple[Any, ...]]]) -> list[list[Record]]:
        async with self.pool.acquire() as connection, as_tenant(connection, tenant):
            return [await connection.fetch(statement, *values) for statement, values in steps]

    async def _read_snapshot(self, tenant: str, reads: Callable[[Any], Awaitable[T]]) -> T:
        async with self.pool.acquire() as connection, as_tenant(connection, tenant, begin=BEGIN_SNAPSHOT):
            return await reads(connection)

    async def _retry(
        self, attempt: Callable[[], Awaitable[T]], *, once: bool = False, unique: bool = False, read_only: bool = False
    ) -> T:
        """Try again while another transaction is in the way, or the server is away.

        A call whose answer was lost may have been done: what it says afterwards is not to be taken for a first answer.
        """
        deadline = time.monotonic() + RETRY_SECONDS_MAX
        pause, conflicts, maybe_done = 0.01, 0, False
        while True:
            try:
                answer = await attempt()
                self.unreachable = False
                return answer
            except CONFLICT_ERRORS as error:
                if unique and isinstance(error, asyncpg.UniqueViolationError):
                    raise RowAlreadyExists(maybe_ours=maybe_done) from error
                conflicts += 1
                if conflicts > CONFLICTS_MAX:
                    raise translate_error(error, action="used") from error
            except UNREACHABLE_ERRORS as error:
                maybe_done = maybe_done or not (read_only or isinstance(error, NOT_SENT_ERRORS))
                if maybe_done and (once or self.closing.is_set() or time.monotonic() > deadline):
                    raise OutcomeUnknown("The connection was lost before the answer came.") from error
                if self.closing.is_set():
                    raise StoreError("The database is away, and the store is being closed.") from error
                if time.monotonic() > deadline:
                    raise translate_error(error, action="reached") from error
                if not self.unreachable:  # Once, however many calls wait for it.
                    self.unreachable = True
                    report("server_away", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self.closing.wait()
                pause = min(pause * 2, RETRY_PAUSE_SECONDS_MAX)
            except asyncpg.PostgresError as error:
                if maybe_done and error.sqlstate in ERRORS_BY_SQLSTATE:
                    raise OutcomeUnknown("The first answer was lost, and by now this is refused.") from error
                raise translate_error(error, action="used") from error


@asynccontextmanager
async def as_tenant(connection: Any, tenant: str, *, begin: str = "BEGIN") -> AsyncIterator[None]:
    """A transaction that sees the rows of one tenant. Begun with one round trip, the tenant in its text."""
    assert is_id(tenant), "only an id may stand in the text of a statement"
    try:
        await connection.execute(f"{begin}; SET LOCAL ingot.tenant = '{tenant}'")
        yield
        await connection.execute("COMMIT")
    except BaseException as error:
        # Of a call that was canceled half way it is not known yet what the server made of it.
        unknown = isinstance(error, asyncio.CancelledError)
        if not connection.is_closed() and (unknown or connection.is_in_transaction()):
            with suppress(*UNREACHABLE_ERRORS, asyncpg.PostgresError):  # Then there is nothing to roll back.
                await connection.execute("ROLLBACK")
        raise


async def open_pool(
    url: str, *, pooled: bool, connections: int, connection_class: type[Connection]
) -> asyncpg.Pool[Record]:
    """Open the pool. Raises `StoreError` when the server cannot be reached."""
    try:
        return await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=connections,
            connection_class=connection_class,
            command_timeout=CALL_SECONDS_MAX,
            statement_cache_size=0 if pooled else 1024,
            max_cached_statement_lifetime=0,
        )
    except ValueError:
        raise invalid_url_error("INGOT_DATABASE_URL") from None
    except (*UNREACHABLE_ERRORS, asyncpg.PostgresError) as error:
        raise translate_error(error, action="reached", endpoint=endpoint_of(url)) from error


def endpoint_of(url: str) -> str:
    """Where a URL leads, without who goes there."""
    address, _, query = url.partition("?")
    where = address.rpartition("@")[2].removeprefix("postgresql://").removeprefix("postgres://")
    return dict(parse_qsl(query)).get("host", "") + where


def invalid_url_error(setting: str) -> StoreMisconfigured:
    """A URL that cannot be read; it is not shown, because it may hold a password."""
    return StoreMisconfigured(
        f"{setting} cannot be read.",
        hint="It looks like postgresql://role:password@host:5432/database; write / @ : in a password as %2F %40 %3A.",
    )


def translate_error(error: Exception, *, action: str, endpoint: str = "") -> IngotError:
    """What an error of the driver means to those who wait."""
    match error:
        case IngotError():
            return error
        case asyncpg.PostgresError() if error.sqlstate in ERRORS_BY_SQLSTATE:
            return ERRORS_BY_SQLSTATE[error.sqlstate](str(error.args[0]), error.detail or "")
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidPasswordError():
            return StoreMisconfigured(
                f"The database refused us: {error}.",
                hint=f"Check role and password; the first migration creates {SERVER_ROLE} (INGOT_DATABASE_OWNER_URL), "
                "a worker's role by `ingot database worker-role`.",
            )
        case asyncpg.InvalidCatalogNameError():
            return StoreMisconfigured(
                f"The database refused us: {error}.", hint="Make the database first, or correct its name in the URL."
            )
        case asyncpg.DuplicatePreparedStatementError() | asyncpg.InvalidSQLStatementNameError():
            return StoreMisconfigured(
                "Something between us and the database gives every transaction another connection.",
                hint="Set INGOT_DATABASE_POOLED=true behind a proxy that pools transactions.",
            )
        case asyncpg.InsufficientPrivilegeError():
            return StoreMisconfigured(
                f"The database refused us: {error}.",
                hint="A migration needs a role that may make roles and schemas, a worker one that serves a tenant.",
            )
        case asyncpg.DiskFullError():
            return StorageFull()
        case asyncpg.SerializationError() | asyncpg.DeadlockDetectedError() | asyncpg.LockNotAvailableError():
            return StoreBusy("Other transactions hold for too long what this one needs.")
        case asyncpg.TooManyConnectionsError():
            return StoreBusy("The database takes no more connections.")
        case _:
            if action != "reached":  # Who opens the store tells of it.
                report("database_failed", error)
            at = f" at {endpoint}" if endpoint else ""
            return StoreError(
                f"The database{at} cannot be {action}: {str(error) or type(error).__name__}",
                hint="Check the host and port in the URL, and that the server runs." if action == "reached" else None,
            )
