"""Rate limits of requests. Each process counts the requests that it receives."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from ingot.kernel.errors import TooMany

BUCKETS_MAX: Final = 100_000


class TooManyRequests(TooMany):
    """The caller sends too many requests."""

    code = "too_many_requests"
    hint = "Wait for the time in Retry-After. Batch requests need fewer calls."

    def __init__(self, retry_after: float) -> None:
        super().__init__()
        self.retry_after = retry_after


class TooManyWaiting(TooManyRequests):
    """Too many streams and waiting requests are open."""

    code = "too_many_waiting"
    hint = "Close some streams. One stream can follow all events, and one claim can take many jobs."


class TooManyFailures(TooManyRequests):
    """Too many failed authentications from this address."""

    code = "too_many_failures"
    hint = "Check the credential, and wait for the time in Retry-After."


class RateLimit(msgspec.Struct, frozen=True):
    """A rate in requests per second, and the number that can be sent at once after a pause."""

    per_second: float
    burst: float


class RateBucket(msgspec.Struct):
    """The number of requests that a rate limit still allowed at a time of the limiter's clock."""

    remaining: float
    updated_at: float


class RateLimiter:
    """Token buckets by name. The least recently used ones are dropped, and start full when they are used again."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: OrderedDict[tuple[str, str], RateBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def refund(self, name: tuple[str, str]) -> None:
        """Undo one `take` with this name."""
        if (bucket := self._buckets.get(name)) is not None:
            bucket.remaining += 1

    def take(self, name: tuple[str, str], limit: RateLimit, error: type[TooManyRequests] = TooManyRequests) -> None:
        """Count one request. If the limit is reached, count nothing and raise the error."""
        now = self._now()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = RateBucket(limit.burst, now)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        else:
            bucket.remaining = min(limit.burst, bucket.remaining + (now - bucket.updated_at) * limit.per_second)
            bucket.updated_at = now
            self._buckets.move_to_end(name)
        if bucket.remaining < 1:
            raise error((1 - bucket.remaining) / limit.per_second if limit.per_second else 3600.0)
        bucket.remaining -= 1
