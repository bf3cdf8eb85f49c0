"""What has to be done as time goes by: due work joins the ready work, the leases of silent workers are swept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

import apsw

from ingot.engines.sqlite.connection import DISK_ERRORS
from ingot.engines.sqlite.follow import follow
from ingot.engines.sqlite.rows import State
from ingot.engines.sqlite.settle import end_attempt
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Lost, Tended
from ingot.jobs.ports import Tend
from ingot.kernel.logs import report

PROMOTE_JOBS_MAX = 5000
SWEEP_JOBS_MAX = 1000


def tend(tx: Transaction, commands: Sequence[Tend]) -> list[Tended]:
    """One round of each, whoever asked for it."""
    tended = Tended(promoted=promote(tx), swept=sweep(tx))
    follow(tx)
    return [tended for _ in commands]


def promote(tx: Transaction) -> int:
    """Move work that has become due to the ready work of its lane."""
    memory = tx.memory
    if memory.next_due is None or memory.next_due > tx.now:
        return 0
    lanes = Counter(Lane(*row) for row in tx.execute(SQL.promote_due, tx.now, PROMOTE_JOBS_MAX))
    for lane, jobs in lanes.items():
        tx.tell_ready(lane, jobs)
    memory.next_due = tx.execute(SQL.next_due).get
    return lanes.total()


def sweep(tx: Transaction) -> int:
    """Judge running jobs whose lease ran out, at most once a second, never right after the store came up."""
    memory = tx.memory
    next_sweep = memory.next_sweep()
    if next_sweep is None or next_sweep > tx.now:
        return 0
    expired = _expired(tx)
    if len(expired) < SWEEP_JOBS_MAX:
        memory.swept_at = tx.now  # A full round is followed by the next at once.
    try:
        swept = tx.attempt(partial(_end, tx, expired))
    except DISK_ERRORS:
        raise
    except apsw.Error:
        # One bad row must not keep the others from being swept.
        swept = 0
        for state in _expired(tx):
            try:
                swept += tx.attempt(partial(_end, tx, [state]))
            except DISK_ERRORS:
                raise
            except apsw.Error as error:
                memory.swept_at = tx.now
                report("sweep_failed", error, job_id=state.id)
    memory.next_expiry = tx.execute(SQL.next_expiry).get
    return swept


def _expired(tx: Transaction) -> list[State]:
    return tx.read(list[State], SQL.expired_leases, tx.now, SWEEP_JOBS_MAX)


def _end(tx: Transaction, states: list[State]) -> int:
    outcomes: list[tuple[object, ...]] = []
    for state in states:
        end_attempt(tx, state, Lost(), outcomes)
    tx.save_states(states)
    tx.write_rows(SQL.insert_outcomes, outcomes)
    return len(states)
