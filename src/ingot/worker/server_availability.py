"""Whether the server of a worker is available."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

import structlog

from ingot.kernel.errors import IngotError

UNAVAILABLE_STATUSES: Final = frozenset({502, 503, 504})
log = structlog.get_logger("ingot.worker")


class ServerAvailability:
    """Logs once when the server becomes unavailable, and once when it is available again. Thread-safe.

    All requests of a worker share it, so that an outage is reported once, and not by each of them. A request that began
    before the last change reports nothing, because it may end long after it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost_at: float | None = None
        self._back_at = 0.0

    def wait_seconds(self, seconds: float) -> float:
        """Return how long a request may wait at the server: after an outage, the first response must come at once."""
        return seconds if self._lost_at is None else 0.0

    def request(self) -> AbstractContextManager[None]:
        """Return a context for one request, which reports whether the server was available."""
        return _Request(self)

    def report_unavailable(self, error: IngotError, *, began_at: float, event: str = "server_lost") -> None:
        """Record that a request, which began at this time, has found the server unavailable."""
        with self._lock:
            if self._lost_at is not None or began_at < self._back_at:
                return
            self._lost_at = time.monotonic()
        action = "The worker retries." if event == "server_lost" else "Waiting for it."
        text = f"{error.detail.rstrip('.')}. {action}"
        log.warning(event, text=text, code=error.code, detail=error.detail, hint=error.hint)

    def report_available(self, *, began_at: float) -> None:
        """Record that the server has responded to a request, which began at this time."""
        with self._lock:
            if self._lost_at is None or began_at < self._lost_at:
                return
            self._back_at = time.monotonic()
            seconds, self._lost_at = self._back_at - self._lost_at, None
        log.info(
            "server_back", text=f"The server is available again, after {seconds:.0f} s.", seconds=round(seconds, 3)
        )


class _Request:
    def __init__(self, status: ServerAvailability) -> None:
        self._status = status
        self._began_at = time.monotonic()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, IngotError) and is_unavailable(error):
            self._status.report_unavailable(error, began_at=self._began_at)
        elif error is None or isinstance(error, IngotError):
            self._status.report_available(began_at=self._began_at)


def is_unavailable(error: IngotError) -> bool:
    """Return whether an error means that the server is unavailable, and not that it has rejected the request."""
    return error.status in UNAVAILABLE_STATUSES
