"""The store: what the rooms see of this engine."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Literal

from ingot.engines.sqlite import (
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
from ingot.engines.sqlite.blob_commands import BLOB_HANDLERS, BlobCommands
from ingot.engines.sqlite.file_reads import FileReads
from ingot.engines.sqlite.opening import Opened, open_folder
from ingot.engines.sqlite.writer import Handler, Told, Writer, each
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
from ingot.jobs.model import (
    AttemptOutcome,
    Claim,
    Collected,
    Definition,
    Enqueued,
    Heartbeat,
    Job,
    JobStatus,
    Pause,
    Settled,
    Tended,
)
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
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report

SWITCH_SECONDS = 0.0002  # A busy event loop must not keep the interpreter from the writer for longer.

# Commands that wait together run in this order, so that a claim sees what came with it.
HANDLERS: dict[type, Handler] = {
    CreateTenant: each(identity.create_tenant),
    ChangeTenant: each(identity.change_tenant),
    RemoveTenant: each(removal.remove_tenant),
    CreateToken: each(credentials.create_token),
    RevokeToken: each(credentials.revoke_token),
    CreateWorkerCredential: each(credentials.create_worker_credential),
    ChangeWorkerCredential: each(credentials.change_worker_credential),
    NoteUse: each(credentials.note_use),
    BeginLogin: each(people.begin_login),
    TakeLogin: each(people.take_login),
    PutMember: each(people.put_member),
    RemoveMember: each(people.remove_member),
    EnableUser: each(people.enable_user),
    SignIn: each(people.sign_in),
    TurnAway: each(people.turn_away),
    EndSession: each(people.end_session),
    PutDefinition: each(definitions.put_definition),
    EnsureDefinition: each(definitions.ensure_definition),
    PauseType: each(definitions.pause),
    ResumeType: each(definitions.resume),
    RenewLeases: settle.renew,
    AppendLogs: settle.append_logs,
    SettleJobs: settle.settle,
    RegisterWorker: each(workers.register),
    HearWorker: each(workers.hear),
    DrainWorker: each(workers.drain),
    RemoveWorker: each(workers.remove),
    TendWorkers: each(workers.tend),
    CancelJob: each(manage.cancel),
    RetryJob: each(manage.retry),
    ChangeJob: each(manage.change),
    Enqueue: enqueue.enqueue,
    Tend: tend.tend,
    ClaimJobs: claim.claim,
    Collect: each(collect.collect),
    **BLOB_HANDLERS,
    PublishEvent: events.publish,
    ForgetEvents: each(events.forget),
    ClearTenants: each(removal.clear_tenants),
}


class SQLiteStore(BlobCommands, FileReads):
    """Jobs, tenants, events and blobs in one SQLite file. Made by `open`; used on one event loop."""

    engine: Literal["sqlite"] = "sqlite"
    alone = True

    def __init__(self, opened: Opened, *, vfs: str | None) -> None:
        super().__init__(opened.path, vfs=vfs)
        self._opened = opened
        self.connection = opened.connection
        self.memory = opened.memory
        self._clock = opened.clock
        self._closing: asyncio.Future[None] | None = None
        self._tell_ready: list[Callable[[str, str, int], None]] = []
        self._tell_agenda: list[Callable[[], None]] = []
        self._listeners: list[Listener] = []
        self._tell_event: list[Callable[[str], None]] = []
        self._tell_removed: list[Callable[[str], None]] = []
        self._writer = Writer(opened.connection, opened.memory, clock=opened.clock, handlers=HANDLERS, tell=self._tell)

    @classmethod
    async def open(cls, folder: Path, *, clock: Clock, lease_seconds: float, vfs: str | None = None) -> SQLiteStore:
        """Open or make the store in a folder.

        Raises `StoreLocked` when another process has it, `StoreTooNew`, `StoreMisconfigured`, `StorageFull`, or
        `StoreError` when the file cannot be used.
        """
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        opening = asyncio.ensure_future(
            asyncio.to_thread(open_folder, folder, clock, lease_seconds=lease_seconds, vfs=vfs)
        )
        try:
            return cls(await asyncio.shield(opening), vfs=vfs)
        except asyncio.CancelledError:
            opening.add_done_callback(_let_go)
            raise

    async def close(self) -> None:
        """Finish what is queued, then let the file and the folder go, even when the caller does not wait for it."""
        if self._closing is None:
            self._writer.end()
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._close))
        await asyncio.shield(self._closing)

    def _close(self) -> None:
        self._writer.join()
        self.close_readers()
        self._opened.close()

    def _tell(self, told: Told) -> None:
        self._say_ready(told.ready)
        for tenant in told.tenants:
            for tell_event in self._tell_event:
                _tell_one(partial(tell_event, tenant))
        if told.agenda is not None:
            for tell_agenda in self._tell_agenda:
                _tell_one(tell_agenda)
        for listener in self._listeners:
            _tell_one(partial(_tell_listener, listener, told))

    # -- hints ----------------------------------------------------------------------------------------------

    def _say_ready(self, ready: Counter[tuple[str, str]]) -> None:
        for (tenant, type), jobs in ready.items():
            for tell_ready in self._tell_ready:
                _tell_one(partial(tell_ready, tenant, type, jobs))

    def on_ready(self, tell: Callable[[str, str, int], None]) -> None:
        """See `JobStore`."""
        self._tell_ready.append(tell)

    def on_agenda(self, tell: Callable[[], None]) -> None:
        """See `JobStore`."""
        self._tell_agenda.append(tell)

    def listen(self, listener: Listener) -> None:
        """See `JobStore`."""
        self._listeners.append(listener)

    async def measure(self) -> Load:
        """See `JobStore`."""
        return self._writer.load()

    def on_event(self, tell: Callable[[str], None]) -> None:
        """See `EventLog`."""
        self._tell_event.append(tell)

    def seconds_to_agenda(self) -> float | None:
        """See `JobStore`."""
        agenda = self.memory.agenda()
        return None if agenda is None else max(0.0, (agenda - self._clock.micros()) / MICROS)

    def gather(self) -> None:
        """See `JobStore`."""
        self._writer.gathers = True

    # -- commands -------------------------------------------------------------------------------------------

    def create_tenant(self, command: CreateTenant) -> Awaitable[Tenant]:
        """See `TenantStore`."""
        return self._writer.submit(command)

    def change_tenant(self, command: ChangeTenant) -> Awaitable[Tenant]:
        """See `TenantStore`."""
        return self._writer.submit(command)

    async def remove_tenant(self, command: RemoveTenant) -> Tenant:
        """See `TenantStore`."""
        removed: Tenant = await self._writer.submit(command)
        for tell in self._tell_removed:
            _tell_one(partial(tell, removed.id))
        return removed

    def clear_tenants(self, command: ClearTenants) -> Awaitable[Cleared]:
        """See `TenantStore`."""
        return self._writer.submit(command)

    def on_removed(self, tell: Callable[[str], None]) -> None:
        """See `TenantStore`."""
        self._tell_removed.append(tell)

    def create_token(self, command: CreateToken) -> Awaitable[Token]:
        """See `CredentialStore`."""
        return self._writer.submit(command)

    def revoke_token(self, command: RevokeToken) -> Awaitable[Token]:
        """See `CredentialStore`."""
        return self._writer.submit(command)

    def create_worker_credential(self, command: CreateWorkerCredential) -> Awaitable[WorkerCredential]:
        """See `CredentialStore`."""
        return self._writer.submit(command)

    def change_worker_credential(self, command: ChangeWorkerCredential) -> Awaitable[WorkerCredential]:
        """See `CredentialStore`."""
        return self._writer.submit(command)

    def note_use(self, command: NoteUse) -> Awaitable[None]:
        """See `CredentialStore`."""
        return self._writer.submit(command)

    def begin_login(self, command: BeginLogin) -> Awaitable[None]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def take_login(self, command: TakeLogin) -> Awaitable[str | None]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def sign_in(self, command: SignIn) -> Awaitable[User]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def turn_away(self, command: TurnAway) -> Awaitable[None]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def end_session(self, command: EndSession) -> Awaitable[None]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def enable_user(self, command: EnableUser) -> Awaitable[User]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def put_member(self, command: PutMember) -> Awaitable[Member]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def remove_member(self, command: RemoveMember) -> Awaitable[Member]:
        """See `PeopleStore`."""
        return self._writer.submit(command)

    def put_definition(self, command: PutDefinition) -> Awaitable[Definition]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def ensure_definition(self, command: EnsureDefinition) -> Awaitable[Definition]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def pause(self, command: PauseType) -> Awaitable[Pause]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def resume(self, command: ResumeType) -> Awaitable[None]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def enqueue(self, command: Enqueue) -> Awaitable[list[Enqueued]]:
        """See `JobStore`."""
        answer = self._writer.submit(command)
        if self._writer.gathers and not answer.done():
            self._foretell(command)
        return answer

    def _foretell(self, command: Enqueue) -> None:
        """Have claims that wait come at once: what gathers in this turn is committed together, the jobs before them."""
        waits = (bool(one.run_at or one.delay or one.after or one.uploads) for one in command.orders)
        soon = Counter((one.tenant, one.type) for one, later in zip(command.orders, waits, strict=True) if not later)
        self._say_ready(soon)

    def claim(self, command: ClaimJobs) -> Awaitable[list[Claim]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def renew(self, command: RenewLeases) -> Awaitable[list[Heartbeat | IngotError]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def append_logs(self, command: AppendLogs) -> Awaitable[list[int | IngotError]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def settle(self, command: SettleJobs) -> Awaitable[list[Settled | IngotError]]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def cancel(self, command: CancelJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def retry(self, command: RetryJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def change(self, command: ChangeJob) -> Awaitable[Job]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def tend(self, command: Tend) -> Awaitable[Tended]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def collect(self, command: Collect) -> Awaitable[Collected]:
        """See `JobStore`."""
        return self._writer.submit(command)

    def register_worker(self, command: RegisterWorker) -> Awaitable[Worker]:
        """See `WorkerStore`."""
        return self._writer.submit(command)

    def hear_worker(self, command: HearWorker) -> Awaitable[Heard]:
        """See `WorkerStore`."""
        return self._writer.submit(command)

    def drain_worker(self, command: DrainWorker) -> Awaitable[Worker]:
        """See `WorkerStore`."""
        return self._writer.submit(command)

    def remove_worker(self, command: RemoveWorker) -> Awaitable[bool]:
        """See `WorkerStore`."""
        return self._writer.submit(command)

    def tend_workers(self, command: TendWorkers) -> Awaitable[CrewTended]:
        """See `WorkerStore`."""
        return self._writer.submit(command)

    def publish(self, command: PublishEvent) -> Awaitable[Published]:
        """See `EventLog`."""
        return self._writer.submit(command)

    def forget_events(self, command: ForgetEvents) -> Awaitable[Forgotten]:
        """See `EventLog`."""
        return self._writer.submit(command)


def _let_go(opening: asyncio.Future[Opened]) -> None:
    """Close a store whose opener went away."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _tell_listener(listener: Listener, told: Told) -> None:
    """Tell what a commit did, attempts that ended alike together."""
    if told.commands:
        listener.committed("sqlite", "write", told.commands)
    alike: dict[tuple[str, AttemptOutcome, JobStatus], list[int]] = {}
    for type, outcome, status, micros in told.ended:
        alike.setdefault((type, outcome, status), []).append(micros)
    for end, durations in alike.items():
        listener.ended(*end, durations)
    for type, jobs in told.canceled.items():
        listener.canceled(type, jobs)


def _tell_one(tell: Callable[[], None]) -> None:
    try:
        tell()
    except Exception as error:  # A listener that fails must not keep the news from the others.
        report("listener_failed", error)
