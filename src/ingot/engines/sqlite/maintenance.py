"""Maintenance of jobs: promotion of due jobs, and sweeps of expired leases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import apsw

from ingot.engines.sqlite.connection import DISK_ERRORS
from ingot.engines.sqlite.dependents import release_dependents
from ingot.engines.sqlite.job_rows import JobState
from ingot.engines.sqlite.settle import end_attempt
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction
from ingot.jobs.lanes import Lane
from ingot.jobs.model import JobStatus, Lost, LostLease, MaintenanceResult
from ingot.jobs.ports import MaintainJobs
from ingot.kernel.logs import report

PROMOTE_JOBS_MAX = 5000
SWEEP_JOBS_MAX = 1000


def maintain(tx: Transaction, commands: Sequence[MaintainJobs]) -> list[MaintenanceResult]:
    """Run one round of each task for all of these commands."""
    result = MaintenanceResult(promoted=promote(tx), swept=sweep(tx))
    release_dependents(tx)
    return [result for _ in commands]


def promote(tx: Transaction) -> int:
    """Make jobs ready that have become due, and return their number."""
    writer_state = tx.writer_state
    if writer_state.next_due is None or writer_state.next_due > tx.now:
        return 0
    lanes = Counter(Lane(*row) for row in tx.execute(SQL.promote_due, tx.now, PROMOTE_JOBS_MAX))
    for lane, jobs in lanes.items():
        tx.announce_ready(lane, jobs)
    writer_state.next_due = tx.execute(SQL.next_due).get
    return lanes.total()


def sweep(tx: Transaction) -> int:
    """End attempts whose lease has expired, and return their number.

    A sweep runs at most once a second, and not before the store has been open for the duration of a lease, so that
    workers can renew theirs after a restart.
    """
    writer_state = tx.writer_state
    next_sweep = writer_state.next_sweep()
    if next_sweep is None or next_sweep > tx.now or not writer_state.sweep_guard.may_sweep(tx.now):
        return 0
    expired = _expired_leases(tx)
    if len(expired) < SWEEP_JOBS_MAX:
        # Not set after a sweep that reached the maximum, so that the next one does not wait for a second.
        writer_state.swept_at = tx.now
    try:
        swept = tx.run_in_savepoint(partial(_end_expired, tx, expired))
    except DISK_ERRORS:
        raise
    except apsw.Error:
        # Sweep one by one, so that a bad row does not block the others.
        swept = 0
        for state in _expired_leases(tx):
            try:
                swept += tx.run_in_savepoint(partial(_end_expired, tx, [state]))
            except DISK_ERRORS:
                raise
            except apsw.Error as error:
                writer_state.swept_at = tx.now
                report("sweep_failed", error, job_id=state.id)
    writer_state.next_expiry = tx.execute(SQL.next_expiry).get
    return swept


def _expired_leases(tx: Transaction) -> list[JobState]:
    return tx.read(list[JobState], SQL.expired_leases, tx.now, SWEEP_JOBS_MAX)


def _end_expired(tx: Transaction, states: list[JobState]) -> int:
    outcomes: list[tuple[object, ...]] = []
    for state in states:
        worker_id = state.worker_id or ""
        end_attempt(tx, state, Lost(), outcomes)
        is_dead = state.status is JobStatus.DEAD
        tx.effects.lost_leases.append(
            LostLease(tenant=state.tenant, job_id=state.id, type=state.type, worker_id=worker_id, is_dead=is_dead)
        )
    tx.save_states(states)
    tx.write_rows(SQL.insert_outcomes, outcomes)
    return len(states)
