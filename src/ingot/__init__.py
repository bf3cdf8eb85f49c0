"""Ingot: durable multi-tenant jobs, in one process on SQLite or in many on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.kernel.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from ingot.client import AsyncClient, Client
    from ingot.jobs import Claim, Done, Failed, Job, JobStatus, NewJob, Progress, Release, Settle, Snooze
    from ingot.jobs.job_options import new_job
    from ingot.wiring.services import Ingot, open  # noqa: A004 - read as `ingot.open`
    from ingot.wiring.worker_runner import run
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

# Names are imported on first use, so that a client does not load the server and the command line loads neither.
_MODULE_BY_NAME = {
    **dict.fromkeys(__all__, "ingot.jobs"),
    **dict.fromkeys(("AsyncClient", "Client"), "ingot.client"),
    **dict.fromkeys(("Ingot", "open"), "ingot.wiring.services"),
    "run": "ingot.wiring.worker_runner",
    **dict.fromkeys(("NoRetry", "Worker", "WorkerJob"), "ingot.worker"),
    "new_job": "ingot.jobs.job_options",
}
__getattr__, __dir__ = lazy_imports(__name__, _MODULE_BY_NAME)
