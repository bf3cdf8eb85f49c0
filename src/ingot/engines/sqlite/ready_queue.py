"""Ready work that may start: how much room there is for it, and the order in which a tenant's lanes give it away."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import heapify, heappop, heapreplace

from ingot.engines.sqlite.job_rows import ReadyPosition
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.lanes import Lane
from ingot.jobs.limits import ConcurrencyLimits
from ingot.jobs.model import JobStatus

UNLIMITED = sys.maxsize
READ_JOBS_MIN = 16


class Capacity:
    """How many more jobs may start, beside what the file says is running. It shrinks as jobs are picked."""

    def __init__(self, tx: Transaction, types: Iterable[str], tenants: Set[str]) -> None:
        self._writer_state = memory = tx.writer_state
        types = memory.limited_types.intersection(types)
        by_type = [(type, tenant) for type in types for tenant in tenants & memory.lanes.get(type, {}).keys()]
        self._limited = {*(tenants & memory.limited_tenants), *(tenant for _, tenant in by_type)}
        self._by_tenant: Counter[str] = Counter()
        self._by_type: Counter[tuple[str, str]] = Counter()
        self._by_key: Counter[Lane] = Counter()
        self._bounds: dict[tuple[str, str], ConcurrencyLimits] = {}
        if self._limited:
            for (tenant, type, status), jobs in tx.unfinished_jobs(self._limited).items():
                if status is JobStatus.RUNNING:
                    self._by_tenant[tenant] += jobs
                    self._by_type[tenant, type] += jobs
        if keyed := [pair for pair in by_type if memory.definition(pair[1], pair[0]).max_running_per_key is not None]:
            asked = as_json([(type, tenant, memory.tenants[tenant]) for type, tenant in keyed])
            for type, tenant, key, jobs in tx.read(list[tuple[str, str, str, int]], SQL.running_by_limit_key, asked):
                self._by_key[Lane(type, tenant, key)] = jobs

    def lanes_with_capacity(
        self, tenant: str, heads: list[tuple[ReadyPosition, Lane]]
    ) -> list[tuple[ReadyPosition, Lane]]:
        """Those of a tenant's lanes that have room."""
        if tenant not in self._limited:
            return heads
        return [(first, lane) for first, lane in heads if self.remaining(lane) > 0]

    def remaining(self, lane: Lane) -> int:
        """How many more jobs of this lane may start."""
        if lane.tenant not in self._limited:
            return UNLIMITED
        pair = lane.tenant, lane.type
        bounds = self._bounds.get(pair) or self._bounds.setdefault(pair, self._writer_state.bounds(*pair))
        left = UNLIMITED if bounds.tenant is None else bounds.tenant - self._by_tenant[lane.tenant]
        if bounds.type is not None:
            left = min(left, bounds.type - self._by_type[pair])
        if bounds.key is not None and lane.limit_key:
            left = min(left, bounds.key - self._by_key.get(lane, 0))
        return left

    def use(self, lane: Lane) -> None:
        """One more job of this lane is going to run."""
        if lane.tenant in self._limited:
            self._by_tenant[lane.tenant] += 1
            self._by_type[lane.tenant, lane.type] += 1
            self._by_key[lane] += 1


class ReadyQueue:
    """The ready jobs of one tenant in their order, over all its lanes that have room, read as they are asked for.

    A lane is read when its turn may have come: its jobs stand behind the place it is known to begin at.
    """

    def __init__(self, tx: Transaction, heads: Sequence[tuple[ReadyPosition, Lane]], room: Capacity) -> None:
        self._tx = tx
        self._capacity = room
        self._heads = list(heads)
        heapify(self._heads)
        self._read: dict[Lane, list[ReadyPosition]] = {}  # The last first.
        self._taken: Counter[Lane] = Counter()

    def unread_lane(self) -> Lane | None:
        """The lane of a tenant that has only one, and of which nothing was read."""
        return self._heads[0][1] if len(self._heads) == 1 and not self._read else None

    def take(self, jobs: int) -> list[int]:
        """The numbers of the next jobs; fewer when there are no more that have room."""
        taken: list[int] = []
        while self._heads and len(taken) < jobs:
            _, lane = self._heads[0]
            left = self._capacity.remaining(lane)
            if left <= 0:
                heappop(self._heads)
            elif places := self._read.get(lane):
                taken.append(places.pop()[3])
                self._taken[lane] += 1
                self._capacity.use(lane)
                if places:
                    heapreplace(self._heads, (places[-1], lane))
            else:
                self._read_more(lane, min(left, jobs - len(taken)))
        return taken

    def _read_more(self, lane: Lane, most: int) -> None:
        """Read what stands behind the jobs that were given away; a lane that has nothing there has been emptied."""
        given = self._taken[lane]
        share = max(READ_JOBS_MIN, given, most // len(self._heads))
        tenant = self._tx.writer_state.tenants[lane.tenant]
        places = self._tx.read(
            list[ReadyPosition], SQL.ready_in_lane, lane.type, tenant, lane.limit_key, given + min(most, share)
        )
        self.add_jobs(lane, places[given:])

    def add_jobs(self, lane: Lane, places: list[ReadyPosition]) -> None:
        """These are the next jobs of this lane."""
        if not places:
            heappop(self._heads)
            self._tx.writer_state.drop_lane(lane)
            return
        self._tx.writer_state.set_lane_start(lane, places[0])
        self._read[lane] = places[::-1]
        heapreplace(self._heads, (places[0], lane))


def read_ahead(tx: Transaction, queues: Mapping[str, ReadyQueue], wanted: Mapping[str, int]) -> None:
    """Read the few jobs that are wanted of each of many tenants with one statement."""
    few = {tenant: jobs for tenant, jobs in wanted.items() if jobs <= READ_JOBS_MIN}
    lanes = {tenant: lane for tenant in few if (lane := queues[tenant].unread_lane()) is not None}
    if len(lanes) < 2:
        return
    asked = as_json([(lane.type, tx.writer_state.tenants[tenant], lane.limit_key) for tenant, lane in lanes.items()])
    read = tx.read(list[list[ReadyPosition]], SQL.ready_in_lanes, asked, max(few.values()))
    for (tenant, lane), places in zip(lanes.items(), read, strict=True):
        queues[tenant].add_jobs(lane, places)
