"""Backoff: finite, never negative, never over its cap, for 1 to 10,000 failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.jobs import Backoff
from ingot.jobs.checks import SECONDS_MAX, definition
from ingot.jobs.lifecycle import JITTER, backoff_micros
from ingot.jobs.model import Definition
from ingot.kernel.clock import MICROS

FAILURES_MAX = 10_000


def test_default_waits_double_from_one_second_to_an_hour() -> None:
    waits = [backoff_micros(Backoff(), failures, random_fraction=0) / MICROS for failures in range(1, 15)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]


def test_jitter_shortens_a_wait_by_at_most_a_quarter() -> None:
    waits = [backoff_micros(Backoff(), 4, random_fraction=spread) / MICROS for spread in (0.0, 0.5, 1.0)]
    assert (waits, JITTER) == ([8, 7, 6], 0.25)


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff(),
        Backoff(factor=1.0),
        Backoff(factor=1.0000001),
        Backoff(first_seconds=0),
        Backoff(first_seconds=0, max_seconds=0),
        Backoff(first_seconds=100, max_seconds=1),
        Backoff(first_seconds=1e-9, factor=1.001, max_seconds=SECONDS_MAX),
        Backoff(first_seconds=SECONDS_MAX, factor=SECONDS_MAX, max_seconds=SECONDS_MAX),
    ],
)
def test_waits_for_one_to_ten_thousand_failures_stay_in_bounds_and_never_shrink(backoff: Backoff) -> None:
    failures = [*range(1, 200), *range(200, FAILURES_MAX, 479), FAILURES_MAX]
    waits = [backoff_micros(backoff, count, random_fraction=0) for count in failures]
    assert all(0 <= wait <= backoff.max_seconds * MICROS for wait in waits)
    assert waits == sorted(waits)


seconds = st.floats(0, SECONDS_MAX)
policies = st.builds(Backoff, first_seconds=seconds, factor=st.floats(1, SECONDS_MAX), max_seconds=seconds)
spreads = st.floats(0, 1, exclude_max=True)


@given(policies, st.integers(1, FAILURES_MAX), spreads)
def test_every_valid_backoff_waits_within_its_bounds(backoff: Backoff, failures: int, spread: float) -> None:
    definition(Definition(type="noop", backoff=backoff))
    wait = backoff_micros(backoff, failures, random_fraction=spread)
    assert isinstance(wait, int)
    assert 0 <= wait <= backoff.max_seconds * MICROS


@given(st.integers(1, FAILURES_MAX), spreads)
def test_every_number_of_failures_has_a_default_wait(failures: int, spread: float) -> None:
    wait = backoff_micros(Backoff(), failures, random_fraction=spread)
    least = min(2.0 ** min(failures - 1, 20), 3600) * (1 - JITTER)
    assert int(least * MICROS) <= wait <= 3600 * MICROS
