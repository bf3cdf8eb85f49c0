"""A bounded log of failures that can occur with every request, such as those of an unreachable database.

The first failure of a kind is logged in full. Later ones are only counted, and about once a minute their number is
logged in one line. After a minute without such a failure, the next one counts as the first.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec
import structlog

from ingot.kernel.logs import context_fields
from ingot.kernel.loops import Loop

SUMMARY_SECONDS: Final = 60.0
KINDS_MAX: Final = 1000  # Further kinds of failures of the same event count as one kind.

Level = Literal["warning", "error"]


class FailureCount(msgspec.Struct):
    """A kind of failure, and how often it was repeated since its last line in the log."""

    event: str
    level: Level
    identity: Mapping[str, Hashable]
    logged_at: float
    last_at: float
    repeated: int = 0
    last_request_id: object = None


class FailureLog:
    """Logs the first failure of each kind, and counts the others. Thread-safe. No method raises an error."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[Hashable, ...], FailureCount] = {}

    def log(
        self,
        event: str,
        error: BaseException | None = None,
        *,
        level: Level = "error",
        identity: Mapping[str, Hashable] | None = None,
        **details: object,
    ) -> None:
        """Log or count a failure.

        Two failures are of the same kind if they have the same event, the same `identity`, and errors of the same type
        from the same place in the code. `details` and the stack of the error are only logged for the first one.
        """
        identity = identity or {}
        with suppress(Exception):
            if self._is_first((event, *identity.items(), *_origin_of(error)), event, level, identity):
                cause = {} if error is None else {"exc_info": error}
                _write(event, level, **identity, **details, **cause)

    def _is_first(self, kind: tuple[Hashable, ...], event: str, level: Level, identity: Mapping[str, Hashable]) -> bool:
        now = self._clock()
        with self._lock:
            if kind not in self._counts and len(self._counts) >= KINDS_MAX:
                kind, identity = (event,), {}
            count = self._counts.get(kind)
            if count is None or now - count.last_at >= SUMMARY_SECONDS:
                if count is not None:
                    _write_summary(count, now)
                self._counts[kind] = FailureCount(event, level, identity, logged_at=now, last_at=now)
                return True
            count.last_at = now
            count.repeated += 1
            count.last_request_id = (context_fields.get() or {}).get("request_id")
            if now - count.logged_at >= SUMMARY_SECONDS:
                _write_summary(count, now)
            return False

    def summarize(self) -> None:
        """Log how often each failure was repeated, and forget the failures that have not occurred for a minute."""
        now = self._clock()
        with self._lock, suppress(Exception):
            for kind, count in list(self._counts.items()):
                _write_summary(count, now)
                if now - count.last_at >= SUMMARY_SECONDS:
                    del self._counts[kind]

    def clear(self) -> None:
        """Forget all failures."""
        with self._lock:
            self._counts.clear()


failures: Final = FailureLog()


class FailureSummaries(Loop):
    """Summarizes the failures of this process once a minute, and at the end."""

    name = "kernel.failures"

    async def run_once(self) -> None:
        """Log how often failures were repeated."""
        failures.summarize()

    async def wait(self) -> None:
        """Wait for a minute."""
        await asyncio.sleep(SUMMARY_SECONDS)

    async def stop(self) -> None:
        """Stop the loop, and log the last summary."""
        await super().stop()
        failures.summarize()


def _origin_of(error: BaseException | None) -> Iterator[Hashable]:
    """Yield the type of an error, and the places in the code that it passed through."""
    if error is not None:
        yield type(error).__module__, type(error).__qualname__
        trace = error.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code, trace.tb_lineno
            trace = trace.tb_next


def _write_summary(count: FailureCount, now: float) -> None:
    if count.repeated:
        fields = {} if count.last_request_id is None else {"last_request_id": count.last_request_id}
        seconds = round(now - count.logged_at)
        _write(count.event, count.level, **count.identity, repeated=count.repeated, seconds=seconds, **fields)
        count.repeated, count.logged_at = 0, now


def _write(event: str, level: Level, **fields: object) -> None:
    log = structlog.get_logger("ingot")
    (log.error if level == "error" else log.warning)(event, **fields)
