"""What a system with a worker must offer to be measured, and the words of one measured run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

import msgspec

TYPE: Final = "noop"
Store = Literal["sqlite", "postgres", "direct", "redis-durable", "redis", "database"]


class SystemAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a system is for one run: `url` of its server or database, and what one comes with."""

    store: Store
    url: str
    token: str = ""
    worker_url: str = ""  # Of the database, for a worker that works on it directly.


class Submitter(Protocol):
    """One who asks for work. A call returns once the system has taken the jobs."""

    async def put(self, number: int) -> None: ...

    async def put_many(self, numbers: Sequence[int]) -> None: ...

    async def unsettled(self) -> bool:
        """Whether a job is left that did not end."""
        ...


class System(msgspec.Struct, frozen=True, kw_only=True):
    """A system. `jobs` are those that wait when its worker starts: enough for three seconds and more.

    `work` runs the worker in the process that calls it, until TERM; `command` is a program to run instead, with
    what it needs in its environment. While the worker runs, `callers` enqueue `batch_jobs` in each call.
    """

    name: str
    version: str
    jobs: int
    how: str
    callers: int
    batch_jobs: int
    submitting: Callable[[SystemAddress], AbstractAsyncContextManager[Submitter]]
    work: Callable[[SystemAddress], None] | None = None
    command: Callable[[SystemAddress], tuple[list[str], Mapping[str, str]]] | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A system on one of its stores, as it stands in the tables."""

    system: str
    store: Store
    title: str
    durable: str
    latency: bool = True
    share: float = 1.0  # Of the system's jobs, where it is slower than elsewhere.


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run, handed to a process of its own. `samples` is 0 when latency is not asked for.

    While the worker runs, no more than `backlog_jobs` wait for it.
    """

    system: str
    place: SystemAddress
    notes: str
    jobs: int
    steady_seconds: float
    backlog_jobs: int
    samples: int


class RunResult(msgspec.Struct, kw_only=True):
    """What one run found. Rates are jobs per second; `start_seconds` from the start of the worker to its first job."""

    rate: float
    start_seconds: float
    steady_rate: float
    latencies_ms: list[float] = []
    others_share: float = 0.0  # Of one core, taken by work that is neither the run nor its servers.
