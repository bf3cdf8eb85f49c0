"""All allowed transitions of a job from one status to another."""

from __future__ import annotations

from typing import Final

from ingot.jobs.model import JobStatus

TRANSITIONS: Final[dict[JobStatus, frozenset[JobStatus]]] = {
    JobStatus.BLOCKED: frozenset({JobStatus.QUEUED, JobStatus.CANCELED, JobStatus.DEAD}),
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.CANCELED}),
    JobStatus.RUNNING: frozenset({JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED}),
    # Only an explicit retry leaves a finished status.
    JobStatus.SUCCEEDED: frozenset({JobStatus.QUEUED}),
    JobStatus.DEAD: frozenset({JobStatus.QUEUED}),
    JobStatus.CANCELED: frozenset({JobStatus.QUEUED}),
}
