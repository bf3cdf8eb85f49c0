"""Waiters: who is woken for what, in which order, and what happens to news nobody has heeded."""

from __future__ import annotations

import pytest

from ingot.jobs.claim_waiters import ClaimWaiter, ClaimWaiters


def _woken(waiters: list[ClaimWaiter]) -> list[bool]:
    return [waiter.woken.is_set() for waiter in waiters]


@pytest.mark.parametrize(
    ("types", "tenant", "hears"),
    [(["a"], None, True), (["b", "a"], None, True), (["a"], "t", True), (["b"], None, False), (["a"], "u", False)],
)
def test_a_claim_hears_only_of_work_it_could_take(types: list[str], tenant: str | None, hears: bool) -> None:
    line = ClaimWaiters()
    waiter = line.add(types, tenant)
    line.wake("t", "a", 5)
    assert _woken([waiter]) == [hears]


def test_as_many_are_woken_as_jobs_became_ready_longest_waiting_first() -> None:
    line = ClaimWaiters()
    waiters = [line.add(["a"], None) for _ in range(4)]
    line.wake("t", "a", 2)
    assert _woken(waiters) == [True, True, False, False]
    line.wake("t", "a", 1)
    assert _woken(waiters) == [True, True, True, False]


def test_who_cannot_take_the_work_does_not_stand_in_the_way() -> None:
    line = ClaimWaiters()
    waiters = [line.add(["b"], None), line.add(["a"], "u"), line.add(["a"], "t")]
    line.wake("t", "a", 1)
    assert _woken(waiters) == [False, False, True]


def test_news_that_was_not_heeded_goes_to_the_next_who_can_use_it() -> None:
    line = ClaimWaiters()
    first, other, second = line.add(["a"], None), line.add(["b"], None), line.add(["a"], None)
    line.wake("t", "a", 1)
    line.remove(first)
    assert (_woken([other, second]), second.pending_hint) == ([False, True], ("t", "a"))


def test_news_that_was_heeded_goes_no_further() -> None:
    line = ClaimWaiters()
    first, second = line.add(["a"], None), line.add(["a"], None)
    line.wake("t", "a", 1)
    first.pending_hint = None
    line.remove(first)
    assert _woken([second]) == [False]


def test_who_has_left_is_not_woken() -> None:
    line = ClaimWaiters()
    gone, staying = line.add(["a"], None), line.add(["a"], None)
    line.remove(gone)
    line.remove(gone)
    line.wake("t", "a", 1)
    assert _woken([gone, staying]) == [False, True]


def test_who_was_woken_early_is_the_first_to_hear_of_the_job() -> None:
    waiters = ClaimWaiters()
    first, second = (waiters.add(["noop"], "t") for _ in range(2))
    assert waiters.wake_early("t", "noop", 1) == 1
    first.woken.clear()  # It looked, and the job was not there yet.
    waiters.wake("t", "noop", 1)
    assert (first.pending_hint, second.pending_hint) == (("t", "noop"), None)
    assert (first.woken.is_set(), second.woken.is_set()) == (True, False)


def test_only_those_are_woken_early_who_could_take_the_job() -> None:
    waiters = ClaimWaiters()
    for types, tenant in ((["echo"], "t"), (["noop"], "u")):
        waiters.add(types, tenant)
    told = waiters.add(["noop"], "t")
    told.pending_hint = "t", "noop"  # It has a job to look for already.
    assert waiters.wake_early("t", "noop", 9) == 0
    everybody = waiters.add(["echo", "noop"], None)
    assert waiters.wake_early("t", "noop", 9) == 1
    assert everybody.woken.is_set()
