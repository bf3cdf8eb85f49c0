"""Turns between tenants."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.jobs.lanes import SHARES_MAX, TENANTS_MAX, FairShare, FairShares


def play(line: FairShare, weights: dict[str, int], deals: list[int]) -> list[str]:
    """Whose jobs start, one after the other, when everybody always has more."""
    starts = []
    for jobs in deals:
        turns = line.next_turns(jobs, weights)
        taken = Counter[str]()
        for turn in turns:
            starts += [turn.tenant] * turn.jobs
            taken[turn.tenant] += turn.jobs
        line.record_claimed(taken, weights, waiting=weights)
    return starts


@given(tenants=st.integers(1, 200), deals=st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_nobody_gets_less_than_half_of_its_share_of_any_thousand_starts(tenants: int, deals: list[int]) -> None:
    weights = {f"t{number}": 1 for number in range(tenants)}
    starts = play(FairShare(), weights, deals)
    for begin in range(0, len(starts) - 999, 97):
        window = Counter(starts[begin : begin + 1000])
        assert min(window[tenant] for tenant in weights) >= 1000 / (2 * tenants)


@given(deals=st.lists(st.integers(1, 1000), min_size=5, max_size=50))
def test_shares_follow_the_weights(deals: list[int]) -> None:
    weights = {"a": 1, "b": 3}
    starts = Counter(play(FairShare(), weights, deals))
    assert abs(starts["b"] - 3 * starts["a"]) <= 4 * max(deals)


@pytest.mark.parametrize("jobs", [1, 7, 500])
def test_a_deal_is_of_all_jobs_and_no_more(jobs: int) -> None:
    for tenants in (1, 2, 3, 1000):
        assert sum(turn.jobs for turn in FairShare().next_turns(jobs, {str(n): 1 for n in range(tenants)})) == jobs


def test_who_was_away_saves_up_no_turns() -> None:
    line = FairShare()
    play(line, {"a": 1}, [1000])
    starts = play(line, {"a": 1, "b": 1}, [1] * 100)
    assert Counter(starts)["a"] >= 49


def test_who_got_much_alone_does_not_pay_for_it_later() -> None:
    line = FairShare()
    play(line, {"a": 1}, [10_000])
    assert Counter(play(line, {"a": 1, "b": 1}, [10] * 10)) == {"a": 50, "b": 50}


def test_what_was_not_taken_is_not_counted() -> None:
    line = FairShare()
    line.next_turns(10, {"a": 1, "b": 1})
    line.record_claimed({"b": 1}, {"a": 1, "b": 1}, waiting=["a", "b"])
    assert line.next_turns(1, {"a": 1, "b": 1})[0].tenant == "a"


def test_what_is_remembered_is_bounded() -> None:
    line = FairShare()
    for number in range(TENANTS_MAX + 10):
        line.record_claimed({f"t{number}": 1}, {f"t{number}": 1}, waiting=[])
    assert line.tracked_tenants <= TENANTS_MAX
    turns = FairShares()
    lines = [turns.for_types([str(number)]) for number in range(SHARES_MAX + 1)]
    assert turns.for_types([str(SHARES_MAX)]) is lines[-1]
    assert turns.for_types(["1"]) is lines[1]
    assert turns.for_types(["0"]) is not lines[0], "the oldest is forgotten"
    assert turns.for_types(["a", "b"]) is turns.for_types(["b", "a", "b"])
