"""Leases: which attempt holds a job, and who may speak for it."""

from __future__ import annotations

from typing import Protocol

from ingot.engines.sqlite.job_rows import JobState
from ingot.jobs.errors import JobNotFound, LeaseLost
from ingot.jobs.lifecycle import matches_worker
from ingot.jobs.model import JobStatus


class AttemptCall(Protocol):
    """What is said of an attempt, by whom it may be said."""

    @property
    def job_id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def worker(self) -> str | None: ...


def find_leased_job(states: dict[str, JobState], call: AttemptCall) -> JobState:
    """The job this call speaks of. Raises unless the call's fence is the current one of a running job."""
    state = states.get(call.job_id)
    if state is None or call.tenant not in (None, state.tenant):
        raise JobNotFound(f"there is no job {call.job_id[:64]!r} in this tenant")
    if state.status is not JobStatus.RUNNING:
        raise LeaseLost(f"the job is {state.status} now")
    if state.fence != call.fence:
        raise LeaseLost(f"the job now runs under fence {state.fence}, got fence {call.fence}")
    if not matches_worker(state.worker_id or "", call.worker):
        raise LeaseLost("the attempt belongs to another worker")
    return state
