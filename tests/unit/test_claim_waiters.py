"""Claim waiters: which waiting claims are woken, in which order, and what happens to unused hints."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from ingot.jobs import claim_waiters as module
from ingot.jobs.claim_waiters import ClaimWaiter, ClaimWaiters


def _woken(waiters: list[ClaimWaiter]) -> list[bool]:
    return [waiter.woken.is_set() for waiter in waiters]


@pytest.mark.parametrize(
    ("types", "tenant", "is_woken"),
    [(["a"], None, True), (["b", "a"], None, True), (["a"], "t", True), (["b"], None, False), (["a"], "u", False)],
)
def test_a_waiting_claim_is_woken_only_for_jobs_that_it_could_take(
    types: list[str], tenant: str | None, is_woken: bool
) -> None:
    claim_waiters = ClaimWaiters()
    waiter = claim_waiters.add(types, tenant)
    claim_waiters.wake("t", "a", 5)
    assert _woken([waiter]) == [is_woken]


def test_one_claim_per_ready_job_is_woken_longest_waiting_first() -> None:
    claim_waiters = ClaimWaiters()
    waiters = [claim_waiters.add(["a"], None) for _ in range(4)]
    claim_waiters.wake("t", "a", 2)
    assert _woken(waiters) == [True, True, False, False]
    claim_waiters.wake("t", "a", 1)
    assert _woken(waiters) == [True, True, True, False]


def test_claims_that_cannot_take_the_job_are_skipped() -> None:
    claim_waiters = ClaimWaiters()
    waiters = [claim_waiters.add(["b"], None), claim_waiters.add(["a"], "u"), claim_waiters.add(["a"], "t")]
    claim_waiters.wake("t", "a", 1)
    assert _woken(waiters) == [False, False, True]


def test_an_unused_hint_is_passed_to_the_next_matching_claim() -> None:
    claim_waiters = ClaimWaiters()
    first, other, second = (
        claim_waiters.add(["a"], None),
        claim_waiters.add(["b"], None),
        claim_waiters.add(["a"], None),
    )
    claim_waiters.wake("t", "a", 1)
    claim_waiters.remove(first)
    assert (_woken([other, second]), second.pending_hint) == ([False, True], ("t", "a"))


def test_a_used_hint_is_not_passed_on() -> None:
    claim_waiters = ClaimWaiters()
    first, second = claim_waiters.add(["a"], None), claim_waiters.add(["a"], None)
    claim_waiters.wake("t", "a", 1)
    first.pending_hint = None
    claim_waiters.remove(first)
    assert _woken([second]) == [False]


def test_a_removed_claim_is_not_woken() -> None:
    claim_waiters = ClaimWaiters()
    removed, staying = claim_waiters.add(["a"], None), claim_waiters.add(["a"], None)
    claim_waiters.remove(removed)
    claim_waiters.remove(removed)
    claim_waiters.wake("t", "a", 1)
    assert _woken([removed, staying]) == [False, True]


def test_a_claim_that_was_woken_early_gets_the_hint_first() -> None:
    waiters = ClaimWaiters()
    first, second = (waiters.add(["noop"], "t") for _ in range(2))
    assert waiters.wake_early("t", "noop", 1) == 1
    first.woken.clear()  # The claim checked, and the job was not stored yet.
    waiters.wake("t", "noop", 1)
    assert (first.pending_hint, second.pending_hint) == (("t", "noop"), None)
    assert (first.woken.is_set(), second.woken.is_set()) == (True, False)


def test_only_matching_claims_without_a_hint_are_woken_early() -> None:
    waiters = ClaimWaiters()
    for types, tenant in ((["echo"], "t"), (["noop"], "u")):
        waiters.add(types, tenant)
    hinted = waiters.add(["noop"], "t")
    hinted.pending_hint = "t", "noop"  # It already has a job to check for.
    assert waiters.wake_early("t", "noop", 9) == 0
    all_types = waiters.add(["echo", "noop"], None)
    assert waiters.wake_early("t", "noop", 9) == 1
    assert all_types.woken.is_set()


def test_claims_of_all_tenants_and_of_one_are_woken_in_the_order_of_arrival() -> None:
    waiters = ClaimWaiters()
    added = [waiters.add(["a"], tenant) for tenant in ("t", None, "t", None)]
    for woken in range(1, 5):
        waiters.wake("t", "a", 1)
        assert _woken(added) == [True] * woken + [False] * (4 - woken)


def test_waking_costs_the_same_beside_many_claims_of_other_types_and_tenants() -> None:
    waiters = ClaimWaiters()
    alone = _lines_of_wakes(waiters)
    for number in range(1000):
        waiters.add([f"other-{number}"], None)
        waiters.add(["type-1"], f"other-{number}")
    assert _lines_of_wakes(waiters) == alone


def _lines_of_wakes(waiters: ClaimWaiters) -> int:
    """Return how many lines of the module are run to wake claims of 100 types."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if frame.f_code.co_filename == module.__file__ else None

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        for number in range(100):
            waiters.wake("t", f"type-{number}", 1)
    finally:
        sys.settrace(previous)
    return lines
