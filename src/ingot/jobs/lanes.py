"""Lanes of ready jobs, and fair sharing between tenants: by weight, not by the number of waiting jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from typing import Final

import msgspec

ROUNDS_PER_CLAIM: Final = 4  # How often each tenant gets a turn in one claim, if there are enough jobs.
ROUND_JOBS_MAX: Final = 1000  # Each tenant gets a turn within this number of jobs, also with concurrent claims.
TENANTS_MAX: Final = 10_000
SHARES_MAX: Final = 1_000


class Lane(msgspec.Struct, frozen=True, order=True):
    """The queue of ready jobs with the same type, tenant and limit key."""

    type: str
    tenant: str
    limit_key: str


class Turn(msgspec.Struct, frozen=True):
    """A number of jobs that one tenant gets in a row."""

    tenant: str
    jobs: int


class FairShare:
    """Distributes the next jobs among the tenants that have ready jobs.

    Each tenant has a virtual time: the number of jobs it got, divided by its weight. The tenant with the lowest virtual
    time gets the next turn. A tenant that had no ready jobs for a while does not accumulate turns; its virtual time is
    raised to that of the others.
    """

    def __init__(self) -> None:
        self._virtual_times: dict[str, float] = {}
        self._virtual_time_floor = 0.0  # The lowest virtual time of the tenants that have ready jobs.

    @property
    def tracked_tenants(self) -> int:
        """The number of tenants whose virtual time is stored."""
        return len(self._virtual_times)

    def next_turns(self, jobs: int, weights: Mapping[str, int]) -> list[Turn]:
        """Plan the turns for the next jobs. Only `record_claimed` counts jobs."""
        if len(weights) == 1:
            return [Turn(tenant, jobs) for tenant in weights]
        heap = [(self._virtual_time(tenant), tenant) for tenant in weights]
        heapify(heap)
        turn_jobs_max = max(1, min(jobs // ROUNDS_PER_CLAIM, ROUND_JOBS_MAX) // len(heap))
        turns = []
        while jobs > 0:
            virtual_time, tenant = heap[0]
            turn_jobs = min(turn_jobs_max, jobs)
            turns.append(Turn(tenant, turn_jobs))
            jobs -= turn_jobs
            heapreplace(heap, (virtual_time + turn_jobs / weights[tenant], tenant))
        return turns

    def record_claimed(self, jobs: Mapping[str, int], weights: Mapping[str, int], *, waiting: Iterable[str]) -> None:
        """Count claimed jobs by tenant. `waiting` names the tenants that have more ready jobs."""
        for tenant, count in jobs.items():
            self._virtual_times[tenant] = self._virtual_time(tenant) + count / weights[tenant]
        waiting_times = [self._virtual_time(tenant) for tenant in waiting]
        self._virtual_time_floor = min(
            waiting_times,
            default=max((self._virtual_time(tenant) for tenant in jobs), default=self._virtual_time_floor),
        )
        if len(self._virtual_times) > TENANTS_MAX:
            self._virtual_times = {
                tenant: virtual_time
                for tenant, virtual_time in self._virtual_times.items()
                if virtual_time > self._virtual_time_floor
            }

    def _virtual_time(self, tenant: str) -> float:
        return max(self._virtual_times.get(tenant, 0.0), self._virtual_time_floor)


class FairShares:
    """One fair share for each set of types that workers claim. Jobs of one set do not count in another."""

    def __init__(self) -> None:
        self._shares: dict[frozenset[str], FairShare] = {}

    def for_types(self, types: Iterable[str]) -> FairShare:
        """Return the fair share for claims of these types."""
        key = frozenset(types)
        if key not in self._shares and len(self._shares) >= SHARES_MAX:
            del self._shares[next(iter(self._shares))]  # Drop the oldest one. Its tenants start equal again.
        return self._shares.setdefault(key, FairShare())
