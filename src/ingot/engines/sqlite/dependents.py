"""What follows when jobs have ended: others that waited for them go on, or are canceled with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ingot.engines.sqlite.job_files import drop_input_uploads
from ingot.engines.sqlite.job_rows import JobState
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.model import JobStatus

RELEASE_EDGES_MAX = 1000
RELEASE_ROUNDS_MAX = 50  # In a chain, each round cancels one job only.

Edge = tuple[int, int, bool]  # who waits, for whom, and whether it must not run any more


def release_dependents(tx: Transaction) -> None:
    """Move a bounded number of jobs that waited for some that have ended; the rest is on the agenda."""
    left = RELEASE_EDGES_MAX
    for _ in range(RELEASE_ROUNDS_MAX):
        if not tx.writer_state.ended_parents or left <= 0:
            return
        left -= _release_round(tx, list(islice(tx.writer_state.ended_parents, RELEASE_EDGES_MAX)), left)


def _release_round(tx: Transaction, parents: list[int], edges_max: int) -> int:
    """Close edges to jobs that have ended, and move those that wait for nobody any more; answers how many edges."""
    edges = tx.read(list[Edge], SQL.edges_to_close, as_json(parents), edges_max)
    if len(edges) < edges_max:
        tx.writer_state.parents.difference_update(parents)
        tx.writer_state.ended_parents.difference_update(parents)
    if edges:
        doomed = {job for job, _, is_doomed in edges if is_doomed}
        tx.execute(SQL.close_edges, as_json([edge[:2] for edge in edges]))
        close_edges_of(tx, doomed)
        waited = {job for job, _, _ in edges}
        _unblock_all(tx, waited, doomed)
    return len(edges)


def _unblock_all(tx: Transaction, waited: Iterable[int], doomed: set[int]) -> None:
    """Move those of these jobs that wait for nothing any more."""
    states = tx.read(list[JobState], SQL.unblocked_jobs, as_json(sorted(waited)), as_json(sorted(doomed)))
    for state in states:
        _unblock(tx, state, cancel=state.number in doomed)
    tx.save_states(states)
    drop_input_uploads(tx, [state for state in states if state.number in doomed])


def release_after_inputs(tx: Transaction, jobs: Iterable[int]) -> None:
    """Inputs of these jobs have come: those that wait for nothing else are ready."""
    if waited := list(jobs):
        _unblock_all(tx, waited, set())


def cancel_without_inputs(tx: Transaction, reasons: Mapping[str, str]) -> None:
    """Cancel jobs that will not get an input, by id, and keep why."""
    if not reasons:
        return
    states = [state for state in tx.job_states(list(reasons)).values() if state.status is JobStatus.BLOCKED]
    for state in states:
        _unblock(tx, state, cancel=True, error=reasons[state.id])
        tx.execute(SQL.set_cancel_reason, state.number, reasons[state.id])
    tx.save_states(states)
    close_edges_of(tx, {state.number for state in states})
    drop_input_uploads(tx, states)
    release_dependents(tx)


def _unblock(tx: Transaction, state: JobState, *, cancel: bool, error: str | None = None) -> None:
    if cancel:
        state.status, state.finished_at = JobStatus.CANCELED, tx.now
    else:
        state.status = JobStatus.QUEUED
        tx.queue_job(state, state.run_at)
    tx.record_transition(state, JobStatus.BLOCKED, state.status)
    tx.emit("job.canceled" if cancel else "job.updated", state, error=error)


def close_edges_of(tx: Transaction, jobs: set[int]) -> None:
    """These jobs wait for nobody any more."""
    if jobs:
        tx.execute(SQL.close_edges_of_jobs, as_json(sorted(jobs)))
