"""Claims that wait: who waits for which work, and who is woken when some arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from ingot.jobs.worker_model import WorkerKey


class ClaimWaiter(msgspec.Struct, eq=False):
    """One claim that waits. It keeps its place in the line until it has an answer."""

    types: frozenset[str]
    tenant: str | None
    woken: asyncio.Event
    worker_id: str = ""
    pending_hint: tuple[str, str] | None = None  # The tenant and type it was woken for and has not looked for yet.


class ClaimWaiters:
    """Wakes as many waiting claims as jobs became ready, longest waiting first; nobody polls."""

    def __init__(self) -> None:
        self._waiters: dict[int, ClaimWaiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, types: Iterable[str], tenant: str | None, worker_id: str = "") -> ClaimWaiter:
        """Begin to wait. Register before the first look at the store, so that no arrival is missed."""
        waiter = ClaimWaiter(frozenset(types), tenant, asyncio.Event(), worker_id)
        self._waiters[id(waiter)] = waiter
        return waiter

    def remove(self, waiter: ClaimWaiter) -> None:
        """Stop waiting. News that this claim has not looked for goes to the next in line: it may be theirs."""
        self._waiters.pop(id(waiter), None)
        if waiter.pending_hint is not None:
            self.wake(*waiter.pending_hint, 1)

    def wake_all(self) -> None:
        """Wake everybody, for no work."""
        for waiter in self._waiters.values():
            waiter.woken.set()

    def wake_workers(self, workers: Iterable[WorkerKey]) -> None:
        """Wake all claims of these workers, for no work."""
        known = set(workers)
        for waiter in self._waiters.values() if known else ():
            if (waiter.tenant, waiter.worker_id) in known:
                waiter.woken.set()

    def wake_tenant(self, tenant: str) -> None:
        """Wake all claims for this tenant, for no work."""
        for waiter in self._waiters.values():
            if waiter.tenant == tenant:
                waiter.woken.set()

    def wake(self, tenant: str, type: str, count: int) -> None:
        """Wake up to `count` claims that could take a job of this tenant and type."""
        for waiter in self._next_waiters(tenant, type, count):
            waiter.pending_hint = tenant, type
            waiter.woken.set()

    def wake_early(self, tenant: str, type: str, count: int) -> int:
        """Wake those whom `wake` would wake, before the jobs are there; answers how many.

        It is no news yet: of jobs that they do not get they hear again.
        """
        woken = self._next_waiters(tenant, type, count)
        for waiter in woken:
            waiter.woken.set()
        return len(woken)

    def _next_waiters(self, tenant: str, type: str, count: int) -> list[ClaimWaiter]:
        first: list[ClaimWaiter] = []
        for waiter in self._waiters.values():
            if len(first) >= count:
                break
            if waiter.pending_hint is None and type in waiter.types and waiter.tenant in (None, tenant):
                first.append(waiter)
        return first
