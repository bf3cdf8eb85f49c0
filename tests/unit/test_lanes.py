"""Fair shares: which tenant gets the next turn."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.jobs.lanes import SHARES_MAX, TENANTS_MAX, FairShare, FairShares


def simulate(share: FairShare, weights: dict[str, int], claim_sizes: list[int]) -> list[str]:
    """The tenants of started jobs, in order, if every tenant always has more."""
    starts = []
    for jobs in claim_sizes:
        shares = share.next_turns(jobs, weights)
        claimed = Counter[str]()
        for turn in shares:
            starts += [turn.tenant] * turn.jobs
            claimed[turn.tenant] += turn.jobs
        share.record_claimed(claimed, weights, waiting=weights)
    return starts


@given(tenants=st.integers(1, 200), claim_sizes=st.lists(st.integers(1, 500), min_size=1, max_size=40))
def test_every_tenant_gets_at_least_half_of_its_share_of_any_thousand_starts(
    tenants: int, claim_sizes: list[int]
) -> None:
    weights = {f"t{number}": 1 for number in range(tenants)}
    starts = simulate(FairShare(), weights, claim_sizes)
    for begin in range(0, len(starts) - 999, 97):
        window = Counter(starts[begin : begin + 1000])
        assert min(window[tenant] for tenant in weights) >= 1000 / (2 * tenants)


@given(claim_sizes=st.lists(st.integers(1, 1000), min_size=5, max_size=50))
def test_shares_follow_the_weights(claim_sizes: list[int]) -> None:
    weights = {"a": 1, "b": 3}
    starts = Counter(simulate(FairShare(), weights, claim_sizes))
    assert abs(starts["b"] - 3 * starts["a"]) <= 4 * max(claim_sizes)


@pytest.mark.parametrize("jobs", [1, 7, 500])
def test_the_turns_of_a_claim_cover_exactly_its_jobs(jobs: int) -> None:
    for tenants in (1, 2, 3, 1000):
        assert sum(turn.jobs for turn in FairShare().next_turns(jobs, {str(n): 1 for n in range(tenants)})) == jobs


def test_a_tenant_without_jobs_does_not_accumulate_turns() -> None:
    share = FairShare()
    simulate(share, {"a": 1}, [1000])
    starts = simulate(share, {"a": 1, "b": 1}, [1] * 100)
    assert Counter(starts)["a"] >= 49


def test_a_tenant_that_was_alone_is_not_disadvantaged_later() -> None:
    share = FairShare()
    simulate(share, {"a": 1}, [10_000])
    assert Counter(simulate(share, {"a": 1, "b": 1}, [10] * 10)) == {"a": 50, "b": 50}


def test_turns_that_were_not_used_are_not_counted() -> None:
    share = FairShare()
    share.next_turns(10, {"a": 1, "b": 1})
    share.record_claimed({"b": 1}, {"a": 1, "b": 1}, waiting=["a", "b"])
    assert share.next_turns(1, {"a": 1, "b": 1})[0].tenant == "a"


def test_the_number_of_tracked_tenants_and_shares_is_limited() -> None:
    share = FairShare()
    for number in range(TENANTS_MAX + 10):
        share.record_claimed({f"t{number}": 1}, {f"t{number}": 1}, waiting=[])
    assert share.tracked_tenants <= TENANTS_MAX
    shares = FairShares()
    by_number = [shares.for_types([str(number)]) for number in range(SHARES_MAX + 1)]
    assert shares.for_types([str(SHARES_MAX)]) is by_number[-1]
    assert shares.for_types(["1"]) is by_number[1]
    assert shares.for_types(["0"]) is not by_number[0], "the oldest share is dropped"
    assert shares.for_types(["a", "b"]) is shares.for_types(["b", "a", "b"])
