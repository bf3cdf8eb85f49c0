"""Ready jobs that may start: the capacity under the limits, and the order over all lanes of a tenant."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import heapify, heappop, heapreplace

from ingot.engines.sqlite.job_rows import ReadyPosition
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.engines.sqlite.writer_state import ALL_TYPES
from ingot.jobs.lanes import Lane
from ingot.jobs.limits import ConcurrencyLimits
from ingot.jobs.model import JobStatus

UNLIMITED = sys.maxsize
READ_JOBS_MIN = 16


class Capacity:
    """How many more jobs may start under the limits. Decreases as jobs are picked."""

    def __init__(self, tx: Transaction, types: Iterable[str], tenants: Set[str]) -> None:
        self._writer_state = writer_state = tx.writer_state
        types = writer_state.limited_types.intersection(types)
        by_type = [(type, tenant) for type in types for tenant in tenants & writer_state.lanes.get(type, {}).keys()]
        self._limited = {*(tenants & writer_state.limited_tenants), *(tenant for _, tenant in by_type)}
        self._by_tenant: Counter[str] = Counter()
        self._by_type: Counter[tuple[str, str]] = Counter()
        self._by_key: Counter[Lane] = Counter()
        self._limits: dict[tuple[str, str], ConcurrencyLimits] = {}
        if self._limited:
            totals = [(tenant, ALL_TYPES) for tenant in tenants & writer_state.limited_tenants]
            counted = tx.unfinished_jobs([*totals, *((tenant, type) for type, tenant in by_type)])
            for (tenant, type, status), jobs in counted.items():
                if status is not JobStatus.RUNNING:
                    continue
                if type == ALL_TYPES:
                    self._by_tenant[tenant] = jobs
                else:
                    self._by_type[tenant, type] = jobs
        if keyed := [
            pair for pair in by_type if writer_state.definition(pair[1], pair[0]).max_running_per_key is not None
        ]:
            lanes = as_json([(type, tenant, writer_state.tenants[tenant]) for type, tenant in keyed])
            for type, tenant, key, jobs in tx.read(list[tuple[str, str, str, int]], SQL.running_by_limit_key, lanes):
                self._by_key[Lane(type, tenant, key)] = jobs

    def lanes_with_capacity(
        self, tenant: str, heads: list[tuple[ReadyPosition, Lane]]
    ) -> list[tuple[ReadyPosition, Lane]]:
        """Return the lanes of a tenant that have capacity."""
        if tenant not in self._limited:
            return heads
        return [(first, lane) for first, lane in heads if self.remaining(lane) > 0]

    def remaining(self, lane: Lane) -> int:
        """Return how many more jobs of this lane may start."""
        if lane.tenant not in self._limited:
            return UNLIMITED
        pair = lane.tenant, lane.type
        limits = self._limits.get(pair) or self._limits.setdefault(pair, self._writer_state.concurrency_limits(*pair))
        left = UNLIMITED if limits.tenant is None else limits.tenant - self._by_tenant[lane.tenant]
        if limits.type is not None:
            left = min(left, limits.type - self._by_type[pair])
        if limits.key is not None and lane.limit_key:
            left = min(left, limits.key - self._by_key.get(lane, 0))
        return left

    def use(self, lane: Lane) -> None:
        """Count one more job of this lane as running."""
        if lane.tenant in self._limited:
            self._by_tenant[lane.tenant] += 1
            self._by_type[lane.tenant, lane.type] += 1
            self._by_key[lane] += 1


class ReadyQueue:
    """The ready jobs of one tenant, in order, over all of its lanes with capacity. They are read when needed.

    A lane is read only when it may have the next job, because no job of it is before its known start.
    """

    def __init__(self, tx: Transaction, heads: Sequence[tuple[ReadyPosition, Lane]], capacity: Capacity) -> None:
        self._tx = tx
        self._capacity = capacity
        self._heads = list(heads)
        heapify(self._heads)
        self._read: dict[Lane, list[ReadyPosition]] = {}  # In reverse order.
        self._taken: Counter[Lane] = Counter()

    def unread_lane(self) -> Lane | None:
        """Return the lane of a tenant with only one, if nothing of it was read."""
        return self._heads[0][1] if len(self._heads) == 1 and not self._read else None

    def take(self, jobs: int) -> list[int]:
        """Return the numbers of the next jobs, fewer if no more may start."""
        taken: list[int] = []
        while self._heads and len(taken) < jobs:
            _, lane = self._heads[0]
            left = self._capacity.remaining(lane)
            if left <= 0:
                heappop(self._heads)
            elif positions := self._read.get(lane):
                taken.append(positions.pop()[3])
                self._taken[lane] += 1
                self._capacity.use(lane)
                if positions:
                    heapreplace(self._heads, (positions[-1], lane))
            else:
                self._read_more(lane, min(left, jobs - len(taken)))
        return taken

    def _read_more(self, lane: Lane, jobs_max: int) -> None:
        """Read the jobs after those that were taken. If there are none, the lane is empty."""
        taken = self._taken[lane]
        count = max(READ_JOBS_MIN, taken, jobs_max // len(self._heads))
        tenant = self._tx.writer_state.tenants[lane.tenant]
        positions = self._tx.read(
            list[ReadyPosition], SQL.ready_in_lane, lane.type, tenant, lane.limit_key, taken + min(jobs_max, count)
        )
        self.add_jobs(lane, positions[taken:])

    def add_jobs(self, lane: Lane, positions: list[ReadyPosition]) -> None:
        """Add the next jobs of a lane, in order. Without any, the lane is dropped."""
        if not positions:
            heappop(self._heads)
            self._tx.writer_state.drop_lane(lane)
            return
        self._tx.writer_state.set_lane_start(lane, positions[0])
        self._read[lane] = positions[::-1]
        heapreplace(self._heads, (positions[0], lane))


def read_ahead(tx: Transaction, queues: Mapping[str, ReadyQueue], wanted: Mapping[str, int]) -> None:
    """Read the next jobs of several tenants with one statement, where few are wanted of each."""
    counts = {tenant: jobs for tenant, jobs in wanted.items() if jobs <= READ_JOBS_MIN}
    lanes = {tenant: lane for tenant in counts if (lane := queues[tenant].unread_lane()) is not None}
    if len(lanes) < 2:
        return
    lanes_json = as_json(
        [(lane.type, tx.writer_state.tenants[tenant], lane.limit_key) for tenant, lane in lanes.items()]
    )
    positions_by_lane = tx.read(list[list[ReadyPosition]], SQL.ready_in_lanes, lanes_json, max(counts.values()))
    for (tenant, lane), positions in zip(lanes.items(), positions_by_lane, strict=True):
        queues[tenant].add_jobs(lane, positions)
