"""When to retry a request: only if it had no effect, or if repeating it has no further effect."""

from __future__ import annotations

import random
import time
from typing import Final

import msgspec

FIRST_DELAY_SECONDS: Final = 0.1
DELAY_SECONDS_MAX: Final = 5.0
UNCHANGED_STATUSES: Final = frozenset({429, 503})  # The server changes nothing when it responds with one of these.
RETRYABLE_STATUSES: Final = frozenset({408, 429, 503})  # Temporary failures of transfers that can be resumed.
OUTCOME_UNKNOWN: Final = "outcome_unknown"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long to retry, in seconds. With 0 there are no retries.

    `limit_seconds` is for responses with 429 and `Retry-After`, if it is longer.
    """

    retry_seconds: float = 30.0
    limit_seconds: float = 0.0

    def next_delay(
        self,
        retries: int,
        elapsed_seconds: float,
        *,
        retry_after_seconds: float | None = None,
        is_limited: bool = False,
    ) -> float | None:
        """Return the delay in seconds before the next try, or `None` to give up.

        `retries` is the number of retries so far, and `retry_after_seconds` the delay that the server requested.
        `is_limited` states that the server responded with 429.
        """
        delay = min(DELAY_SECONDS_MAX, FIRST_DELAY_SECONDS * 2**retries) * random.uniform(0.5, 1.0)
        if retry_after_seconds is not None:
            delay = max(delay, retry_after_seconds)
        is_temporary_limit = is_limited and retry_after_seconds is not None
        seconds_max = max(self.retry_seconds, self.limit_seconds) if is_temporary_limit else self.retry_seconds
        return delay if elapsed_seconds + delay <= seconds_max else None


class RetryState:
    """The failures of a transfer since its last progress."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.reset()

    def reset(self) -> None:
        """Record progress, so that the next failure is the first again."""
        self._failures, self._failing_since = 0, time.monotonic()

    def next_delay(self, *, retry_after_seconds: float | None = None) -> float | None:
        """Record a failure. Return the delay in seconds before the next try, or `None` to give up."""
        if self._failures == 0:
            self._failing_since = time.monotonic()
        self._failures += 1
        return self._policy.next_delay(
            self._failures - 1, time.monotonic() - self._failing_since, retry_after_seconds=retry_after_seconds
        )


def may_retry(status: int, code: str, *, idempotent: bool) -> bool:
    """Return whether a request that was rejected with this status and code may be sent again."""
    return status in UNCHANGED_STATUSES and (idempotent or code != OUTCOME_UNKNOWN)
