"""When to ask again: only what can have had no effect, or has the same one twice."""

from __future__ import annotations

import random
import time
from typing import Final

import msgspec

FIRST_DELAY_SECONDS: Final = 0.1
DELAY_SECONDS_MAX: Final = 5.0
UNCHANGED_STATUSES: Final = frozenset({429, 503})  # The server says that nothing was changed.
RETRYABLE_STATUSES: Final = frozenset({408, 429, 503})  # Of what goes on where it broke off: it may work later.
OUTCOME_UNKNOWN: Final = "outcome_unknown"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """For how long to ask again, in seconds; 0 asks once."""

    retry_seconds: float = 30.0

    def next_delay(self, tries: int, waited: float, *, retry_after_seconds: float | None = None) -> float | None:
        """How long to wait before the next try, after so many; `None` is to give up.

        `told` is how long the server says to wait.
        """
        pause = min(DELAY_SECONDS_MAX, FIRST_DELAY_SECONDS * 2**tries) * random.uniform(0.5, 1.0)
        if retry_after_seconds is not None:
            pause = max(pause, retry_after_seconds)
        return pause if waited + pause <= self.retry_seconds else None


class RetryState:
    """What goes wrong in a row. It is over with whatever goes well."""

    def __init__(self, patience: RetryPolicy) -> None:
        self._policy = patience
        self.reset()

    def reset(self) -> None:
        """It went well: be patient anew."""
        self._tries, self._failing_since = 0, time.monotonic()

    def next_delay(self, *, retry_after_seconds: float | None = None) -> float | None:
        """How long to wait before the next try; `None` is to give up."""
        if self._tries == 0:
            self._failing_since = time.monotonic()
        self._tries += 1
        return self._policy.next_delay(
            self._tries - 1, time.monotonic() - self._failing_since, retry_after_seconds=retry_after_seconds
        )


def may_retry(status: int, code: str, *, idempotent: bool) -> bool:
    """Whether a request that was refused in this way may be sent again."""
    return status in UNCHANGED_STATUSES and (idempotent or code != OUTCOME_UNKNOWN)
