"""The interface of a measured queue, and the request and the result of a measured run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, Protocol

Level = Literal["default", "FULL"]
Scenario = Literal["single", "pipeline"]
Payload = dict[str, Any]

CALLERS: Final = 32
BATCH_JOBS: Final = 50
SWITCH_SECONDS_DEFAULT: Final = 0.005
SWITCH_SECONDS_SHORT: Final = 0.0002
SYNCHRONOUS_FULL: Final = 2
PAD: Final = "p" * 170


class MissingDependency(Exception):
    """A program or library that the benchmark needs is missing. The message says how to install it."""


def component(name: str) -> Any:
    """Import a library of the benchmark requirements. Raises `MissingDependency`."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"{name} cannot be imported ({error}). `make bench` installs it; "
            "by hand: pip install --require-hashes -r requirements/bench.txt"
        ) from error


def payload(number: int) -> Payload:
    """Return the payload of a job, which is the same for all systems: about 200 bytes of JSON."""
    return {"number": number, "pad": PAD}


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """Options with which a system is used. Short trials select the fastest before the measured runs."""

    callers: int
    batch_jobs: int = 1
    switch_seconds: float = SWITCH_SECONDS_DEFAULT
    variant: str = ""

    @property
    def suits_busy(self) -> bool:
        """Whether a waiting thread soon gets its turn beside a busy one."""
        return self.switch_seconds < SWITCH_SECONDS_DEFAULT

    @property
    def label(self) -> str:
        parts = [f"{self.callers} callers" if self.callers > 1 else "1 caller", self.variant]
        if self.batch_jobs > 1:
            parts.append(f"batches of {self.batch_jobs}")
        if self.suits_busy:
            parts.append(f"switch interval {self.switch_seconds * 1000:g} ms")
        return ", ".join(part for part in parts if part)


def drive_options(
    callers: Sequence[int], variants: Sequence[str] = ("",), *, batch_jobs: int = 1
) -> tuple[DriveOptions, ...]:
    """Return all combinations, each with Python's default thread switch interval and with a short one."""
    switches = (SWITCH_SECONDS_DEFAULT, SWITCH_SECONDS_SHORT)
    return tuple(
        DriveOptions(count, batch_jobs, switch, variant)
        for count in callers
        for variant in variants
        for switch in switches
    )


@dataclass(frozen=True, slots=True)
class ConnectionReadback:
    """The settings of the writing connection, as SQLite reports them."""

    synchronous: int
    journal_mode: str
    sqlite: str


class TaskQueue(Protocol):
    """A queue that asyncio tasks use. Every call returns once its change is committed."""

    async def put(self, job: Payload) -> None: ...

    async def put_many(self, jobs: list[Payload]) -> None: ...

    async def take(self, limit: int) -> int:
        """Claim up to `limit` jobs, settle them, and return their number."""
        ...

    async def readback(self) -> ConnectionReadback: ...


class ThreadConnection(Protocol):
    """The connection of one thread to a queue. Its methods are those of `TaskQueue`, without `async`."""

    def put(self, job: Payload) -> None: ...

    def put_many(self, jobs: list[Payload]) -> None: ...

    def take(self, limit: int) -> int: ...

    def readback(self) -> ConnectionReadback: ...


class ThreadQueue(Protocol):
    """A queue that threads use."""

    def connect(self) -> ThreadConnection: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TaskSystem:
    """A system whose callers are asyncio tasks."""

    name: str
    levels: tuple[Level, ...]
    options: dict[Scenario, tuple[DriveOptions, ...]]
    open: Callable[[Path, Level, DriveOptions], AbstractAsyncContextManager[TaskQueue]]


@dataclass(frozen=True, slots=True)
class ThreadSystem:
    """A system whose callers are threads."""

    name: str
    levels: tuple[Level, ...]
    options: dict[Scenario, tuple[DriveOptions, ...]]
    open: Callable[[Path, Level, DriveOptions], ThreadQueue]


System = TaskSystem | ThreadSystem


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request for one measured run, which is a new process."""

    system: str
    level: Level
    scenario: Scenario
    busy: bool
    options: DriveOptions
    folder: str
    warm_seconds: float
    seconds_max: float
    jobs_max: int
    wave_jobs: int
    drain_after: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of one measured run. Rates are in jobs per second."""

    readback: ConnectionReadback
    enqueue_rate: float
    take_rate: float
    p50_ms: float
    p99_ms: float
    busy_share: float
    locked_errors: int
    others_share: float = 0.0  # Of one core, used by other programs meanwhile.

    @property
    def rate(self) -> float:
        """The rate of enqueues, or of the whole pipeline, in which each job is enqueued, claimed and settled."""
        if not self.take_rate:
            return self.enqueue_rate
        return 1 / (1 / self.enqueue_rate + 1 / self.take_rate)
