"""Caps of tenants: how many unfinished jobs and types they may have, and how fast they may enqueue more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from ingot.engines.sqlite.transaction import Transaction
from ingot.engines.sqlite.writer_state import ALL_TYPES, EnqueueBucket
from ingot.identity.model import JOB_TYPES_DEFAULT, Limits
from ingot.jobs.errors import JobLimitExceeded, RateLimited, TypeLimitExceeded
from ingot.kernel.clock import MICROS

RETRY_AFTER_SECONDS_MAX = 86_400.0  # Also used if waiting does not help.
ROUNDING_TOLERANCE_JOBS = 1e-6  # Rounding errors from adding fractions of jobs.


class TenantCaps:
    """Counts jobs against the caps of their tenants while commands are accepted, before the jobs are written."""

    def __init__(self, tx: Transaction, tenants: set[str]) -> None:
        self._tx = tx
        limits = tx.writer_state.limits
        self._limits = {tenant: limits[tenant] for tenant in tenants & limits.keys() if _has_limits(limits[tenant])}
        self._unfinished: Counter[str] = Counter()
        if capped := [tenant for tenant, limit in self._limits.items() if limit.max_unfinished_jobs is not None]:
            for (tenant, _, _), jobs in tx.unfinished_jobs((tenant, ALL_TYPES) for tenant in capped).items():
                self._unfinished[tenant] += jobs

    @property
    def any_limited(self) -> bool:
        """Whether any of these tenants has a cap or a rate limit."""
        return bool(self._limits)

    def check_and_count_jobs(self, new: Mapping[str, int]) -> None:
        """Count new jobs of each tenant, or raise and count none of them."""
        limited = {tenant: self._limits[tenant] for tenant in new if tenant in self._limits}
        for tenant, limits in limited.items():
            jobs_max = limits.max_unfinished_jobs
            if jobs_max is not None and self._unfinished[tenant] + new[tenant] > jobs_max:
                left = max(0, jobs_max - self._unfinished[tenant])
                raise JobLimitExceeded(
                    f"the tenant may have at most {left} more unfinished jobs, got {new[tenant]} jobs"
                )
        for tenant, limits in limited.items():
            if limits.rate is not None:
                self._check_rate(tenant, limits.rate, burst_of(limits), new[tenant])
        for tenant, limits in limited.items():
            self._unfinished[tenant] += new[tenant]
            if limits.rate is not None:
                self._tx.effects.enqueued[tenant] += new[tenant]

    def _check_rate(self, tenant: str, rate: float, burst: int, jobs: int) -> None:
        left = bucket_level(self._tx, tenant) - self._tx.enqueued_jobs(tenant)
        if jobs > burst:
            wait = _seconds_until(burst - left, rate)
            raise RateLimited(
                f"the tenant may enqueue at most {burst} jobs in one call, got {jobs} jobs", retry_after_seconds=wait
            )
        if jobs > left + ROUNDING_TOLERANCE_JOBS:
            wait = _seconds_until(jobs - left, rate)
            raise RateLimited(f"the tenant may enqueue {rate:g} jobs per second", retry_after_seconds=wait)


def check_and_count_type(tx: Transaction, tenant: str, type: str) -> None:
    """Count a type of which the tenant has no jobs yet, or raise and do not count it."""
    types, limit = tx.writer_state.types[tenant], tx.writer_state.limits[tenant].max_job_types
    types_max = JOB_TYPES_DEFAULT if limit is None else limit
    if len(types) >= types_max:
        raise TypeLimitExceeded(f"the tenant may have jobs of at most {types_max} types")
    types.add(type)


def update_buckets(tx: Transaction) -> None:
    """Subtract the jobs of a committed transaction from the buckets."""
    for tenant, jobs in tx.effects.enqueued.items():
        tx.writer_state.buckets[tenant] = EnqueueBucket(bucket_level(tx, tenant) - jobs, tx.now)


def bucket_level(tx: Transaction, tenant: str) -> float:
    """Return how many jobs the tenant could enqueue now, without the jobs of this transaction."""
    limits = tx.writer_state.limits[tenant]
    assert limits.rate is not None
    bucket = tx.writer_state.buckets.get(tenant)
    burst = burst_of(limits)
    return burst if bucket is None else min(burst, bucket.jobs + (tx.now - bucket.at) * limits.rate / MICROS)


def burst_of(limits: Limits) -> int:
    """Return how many jobs a tenant with a rate limit may enqueue at once."""
    return max(1, math.ceil(limits.rate or 0)) if limits.burst is None else limits.burst


def _has_limits(limits: Limits) -> bool:
    return limits.max_unfinished_jobs is not None or limits.rate is not None


def _seconds_until(jobs: float, rate: float) -> float:
    """Return the seconds until the bucket has gained this number of jobs, rounded up to microseconds."""
    if rate * RETRY_AFTER_SECONDS_MAX < jobs:
        return RETRY_AFTER_SECONDS_MAX
    return math.ceil(max(0.0, jobs) / rate * MICROS) / MICROS if jobs > 0 else 0.0
