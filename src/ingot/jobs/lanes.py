"""Lanes of ready work, and turns between tenants: by weight, and not by how much anybody has waiting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace
from typing import Final

import msgspec

ROUNDS_PER_CLAIM: Final = 4  # How often everybody comes up in one deal, when there are jobs enough.
ROUND_JOBS_MAX: Final = 1000  # Everybody comes up in so many jobs, whoever else claims at the same time.
TENANTS_MAX: Final = 10_000
SHARES_MAX: Final = 1_000


class Lane(msgspec.Struct, frozen=True, order=True):
    """Where ready work queues up: one line per type, tenant and limit key."""

    type: str
    tenant: str
    limit_key: str


class Turn(msgspec.Struct, frozen=True):
    """Some jobs of one tenant in a row."""

    tenant: str
    jobs: int


class FairShare:
    """Deals the next jobs to the tenants that have ready work.

    Every tenant has gone some way: the jobs it got, divided by its weight. The next turn is that of the one who has
    gone least. Who had nothing to do for a while does not save up turns, but goes on from where the others are.
    """

    def __init__(self) -> None:
        self._virtual_times: dict[str, float] = {}
        self._virtual_time_floor = 0.0  # How far everybody has gone who has work.

    @property
    def tracked_tenants(self) -> int:
        """The number of tenants whose progress is kept."""
        return len(self._virtual_times)

    def next_turns(self, jobs: int, weights: Mapping[str, int]) -> list[Turn]:
        """Whose turn it is for the next jobs. Nothing is counted before they were taken."""
        if len(weights) == 1:
            return [Turn(tenant, jobs) for tenant in weights]
        line = [(self._virtual_time(tenant), tenant) for tenant in weights]
        heapify(line)
        step = max(1, min(jobs // ROUNDS_PER_CLAIM, ROUND_JOBS_MAX) // len(line))
        turns = []
        while jobs > 0:
            gone, tenant = line[0]
            share = min(step, jobs)
            turns.append(Turn(tenant, share))
            jobs -= share
            heapreplace(line, (gone + share / weights[tenant], tenant))
        return turns

    def record_claimed(self, jobs: Mapping[str, int], weights: Mapping[str, int], *, waiting: Iterable[str]) -> None:
        """So many jobs were taken from each of these tenants; some are waiting with more."""
        for tenant, taken in jobs.items():
            self._virtual_times[tenant] = self._virtual_time(tenant) + taken / weights[tenant]
        in_line = [self._virtual_time(tenant) for tenant in waiting]
        self._virtual_time_floor = min(
            in_line, default=max((self._virtual_time(tenant) for tenant in jobs), default=self._virtual_time_floor)
        )
        if len(self._virtual_times) > TENANTS_MAX:
            self._virtual_times = {
                tenant: gone for tenant, gone in self._virtual_times.items() if gone > self._virtual_time_floor
            }

    def _virtual_time(self, tenant: str) -> float:
        return max(self._virtual_times.get(tenant, 0.0), self._virtual_time_floor)


class FairShares:
    """A line for each set of types that workers ask for: who gets much of one type has not gone far in another."""

    def __init__(self) -> None:
        self._shares: dict[frozenset[str], FairShare] = {}

    def for_types(self, types: Iterable[str]) -> FairShare:
        """The line for claims of these types."""
        key = frozenset(types)
        if key not in self._shares and len(self._shares) >= SHARES_MAX:
            del self._shares[next(iter(self._shares))]  # The oldest: its tenants begin level again.
        return self._shares.setdefault(key, FairShare())
