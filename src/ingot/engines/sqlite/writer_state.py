"""State that the writer thread keeps in memory: derived from the file, and loaded again after a rollback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import apsw
import msgspec

from ingot.engines.sqlite.job_rows import ReadyPosition
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sweep_guard import SweepGuard
from ingot.identity.model import Limits, TenantNotFound
from ingot.jobs.lanes import FairShares, Lane
from ingot.jobs.limits import ConcurrencyLimits
from ingot.jobs.model import Definition, Pause
from ingot.kernel.clock import MICROS, to_datetime

SWEEP_INTERVAL_MICROS = MICROS
FENCES_PER_EPOCH = 2**32

ALL_TYPES = ""  # Counters with this type count the jobs of all types.
LANE_START: ReadyPosition = (0, 0, "", 0)  # Before every position.
T = TypeVar("T")


class EnqueueBucket(msgspec.Struct, frozen=True, gc=False):
    """How many jobs a tenant could enqueue at the time `at`."""

    jobs: float
    at: int


class WriterState:
    """Live lanes, times of the next maintenance, tenants, definitions, limits, awaited parents, and last numbers."""

    def __init__(self, connection: apsw.Connection, *, epoch: int, sweep_guard: SweepGuard) -> None:
        self._connection = connection
        self.fence = epoch * FENCES_PER_EPOCH
        self.swept_at = 0
        self.sweep_guard = sweep_guard
        self.turns = FairShares()
        # Numbers are not reused while the store is open, because a read may still use that of a removed tenant.
        self.last_tenant_number = 0
        # When a worker last requested a type, for one tenant or for all (`None`).
        self.requested_at: dict[tuple[str, str | None], int] = {}
        # The buckets of tenants with a rate limit. A missing bucket is full.
        self.buckets: dict[str, EnqueueBucket] = {}
        self.reload()

    def reload(self) -> None:
        """Load everything again that may differ from the file after a rollback."""
        self._load_tenants()
        # The types of which each tenant has jobs.
        self.types: defaultdict[str, set[str]] = defaultdict(set)
        for tenant, types in self._read_json(list[tuple[str, list[str]]], SQL.types_of_tenants):
            self.types[tenant] = set(types)
        rows = self._connection.execute(SQL.live_lanes)
        # The live lanes by type and tenant, each with a position before which it has no ready jobs.
        self.lanes: dict[str, dict[str, dict[Lane, ReadyPosition]]] = {}
        for type, tenant, limit_key in rows:
            self.add_lane(Lane(type, tenant, limit_key))
        self.epoch: int = self._connection.execute(SQL.store_epoch).get
        self.next_due: int | None = self._connection.execute(SQL.next_due).get
        self.next_expiry: int | None = self._connection.execute(SQL.next_expiry).get
        self.last_job_number: int = self._connection.execute(SQL.last_job_number).get
        # Job lists search by creation time, so it must not decrease, even if the clock was corrected.
        self.newest_created_at: int = self._connection.execute(SQL.newest_created_at).get
        self.last_batch: int = self._connection.execute(SQL.last_event_batch).get
        self.definitions: dict[tuple[str | None, str], Definition] = {}
        self.limited_types: set[str] = set()
        for definition in self._read_json(list[Definition], SQL.all_definitions):
            self.set_definition(definition)
        self.pauses = {
            (tenant, type): Pause(type=type, since=to_datetime(since), by=by)
            for tenant, type, since, by in self._read_json(list[tuple[str, str, int, str | None]], SQL.all_pauses)
        }
        parents = self._read_json(list[tuple[int, bool]], SQL.awaited_parents)
        self.parents = {number for number, _ in parents}  # Jobs with open dependents.
        self.ended_parents = {number for number, ended in parents if ended}  # Those parents that are finished.

    def _read_json(self, type: type[T], statement: str) -> T:
        return msgspec.json.decode(self._connection.execute(statement).get, type=type)

    def _load_tenants(self) -> None:
        self.tenants: dict[str, int] = {}
        self.tenant_numbers: dict[str, int] = {}  # Includes removed tenants until their rows are deleted.
        self.weights: dict[str, int] = {}
        self.limits: dict[str, Limits] = {}
        self.limited_tenants: set[str] = set()
        tenants = self._read_json(list[tuple[str, int, int, Limits, bool]], SQL.all_tenants)
        for id, number, weight, limits, is_removed in tenants:
            self.last_tenant_number = max(self.last_tenant_number, number)
            if is_removed:
                self.tenant_numbers[id] = number
            else:
                self.add_tenant(id, number, weight, limits)

    # -- tenants --------------------------------------------------------------------------------------------

    def number_of(self, tenant: str) -> int:
        """Return the number of a tenant. Raises `TenantNotFound`."""
        try:
            return self.tenants[tenant]
        except KeyError:
            raise TenantNotFound(f"there is no tenant {tenant[:64]!r}") from None

    def check_tenant(self, tenant: str | None) -> None:
        """Raise `TenantNotFound` unless the tenant exists or is `None`."""
        if tenant is not None:
            self.number_of(tenant)

    def add_tenant(self, id: str, number: int, weight: int, limits: Limits) -> None:
        """Add a tenant."""
        self.tenants[id] = self.tenant_numbers[id] = number
        self.last_tenant_number = max(self.last_tenant_number, number)
        self.weights[id] = weight
        self.set_limits(id, limits)

    def remove_tenant(self, id: str, replacement_id: str) -> None:
        """Remove a tenant. Its remaining rows are those of `replacement_id`."""
        self.tenant_numbers[replacement_id] = self.tenants.pop(id)
        del self.tenant_numbers[id], self.weights[id], self.limits[id]
        self.limited_tenants.discard(id)
        self.buckets.pop(id, None)
        self.types.pop(id, None)
        # A lane may be listed after the last job of its type was removed.
        for lane in [lane for tenants in self.lanes.values() for lane in tenants.get(id, ())]:
            self.drop_lane(lane)
        self.definitions = {key: value for key, value in self.definitions.items() if key[0] != id}
        self.pauses = {key: value for key, value in self.pauses.items() if key[0] != id}
        self.requested_at = {key: at for key, at in self.requested_at.items() if key[1] != id}

    # -- lanes ----------------------------------------------------------------------------------------------

    def add_lane(self, lane: Lane, first: ReadyPosition = LANE_START) -> None:
        """Record that a lane has new ready jobs, none of them before the position `first`.

        Lanes of removed tenants are ignored, because their jobs are not handed out.
        """
        if lane.tenant not in self.tenants:
            return
        lanes = self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, {})
        lanes[lane] = min(first, lanes.get(lane, first))

    def set_lane_start(self, lane: Lane, first: ReadyPosition) -> None:
        """Record that a lane has no ready jobs before this position, until more are added."""
        self.lanes[lane.type][lane.tenant][lane] = first

    def drop_lane(self, lane: Lane) -> None:
        """Remove a lane that has no more ready jobs."""
        tenants = self.lanes[lane.type]
        del tenants[lane.tenant][lane]
        if not tenants[lane.tenant]:
            del tenants[lane.tenant]
        if not tenants:
            del self.lanes[lane.type]

    def lanes_for(self, types: Iterable[str], tenant: str | None) -> dict[str, list[tuple[ReadyPosition, Lane]]]:
        """Return the lanes that a claim may take from, by tenant, each with a position before which it has no jobs."""
        lanes_by_tenant: dict[str, list[tuple[ReadyPosition, Lane]]] = {}
        for type in dict.fromkeys(types):
            tenants = self.lanes.get(type, {})
            for name in tenants if tenant is None else tenants.keys() & {tenant}:
                if (name, type) not in self.pauses:
                    lanes_by_tenant.setdefault(name, []).extend((first, lane) for lane, first in tenants[name].items())
        return lanes_by_tenant

    # -- limits ---------------------------------------------------------------------------------------------

    def set_limits(self, tenant: str, limits: Limits) -> None:
        """Set the limits of a tenant."""
        self.limits[tenant] = limits
        if limits.max_running_jobs is None:
            self.limited_tenants.discard(tenant)
        else:
            self.limited_tenants.add(tenant)

    def set_definition(self, definition: Definition) -> None:
        """Set a definition. A type that was limited once stays in `limited_types`."""
        self.definitions[definition.tenant, definition.type] = definition
        if definition.max_running is not None or definition.max_running_per_key is not None:
            self.limited_types.add(definition.type)

    def concurrency_limits(self, tenant: str, type: str) -> ConcurrencyLimits:
        """Return the limits on running jobs that apply to jobs of this tenant and type."""
        definition = self.definition(tenant, type)
        return ConcurrencyLimits(
            self.limits[tenant].max_running_jobs, definition.max_running, definition.max_running_per_key
        )

    def requested_types(self, tenant: str) -> list[str]:
        """Return the types of which a tenant has ready jobs and that workers have requested."""
        return [
            type
            for type in self.types[tenant]
            if tenant in self.lanes.get(type, ())
            and ((type, tenant) in self.requested_at or (type, None) in self.requested_at)
        ]

    # -- maintenance ----------------------------------------------------------------------------------------

    def record_due_time(self, run_at: int) -> None:
        """Record that a job becomes due at this time."""
        if self.next_due is None or run_at < self.next_due:
            self.next_due = run_at

    def record_expiry(self, expiry: int) -> None:
        """Record that a lease expires at this time."""
        if self.next_expiry is None or expiry < self.next_expiry:
            self.next_expiry = expiry

    def next_sweep(self) -> int | None:
        """Return when the next sweep may find something.

        Sweeps run at most once a second, and not before the store has been open for the duration of a lease.
        """
        expiry = self.next_expiry  # Read once: the event loop calls this while the writer changes the value.
        if expiry is None:
            return None
        return max(expiry, self.sweep_guard.sweep_from, self.swept_at + SWEEP_INTERVAL_MICROS)

    def next_maintenance_at(self) -> int | None:
        """Return when maintenance is due next."""
        if self.ended_parents:
            return 0
        times = [time for time in (self.next_due, self.next_sweep()) if time is not None]
        return min(times, default=None)

    def definition(self, tenant: str, type: str) -> Definition:
        """Return the definition that applies: the tenant's own, the one for all tenants, or the defaults."""
        if not self.definitions:
            return _default_definition(type)
        return self.definitions.get((tenant, type)) or self.definitions.get((None, type)) or _default_definition(type)


@lru_cache(maxsize=1024)
def _default_definition(type: str) -> Definition:
    return Definition(type=type)
