"""Ingot: durable multi-tenant jobs, in one process on SQLite or in many on PostgreSQL."""

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
