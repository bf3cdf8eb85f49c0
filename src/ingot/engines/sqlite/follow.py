"""What follows when jobs have ended: others that waited for them go on, or are canceled with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ingot.engines.sqlite.job_files import end_inputs
from ingot.engines.sqlite.rows import State
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.model import JobStatus

FOLLOW_EDGES_MAX = 1000
FOLLOW_ROUNDS_MAX = 50  # In a chain, each round cancels one job only.

Edge = tuple[int, int, bool]  # who waits, for whom, and whether it must not run any more


def follow(tx: Transaction) -> None:
    """Move a bounded number of jobs that waited for some that have ended; the rest is on the agenda."""
    left = FOLLOW_EDGES_MAX
    for _ in range(FOLLOW_ROUNDS_MAX):
        if not tx.memory.ended or left <= 0:
            return
        left -= _follow(tx, list(islice(tx.memory.ended, FOLLOW_EDGES_MAX)), left)


def _follow(tx: Transaction, parents: list[int], edges_max: int) -> int:
    """Close edges to jobs that have ended, and move those that wait for nobody any more; answers how many edges."""
    edges = tx.read(list[Edge], SQL.edges_to_close, as_json(parents), edges_max)
    if len(edges) < edges_max:
        tx.memory.parents.difference_update(parents)
        tx.memory.ended.difference_update(parents)
    if edges:
        doomed = {job for job, _, is_doomed in edges if is_doomed}
        tx.execute(SQL.close_edges, as_json([edge[:2] for edge in edges]))
        close_edges_of(tx, doomed)
        waited = {job for job, _, _ in edges}
        _move_all(tx, waited, doomed)
    return len(edges)


def _move_all(tx: Transaction, waited: Iterable[int], doomed: set[int]) -> None:
    """Move those of these jobs that wait for nothing any more."""
    states = tx.read(list[State], SQL.blocked_by_none, as_json(sorted(waited)), as_json(sorted(doomed)))
    for state in states:
        _move(tx, state, doomed=state.number in doomed)
    tx.save_states(states)
    end_inputs(tx, [state for state in states if state.number in doomed])


def go_on(tx: Transaction, jobs: Iterable[int]) -> None:
    """Inputs of these jobs have come: those that wait for nothing else are ready."""
    if waited := list(jobs):
        _move_all(tx, waited, set())


def abandon(tx: Transaction, reasons: Mapping[str, str]) -> None:
    """Cancel jobs that will not get an input, by id, and keep why."""
    if not reasons:
        return
    states = [state for state in tx.states(list(reasons)).values() if state.status is JobStatus.BLOCKED]
    for state in states:
        _move(tx, state, doomed=True, error=reasons[state.id])
        tx.execute(SQL.note_reason, state.number, reasons[state.id])
    tx.save_states(states)
    close_edges_of(tx, {state.number for state in states})
    end_inputs(tx, states)
    follow(tx)


def _move(tx: Transaction, state: State, *, doomed: bool, error: str | None = None) -> None:
    if doomed:
        state.status, state.finished_at = JobStatus.CANCELED, tx.now
    else:
        state.status = JobStatus.QUEUED
        tx.queue_up(state, state.run_at)
    tx.moved(state, JobStatus.BLOCKED, state.status)
    tx.emit("job.canceled" if doomed else "job.updated", state, error=error)


def close_edges_of(tx: Transaction, jobs: set[int]) -> None:
    """These jobs wait for nobody any more."""
    if jobs:
        tx.execute(SQL.close_edges_of_jobs, as_json(sorted(jobs)))
