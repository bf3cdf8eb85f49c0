"""Commands about jobs and events that crowds send: those of one kind are run together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final

from ingot.engines.jobs import has_files
from ingot.engines.postgres import claim, enqueue, events, settle, tend
from ingot.engines.postgres.batches import Batches
from ingot.engines.postgres.context import BoundCommands, Context
from ingot.engines.postgres.follow import Follow
from ingot.engines.postgres.handover import Handover
from ingot.engines.postgres.identity import check_tenant
from ingot.events.model import Published
from ingot.events.ports import PublishEvent
from ingot.jobs.model import Claim, Enqueued, Heartbeat, Settled, Tended
from ingot.jobs.ports import AppendLogs, ClaimJobs, Enqueue, LogEntry, RenewLeases, SettleJobs, Tend
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import for_all

LOG_CHARS_PER_ROW: Final = 1024
Scope = tuple[tuple[str, ...], str | None]


class JobBatches:
    """The batches of jobs: those of claims by what they ask for, the others by kind."""

    def __init__(self, context: Context, follow: Follow) -> None:
        self._context = context
        self._follow = follow
        db, memory = context.database, context.memory
        self._handover = Handover(db, memory)
        self._enqueues: Batches[Enqueue, list[Enqueued]] = Batches(
            self._handover.enqueue,
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
        self.commands: BoundCommands = {
            Enqueue: self._enqueue,
            ClaimJobs: self._claim,
            RenewLeases: self._renews.submit,
            AppendLogs: self._logs.submit,
            SettleJobs: self._settles.submit,
            PublishEvent: self._publish,
            Tend: self._tend,
        }

    @property
    def waiting(self) -> int:
        """How many commands about jobs were not begun yet."""
        waiting = self._enqueues.waiting + self._filed.waiting + self._settles.waiting + self._renews.waiting
        return waiting + sum(claims.waiting for claims in self._claims.values())

    async def close(self) -> None:
        """Take no more commands, and finish those that were queued."""
        for batches in (self._enqueues, self._filed, self._settles, self._renews, self._logs, self._publishes):
            await batches.close()
        for claims in self._claims.values():
            await claims.close()
        if self._tending is not None:
            await asyncio.wait([self._tending])

    def _enqueue(self, command: Enqueue) -> Awaitable[list[Enqueued]]:
        with_files = any(map(has_files, command.orders))
        return (self._filed if with_files else self._enqueues).submit(command)

    async def _publish(self, command: PublishEvent) -> Published:
        await check_tenant(self._context, command.tenant)
        return await self._publishes.submit(command)

    async def _claim(self, command: ClaimJobs) -> list[Claim]:
        memory = self._context.memory
        if command.tenant is not None:
            await check_tenant(self._context, command.tenant)
        memory.ask(command.types, command.tenant)
        await self._tend_when_due()
        if (answer := self._handover.join(command)) is not None:
            return await answer
        scope = tuple(command.types), command.tenant
        batches = self._claims.get(scope)
        if batches is None:
            for idle in [key for key, known in self._claims.items() if known.idle]:
                del self._claims[idle]
            batches = self._claims[scope] = Batches(
                partial(claim.claim, self._context.database, memory),
                weigh=lambda command: command.limit,
                rows_max=memory.rows_max,
                told=partial(memory.tell_committed, "claim"),
            )
        return await batches.submit(command)

    async def _tend(self, _: Tend) -> Tended:
        await self._follow.settle_down()
        tended = await self._tend_together()
        await self._follow.settle_down()
        return tended

    async def _tend_when_due(self) -> None:
        """Claims do what is due themselves, all of them together."""
        await self._follow.settle_down()
        memory = self._context.memory
        agenda = memory.agenda()
        if memory.look_is_old() or (agenda is not None and agenda <= memory.now()):
            await self._tend_together()
            await self._follow.settle_down()

    async def _tend_together(self) -> Tended:
        if self._tending is None or self._tending.done():
            tending = tend.tend(self._context.database, self._context.memory)
            self._tending = asyncio.create_task(tending, context=for_all())
        return await asyncio.shield(self._tending)


def _weight_of_log(entry: LogEntry) -> int:
    """A long text counts as many rows, so that what goes together stays small."""
    return 1 + len(entry.text) // LOG_CHARS_PER_ROW
