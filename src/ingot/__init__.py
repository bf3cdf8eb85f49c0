"""Ingot: durable multi-tenant jobs, in one process on SQLite or in many on PostgreSQL."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# Where each is: a client starts without the server, and the command line without either.
_HOMES = {
    **dict.fromkeys(("AsyncClient", "Client"), "ingot.client"),
    **dict.fromkeys(("Ingot", "open", "run"), "ingot.wiring"),
    **dict.fromkeys(("NoRetry", "Worker", "WorkerJob"), "ingot.worker"),
    "new_job": "ingot.jobs.orders",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES.get(name, "ingot.jobs")), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
