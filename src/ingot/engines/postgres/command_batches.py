"""Commands that crowds send: those of one kind are run together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from ingot.blobs.ports import DeleteKey, FinishUpload, PutBlob
from ingot.engines.jobs import has_files
from ingot.engines.postgres import blobs, claim, enqueue, events, maintenance, settle
from ingot.engines.postgres.command_batcher import CommandBatcher, RunBatch
from ingot.engines.postgres.context import BoundCommands, Context
from ingot.engines.postgres.dependents import DependentReleaser
from ingot.engines.postgres.handover import Handover
from ingot.engines.postgres.tenants import check_tenant
from ingot.events.model import Published
from ingot.events.ports import PublishEvent
from ingot.jobs.model import Claim, Enqueued, MaintenanceResult
from ingot.jobs.ports import AppendLogs, ClaimJobs, Enqueue, LogEntry, MaintainJobs, RenewLeases, SettleJobs
from ingot.kernel.logs import detached_context

LOG_CHARS_PER_ROW: Final = 1024
BLOBS_IN_FLIGHT_MAX: Final = 1  # Each holds what tenants keep: a second batch would mostly wait for the first.
Scope = tuple[tuple[str, ...], str | None]
C = TypeVar("C")
A = TypeVar("A")


class CommandBatches:
    """The batches of commands: those of claims by what they ask for, the others by kind."""

    def __init__(self, context: Context, follow: DependentReleaser) -> None:
        self._context = context
        self._follow = follow
        db, memory = context.database, context.lane_cache
        self._handover = Handover(db, memory)
        self._by_kind: list[CommandBatcher[Any, Any]] = []
        self._enqueues = self._add(self._handover.enqueue, lambda command: len(command.jobs), "enqueue")
        # What orders have to do with files waits for others of their tenant; those without do not wait with them.
        self._filed = self._add(
            partial(enqueue.enqueue, db, memory), lambda command: sum(map(enqueue.weigh, command.jobs)), "enqueue"
        )
        settles = self._add(
            partial(settle.settle, db, memory),
            lambda command: len(command.settles),
            "settle",
            rows_max=memory.batch_rows_max,
        )
        renews = self._add(partial(settle.renew, db, memory), lambda command: len(command.beats), "renew")
        self._logs = self._add(
            partial(settle.append_logs, db), lambda command: sum(map(_weight_of_log, command.entries)), None
        )
        self._publishes = self._add(partial(events.publish, db, memory), events.weigh, None)
        one = BLOBS_IN_FLIGHT_MAX
        puts = self._add(partial(blobs.put_blobs, db, memory), blobs.weigh, "put_blob", in_flight_max=one)
        finishes = self._add(partial(blobs.finish_uploads, db, memory), blobs.weigh, "finish_upload", in_flight_max=one)
        deletes = self._add(partial(blobs.delete_keys, db, memory), lambda _: 1, "delete_key", in_flight_max=one)
        self._claims: dict[Scope, CommandBatcher[ClaimJobs, list[Claim]]] = {}
        self._tending: asyncio.Task[MaintenanceResult] | None = None
        self.commands: BoundCommands = {
            Enqueue: self._enqueue,
            ClaimJobs: self._claim,
            RenewLeases: renews.submit,
            AppendLogs: self._logs.submit,
            SettleJobs: settles.submit,
            PublishEvent: self._publish,
            MaintainJobs: self._tend,
            PutBlob: puts.submit,
            FinishUpload: finishes.submit,
            DeleteKey: deletes.submit,
        }

    def _add(
        self, run: RunBatch[C, A], weigh: Callable[[C], int], kind: str | None, **limits: Any
    ) -> CommandBatcher[C, A]:
        """Batches of commands that are committed as those of a kind; `None` are those that are not told of."""
        told = (lambda _: None) if kind is None else partial(self._context.lane_cache.notify_committed, kind)
        batches = CommandBatcher(run, weigh=weigh, on_commit=told, **limits)
        self._by_kind.append(batches)
        return batches

    @property
    def waiting(self) -> int:
        """How many commands were not begun yet, but for logs and published events."""
        counted = [batches for batches in self._by_kind if batches not in (self._logs, self._publishes)]
        return sum(batches.waiting_commands for batches in (*counted, *self._claims.values()))

    async def close(self) -> None:
        """Take no more commands, and finish those that were queued."""
        for batches in (*self._by_kind, *self._claims.values()):
            await batches.close()
        if self._tending is not None:
            await asyncio.wait([self._tending])

    def _enqueue(self, command: Enqueue) -> Awaitable[list[Enqueued]]:
        with_files = any(map(has_files, command.jobs))
        return (self._filed if with_files else self._enqueues).submit(command)

    async def _publish(self, command: PublishEvent) -> Published:
        await check_tenant(self._context, command.tenant)
        return await self._publishes.submit(command)

    async def _claim(self, command: ClaimJobs) -> list[Claim]:
        memory = self._context.lane_cache
        if command.tenant is not None:
            await check_tenant(self._context, command.tenant)
        memory.record_request(command.types, command.tenant)
        await self._tend_when_due()
        if (answer := self._handover.join(command)) is not None:
            return await answer
        scope = tuple(command.types), command.tenant
        batches = self._claims.get(scope)
        if batches is None:
            for idle in [key for key, known in self._claims.items() if known.idle]:
                del self._claims[idle]
            batches = self._claims[scope] = CommandBatcher(
                partial(claim.claim, self._context.database, memory),
                weigh=lambda command: command.limit,
                rows_max=memory.batch_rows_max,
                on_commit=partial(memory.notify_committed, "claim"),
            )
        return await batches.submit(command)

    async def _tend(self, _: MaintainJobs) -> MaintenanceResult:
        await self._follow.wait_until_idle()
        tended = await self._tend_together()
        await self._follow.wait_until_idle()
        return tended

    async def _tend_when_due(self) -> None:
        """Claims do what is due themselves, all of them together."""
        await self._follow.wait_until_idle()
        memory = self._context.lane_cache
        agenda = memory.next_maintenance_at()
        if memory.is_poll_due() or (agenda is not None and agenda <= memory.now()):
            await self._tend_together()
            await self._follow.wait_until_idle()

    async def _tend_together(self) -> MaintenanceResult:
        if self._tending is None or self._tending.done():
            tending = maintenance.maintain(self._context.database, self._context.lane_cache)
            self._tending = asyncio.create_task(tending, context=detached_context())
        return await asyncio.shield(self._tending)


def _weight_of_log(entry: LogEntry) -> int:
    """A long text counts as many rows, so that what goes together stays small."""
    return 1 + len(entry.text) // LOG_CHARS_PER_ROW
