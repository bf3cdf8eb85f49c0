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

    def take_summary(self, now: float) -> Mapping[str, object] | None:
        """Return the fields of a line about the repetitions since the last one, or `None` if there were none."""
        if not self.repeated:
            return None
        fields = {**self.identity, "repeated": self.repeated, "seconds": round(now - self.logged_at)}
        if self.last_request_id is not None:
            fields["last_request_id"] = self.last_request_id
        self.repeated, self.logged_at = 0, now
        return fields


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
            kind = (event, *identity.items(), *_origin_of(error))
            with self._lock:
                is_first, summary = self._count(kind, event, level, identity)
            if summary is not None:
                _write(event, level, **summary)
            if is_first:
                cause = {} if error is None else {"exc_info": error}
                _write(event, level, **identity, **details, **cause)

    def _count(
        self, kind: tuple[Hashable, ...], event: str, level: Level, identity: Mapping[str, Hashable]
    ) -> tuple[bool, Mapping[str, object] | None]:
        """Count a failure. Return whether it is the first of its kind, and the fields of a summary that is due."""
        now = self._clock()
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind, identity = (event,), {}
        count = self._counts.get(kind)
        if count is None or now - count.last_at >= SUMMARY_SECONDS:
            self._counts[kind] = FailureCount(event, level, identity, logged_at=now, last_at=now)
            return True, None if count is None else count.take_summary(now)
        count.last_at = now
        count.repeated += 1
        count.last_request_id = (context_fields.get() or {}).get("request_id")
        return False, count.take_summary(now) if now - count.logged_at >= SUMMARY_SECONDS else None

    def summarize(self) -> None:
        """Log how often each failure was repeated, and forget the failures that have not occurred for a minute."""
        now = self._clock()
        with self._lock:
            summaries = [(count, count.take_summary(now)) for count in self._counts.values()]
            self._counts = {
                kind: count for kind, count in self._counts.items() if now - count.last_at < SUMMARY_SECONDS
            }
        for count, summary in summaries:
            if summary is not None:
                with suppress(Exception):
                    _write(count.event, count.level, **summary)

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


def _write(event: str, level: Level, **fields: object) -> None:
    log = structlog.get_logger("ingot")
    (log.error if level == "error" else log.warning)(event, **fields)
