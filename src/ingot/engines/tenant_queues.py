"""Queues of waiting commands, one for each tenant. Batches are composed fairly of them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from heapq import heappop, heapreplace
from itertools import chain
from typing import Final, Generic, TypeVar

import msgspec

QUEUED_COMMANDS_MAX: Final = 10_000

C = TypeVar("C")
A = TypeVar("A")


class QueuedCommand(msgspec.Struct, Generic[C, A], eq=False, gc=False):
    """A command that waits for its batch, or runs in it. The deadline is in the time of the event loop."""

    command: C
    future: asyncio.Future[A]
    deadline: float
    tenant: str | None


class TenantQueues(Generic[C, A]):
    """Waiting commands by tenant, and the number of running batches that contain commands of each tenant.

    `weigh` returns the number of rows that a command counts for. `size` is the number of waiting commands. A command of
    more than `shared_rows_max` rows shares its batch with no other, and batches of smaller commands take turns with it.
    """

    def __init__(self, weigh: Callable[[C], int], *, shared_rows_max: int | None = None) -> None:
        self._weigh = weigh
        self._shared_rows_max = shared_rows_max
        self._is_large_next = False
        self._queues: dict[str | None, deque[QueuedCommand[C, A]]] = {}  # In the order of their next turns.
        self._running_batches: Counter[str | None] = Counter()
        self.size = 0

    def __iter__(self) -> Iterator[QueuedCommand[C, A]]:
        return chain.from_iterable(self._queues.values())

    def add(self, queued: QueuedCommand[C, A]) -> bool:
        """Add a command, and return whether there was space for it.

        The queue of a tenant may be as long as the space that is left for the others. So one tenant fills half of the
        space at most, the next one half of the rest, and there is space for a tenant without commands.
        """
        queue = self._queues.setdefault(queued.tenant, deque())
        if queue and len(queue) >= QUEUED_COMMANDS_MAX - self.size:
            return False
        queue.append(queued)
        self.size += 1
        return True

    def take_batch(self, rows_max: int, *, batches_max: int) -> list[QueuedCommand[C, A]]:
        """Remove the commands of the next batch, and count it as running until `end_batch`.

        The next command is always one of the tenant with the fewest rows in the batch. A command with more than
        `rows_max` rows gets a batch of its own. Tenants with commands in `batches_max` running batches are left out.
        """
        turns = [
            (0, place, tenant)
            for place, tenant in enumerate(self._queues)
            if self._running_batches[tenant] < batches_max
        ]
        batch: list[QueuedCommand[C, A]] = []
        rows = 0
        if self._shared_rows_max is not None and self.size > 1:
            turns, rows_max = self._choose_size(turns, self._shared_rows_max, rows_max)
        while turns and rows < rows_max:
            tenant_rows, place, tenant = turns[0]
            queue = self._queues[tenant]
            weight = self._weigh(queue[0].command)
            if batch and (rows + weight > rows_max or weight > (self._shared_rows_max or rows_max)):
                heappop(turns)  # A smaller command of another tenant may fit.
                continue
            batch.append(queue.popleft())
            rows += weight
            if queue:
                heapreplace(turns, (tenant_rows + weight, place, tenant))
            else:
                heappop(turns)
        self.size -= len(batch)
        for tenant in {queued.tenant for queued in batch}:
            self._running_batches[tenant] += 1
            queue = self._queues.pop(tenant)
            if queue:
                self._queues[tenant] = queue  # At the end, so that others get the next turn.
        return batch

    def _choose_size(
        self, turns: list[tuple[int, int, str | None]], shared_rows_max: int, rows_max: int
    ) -> tuple[list[tuple[int, int, str | None]], int]:
        """Return the tenants of the next batch and its maximum number of rows: one large command, or small ones only.

        If both kinds wait, they take turns, so that small commands wait for one large command at most.
        """
        large = [turn for turn in turns if self._weigh(self._queues[turn[2]][0].command) > shared_rows_max]
        if not large:
            return turns, rows_max
        if len(large) == len(turns) or self._is_large_next:
            self._is_large_next = False
            return large[:1], 1
        self._is_large_next = True
        return sorted(set(turns).difference(large)), rows_max

    def end_batch(self, batch: list[QueuedCommand[C, A]]) -> None:
        """Record that a batch has ended."""
        for tenant in {queued.tenant for queued in batch}:
            self._running_batches[tenant] -= 1
            if not self._running_batches[tenant]:
                del self._running_batches[tenant]

    def take_expired(self, latest: float) -> list[QueuedCommand[C, A]]:
        """Remove and return the commands whose deadline is not after `latest`."""
        expired = [queued for queued in self if queued.deadline <= latest]
        for tenant in {queued.tenant for queued in expired}:
            queue = deque(queued for queued in self._queues[tenant] if queued.deadline > latest)
            if queue:
                self._queues[tenant] = queue
            else:
                del self._queues[tenant]
        self.size -= len(expired)
        return expired
