"""The sweep guard: no leases are swept right after workers were unable to renew them."""

from __future__ import annotations

import time

import pytest

from ingot.engines.sweep_guard import STALL_SECONDS_MIN, SweepGuard

LEASE = 4000  # A millisecond without a tick is a stall, if short stalls count.


@pytest.fixture
def short_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.engines.sweep_guard.STALL_SECONDS_MIN", 0.0)


def suspend_process() -> None:
    time.sleep(0.002)


@pytest.mark.usefixtures("short_stalls")
def test_a_process_that_was_suspended_sweeps_one_lease_later() -> None:
    guard = SweepGuard(LEASE)
    guard.tick(0)
    suspend_process()
    assert [guard.may_sweep(now) for now in (0, LEASE - 1, LEASE)] == [False, False, True]


@pytest.mark.usefixtures("short_stalls")
def test_a_suspension_is_noticed_by_the_next_tick_as_well() -> None:
    guard = SweepGuard(LEASE)
    guard.tick(0)
    suspend_process()
    guard.tick(100)
    assert [guard.may_sweep(now) for now in (100, LEASE + 99, LEASE + 100)] == [False, False, True]


@pytest.mark.usefixtures("short_stalls")
def test_a_process_without_ticks_was_never_suspended() -> None:
    guard = SweepGuard(LEASE)
    assert guard.may_sweep(0)
    suspend_process()
    assert guard.may_sweep(0)


def test_a_process_that_ticks_sweeps_at_once() -> None:
    guard = SweepGuard(LEASE)
    guard.tick(0)
    assert guard.may_sweep(0)


@pytest.mark.parametrize(("seconds", "may_sweep"), [(STALL_SECONDS_MIN, True), (STALL_SECONDS_MIN + 0.001, False)])
def test_a_database_that_took_long_to_answer_postpones_sweeps(seconds: float, may_sweep: bool) -> None:
    guard = SweepGuard(LEASE)
    guard.record_call(seconds, 100)
    assert guard.may_sweep(LEASE + 99) is may_sweep
    assert guard.may_sweep(LEASE + 100)


def test_a_long_lease_tolerates_longer_pauses() -> None:
    guard = SweepGuard(180_000_000)
    guard.record_call(45.0, 100)
    assert guard.may_sweep(100)
    guard.record_call(45.001, 100)
    assert not guard.may_sweep(100)
