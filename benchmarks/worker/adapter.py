"""The interface of a measured system with a worker, and the request and the result of a measured run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

import msgspec

TYPE: Final = "noop"
Store = Literal["sqlite", "postgres", "direct", "redis-durable", "redis", "database"]


class SystemAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a system is reached during a run: the URL of its server or database, and the credentials."""

    store: Store
    url: str
    token: str = ""
    worker_url: str = ""  # Of the database, for a worker that uses it directly.


class Submitter(Protocol):
    """Submits jobs. A call returns once the system has accepted them."""

    async def put(self, number: int) -> None: ...

    async def put_many(self, numbers: Sequence[int]) -> None: ...

    async def unsettled(self) -> bool:
        """Return whether some jobs have not ended."""
        ...


class System(msgspec.Struct, frozen=True, kw_only=True):
    """A system to measure.

    `jobs` are enqueued before its worker starts, and keep it busy for at least three seconds. `work` runs the worker in
    the calling process until SIGTERM; `command` is a program to run instead, with variables for its environment. While
    the worker runs, each of `callers` enqueues `batch_jobs` per call.
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
    """A row of the tables: a system on one of its stores."""

    system: str
    store: Store
    title: str
    durable: str
    latency: bool = True
    share: float = 1.0  # Of the system's jobs, for a store on which it is slower.


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request for one measured run, which is a process. `samples` is 0 if latency is not measured.

    While the worker runs, at most `backlog_jobs` wait for it.
    """

    system: str
    address: SystemAddress
    start_times: str
    jobs: int
    steady_seconds: float
    backlog_jobs: int
    samples: int


class RunResult(msgspec.Struct, kw_only=True):
    """The result of one run. Rates are in jobs per second; `start_seconds` is the time until the first job starts."""

    rate: float
    start_seconds: float
    steady_rate: float
    latencies_ms: list[float] = []
    others_share: float = 0.0  # Of one core, used by programs other than the run and its servers.
