"""Slots for calls, which tenants share: no tenant uses all of them, and waiting tenants take turns."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from ingot.kernel.errors import TenantBusy

WAITING_READS_MAX: Final = 1_000  # Calls of one tenant that wait for a slot.


class FairSlots:
    """A number of slots, of which each tenant uses up to `tenant_slots` at once. Used on one event loop.

    Calls of no tenant, such as looking up a token, may use all slots.
    """

    def __init__(self, slots: int, *, tenant_slots: int) -> None:
        self._slots = slots
        self._tenant_slots = tenant_slots
        self._used = 0
        self._used_by_tenant: Counter[str | None] = Counter()
        self._waiting: dict[str | None, deque[Callable[[], None]]] = {}  # In the order of their next turns.

    def enter(self, tenant: str | None, start: Callable[[], None]) -> None:
        """Call `start` when there is a slot, at once if possible. `leave` has to follow each call of it.

        Raises `TenantBusy` if too many calls of the tenant are waiting.
        """
        if self._has_slot(tenant):
            self._start(tenant, start)
            return
        waiting = self._waiting.setdefault(tenant, deque())
        if len(waiting) >= WAITING_READS_MAX:
            raise TenantBusy
        waiting.append(start)

    def leave(self, tenant: str | None) -> None:
        """Free a slot, and pass it to the tenant whose turn it is."""
        self._used -= 1
        self._used_by_tenant[tenant] -= 1
        if not self._used_by_tenant[tenant]:
            del self._used_by_tenant[tenant]
        next_tenant = next(filter(self._has_slot, self._waiting), tenant)
        waiting = self._waiting.pop(next_tenant, None)
        if waiting is None:
            return
        start = waiting.popleft()
        if waiting:
            self._waiting[next_tenant] = waiting  # At the end, so that others get the next turn.
        self._start(next_tenant, start)

    def _has_slot(self, tenant: str | None) -> bool:
        return self._used < self._slots and (tenant is None or self._used_by_tenant[tenant] < self._tenant_slots)

    def _start(self, tenant: str | None, start: Callable[[], None]) -> None:
        self._used += 1
        self._used_by_tenant[tenant] += 1
        start()
