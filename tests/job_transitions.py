"""The moves of a job from state to state: there are no others."""

from __future__ import annotations

from typing import Final

from ingot.jobs.model import JobStatus

TRANSITIONS: Final[dict[JobStatus, frozenset[JobStatus]]] = {
    JobStatus.BLOCKED: frozenset({JobStatus.QUEUED, JobStatus.CANCELED, JobStatus.DEAD}),
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.CANCELED}),
    JobStatus.RUNNING: frozenset({JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED}),
    # Out of a finished state a job comes only by an explicit retry.
    JobStatus.SUCCEEDED: frozenset({JobStatus.QUEUED}),
    JobStatus.DEAD: frozenset({JobStatus.QUEUED}),
    JobStatus.CANCELED: frozenset({JobStatus.QUEUED}),
}
