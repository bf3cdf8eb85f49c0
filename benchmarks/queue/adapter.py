"""What a queue must offer to be measured, and the words of one measured run."""

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
    """A part the benchmark needs is not there; the message says how to get it."""


def component(name: str) -> Any:
    """Import a peer from the locked benchmark requirements, or say how to install it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"{name} cannot be imported ({error}). `make bench` installs it; "
            "by hand: pip install --require-hashes -r requirements/bench.txt"
        ) from error


def payload(number: int) -> Payload:
    """The job every system is given: about 200 bytes once written as JSON."""
    return {"number": number, "pad": PAD}


@dataclass(frozen=True, slots=True)
class DriveOptions:
    """One way to drive a system. Short trials choose the fastest before anything is measured."""

    callers: int
    batch_jobs: int = 1
    switch_seconds: float = SWITCH_SECONDS_DEFAULT
    option: str = ""

    @property
    def suits_busy(self) -> bool:
        """Whether a thread that waits for a busy one gets its turn soon."""
        return self.switch_seconds < SWITCH_SECONDS_DEFAULT

    @property
    def label(self) -> str:
        parts = [f"{self.callers} callers" if self.callers > 1 else "1 caller", self.option]
        if self.batch_jobs > 1:
            parts.append(f"batches of {self.batch_jobs}")
        if self.suits_busy:
            parts.append(f"switch interval {self.switch_seconds * 1000:g} ms")
        return ", ".join(part for part in parts if part)


def ways(callers: Sequence[int], options: Sequence[str] = ("",), *, batch_jobs: int = 1) -> tuple[DriveOptions, ...]:
    """Every combination, each at Python's own thread switch interval and at a short one."""
    switches = (SWITCH_SECONDS_DEFAULT, SWITCH_SECONDS_SHORT)
    return tuple(
        DriveOptions(count, batch_jobs, switch, option)
        for count in callers
        for option in options
        for switch in switches
    )


@dataclass(frozen=True, slots=True)
class ConnectionReadback:
    """What the connection that writes says about itself."""

    synchronous: int
    journal_mode: str
    sqlite: str


class TaskQueue(Protocol):
    """A queue driven by asyncio tasks; every call returns once its change is committed."""

    async def put(self, job: Payload) -> None: ...

    async def put_many(self, jobs: list[Payload]) -> None: ...

    async def take(self, limit: int) -> int:
        """Claim up to `limit` jobs and settle them. 0 means nothing was waiting."""
        ...

    async def readback(self) -> ConnectionReadback: ...


class ThreadConnection(Protocol):
    """One thread's hold on a synchronous queue; the same promises as `TaskQueue`."""

    def put(self, job: Payload) -> None: ...

    def put_many(self, jobs: list[Payload]) -> None: ...

    def take(self, limit: int) -> int: ...

    def readback(self) -> ConnectionReadback: ...


class ThreadQueue(Protocol):
    """A queue driven by threads."""

    def hand(self) -> ThreadConnection: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TaskSystem:
    """A system whose callers are asyncio tasks."""

    name: str
    levels: tuple[Level, ...]
    ways: dict[Scenario, tuple[DriveOptions, ...]]
    open: Callable[[Path, Level, DriveOptions], AbstractAsyncContextManager[TaskQueue]]


@dataclass(frozen=True, slots=True)
class ThreadSystem:
    """A system whose callers are threads."""

    name: str
    levels: tuple[Level, ...]
    ways: dict[Scenario, tuple[DriveOptions, ...]]
    open: Callable[[Path, Level, DriveOptions], ThreadQueue]


System = TaskSystem | ThreadSystem


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One measured run, handed to a process of its own."""

    system: str
    level: Level
    scenario: Scenario
    busy: bool
    way: DriveOptions
    folder: str
    warm_seconds: float
    seconds_max: float
    jobs_max: int
    wave_jobs: int
    drain_after: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one measured run found. Rates are jobs per second."""

    readback: ConnectionReadback
    enqueue_rate: float
    take_rate: float
    p50_ms: float
    p99_ms: float
    busy_share: float
    locked_errors: int
    others_share: float = 0.0  # Of one core, taken by other work on the machine meanwhile.

    @property
    def rate(self) -> float:
        """The run's one figure: enqueues, or the whole pipeline (each job enqueued, then claimed and settled)."""
        if not self.take_rate:
            return self.enqueue_rate
        return 1 / (1 / self.enqueue_rate + 1 / self.take_rate)
