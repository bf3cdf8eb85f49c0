"""The store: what the rooms see of this engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Literal

import asyncpg

from ingot.engines.postgres import (
    claim,
    collect,
    credentials,
    definitions,
    enqueue,
    events,
    identity,
    manage,
    people,
    removal,
    settle,
    tend,
    workers,
)
from ingot.engines.postgres.batches import Batches
from ingot.engines.postgres.blob_store import Blobs
from ingot.engines.postgres.connection import (
    CONNECTIONS_MAX,
    SERVER,
    Connection,
    Database,
    explain,
    open_pool,
    place,
)
from ingot.engines.postgres.figures import Horizon
from ingot.engines.postgres.follow import Follow
from ingot.engines.postgres.memory import Memory
from ingot.engines.postgres.migrate import check, migrations
from ingot.engines.postgres.watch import Watch
from ingot.events.model import Forgotten, Published
from ingot.events.ports import ForgetEvents, PublishEvent
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Tenant
from ingot.identity.people import Member, User
from ingot.identity.ports import (
    BeginLogin,
    ChangeTenant,
    ChangeWorkerCredential,
    Cleared,
    ClearTenants,
    CreateTenant,
    CreateToken,
    CreateWorkerCredential,
    EnableUser,
    EndSession,
    NoteUse,
    PutMember,
    RemoveMember,
    RemoveTenant,
    RevokeToken,
    SignIn,
    TakeLogin,
    TurnAway,
)
from ingot.jobs.crew import CrewTended, Heard, Worker
from ingot.jobs.figures import Listener, Load
from ingot.jobs.model import Claim, Collected, Definition, Enqueued, Heartbeat, Job, Pause, Settled, Tended
from ingot.jobs.ports import (
    AppendLogs,
    CancelJob,
    ChangeJob,
    ClaimJobs,
    Collect,
    DrainWorker,
    Enqueue,
    EnsureDefinition,
    HearWorker,
    LogEntry,
    PauseType,
    PutDefinition,
    RegisterWorker,
    RemoveWorker,
    RenewLeases,
    ResumeType,
    RetryJob,
    SettleJobs,
    Tend,
    TendWorkers,
)
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.errors import IngotError, StoreMisconfigured, StoreTooNew
from ingot.kernel.logs import for_all

LOG_CHARS_PER_ROW: Final = 1024
Scope = tuple[tuple[str, ...], str | None]


ABOUT_US: Final = """
SELECT current_user, current_setting('synchronous_commit'), current_setting('server_encoding'),
    (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user)
"""


class PostgresStore(Blobs):
    """Jobs, tenants and events in one PostgreSQL database. Made by `open`; used on one event loop."""

    engine: Literal["postgres"] = "postgres"
    alone = False

    def __init__(self, db: Database, memory: Memory, follow: Follow, watch: Watch) -> None:
        self.database = db
        self.memory = memory
        self.follow = follow
        self.watch = watch
        self._enqueues: Batches[Enqueue, list[Enqueued]] = Batches(
            partial(enqueue.enqueue, db, memory),
            weigh=lambda command: len(command.orders),
            told=partial(memory.tell_committed, "enqueue"),
        )
        # What orders have to do with files waits for others of their tenant; those without do not wait with them.
        self._filed: Batches[Enqueue, list[Enqueued]] = Batches(
            partial(enqueue.enqueue, db, memory),
            weigh=lambda command: sum(map(enqueue.weigh, command.orders)),
            told=partial(memory.tell_committed, "enqueue"),
        )
        self._settles: Batches[SettleJobs, list[Settled | IngotError]] = Batches(
            partial(settle.settle, db, memory),
            weigh=lambda command: len(command.settles),
            rows_max=memory.rows_max,
            told=partial(memory.tell_committed, "settle"),
        )
        self._renews: Batches[RenewLeases, list[Heartbeat | IngotError]] = Batches(
            partial(settle.renew, db, memory),
            weigh=lambda command: len(command.beats),
            told=partial(memory.tell_committed, "renew"),
        )
        self._logs: Batches[AppendLogs, list[int | IngotError]] = Batches(
            partial(settle.append_logs, db), weigh=lambda command: sum(map(_weight_of_log, command.entries))
        )
        self._publishes: Batches[PublishEvent, Published] = Batches(
            partial(events.publish, db, memory), weigh=events.weigh
        )
        self._claims: dict[Scope, Batches[ClaimJobs, list[Claim]]] = {}
        self._tending: asyncio.Task[Tended] | None = None
        self._horizon = Horizon()
        self._open_blobs()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock,
        lease_seconds: float,
        pooled: bool = False,
        connections: int = CONNECTIONS_MAX,
        connection_class: type[Connection] = Connection,
        pool: asyncpg.Pool[asyncpg.Record] | None = None,
    ) -> PostgresStore:
        """Open the store in a database that was migrated before.

        A pool that is passed in is used instead of a new one, and `close` leaves it open.
        Raises `StoreTooNew`, `StoreMisconfigured`, or `StoreError` when the server cannot be reached.
        """
        owns_pool = pool is None
        if pool is None:
            pool = await open_pool(url, pooled=pooled, connections=connections, connection_class=connection_class)
        try:
            async with pool.acquire() as connection, connection.transaction():
                await _check(connection)
            memory = Memory(clock, lease=round(lease_seconds * MICROS))
            db = Database(pool, pooled=pooled, owns_pool=owns_pool)
            await tend.look(db, memory)
            memory.sweep_from = memory.now() + memory.lease
            follow = Follow(db, memory)
            return cls(db, memory, follow, Watch(url, db, memory, follow, listens=not pooled))
        except BaseException as error:
            if owns_pool:
                await pool.close()
            if isinstance(error, asyncpg.PostgresError):
                raise explain(error, doing="used", where=place(url)) from error
            raise

    def stop_waiting(self) -> None:
        """Fail what waits for a server that is away, and what finds it away from now on."""
        self.database.stop_waiting()

    async def keep_secret_key(self, fingerprint: bytes, *, replaces: bool) -> bool:
        """Whether the servers of this database have the key with this fingerprint; who replaces it has them have it."""
        ((same,),) = await self.database.call("SELECT ingot.keep_secret_key($1, $2)", fingerprint, replaces)
        return bool(same)

    async def close(self) -> None:
        """Finish what is queued, then let the connections go."""
        self.stop_waiting()
        await self.watch.stop()
        for batches in (self._enqueues, self._filed, self._settles, self._renews, self._logs, self._publishes):
            await batches.close()
        for of_blobs in self._blob_batches:
            await of_blobs.close()
        for claims in self._claims.values():
            await claims.close()
        if self._tending is not None:
            await asyncio.wait([self._tending])
        await self.follow.settle_down()
        await self.database.close()

    # -- hints ----------------------------------------------------------------------------------------------

    def on_ready(self, tell: Callable[[str, str, int], None]) -> None:
        """See `JobStore`."""
        self.memory.on_ready.append(tell)

    def on_agenda(self, tell: Callable[[], None]) -> None:
        """See `JobStore`."""
        self.memory.on_agenda.append(tell)

    def listen(self, listener: Listener) -> None:
        """See `JobStore`."""
        self.memory.listeners.append(listener)

    async def measure(self) -> Load:
        """See `JobStore`."""
        waiting = self._enqueues.waiting + self._filed.waiting + self._settles.waiting + self._renews.waiting
        waiting += sum(batches.waiting for batches in self._blob_batches)
        return Load(
            waiting_commands=waiting + sum(claims.waiting for claims in self._claims.values()),
            horizon_seconds=await self._horizon.measure(self.database),
            connections=self.database.pool.get_size(),
            connections_used=self.database.pool.get_size() - self.database.pool.get_idle_size(),
            connections_max=self.database.pool.get_max_size(),
        )

    def on_event(self, tell: Callable[[str], None]) -> None:
        """See `EventLog`."""
        self.memory.on_event.append(tell)

    def seconds_to_agenda(self) -> float | None:
        """See `JobStore`."""
        agenda = self.memory.agenda()
        return None if agenda is None else max(0.0, (agenda - self.memory.now()) / MICROS)

    def gather(self) -> None:
        """See `JobStore`. What comes while a batch is under way is gathered anyway."""

    # -- commands -------------------------------------------------------------------------------------------

    def enqueue(self, command: Enqueue) -> Awaitable[list[Enqueued]]:
        """See `JobStore`."""
        with_files = any(map(enqueue.has_files, command.orders))
        return (self._filed if with_files else self._enqueues).submit(command)

    async def claim(self, command: ClaimJobs) -> list[Claim]:
        """See `JobStore`."""
        if command.tenant is not None:
            await identity.check_tenant(self.database, self.memory, command.tenant)
        self.memory.ask(command.types, command.tenant)
        await self._tend_when_due()
        scope = tuple(command.types), command.tenant
        batches = self._claims.get(scope)
        if batches is None:
            for idle in [key for key, known in self._claims.items() if known.idle]:
                del self._claims[idle]
            batches = self._claims[scope] = Batches(
                partial(claim.claim, self.database, self.memory),
                weigh=lambda command: command.limit,
                rows_max=self.memory.rows_max,
                told=partial(self.memory.tell_committed, "claim"),
            )
        return await batches.submit(command)

    async def _tend_when_due(self) -> None:
        """Claims do what is due themselves, all of them together."""
        await self.follow.settle_down()
        agenda = self.memory.agenda()
        if self.memory.look_is_old() or (agenda is not None and agenda <= self.memory.now()):
            await self._tend_together()
            await self.follow.settle_down()

    async def _tend_together(self) -> Tended:
        if self._tending is None or self._tending.done():
            self._tending = asyncio.create_task(tend.tend(self.database, self.memory), context=for_all())
        return await asyncio.shield(self._tending)

    def renew(self, command: RenewLeases) -> Awaitable[list[Heartbeat | IngotError]]:
        """See `JobStore`."""
        return self._renews.submit(command)

    def append_logs(self, command: AppendLogs) -> Awaitable[list[int | IngotError]]:
        """See `JobStore`."""
        return self._logs.submit(command)

    def settle(self, command: SettleJobs) -> Awaitable[list[Settled | IngotError]]:
        """See `JobStore`."""
        return self._settles.submit(command)

    def cancel(self, command: CancelJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return manage.cancel(self.database, self.memory, command)

    def retry(self, command: RetryJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return manage.retry(self.database, self.memory, command)

    def change(self, command: ChangeJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return manage.change(self.database, self.memory, command)

    async def tend(self, command: Tend) -> Tended:  # noqa: ARG002 - one of the port's commands
        """See `JobStore`."""
        await self.follow.settle_down()
        tended = await self._tend_together()
        await self.follow.settle_down()
        return tended

    def collect(self, command: Collect) -> Awaitable[Collected]:
        """See `JobStore`."""
        return collect.collect(self.database, command)

    async def publish(self, command: PublishEvent) -> Published:
        """See `EventLog`."""
        await identity.check_tenant(self.database, self.memory, command.tenant)
        return await self._publishes.submit(command)

    def forget_events(self, command: ForgetEvents) -> Awaitable[Forgotten]:
        """See `EventLog`."""
        return events.forget(self.database, command)

    def put_definition(self, command: PutDefinition) -> Awaitable[Definition]:
        """See `JobStore`."""
        return definitions.put_definition(self.database, self.memory, command)

    def ensure_definition(self, command: EnsureDefinition) -> Awaitable[Definition]:
        """See `JobStore`."""
        return definitions.ensure_definition(self.database, self.memory, command)

    def pause(self, command: PauseType) -> Awaitable[Pause]:
        """See `JobStore`."""
        return definitions.pause(self.database, command)

    def resume(self, command: ResumeType) -> Awaitable[None]:
        """See `JobStore`."""
        return definitions.resume(self.database, self.memory, command)

    def create_tenant(self, command: CreateTenant) -> Awaitable[Tenant]:
        """See `TenantStore`."""
        return identity.create_tenant(self.database, self.memory, command)

    def change_tenant(self, command: ChangeTenant) -> Awaitable[Tenant]:
        """See `TenantStore`."""
        return identity.change_tenant(self.database, self.memory, command)

    def remove_tenant(self, command: RemoveTenant) -> Awaitable[Tenant]:
        """See `TenantStore`."""
        return removal.remove_tenant(self.database, self.memory, command)

    def clear_tenants(self, command: ClearTenants) -> Awaitable[Cleared]:
        """See `TenantStore`."""
        return removal.clear_tenants(self.database, command)

    def on_removed(self, tell: Callable[[str], None]) -> None:
        """See `TenantStore`."""
        self.memory.on_removed.append(tell)

    def create_token(self, command: CreateToken) -> Awaitable[Token]:
        """See `CredentialStore`."""
        return credentials.create_token(self.database, command)

    def revoke_token(self, command: RevokeToken) -> Awaitable[Token]:
        """See `CredentialStore`."""
        return credentials.revoke_token(self.database, command)

    def create_worker_credential(self, command: CreateWorkerCredential) -> Awaitable[WorkerCredential]:
        """See `CredentialStore`."""
        return credentials.create_worker_credential(self.database, command)

    def change_worker_credential(self, command: ChangeWorkerCredential) -> Awaitable[WorkerCredential]:
        """See `CredentialStore`."""
        return credentials.change_worker_credential(self.database, command)

    def note_use(self, command: NoteUse) -> Awaitable[None]:
        """See `CredentialStore`."""
        return credentials.note_use(self.database, command)

    def begin_login(self, command: BeginLogin) -> Awaitable[None]:
        """See `PeopleStore`."""
        return people.begin_login(self.database, command)

    def take_login(self, command: TakeLogin) -> Awaitable[str | None]:
        """See `PeopleStore`."""
        return people.take_login(self.database, command)

    def sign_in(self, command: SignIn) -> Awaitable[User]:
        """See `PeopleStore`."""
        return people.sign_in(self.database, command)

    def turn_away(self, command: TurnAway) -> Awaitable[None]:
        """See `PeopleStore`."""
        return people.turn_away(self.database, command)

    def end_session(self, command: EndSession) -> Awaitable[None]:
        """See `PeopleStore`."""
        return people.end_session(self.database, command)

    def enable_user(self, command: EnableUser) -> Awaitable[User]:
        """See `PeopleStore`."""
        return people.enable_user(self.database, command)

    def put_member(self, command: PutMember) -> Awaitable[Member]:
        """See `PeopleStore`."""
        return people.put_member(self.database, command)

    def remove_member(self, command: RemoveMember) -> Awaitable[Member]:
        """See `PeopleStore`."""
        return people.remove_member(self.database, command)

    def register_worker(self, command: RegisterWorker) -> Awaitable[Worker]:
        """See `WorkerStore`."""
        return workers.register(self.database, command)

    def hear_worker(self, command: HearWorker) -> Awaitable[Heard]:
        """See `WorkerStore`."""
        return workers.hear(self.database, self.memory, command)

    def drain_worker(self, command: DrainWorker) -> Awaitable[Worker]:
        """See `WorkerStore`."""
        return workers.drain(self.database, command)

    def remove_worker(self, command: RemoveWorker) -> Awaitable[bool]:
        """See `WorkerStore`."""
        return workers.remove(self.database, self.memory, command)

    def tend_workers(self, command: TendWorkers) -> Awaitable[CrewTended]:
        """See `WorkerStore`."""
        return workers.tend(self.database, self.memory, command)


def _weight_of_log(entry: LogEntry) -> int:
    """A long text counts as many rows, so that what goes together stays small."""
    return 1 + len(entry.text) // LOG_CHARS_PER_ROW


async def _check(connection: Any) -> None:
    """The right role, the right schema, and nothing switched off that we promise."""
    user, sync, encoding, above = await connection.fetchrow(ABOUT_US)
    if user != SERVER:
        raise StoreMisconfigured(
            f"The database was opened as {user!r}; reads would not be bound to a tenant.",
            hint=f"Name the role {SERVER} in INGOT_DATABASE_URL.",
        )
    if above:
        raise StoreMisconfigured(
            f"The role {SERVER} is above row-level security.", hint=f"ALTER ROLE {SERVER} NOSUPERUSER NOBYPASSRLS."
        )
    if encoding != "UTF8":
        raise StoreMisconfigured(
            f"The database is encoded in {encoding}.", hint="Make one with ENCODING 'UTF8' and TEMPLATE template0."
        )
    if sync == "off":
        raise StoreMisconfigured(
            "The database has synchronous_commit off.", hint="Switch it on: an acknowledged write must be durable."
        )
    known, newest = migrations()[-1].number, await check(connection)
    if newest < known:
        raise StoreMisconfigured(
            f"The database is at schema {newest}; this program needs {known}.",
            hint="Migrate it: set INGOT_DATABASE_OWNER_URL, a role that may make roles and schemas.",
        )
    if newest > known:
        raise StoreTooNew(f"The database is at schema {newest}; this program knows up to {known}.")
    if not await connection.fetchval("SELECT ingot.at_home()"):
        raise StoreMisconfigured(
            "The database was restored on another server, and the order of its events is that of the old one.",
            hint="Migrate it once: set INGOT_DATABASE_OWNER_URL, a role that may make roles and schemas.",
        )
