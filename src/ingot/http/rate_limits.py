"""Rates: how many requests a caller may make, by class of route, counted where they arrive."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from ingot.kernel.errors import TooMany

BUCKETS_MAX: Final = 100_000


class TooManyRequests(TooMany):
    """The caller makes more requests than it may."""

    code = "too_many_requests"
    hint = "Wait as long as Retry-After says; a batch call does the work of many."

    def __init__(self, retry_after: float) -> None:
        super().__init__()
        self.retry_after = retry_after


class TooManyWaiting(TooManyRequests):
    """The callers of the tenant hold too many streams, and requests that wait."""

    code = "too_many_waiting"
    hint = "Close some of them; one stream tells of everything, and one claim takes many jobs."


class TooManyFailures(TooManyRequests):
    """Too many credentials from this address did not hold."""

    code = "too_many_failures"
    hint = "Wait as long as Retry-After says, and check the credential."


class RateLimit(msgspec.Struct, frozen=True):
    """So many in a second, and so many at once after a while without any."""

    per_second: float
    burst: float


class RateBucket(msgspec.Struct):
    """What is left, as of an instant."""

    remaining: float
    updated_at: float


class RateLimiter:
    """A bucket for each name. The buckets that were not used for longest are forgotten, which fills them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: OrderedDict[tuple[str, str], RateBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def refund(self, name: tuple[str, str]) -> None:
        """What was counted last under this name does not count."""
        if (bucket := self._buckets.get(name)) is not None:
            bucket.remaining += 1

    def take(self, name: tuple[str, str], rate: RateLimit, refusal: type[TooManyRequests] = TooManyRequests) -> None:
        """Count one request. Raises the refusal when there is nothing left, and then counts nothing."""
        now = self._now()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = RateBucket(rate.burst, now)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        else:
            bucket.remaining = min(rate.burst, bucket.remaining + (now - bucket.updated_at) * rate.per_second)
            bucket.updated_at = now
            self._buckets.move_to_end(name)
        if bucket.remaining < 1:
            raise refusal((1 - bucket.remaining) / rate.per_second if rate.per_second else 3600.0)
        bucket.remaining -= 1
