"""Claims that wait: who waits for which work, and who is woken when some arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec


class Waiter(msgspec.Struct, eq=False):
    """One claim that found nothing."""

    types: frozenset[str]
    tenant: str | None
    woken: asyncio.Future[None]


class Waiters:
    """Wakes as many waiting claims as jobs became ready, longest waiting first; nobody polls."""

    def __init__(self) -> None:
        self._waiters: dict[int, Waiter] = {}

    def add(self, types: Iterable[str], tenant: str | None) -> Waiter:
        """Begin to wait. Register before the last look at the store, so that no arrival is missed."""
        waiter = Waiter(frozenset(types), tenant, asyncio.get_running_loop().create_future())
        self._waiters[id(waiter)] = waiter
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Stop waiting."""
        self._waiters.pop(id(waiter), None)

    def wake(self, tenant: str, type: str, count: int) -> None:
        """Wake up to `count` claims that could take a job of this tenant and type."""
        if not self._waiters:
            return
        for waiter in list(self._waiters.values()):
            if count <= 0:
                return
            if type in waiter.types and waiter.tenant in (None, tenant) and not waiter.woken.done():
                waiter.woken.set_result(None)
                self.remove(waiter)
                count -= 1
