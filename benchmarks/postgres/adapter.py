"""What a queue on PostgreSQL must offer to be measured, and the words of one measured run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import metadata
from typing import Final, Literal, Protocol

from benchmarks.queue.adapter import Payload

Scenario = Literal["single", "bulk", "run", "latency", "held"]
OnStart = Callable[[int], None]  # Called with a job's number where its handler starts.

CALLERS: Final = 32
TYPE: Final = "noop"


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """One way to drive a system. Short trials choose the best before anything is measured.

    `callers` enqueue at the same time, `batch_jobs` in each call. `workers` is how many jobs, or claims, the one
    worker process has under way, `claim_jobs` how many it takes at a time.
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
    """One measured run, handed to a process of its own."""

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
    """What one measured run found. Rates are jobs per second; `before_rate` is the one before a transaction is held."""

    rate: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    before_rate: float = 0.0
    others_share: float = 0.0  # Of one core, taken by work that is neither the run nor its server.


class Queue(Protocol):
    """A system in one database. Every call that enqueues returns once its change is committed."""

    async def put(self, job: Payload) -> None: ...

    async def put_many(self, jobs: list[Payload]) -> None: ...

    def working(self, on_start: OnStart) -> AbstractAsyncContextManager[None]:
        """The system's own worker, inside this context, which calls `on_start` for every job. Leaving it settles what ran."""
        ...


@dataclass(frozen=True, slots=True)
class System:
    """A system that runs inside the process of the measured run, or as a program of its own (`command`).

    `unsettled` is SQL that tells whether one of `{jobs}` jobs is left that did not end. `run_jobs` is how many jobs one
    drain has: enough for a few seconds. What `install` puts into a database is copied into the one of each run.
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
    """Of an installed peer; nothing when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
