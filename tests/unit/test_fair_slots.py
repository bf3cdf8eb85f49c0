"""Fair slots: which tenant reads next, and how many reads of one tenant run and wait."""

from __future__ import annotations

from functools import partial

import pytest

from ingot.engines import fair_slots
from ingot.engines.fair_slots import FairSlots
from ingot.kernel.errors import TenantBusy


class Reads:
    """Reads that run until the test ends them."""

    def __init__(self, slots: int, *, tenant_slots: int) -> None:
        self.slots = FairSlots(slots, tenant_slots=tenant_slots)
        self.running: list[str | None] = []

    def begin(self, *tenants: str | None) -> None:
        for tenant in tenants:
            self.slots.enter(tenant, partial(self.running.append, tenant))

    def end(self, tenant: str | None) -> None:
        self.running.remove(tenant)
        self.slots.leave(tenant)


def test_a_tenant_leaves_a_slot_to_the_others() -> None:
    reads = Reads(3, tenant_slots=2)
    reads.begin("a", "a", "a", "a")
    assert reads.running == ["a", "a"]
    reads.begin("b")
    assert reads.running == ["a", "a", "b"]


def test_waiting_tenants_take_turns() -> None:
    reads = Reads(2, tenant_slots=1)
    reads.begin("a", "b")
    reads.begin("a", "a", "a", "c", "d")
    order = []
    for _ in range(5):
        before = list(reads.running)
        reads.end(before[0])
        order.append(reads.running[-1])
    assert order == ["a", "c", "d", "a", "a"]


def test_a_slot_stays_free_while_only_tenants_at_their_limit_wait() -> None:
    reads = Reads(3, tenant_slots=1)
    reads.begin("a", "a", "b")
    reads.end("b")
    assert reads.running == ["a"]
    reads.end("a")
    assert reads.running == ["a"]


def test_reads_without_a_tenant_may_use_all_slots() -> None:
    reads = Reads(2, tenant_slots=1)
    reads.begin(None, None, None)
    assert reads.running == [None, None]


def test_too_many_waiting_reads_of_one_tenant_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_slots, "WAITING_READS_MAX", 3)
    reads = Reads(2, tenant_slots=1)
    reads.begin("a", "a", "a", "a")
    with pytest.raises(TenantBusy):
        reads.begin("a")
    reads.begin("b")
    reads.end("a")
    reads.begin("a")
    assert reads.running == ["b", "a"]


def test_nothing_is_stored_for_tenants_without_reads() -> None:
    reads = Reads(2, tenant_slots=1)
    reads.begin("a", "a", "b")
    for tenant in ("a", "a", "b"):
        reads.end(tenant)

    assert not any("'a'" in repr(value) for value in vars(reads.slots).values())
