"""Dependents: jobs that become ready, or are canceled, when their parents or inputs are complete or fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

from ingot.engines.sqlite.job_files import drop_input_uploads
from ingot.engines.sqlite.job_rows import JobState
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.model import JobStatus
from ingot.kernel.clock import to_micros

RELEASE_EDGES_MAX = 1000
RELEASE_ROUNDS_MAX = 50  # In a chain, each round cancels only one job.

Edge = tuple[int, int, bool]  # The dependent, its parent, and whether the dependent must be canceled.


def release_dependents(tx: Transaction) -> None:
    """Release a bounded number of jobs whose parents have ended. Maintenance releases the others."""
    edges_left = RELEASE_EDGES_MAX
    for _ in range(RELEASE_ROUNDS_MAX):
        if not tx.writer_state.ended_parents or edges_left <= 0:
            return
        edges_left -= _release_round(tx, list(islice(tx.writer_state.ended_parents, RELEASE_EDGES_MAX)), edges_left)


def _release_round(tx: Transaction, parents: list[int], edges_max: int) -> int:
    """Close edges to parents that have ended, move dependents without open edges, and return the number of edges."""
    edges = tx.read(list[Edge], SQL.edges_to_close, as_json(parents), edges_max)
    if len(edges) < edges_max:
        tx.writer_state.parents.difference_update(parents)
        tx.writer_state.ended_parents.difference_update(parents)
    if edges:
        canceled = {job for job, _, is_canceled in edges if is_canceled}
        tx.execute(SQL.close_edges, as_json([edge[:2] for edge in edges]))
        close_edges_of(tx, canceled)
        dependents = {job for job, _, _ in edges}
        _unblock_all(tx, dependents, canceled)
    return len(edges)


def _unblock_all(tx: Transaction, jobs: Iterable[int], canceled: set[int]) -> None:
    """Queue or cancel those of these jobs that no longer wait for anything."""
    states = tx.read(list[JobState], SQL.unblocked_jobs, as_json(sorted(jobs)), as_json(sorted(canceled)))
    for state in states:
        _unblock(tx, state, cancel=state.number in canceled)
    tx.save_states(states)
    drop_input_uploads(tx, [state for state in states if state.number in canceled])


def release_after_inputs(tx: Transaction, jobs: Iterable[int]) -> None:
    """Queue those of these jobs that no longer wait for anything, after inputs of them are complete."""
    if numbers := list(jobs):
        _unblock_all(tx, numbers, set())


def cancel_without_inputs(tx: Transaction, reasons: Mapping[str, str]) -> None:
    """Cancel blocked jobs that will not get an input, and record the reasons, which are given by job ID."""
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
        # A job without a delay was created after now if the clock was ahead then.
        is_delayed = state.run_at > tx.now and to_micros(tx.get_job(state.number).created_at) != state.run_at
        tx.queue_job(state, state.run_at if is_delayed else min(state.run_at, tx.now))
    tx.record_transition(state, JobStatus.BLOCKED, state.status)
    tx.emit("job.canceled" if cancel else "job.updated", state, error=error)


def close_edges_of(tx: Transaction, jobs: set[int]) -> None:
    """Close all edges of these dependents."""
    if jobs:
        tx.execute(SQL.close_edges_of_jobs, as_json(sorted(jobs)))
