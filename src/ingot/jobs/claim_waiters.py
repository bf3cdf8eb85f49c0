"""Waiting claims, which are woken when jobs of their types become ready."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from heapq import merge
from itertools import count, islice
from operator import attrgetter

import msgspec

from ingot.jobs.worker_model import WorkerKey


class ClaimWaiter(msgspec.Struct, eq=False):
    """One waiting claim. It keeps its position in the order of waiting claims until it returns."""

    types: frozenset[str]
    tenant: str | None
    woken: asyncio.Event
    number: int
    worker_id: str = ""
    # The tenant and type for which the claim was woken, until it has queried the store.
    pending_hint: tuple[str, str] | None = None


class ClaimWaiters:
    """Wakes as many waiting claims as jobs became ready, longest waiting first, so that no claim has to poll."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiters: dict[int, ClaimWaiter] = {}
        self._waiters_by_type: dict[tuple[str | None, str], dict[int, ClaimWaiter]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, types: Iterable[str], tenant: str | None, worker_id: str = "") -> ClaimWaiter:
        """Add a waiting claim. Call this before the first query of the store, so that no new job is missed."""
        waiter = ClaimWaiter(frozenset(types), tenant, asyncio.Event(), next(self._numbers), worker_id)
        self._waiters[waiter.number] = waiter
        for type in waiter.types:
            self._waiters_by_type.setdefault((tenant, type), {})[waiter.number] = waiter
        return waiter

    def remove(self, waiter: ClaimWaiter) -> None:
        """Remove a waiting claim. If it was woken and has not queried the store since, wake another one instead."""
        if self._waiters.pop(waiter.number, None) is not None:
            for type in waiter.types:
                waiters = self._waiters_by_type[waiter.tenant, type]
                del waiters[waiter.number]
                if not waiters:
                    del self._waiters_by_type[waiter.tenant, type]
        if waiter.pending_hint is not None:
            self.wake(*waiter.pending_hint, 1)

    def wake_all(self) -> None:
        """Wake all waiting claims without a hint about new jobs."""
        for waiter in self._waiters.values():
            waiter.woken.set()

    def wake_workers(self, workers: Iterable[WorkerKey]) -> None:
        """Wake all claims of these workers without a hint about new jobs."""
        worker_keys = set(workers)
        for waiter in self._waiters.values() if worker_keys else ():
            if (waiter.tenant, waiter.worker_id) in worker_keys:
                waiter.woken.set()

    def wake_tenant(self, tenant: str) -> None:
        """Wake all claims of this tenant without a hint about new jobs."""
        for waiter in self._waiters.values():
            if waiter.tenant == tenant:
                waiter.woken.set()

    def wake(self, tenant: str, type: str, count: int) -> None:
        """Wake up to `count` claims that could take a job of this tenant and type."""
        for waiter in self._next_waiters(tenant, type, count):
            waiter.pending_hint = tenant, type
            waiter.woken.set()

    def wake_early(self, tenant: str, type: str, count: int) -> int:
        """Wake the claims that `wake` would wake, before the jobs are ready. Returns the number of woken claims.

        This sets no pending hint. If the claims do not get the jobs, `wake` wakes claims for them later.
        """
        woken = self._next_waiters(tenant, type, count)
        for waiter in woken:
            waiter.woken.set()
        return len(woken)

    def _next_waiters(self, tenant: str, type: str, limit: int) -> list[ClaimWaiter]:
        """Return the longest waiting claims without a hint. Claims of other types and tenants cost nothing."""
        queues = [self._waiters_by_type.get((key, type), {}).values() for key in (None, tenant)]
        waiters = merge(*queues, key=attrgetter("number"))
        return list(islice((waiter for waiter in waiters if waiter.pending_hint is None), limit))
