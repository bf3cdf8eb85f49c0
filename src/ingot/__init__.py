"""Ingot: durable multi-tenant jobs on SQLite, in one process and one folder."""

from ingot.jobs import Claim, Done, Failed, Job, JobStatus, NewJob, Progress, Release, Settle, Snooze
from ingot.jobs.orders import new_job
from ingot.wiring import Ingot, open  # noqa: A004 - read as `ingot.open`

__all__ = [
    "Claim",
    "Done",
    "Failed",
    "Ingot",
    "Job",
    "JobStatus",
    "NewJob",
    "Progress",
    "Release",
    "Settle",
    "Snooze",
    "new_job",
    "open",
]
