"""The handlers of a worker, by job type. `Runner` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

import msgspec

from ingot.client.job_request import Duration, to_seconds
from ingot.jobs import checks
from ingot.kernel.errors import InvalidInput
from ingot.worker.handlers import built_in_handler

CONCURRENCY_MAX: Final = 1000
_is_async = lru_cache(iscoroutinefunction)  # Cached because it is needed for every job.
Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function that runs jobs of one type, with its options.

    `timeout_seconds` overrides the timeout of the job type's definition. With `isolate`, each job runs in its own
    process, limited to `memory_bytes`, and without a network unless `network` is set.
    """

    type: str
    function: Function
    concurrency: int
    timeout_seconds: float | None = None
    isolate: bool = False
    memory_bytes: int | None = None
    network: bool = False

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return _is_async(self.function)


class Worker:
    """A collection of handlers. Run it with `ingot worker --app module:worker` or `ingot.run(worker)`."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def handler(
        self,
        *types: str,
        timeout: Duration | None = None,
        concurrency: int = 1,
        isolate: bool = False,
        memory_mb: int | None = None,
        network: bool = False,
    ) -> Callable[[F], F]:
        """Register a function as the handler of these job types. The default type is the name of the function.

        The function receives the job, and its return value is the result of the job. It may be `async`. Up to
        `concurrency` jobs of each type run at once.

        With `isolate`, each job runs in its own process, limited to `memory_mb` of memory and to as much processor time
        as the timeout. It has no network, unless `network` is set; the files of the job work in any case. If the worker
        is root, the process runs as an unprivileged user. When the job has to stop, the
        process is terminated together with everything that it started.
        """

        def register(function: F) -> F:
            for type in types or (function.__name__,):
                self.add(
                    Handler(
                        type=checks.job_type(type),
                        function=function,
                        concurrency=concurrency,
                        timeout_seconds=None if timeout is None else to_seconds(timeout),
                        isolate=isolate,
                        memory_bytes=None if memory_mb is None else memory_mb * 1024 * 1024,
                        network=network,
                    )
                )
            return function

        return register

    def include(self, *types: str, concurrency: int | None = None) -> None:
        """Add handlers that come with Ingot: `pdf`, `ocr`, `image`, `embed`.

        They run isolated. The default concurrency is the number of processors. Raises `InvalidInput` if a handler does
        not exist or its packages are not installed.
        """
        for type in types:
            built_in = built_in_handler(type)
            self.add(
                Handler(
                    type=built_in.type,
                    function=built_in.load(),
                    concurrency=concurrency or os.cpu_count() or 1,
                    timeout_seconds=built_in.timeout_seconds,
                    isolate=True,
                    memory_bytes=built_in.memory_mb * 1024 * 1024,
                )
            )

    def add(self, handler: Handler) -> None:
        """Add a handler. Raises `InvalidInput` if its type is taken or its options are invalid."""
        if handler.type in self.handlers:
            raise InvalidInput(f"there are two handlers for {handler.type}", hint="Remove one of them.")
        if not 1 <= handler.concurrency <= CONCURRENCY_MAX:
            raise InvalidInput(f"concurrency must be between 1 and {CONCURRENCY_MAX}, got {handler.concurrency}")
        if handler.isolate and handler.is_async:
            raise InvalidInput(
                f"the handler for {handler.type} is both async and isolated",
                hint="Make it a plain function: an isolated handler has a process to itself and may block.",
            )
        self.handlers[handler.type] = handler
