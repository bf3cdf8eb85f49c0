"""Ingot: durable multi-tenant jobs, in one process on SQLite or in many on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.kernel.doors import door

if TYPE_CHECKING:
    from ingot.client import AsyncClient, Client
    from ingot.jobs import Claim, Done, Failed, Job, JobStatus, NewJob, Progress, Release, Settle, Snooze
    from ingot.jobs.orders import new_job
    from ingot.wiring.rooms import Ingot, open  # noqa: A004 - read as `ingot.open`
    from ingot.wiring.working import run
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

# A client starts without the server, and the command line without either.
_HOMES = {
    **dict.fromkeys(__all__, "ingot.jobs"),
    **dict.fromkeys(("AsyncClient", "Client"), "ingot.client"),
    **dict.fromkeys(("Ingot", "open"), "ingot.wiring.rooms"),
    "run": "ingot.wiring.working",
    **dict.fromkeys(("NoRetry", "Worker", "WorkerJob"), "ingot.worker"),
    "new_job": "ingot.jobs.orders",
}
__getattr__, __dir__ = door(__name__, _HOMES)
