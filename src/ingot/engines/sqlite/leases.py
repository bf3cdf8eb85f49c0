"""Leases: the check that a call comes from the attempt that holds the job."""

from __future__ import annotations

from typing import Protocol

from ingot.engines.sqlite.job_rows import JobState
from ingot.jobs.errors import JobNotFound, LeaseLost
from ingot.jobs.lifecycle import matches_worker
from ingot.jobs.model import JobStatus


class AttemptCall(Protocol):
    """A call about an attempt, restricted to a tenant and a worker unless these are `None`."""

    @property
    def job_id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def worker(self) -> str | None: ...


def find_leased_job(states: dict[str, JobState], call: AttemptCall) -> JobState:
    """Return the job of a call. Raises `JobNotFound` or `LeaseLost` unless its attempt holds the lease of the job."""
    state = states.get(call.job_id)
    if state is None or call.tenant not in (None, state.tenant):
        raise JobNotFound(f"there is no job {call.job_id[:64]!r} in this tenant")
    if state.status is not JobStatus.RUNNING:
        raise LeaseLost(f"the job is not running, its status is {state.status}")
    if state.fence != call.fence:
        raise LeaseLost(f"the job now runs under fence {state.fence}, got fence {call.fence}")
    if not matches_worker(state.worker_id or "", call.worker):
        raise LeaseLost("the attempt belongs to another worker")
    return state
