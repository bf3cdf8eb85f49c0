"""Commands that run in batches because they are frequent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from ingot.blobs.ports import DeleteKey, FinishUpload, PutBlob
from ingot.engines.jobs import has_files
from ingot.engines.postgres import blobs, claim, enqueue, events, maintenance, settle
from ingot.engines.postgres.command_batcher import CommandBatcher, RunBatch
from ingot.engines.postgres.command_scope import next_deadline, run_in_scope
from ingot.engines.postgres.context import BoundCommands, Context
from ingot.engines.postgres.dependents import DependentReleaser
from ingot.engines.postgres.handover import Handover
from ingot.engines.postgres.tenants import check_tenant
from ingot.events.model import Published
from ingot.events.ports import PublishEvent
from ingot.jobs.model import Claim, Enqueued, MaintenanceResult
from ingot.jobs.ports import AppendLogs, ClaimJobs, Enqueue, LogEntry, MaintainJobs, RenewLeases, SettleJobs
from ingot.kernel.errors import StoreBusy
from ingot.kernel.logs import detached_context

LOG_CHARS_PER_ROW: Final = 1024
BLOBS_IN_FLIGHT_MAX: Final = 1  # Each batch locks the usage of its tenants, so a second one would mostly wait.
TENANT_CLAIMS_MAX: Final = 6  # Claims of one tenant that run at once, fewer than there are connections.
ClaimScope = tuple[tuple[str, ...], str | None]
C = TypeVar("C")
A = TypeVar("A")


class CommandBatches:
    """The command batchers: one for each kind of command, and for claims one for each set of types and tenant."""

    def __init__(self, context: Context, dependents: DependentReleaser) -> None:
        self._context = context
        self._dependents = dependents
        db, lane_cache = context.database, context.lane_cache
        self._handover = Handover(db, lane_cache)
        self._by_kind: list[CommandBatcher[Any, Any]] = []
        self._enqueues = self._add(
            self._handover.enqueue, lambda command: len(command.jobs), "enqueue", tenant_of=_tenant_of_first("jobs")
        )
        # Orders with files may wait for locks of their tenant. Orders without files must not wait with them.
        self._enqueues_with_files = self._add(
            partial(enqueue.enqueue, db, lane_cache),
            lambda command: sum(map(enqueue.weigh, command.jobs)),
            "enqueue",
            tenant_of=_tenant_of_first("jobs"),
        )
        settles = self._add(
            partial(settle.settle, db, lane_cache),
            lambda command: len(command.settles),
            "settle",
            tenant_of=_tenant_of_first("settles"),
            rows_max=lane_cache.batch_rows_max,
        )
        renews = self._add(
            partial(settle.renew, db, lane_cache),
            lambda command: len(command.beats),
            "renew",
            tenant_of=_tenant_of_first("beats"),
        )
        self._logs = self._add(
            partial(settle.append_logs, db),
            lambda command: sum(map(_weigh_log_entry, command.entries)),
            None,
            tenant_of=_tenant_of_first("entries"),
        )
        by_tenant: dict[str, Any] = {"tenant_of": attrgetter("tenant")}
        self._publishes = self._add(partial(events.publish, db, lane_cache), events.weigh, None, **by_tenant)
        by_tenant["in_flight_max"] = BLOBS_IN_FLIGHT_MAX
        puts = self._add(partial(blobs.put_blobs, db, lane_cache), blobs.weigh, "put_blob", **by_tenant)
        finishes = self._add(partial(blobs.finish_uploads, db, lane_cache), blobs.weigh, "finish_upload", **by_tenant)
        deletes = self._add(partial(blobs.delete_keys, db, lane_cache), lambda _: 1, "delete_key", **by_tenant)
        self._claims: dict[ClaimScope, CommandBatcher[ClaimJobs, list[Claim]]] = {}
        self._claim_slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._maintenance: asyncio.Task[MaintenanceResult] | None = None
        self.commands: BoundCommands = {
            Enqueue: self._enqueue,
            ClaimJobs: partial(run_in_scope, self._claim),
            RenewLeases: renews.submit,
            AppendLogs: self._logs.submit,
            SettleJobs: settles.submit,
            PublishEvent: partial(run_in_scope, self._publish),
            MaintainJobs: self._maintain,
            PutBlob: puts.submit,
            FinishUpload: finishes.submit,
            DeleteKey: deletes.submit,
        }

    def _add(
        self, run: RunBatch[C, A], weigh: Callable[[C], int], kind: str | None, **limits: Any
    ) -> CommandBatcher[C, A]:
        """Add a batcher. Its commits are reported to listeners under `kind`, or not at all if that is `None`."""
        on_commit = (lambda _: None) if kind is None else partial(self._context.lane_cache.notify_committed, kind)
        batcher = CommandBatcher(run, weigh=weigh, on_commit=on_commit, **limits)
        self._by_kind.append(batcher)
        return batcher

    @property
    def waiting(self) -> int:
        """The number of commands that have not been started, without logs and published events."""
        counted = [batcher for batcher in self._by_kind if batcher not in (self._logs, self._publishes)]
        return sum(batcher.waiting_commands for batcher in (*counted, *self._claims.values()))

    async def close(self) -> None:
        """Reject new commands and finish the queued ones."""
        for batcher in (*self._by_kind, *self._claims.values()):
            await batcher.close()
        if self._maintenance is not None:
            await asyncio.wait([self._maintenance])

    def _enqueue(self, command: Enqueue) -> Awaitable[list[Enqueued]]:
        with_files = any(map(has_files, command.jobs))
        return (self._enqueues_with_files if with_files else self._enqueues).submit(command)

    async def _publish(self, command: PublishEvent) -> Published:
        await check_tenant(self._context, command.tenant)
        return await self._publishes.submit(command)

    async def _claim(self, command: ClaimJobs) -> list[Claim]:
        lane_cache = self._context.lane_cache
        self._context.database.expect_fitting_schema()  # A claim of types without lanes calls no function.
        if command.tenant is not None:
            await check_tenant(self._context, command.tenant)
        lane_cache.record_request(command.types, command.tenant)
        await self._maintain_if_due()
        if (answer := self._handover.join(command)) is not None:
            return await answer
        scope = tuple(command.types), command.tenant
        batcher = self._claims.get(scope)
        if batcher is None:
            for idle in [key for key, other in self._claims.items() if other.is_idle]:
                del self._claims[idle]
            batcher = self._claims[scope] = CommandBatcher(
                self._run_claims,
                weigh=lambda command: command.limit,
                rows_max=lane_cache.batch_rows_max,
                on_commit=partial(lane_cache.notify_committed, "claim"),
            )
        return await batcher.submit(command)

    async def _run_claims(self, commands: list[ClaimJobs]) -> list[list[Claim]]:
        """Serve a batch of claims. Claims of one tenant for different types share `TENANT_CLAIMS_MAX` slots."""
        tenant = commands[0].tenant
        if tenant is None:
            return await claim.claim(self._context.database, self._context.lane_cache, commands)
        slots = self._claim_slots.setdefault(tenant, asyncio.Semaphore(TENANT_CLAIMS_MAX))
        async with slots:
            return await claim.claim(self._context.database, self._context.lane_cache, commands)

    async def _maintain(self, _: MaintainJobs) -> MaintenanceResult:
        async with _maintenance_deadline():
            await self._dependents.wait_until_idle()
            result = await self._join_maintenance()
            await self._dependents.wait_until_idle()
        return result

    async def _maintain_if_due(self) -> None:
        """Run due maintenance before a claim. Concurrent claims wait for the same run."""
        if self._dependents.is_idle and not self._is_maintenance_due():
            return
        async with _maintenance_deadline():
            await self._dependents.wait_until_idle()
            if self._is_maintenance_due():
                await self._join_maintenance()
                await self._dependents.wait_until_idle()

    def _is_maintenance_due(self) -> bool:
        lane_cache = self._context.lane_cache
        due_at = lane_cache.next_maintenance_at()
        return lane_cache.is_poll_due() or (due_at is not None and due_at <= lane_cache.now())

    async def _join_maintenance(self) -> MaintenanceResult:
        """Wait for the current run of maintenance, or start one."""
        if self._maintenance is None or self._maintenance.done():
            run = maintenance.maintain(self._context.database, self._context.lane_cache)
            self._maintenance = asyncio.create_task(run, context=detached_context())
            self._maintenance.add_done_callback(_retrieve_error)
        return await asyncio.shield(self._maintenance)


@asynccontextmanager
async def _maintenance_deadline() -> AsyncIterator[None]:
    """Stop waiting for maintenance at the deadline of the command. The maintenance continues."""
    try:
        async with asyncio.timeout_at(next_deadline()):
            yield
    except TimeoutError as error:
        raise StoreBusy(
            "Maintenance takes longer than a call may, and continues.", hint="Try again in a moment."
        ) from error


def _retrieve_error(task: asyncio.Task[MaintenanceResult]) -> None:
    """Retrieve the error of a run, because all its callers may have stopped waiting. Its calls have logged it."""
    if not task.cancelled():
        task.exception()


def _tenant_of_first(field: str) -> Callable[[Any], str | None]:
    """Return a function that returns the tenant of the first item in a field of a command.

    The tenant is `None` if the caller is not restricted to one.
    """
    items_of = attrgetter(field)

    def tenant_of(command: Any) -> str | None:
        items = items_of(command)
        return items[0].tenant if items else None

    return tenant_of


def _weigh_log_entry(entry: LogEntry) -> int:
    """Return the number of rows that an entry counts for. Long texts count more, to keep batches small."""
    return 1 + len(entry.text) // LOG_CHARS_PER_ROW
