"""What a worker can do: its handlers, by the type of job. Nothing runs here."""

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
_is_async = lru_cache(iscoroutinefunction)  # Asked for every job.
Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """What runs jobs of a type: a function of one job, or one to await.

    `timeout_seconds` is in the place of what the job's definition says. An isolated one runs in a process of its own,
    with this much memory at most.
    """

    type: str
    function: Function
    concurrency: int
    timeout_seconds: float | None = None
    isolate: bool = False
    memory_bytes: int | None = None

    @property
    def is_async(self) -> bool:
        """Whether the function is to be awaited."""
        return _is_async(self.function)


class Worker:
    """Handlers under one roof. `ingot worker --app module:worker` runs them, and so does `ingot.run(worker)`."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def handler(
        self,
        *types: str,
        timeout: Duration | None = None,
        concurrency: int = 1,
        isolate: bool = False,
        memory_mb: int | None = None,
    ) -> Callable[[F], F]:
        """Have a function run the jobs of these types, up to `concurrency` of each at once.

        The function gets the job; what it returns is the result. It may be `async`. Without types it is called as the
        function is.

        With `isolate` each job runs in a process of its own, with `memory_mb` at most and no more processor time than
        the timeout, as an unprivileged user when the worker is root; it is ended, with all that it started, when the
        job is to stop.
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
                    )
                )
            return function

        return register

    def include(self, *types: str, concurrency: int | None = None) -> None:
        """Take in handlers that come with Ingot: `pdf`, `ocr`, `image`, `embed`.

        They run isolated, as many at once as the machine has processors unless told. Raises `InvalidInput` for one that
        does not exist, or whose packages are not installed.
        """
        for type in types:
            ours = built_in_handler(type)
            self.add(
                Handler(
                    type=ours.type,
                    function=ours.load(),
                    concurrency=concurrency or os.cpu_count() or 1,
                    timeout_seconds=ours.timeout_seconds,
                    isolate=True,
                    memory_bytes=ours.memory_mb * 1024 * 1024,
                )
            )

    def add(self, handler: Handler) -> None:
        """Take a handler in. Raises `InvalidInput`."""
        if handler.type in self.handlers:
            raise InvalidInput(f"there are two handlers for {handler.type}", hint="Leave one of them out.")
        if not 1 <= handler.concurrency <= CONCURRENCY_MAX:
            raise InvalidInput(f"concurrency is {handler.concurrency}; it goes from 1 to {CONCURRENCY_MAX}")
        if handler.isolate and handler.is_async:
            raise InvalidInput(
                f"the handler of {handler.type} is async and isolated",
                hint="In a process of its own there is nothing else to wait for: make it a plain function.",
            )
        self.handlers[handler.type] = handler
