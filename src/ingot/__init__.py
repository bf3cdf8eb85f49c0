"""Ingot: durable multi-tenant jobs, in one process on SQLite or in many on PostgreSQL."""

from ingot.client import AsyncClient, Client
from ingot.jobs import Claim, Done, Failed, Job, JobStatus, NewJob, Progress, Release, Settle, Snooze
from ingot.jobs.orders import new_job
from ingot.wiring import Ingot, open, run  # noqa: A004 - read as `ingot.open`
from ingot.worker import NoRetry, Worker, WorkerJob

__all__ = [
    "AsyncClient",
    "Claim",
    "Client",
    "Done",
    "Failed",
    "Ingot",
    "Job",
    "JobStatus",
    "NewJob",
    "NoRetry",
    "Progress",
    "Release",
    "Settle",
    "Snooze",
    "Worker",
    "WorkerJob",
    "new_job",
    "open",
    "run",
]
