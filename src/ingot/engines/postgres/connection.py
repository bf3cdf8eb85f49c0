"""The connection pool: calls, reads, retries, and the translation of database errors."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

import asyncpg
import msgspec
import structlog

from ingot.blobs.errors import (
    BlobNotFound,
    KeyChanged,
    KeyExists,
    KeyNotFound,
    ObjectsElsewhere,
    QuotaExceeded,
    TooManyUploads,
    UploadEnded,
    UploadNotFound,
    UploadTaken,
)
from ingot.engines.fair_slots import FairSlots
from ingot.engines.postgres.command_scope import CALL_SECONDS_MAX, SCOPE, next_deadline, next_send_deadline
from ingot.engines.postgres.function_calls import READ_ONLY_CALLS
from ingot.engines.postgres.pooler import transaction_pooler_error
from ingot.identity.credentials import CredentialExists, CredentialNotFound, TokenNotFound, TooManyTokens
from ingot.identity.model import TenantExists, TenantNotFound
from ingot.identity.people import (
    InvitationNotFound,
    MemberByGroup,
    MemberNotFound,
    SessionNotFound,
    SignInRefused,
    TooManyInvitations,
    UserNotFound,
)
from ingot.jobs.errors import (
    DuplicateJob,
    JobFinished,
    JobLimitExceeded,
    JobNotFinished,
    JobNotFound,
    JobNotQueued,
    LeaseLost,
    RateLimited,
    TypeLimitExceeded,
    WorkerNotFound,
)
from ingot.jobs.files import FileNotFound
from ingot.kernel.errors import (
    IdempotencyMismatch,
    IngotError,
    InvalidInput,
    OutcomeUnknown,
    SchemaMismatch,
    StorageFull,
    StoreBusy,
    StoreError,
    StoreMisconfigured,
)
from ingot.kernel.failures import failures
from ingot.kernel.ids import is_id
from ingot.records.model import RecordChanged, RecordNotFound, TooManyRecords

Record = asyncpg.Record
CONNECTIONS_MAX: Final = 10
CONNECTIONS_WITHOUT_READS: Final = 2  # Reads leave these connections to writes.
SERVER_ROLE: Final = "ingot_server"
RETRY_PAUSE_SECONDS_MAX: Final = 0.5
# How long a canceled statement may take to end before its connection is closed.
CANCEL_SECONDS_MAX: Final = 2.0
CLOSE_SECONDS_MAX: Final = 5.0  # How long calls may take after the store has begun to close.
CONFLICTS_MAX: Final = 50
# For reads that use indexes only and share one snapshot.
BEGIN_SNAPSHOT: Final = """
    BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
    SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off
"""

LOST_HINT: Final = "Calls are repeated until the database is back. Check that PostgreSQL runs and can be reached."
log = structlog.get_logger("ingot.postgres")

_ARGUMENT_TYPES: Final = re.compile(r"\(.*\)")
T = TypeVar("T")

if TYPE_CHECKING:
    PlainConnection = asyncpg.Connection[Record]
else:
    PlainConnection = asyncpg.Connection  # Generic in its stubs only.

# The server is stopping, starting or unreachable: the call can be retried.
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
# Errors of a connection on which the server did not run anything.
NOT_SENT_ERRORS = (
    ConnectionRefusedError,
    FileNotFoundError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
)
# The database lacks something that a statement names: another build has migrated it. Nothing was changed.
SIGNATURE_ERRORS = (
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedTableError,
    asyncpg.AmbiguousFunctionError,
    asyncpg.CannotCoerceError,
    asyncpg.InvalidCachedStatementError,
)
# A conflict with another transaction, and nothing was changed: the call can be retried.
CONFLICT_ERRORS = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.UniqueViolationError)


def _quota_exceeded(detail: str) -> QuotaExceeded:
    scope, *numbers = detail.split()
    usage, limit, requested = map(int, numbers)
    return QuotaExceeded(
        scope="tenant" if scope == "tenant" else "token", usage=usage, limit=limit, requested=requested
    )


def _duplicate_job(message: str, detail: str) -> DuplicateJob:
    """Return the error with the holder, which is JSON after an enqueue and an ID after a retry."""
    holder = msgspec.json.decode(detail)["holder_id"] if detail.startswith("{") else detail
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
    "IN014": lambda message, _: TooManyTokens(message),
    "IN020": lambda message, _: WorkerNotFound(message),
    "IN030": lambda message, _: SignInRefused(message),
    "IN031": lambda message, _: UserNotFound(message),
    "IN032": lambda message, _: MemberNotFound(message),
    "IN033": lambda message, _: MemberByGroup(message),
    "IN034": lambda message, _: SessionNotFound(message),
    "IN035": lambda message, _: InvitationNotFound(message),
    "IN036": lambda message, _: TooManyInvitations(message),
    "IN040": lambda message, _: InvalidInput(message),
    "IN042": lambda message, _: IdempotencyMismatch(message),
    "IN044": lambda message, _: UploadNotFound(message),
    "IN046": lambda message, _: UploadTaken(message),
    "IN047": lambda message, _: LeaseLost(message),
    "IN048": lambda message, _: BlobNotFound(message),
    "IN049": lambda _, detail: _quota_exceeded(detail),
    "IN050": lambda message, _: TooManyUploads(message),
    "IN051": lambda _, __: ObjectsElsewhere(),
    "IN061": lambda _, key: KeyExists.for_key(key),
    "IN062": lambda message, _: KeyChanged(message),
    "IN063": lambda message, _: KeyNotFound(message),
    "IN065": lambda message, _: UploadEnded(message),
    "IN069": lambda message, _: FileNotFound(message),
    "IN070": lambda message, _: RecordNotFound(message),
    "IN071": lambda _, version: RecordChanged(version=int(version)),
    "IN072": lambda message, _: TooManyRecords(message),
    "IN073": lambda message, _: StoreError(message, hint="Nothing was changed. Create orders with new_job."),
    "IN074": lambda message, _: TypeLimitExceeded(message),
}


class NotSent(Exception):
    """No connection could be made, so nothing was sent. The cause is the error of the last try."""


class DeadlinePassed(TimeoutError):
    """The deadline of a command had passed before this call of it."""


class RowAlreadyExists(Exception):
    """A new row has the key of an existing one.

    `maybe_ours` is true if an earlier try of the call may have inserted that row, because its answer was lost.
    """

    def __init__(self, *, maybe_ours: bool) -> None:
        super().__init__()
        self.maybe_ours = maybe_ours


class Connection(PlainConnection):
    """A connection of the pool. Settings last for one transaction, so a reset is not needed."""

    def get_reset_query(self) -> str:
        """Return no query. A reset would cost each call a round trip."""
        return ""


class Database:
    """A pool of connections, used to `call` functions and to `read` as a tenant."""

    def __init__(self, pool: asyncpg.Pool[Record], *, pooled: bool, owns_pool: bool = True) -> None:
        self.pool = pool
        self._owns_pool = owns_pool
        self.closing = asyncio.Event()
        self.lost_at: float | None = None  # When the current outage was noticed.
        self._back_at = 0.0  # When the last outage ended.
        self.pooled = pooled
        self.mismatch: str | None = None  # Why this program does not fit the schema. `SchemaWatch` sets it.
        self.rejected: str | None = None  # The last error of a statement that the schema may not fit.
        self._timeouts: set[asyncio.Timeout] = set()  # Of the calls that are running.
        connections = pool.get_max_size()
        self._command_slots = FairSlots(connections, tenant_slots=max(1, connections // 2))
        self._read_slots = FairSlots(
            max(1, connections - CONNECTIONS_WITHOUT_READS), tenant_slots=max(1, (connections - 1) // 2)
        )

    def stop_retrying(self) -> None:
        """Fail calls instead of retrying them, now and later, and give each at most `CLOSE_SECONDS_MAX`."""
        self.closing.set()
        ends_at = asyncio.get_running_loop().time() + CLOSE_SECONDS_MAX
        for timeout in self._timeouts:
            if not timeout.expired() and (timeout.when() or 0.0) > ends_at:
                timeout.reschedule(ends_at)

    async def close(self) -> None:
        """Close the connections, unless the pool belongs to the caller."""
        if self._owns_pool:
            # If the server does not respond, the connections are aborted.
            with suppress(*UNREACHABLE_ERRORS, asyncpg.PostgresError):
                async with asyncio.timeout(CLOSE_SECONDS_MAX):
                    await self.pool.close()

    def expect_fitting_schema(self) -> None:
        """Raise `SchemaMismatch` if this program does not fit the schema of the database any more."""
        if self.mismatch is not None:
            raise SchemaMismatch(self.mismatch)

    async def inspect_once(self, run: Callable[[Any], Awaitable[T]]) -> T:
        """Run as `inspect` does, without retries, and also while this program does not fit the schema."""
        try:
            return await self._try(lambda connection: _inspect(connection, run), next_deadline())
        except NotSent as error:
            raise error.__cause__ or error from None

    async def call_timed(self, statement: str, *values: Any, read_only: bool = False) -> tuple[list[Record], float]:
        """Run one statement as `call` does. Also return how many seconds the last try took."""
        seconds = 0.0

        async def run(connection: Any) -> list[Record]:
            nonlocal seconds
            started_at = time.monotonic()
            rows = await self._call(connection, statement, values)
            seconds = time.monotonic() - started_at
            return rows

        return await self._retry(run, read_only=read_only or statement in READ_ONLY_CALLS), seconds

    async def call(self, statement: str, *values: Any, once: bool = False, read_only: bool = False) -> list[Record]:
        """Run one statement, which is durable when this returns. It is retried while the server is unreachable.

        With `once`, it is not retried after its answer was lost; that raises `OutcomeUnknown`. `read_only` states that
        the statement changes nothing, so that its errors are definite. For stable functions this is known.
        """
        return await self._retry(
            lambda connection: self._call(connection, statement, values),
            once=once,
            read_only=read_only or statement in READ_ONLY_CALLS,
        )

    async def insert(self, statement: str, *values: Any) -> tuple[list[Record], bool]:
        """Run one statement that inserts rows. Also return whether it was sent more than once.

        Raises `RowAlreadyExists` if a row with the same key exists.
        """
        tries = 0

        async def run(connection: Any) -> list[Record]:
            nonlocal tries
            tries += 1
            return await self._call(connection, statement, values)

        return await self._retry(run, unique=True), tries > 1

    async def call_maybe_repeated(self, statement: str, *values: Any) -> tuple[list[Record], bool]:
        """Run one statement as `call` does. Also return whether an earlier try may have succeeded, its answer lost."""
        maybe_done = False

        async def run(connection: Any) -> list[Record]:
            nonlocal maybe_done
            try:
                return await self._call(connection, statement, values)
            except UNREACHABLE_ERRORS as error:
                maybe_done = maybe_done or not isinstance(error, NOT_SENT_ERRORS)
                raise

        return await self._retry(run), maybe_done

    async def read(self, tenant: str, statement: str, *values: Any) -> list[Record]:
        """Run a statement that sees only the rows of one tenant."""
        async with _slot_of(self._read_slots, tenant):
            return await self.read_at_once(tenant, statement, *values)

    async def read_at_once(self, tenant: str, statement: str, *values: Any) -> list[Record]:
        """Run a statement as `read` does, without waiting for a slot. For batches, which contain other tenants."""
        statements = [(statement, values)]
        return (await self._retry(lambda connection: _read(connection, tenant, statements), read_only=True))[0]

    async def read_snapshot(self, tenant: str, run: Callable[[Any], Awaitable[T]]) -> T:
        """Run several statements in one snapshot that see only the rows of one tenant."""
        async with _slot_of(self._read_slots, tenant):
            return await self._retry(lambda connection: _read_snapshot(connection, tenant, run), read_only=True)

    def command_slot(self, tenant: str | None) -> AbstractAsyncContextManager[None]:
        """Wait for a slot for a command that is not batched. Those of one tenant use half of the connections at most.

        Commands of no tenant do not wait. Raises `TenantBusy`, or `StoreBusy` at the deadline of the command.
        """
        return nullcontext() if tenant is None else _slot_of(self._command_slots, tenant)

    async def inspect(self, run: Callable[[Any], Awaitable[T]], *, in_transaction: bool = True) -> T:
        """Run several statements that change nothing, in one transaction or without."""
        return await self._retry(
            (lambda connection: _inspect(connection, run)) if in_transaction else run, read_only=True
        )

    async def call_and_read(
        self, call: str, values: tuple[Any, ...], tenant: str, read: str, *read_values: Any, once: bool
    ) -> tuple[list[Record], list[Record]]:
        """Call a function and then read as a tenant, in one transaction, and return the rows of both.

        With `once`, the transaction is not retried after its answer was lost.
        """
        statements = [(call, values), (read, read_values)]
        answers = await self._retry(lambda connection: _read(connection, tenant, statements), once=once)
        return answers[0], answers[1]

    def _call(self, connection: Any, statement: str, values: tuple[Any, ...]) -> Awaitable[list[Record]]:
        """Run one statement. A proxy that pools transactions keeps its connection only inside of one."""
        return _call_pooled(connection, statement, values) if self.pooled else connection.fetch(statement, *values)

    async def _retry(
        self,
        run: Callable[[Any], Awaitable[T]],
        *,
        once: bool = False,
        unique: bool = False,
        read_only: bool = False,
    ) -> T:
        """Retry until the deadline after conflicts with other transactions, and while the server is unreachable.

        A try whose answer was lost may have succeeded. If a later try is refused, this raises `OutcomeUnknown`, because
        the refusal may be the result of that success. Raises `SchemaMismatch` if this program does not fit the schema.
        """
        self.expect_fitting_schema()
        loop, scope, deadline = asyncio.get_running_loop(), SCOPE.get(), next_deadline()
        began_at = time.monotonic()
        pause, conflicts, maybe_done = 0.01, 0, False
        while True:
            try:
                answer = await self._try(run, deadline)
                if self.lost_at is not None:
                    self._record_end_of_outage(self.lost_at)
                if scope is not None and not read_only:
                    scope.has_written = True
                return answer
            except CONFLICT_ERRORS as error:
                if unique and isinstance(error, asyncpg.UniqueViolationError):
                    raise RowAlreadyExists(maybe_ours=maybe_done) from error
                conflicts += 1
                if conflicts > CONFLICTS_MAX or loop.time() >= deadline:
                    if maybe_done or (scope is not None and scope.has_written):
                        raise OutcomeUnknown("A part of the change may have been made.") from error
                    raise translate_error(error, action="used") from error
            except (NotSent, *UNREACHABLE_ERRORS) as error:
                maybe_done = maybe_done or not (read_only or isinstance(error, (NotSent, *NOT_SENT_ERRORS)))
                cause = error.__cause__ if isinstance(error, NotSent) else error
                if began_at >= self._back_at and not isinstance(cause, DeadlinePassed):
                    self.record_outage(cause or error)
                if (once and maybe_done) or self.closing.is_set() or loop.time() >= deadline:
                    has_written = scope is not None and scope.has_written
                    raise self._unavailable_error(cause, maybe_done=maybe_done or has_written) from cause
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(pause, deadline - loop.time())):
                        await self.closing.wait()
                pause = min(pause * 2, RETRY_PAUSE_SECONDS_MAX)
            except asyncpg.PostgresError as error:
                if isinstance(error, SIGNATURE_ERRORS):
                    self.rejected = short_text(error)
                if maybe_done:
                    raise OutcomeUnknown("The first response was lost, and the retry was refused.") from error
                raise translate_error(error, action="used") from error

    async def _try(self, run: Callable[[Any], Awaitable[T]], deadline: float) -> T:
        """Run once on a connection. Raises `TimeoutError` at the deadline, and `NotSent` if `run` was not called."""
        now, is_sent = asyncio.get_running_loop().time(), False
        if now >= deadline:
            raise NotSent from DeadlinePassed
        timeout = asyncio.timeout_at(min(deadline, now + CLOSE_SECONDS_MAX) if self.closing.is_set() else deadline)
        self._timeouts.add(timeout)
        try:
            async with timeout:
                connection = await self.pool.acquire()
                is_sent = True
                try:
                    answer = await run(connection)
                except BaseException:
                    with suppress(*UNREACHABLE_ERRORS, asyncpg.PostgresError):
                        # Without a timeout, this waits for the end of a canceled statement, which may never come.
                        await self.pool.release(connection, timeout=CANCEL_SECONDS_MAX)
                    raise
                await self.pool.release(connection)
            return answer
        except UNREACHABLE_ERRORS as error:
            if is_sent:
                raise
            raise NotSent from error
        finally:
            self._timeouts.discard(timeout)

    def record_outage(self, cause: BaseException) -> None:
        """Log that the database is lost, once for each outage."""
        if self.lost_at is None:
            self.lost_at = time.monotonic()
            with suppress(Exception):
                error = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
                log.error("database_lost", error=error, hint=LOST_HINT)

    def _record_end_of_outage(self, lost_at: float) -> None:
        """Log that the database is back. Errors of calls that began before belong to the outage."""
        self._back_at, self.lost_at = time.monotonic(), None
        with suppress(Exception):
            log.info("database_back", seconds=round(self._back_at - lost_at, 1))

    def _unavailable_error(self, cause: BaseException | None, *, maybe_done: bool) -> StoreError:
        """Return the error for callers of the API. The log contains the cause."""
        error: StoreError
        if maybe_done:
            error = OutcomeUnknown("The connection to the database was lost, or its response took too long.")
        elif isinstance(cause, asyncpg.TooManyConnectionsError):
            error = StoreBusy("The database accepts no more connections.")
        elif self.closing.is_set():
            error = StoreError("The database is unavailable, and the store is closing.")
        else:
            error = StoreError("The database is unavailable.")
        error.is_logged = True
        return error


@asynccontextmanager
async def _slot_of(slots: FairSlots, tenant: str) -> AsyncIterator[None]:
    """Wait for a slot. Raises `TenantBusy`, or `StoreBusy` if too little time is left for the call."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()

    def start() -> None:
        if turn.done():  # The caller was canceled while it waited.
            loop.call_soon(slots.leave, tenant)
        else:
            turn.set_result(None)

    slots.enter(tenant, start)
    try:
        if not turn.done():
            async with asyncio.timeout_at(next_send_deadline()):
                await turn
    except BaseException as error:
        if not turn.cancel() and not turn.cancelled():  # The slot arrived meanwhile.
            slots.leave(tenant)
        if isinstance(error, TimeoutError):
            raise StoreBusy("Other calls of the tenant took too long, and this one was not sent.") from None
        raise
    try:
        yield
    finally:
        slots.leave(tenant)


async def close_connection(connection: asyncpg.Connection[Record]) -> None:
    """Close a connection, or abort it if the server does not respond."""
    with suppress(*UNREACHABLE_ERRORS, asyncpg.PostgresError):
        await connection.close(timeout=CLOSE_SECONDS_MAX)


def is_unavailable(error: BaseException) -> bool:
    """Return whether an error of a call means that the database was unreachable or did not respond."""
    return isinstance(error.__cause__, UNREACHABLE_ERRORS)


async def _call_pooled(connection: Any, statement: str, values: tuple[Any, ...]) -> list[Record]:
    async with transaction(connection):
        rows: list[Record] = await connection.fetch(statement, *values)
    return rows


async def _read(connection: Any, tenant: str, statements: list[tuple[str, tuple[Any, ...]]]) -> list[list[Record]]:
    async with as_tenant(connection, tenant):
        return [await connection.fetch(statement, *values) for statement, values in statements]


async def _read_snapshot(connection: Any, tenant: str, run: Callable[[Any], Awaitable[T]]) -> T:
    async with as_tenant(connection, tenant, begin=BEGIN_SNAPSHOT):
        return await run(connection)


async def _inspect(connection: Any, run: Callable[[Any], Awaitable[T]]) -> T:
    async with transaction(connection):
        return await run(connection)


def as_tenant(connection: Any, tenant: str, *, begin: str = "BEGIN") -> AbstractAsyncContextManager[None]:
    """Open a transaction that sees only the rows of one tenant. The statement contains the ID, to save a round trip."""
    assert is_id(tenant), "only an ID can be part of a statement"
    return transaction(connection, begin=f"{begin}; SET LOCAL ingot.tenant = '{tenant}'")


@asynccontextmanager
async def transaction(connection: Any, *, begin: str = "BEGIN") -> AsyncIterator[None]:
    """Open a transaction, and commit it at the end of the block. After an error or a cancellation, roll it back."""
    try:
        await connection.execute(begin)
        yield
        await connection.execute("COMMIT")
    except BaseException as error:
        # After a cancellation, the driver may not know yet whether the transaction has begun.
        is_canceled = isinstance(error, asyncio.CancelledError)
        if not connection.is_closed() and (is_canceled or connection.is_in_transaction()):
            with suppress(*UNREACHABLE_ERRORS, asyncpg.PostgresError):  # The server has rolled it back.
                await connection.execute("ROLLBACK", timeout=CANCEL_SECONDS_MAX)
        raise


async def open_pool(
    url: str, *, pooled: bool, connections: int, connection_class: type[Connection]
) -> asyncpg.Pool[Record]:
    """Open a connection pool. Raises `StoreError` if the server cannot be reached."""
    try:
        return await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=connections,
            connection_class=connection_class,
            timeout=CALL_SECONDS_MAX,
            command_timeout=CALL_SECONDS_MAX,
            statement_cache_size=0 if pooled else 1024,
            max_cached_statement_lifetime=0,
        )
    except ValueError:
        raise invalid_url_error("INGOT_DATABASE_URL") from None
    except (*UNREACHABLE_ERRORS, asyncpg.PostgresError) as error:
        raise translate_error(error, action="reached", endpoint=endpoint_of(url)) from error


@contextmanager
def opening(url: str, pool: asyncpg.Pool[Record] | None) -> Iterator[None]:
    """Abort the connections of a pool if the block fails. An error names the server if it was unavailable."""
    try:
        yield
    except BaseException as error:
        if pool is not None:
            pool.terminate()  # Closing would wait for a server that may not respond.
        if isinstance(error, StoreError) and isinstance(cause := error.__cause__, UNREACHABLE_ERRORS):
            raise translate_error(cause, action="reached", endpoint=endpoint_of(url)) from cause
        raise


def endpoint_of(url: str) -> str:
    """Return the host, port and database of a URL, without the role and password."""
    base, _, query = url.partition("?")
    endpoint = base.rpartition("@")[2].removeprefix("postgresql://").removeprefix("postgres://")
    return dict(parse_qsl(query)).get("host", "") + endpoint


def invalid_url_error(setting: str) -> StoreMisconfigured:
    """Return the error for an invalid database URL, without the URL, which may contain a password."""
    return StoreMisconfigured(
        f"{setting} is not a valid database URL.",
        hint="Example: postgresql://role:password@host:5432/database. Write / @ : in a password as %2F %40 %3A.",
    )


def short_text(error: asyncpg.PostgresError) -> str:
    """Return the message of an error, without the list of types that follows the name of a function."""
    return _ARGUMENT_TYPES.sub("(…)", str(error.args[0]))


def translate_error(error: Exception, *, action: str, endpoint: str = "") -> IngotError:  # noqa: PLR0911 - a table
    """Return our error for an error of the driver. `action` completes the message "The database cannot be …".

    Unexpected errors are logged, except while a store is opened (`action="reached"`), when the caller reports them.
    """
    if isinstance(error, SIGNATURE_ERRORS) and action == "used":
        return SchemaMismatch(f"The database does not have what this program uses: {short_text(error)}.")
    match error:
        case IngotError():
            return error
        case asyncpg.PostgresError() if error.sqlstate in ERRORS_BY_SQLSTATE:
            return ERRORS_BY_SQLSTATE[error.sqlstate](str(error.args[0]), error.detail or "")
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidPasswordError():
            return StoreMisconfigured(
                f"The database refused access: {error}.",
                hint=f"Check the role and the password. The first migration (INGOT_DATABASE_OWNER_URL) creates "
                f"{SERVER_ROLE}, and `ingot database worker-role` creates the role of a worker.",
            )
        case asyncpg.InvalidCatalogNameError():
            return StoreMisconfigured(
                f"The database refused access: {error}.", hint="Create the database, or correct its name in the URL."
            )
        case asyncpg.DuplicatePreparedStatementError() | asyncpg.InvalidSQLStatementNameError():
            return transaction_pooler_error()
        case asyncpg.InsufficientPrivilegeError():
            return StoreMisconfigured(
                f"The database refused access: {error}.",
                hint="A migration needs a role that can create roles and schemas. "
                "A worker needs the worker role of its tenant.",
            )
        case asyncpg.CharacterNotInRepertoireError() | asyncpg.UntranslatableCharacterError():
            return InvalidInput("a text contains characters that cannot be stored, such as NUL")
        case asyncpg.DiskFullError():
            return StorageFull()
        case asyncpg.SerializationError() | asyncpg.DeadlockDetectedError() | asyncpg.LockNotAvailableError():
            return StoreBusy("The command conflicted with other transactions for too long.")
        case asyncpg.TooManyConnectionsError():
            return StoreBusy("The database accepts no more connections.")
        case _:
            if action != "reached":
                failures.log("database_failed", error)
            at = f" at {endpoint}" if endpoint else ""
            reason = "it does not respond" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            return StoreError(
                f"The database{at} cannot be {action}: {reason}",
                hint="Check the host and port in the URL, and that the server is running."
                if action == "reached"
                else None,
            )
