"""The interface of a measured queue on PostgreSQL, and the request and the result of a measured run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal, Protocol

from benchmarks.queue.adapter import Payload

Scenario = Literal["single", "bulk", "run", "latency", "held"]
OnStart = Callable[[int], None]  # Called with the number of a job when its handler starts.

CALLERS: Final = 32
TYPE: Final = "noop"


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """Options with which a system is used. Short trials select the best before the measured runs.

    `callers` enqueue at the same time, `batch_jobs` per call. The worker process runs `workers` jobs or claims at the
    same time, and claims `claim_jobs` at once.
    """

    callers: int = 1
    batch_jobs: int = 1
    connections: int = 10
    workers: int = 1
    claim_jobs: int = 1
    variant: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request for one measured run, which is a new process."""

    system: str
    scenario: Scenario
    options: DriveOptions
    url: str
    warm_seconds: float
    seconds: float
    jobs: int
    samples: int
    window_seconds: float
    drain_after: bool = False  # The database is used again.


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one measured run. Rates are in jobs per second; `before_rate` is without the open transaction."""

    rate: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    before_rate: float = 0.0
    others_share: float = 0.0  # Of one core, used by programs other than the run and its server.


class Queue(Protocol):
    """A system in one database. Calls that enqueue return once the change is committed."""

    async def put(self, job: Payload) -> None: ...

    async def put_many(self, jobs: list[Payload]) -> None: ...

    def working(self, on_start: OnStart) -> AbstractAsyncContextManager[None]:
        """Run the worker of the system, which calls `on_start` for every job. At the end, started jobs are settled."""
        ...


@dataclass(frozen=True, slots=True)
class System:
    """A system that runs in the process of the measured run, or as a separate program (`command`).

    `unsettled` is a query that returns whether some of `{jobs}` jobs have not ended. `run_jobs` is the number of jobs
    that are run to completion, enough for a few seconds. `install` prepares a database, which each run copies.
    """

    name: str
    version: str
    options: dict[Scenario, tuple[DriveOptions, ...]]
    run_jobs: int
    unsettled: str = ""
    install: Callable[[str], None] | None = None
    open: Callable[[str, DriveOptions], AbstractAsyncContextManager[Queue]] | None = None
    command: Callable[[RunRequest], list[str]] | None = None


def version_of(package: str) -> str:
    """Return the version of an installed package, or nothing if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
