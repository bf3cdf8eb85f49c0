"""What the writer thread keeps in memory: derived from the file, and read from it again after a rollback."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import apsw
import msgspec

from ingot.engines.sqlite.job_rows import ReadyPosition
from ingot.engines.sqlite.sql import SQL
from ingot.identity.model import Limits, TenantNotFound
from ingot.jobs.lanes import FairShares, Lane
from ingot.jobs.limits import ConcurrencyLimits
from ingot.jobs.model import Definition, Pause
from ingot.kernel.clock import MICROS, to_datetime

SWEEP_INTERVAL_MICROS = MICROS
FENCES_PER_EPOCH = 2**32

LANE_START: ReadyPosition = (0, 0, "", 0)  # Before all work there can be.
T = TypeVar("T")


class EnqueueBucket(msgspec.Struct, frozen=True, gc=False):
    """How many jobs a tenant could enqueue at this instant."""

    jobs: float
    at: int


class WriterState:
    """Lanes with ready work, the next instants on the agenda, definitions, limits, who is waited for, last numbers."""

    def __init__(self, connection: apsw.Connection, *, epoch: int, sweep_from: int) -> None:
        self._connection = connection
        self.fence = epoch * FENCES_PER_EPOCH
        self.swept_at = 0
        self._sweep_from = sweep_from
        self.turns = FairShares()
        self.last_tenant_number = 0  # None is used again while we are up: somebody may still be reading.
        self.requested_at: dict[
            tuple[str, str | None], int
        ] = {}  # When a worker last asked for a type, of a tenant or all.
        self.buckets: dict[str, EnqueueBucket] = {}  # Of tenants that have a rate; one that is not there is full.
        self.reload()

    def reload(self) -> None:
        """Read everything again that a rollback may have made untrue."""
        self._load_tenants()
        rows = self._connection.execute(SQL.live_lanes)
        self.lanes: dict[
            str, dict[str, dict[Lane, ReadyPosition]]
        ] = {}  # Each with a place before which it has nothing.
        for type, tenant, limit_key in rows:
            self.add_lane(Lane(type, tenant, limit_key))
        self.epoch: int = self._connection.execute(SQL.store_epoch).get
        self.next_due: int | None = self._connection.execute(SQL.next_due).get
        self.next_expiry: int | None = self._connection.execute(SQL.next_expiry).get
        self.last_job_number: int = self._connection.execute(SQL.last_job_number).get
        self.last_batch: int = self._connection.execute(SQL.last_event_batch).get
        self.definitions: dict[tuple[str | None, str], Definition] = {}
        self.limited_types: set[str] = set()
        for definition in self._read_json(list[Definition], SQL.all_definitions):
            self.add_definition(definition)
        self.pauses = {
            (tenant, type): Pause(type=type, since=to_datetime(since), by=by)
            for tenant, type, since, by in self._read_json(list[tuple[str, str, int, str | None]], SQL.all_pauses)
        }
        parents = self._read_json(list[tuple[int, bool]], SQL.awaited_parents)
        self.parents = {number for number, _ in parents}  # The jobs that others wait for,
        self.ended_parents = {number for number, ended in parents if ended}  # and those of them that have ended.

    def _read_json(self, type: type[T], statement: str) -> T:
        return msgspec.json.decode(self._connection.execute(statement).get, type=type)

    def _load_tenants(self) -> None:
        self.tenants: dict[str, int] = {}
        self.tenant_numbers: dict[str, int] = {}  # Those of removed tenants too, until nothing is left of them.
        self.weights: dict[str, int] = {}
        self.limits: dict[str, Limits] = {}
        self.limited_tenants: set[str] = set()
        known = self._read_json(list[tuple[str, int, int, Limits, bool]], SQL.all_tenants)
        for id, number, weight, limits, removed in known:
            self.last_tenant_number = max(self.last_tenant_number, number)
            if removed:
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
        """Raise `TenantNotFound` for a tenant that is not there; `None` stands for no tenant."""
        if tenant is not None:
            self.number_of(tenant)

    def add_tenant(self, id: str, number: int, weight: int, limits: Limits) -> None:
        """There is this tenant."""
        self.tenants[id] = self.tenant_numbers[id] = number
        self.last_tenant_number = max(self.last_tenant_number, number)
        self.weights[id] = weight
        self.add_limits(id, limits)

    def remove_tenant(self, id: str, removed: str) -> None:
        """Nobody finds this tenant any more; what is left of it goes by another id."""
        self.tenant_numbers[removed] = self.tenants.pop(id)
        del self.tenant_numbers[id], self.weights[id], self.limits[id]
        self.limited_tenants.discard(id)
        self.buckets.pop(id, None)
        for type in self.ready_types(id):
            for lane in list(self.lanes[type][id]):
                self.drop_lane(lane)
        self.definitions = {key: known for key, known in self.definitions.items() if key[0] != id}
        self.pauses = {key: known for key, known in self.pauses.items() if key[0] != id}
        self.requested_at = {key: at for key, at in self.requested_at.items() if key[1] != id}

    # -- lanes ----------------------------------------------------------------------------------------------

    def add_lane(self, lane: Lane, first: ReadyPosition = LANE_START) -> None:
        """There is new ready work in this lane, from this place on. A lane that was not there had nothing.

        Nothing is handed out of a tenant that was removed.
        """
        if lane.tenant not in self.tenants:
            return
        lanes = self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, {})
        lanes[lane] = min(first, lanes.get(lane, first))

    def set_lane_start(self, lane: Lane, first: ReadyPosition) -> None:
        """The ready work of this lane begins here, until more is added."""
        self.lanes[lane.type][lane.tenant][lane] = first

    def drop_lane(self, lane: Lane) -> None:
        """All ready work of this lane was taken."""
        tenants = self.lanes[lane.type]
        del tenants[lane.tenant][lane]
        if not tenants[lane.tenant]:
            del tenants[lane.tenant]
        if not tenants:
            del self.lanes[lane.type]

    def lanes_for(self, types: Iterable[str], tenant: str | None) -> dict[str, list[tuple[ReadyPosition, Lane]]]:
        """The lanes a claim may take from, by tenant, each with a place before which it has nothing."""
        found: dict[str, list[tuple[ReadyPosition, Lane]]] = {}
        for type in dict.fromkeys(types):
            tenants = self.lanes.get(type, {})
            for known in tenants if tenant is None else tenants.keys() & {tenant}:
                if (known, type) not in self.pauses:
                    found.setdefault(known, []).extend((first, lane) for lane, first in tenants[known].items())
        return found

    # -- limits ---------------------------------------------------------------------------------------------

    def add_limits(self, tenant: str, limits: Limits) -> None:
        """This is what the tenant may use from now on."""
        self.limits[tenant] = limits
        if limits.max_running_jobs is None:
            self.limited_tenants.discard(tenant)
        else:
            self.limited_tenants.add(tenant)

    def add_definition(self, definition: Definition) -> None:
        """This definition holds from now on. A type that was limited once is looked at a little closer."""
        self.definitions[definition.tenant, definition.type] = definition
        if definition.max_running is not None or definition.max_running_per_key is not None:
            self.limited_types.add(definition.type)

    def bounds(self, tenant: str, type: str) -> ConcurrencyLimits:
        """How many of a tenant's jobs may run at once, as far as it concerns those of this type."""
        definition = self.definition(tenant, type)
        return ConcurrencyLimits(
            self.limits[tenant].max_running_jobs, definition.max_running, definition.max_running_per_key
        )

    def ready_types(self, tenant: str) -> list[str]:
        """The types of which a tenant has ready work."""
        return [type for type, tenants in self.lanes.items() if tenant in tenants]

    def types_waiting_on(self, tenant: str, type: str) -> list[str]:
        """The types with ready work that a limit may have kept waiting for a job of this type to end."""
        if tenant in self.limited_tenants:
            return self.ready_types(tenant)
        return [type] if type in self.limited_types and tenant in self.lanes.get(type, {}) else []

    # -- the agenda -----------------------------------------------------------------------------------------

    def record_due_time(self, run_at: int) -> None:
        """Some work becomes due then."""
        if self.next_due is None or run_at < self.next_due:
            self.next_due = run_at

    def record_expiry(self, expiry: int) -> None:
        """Some lease runs out then."""
        if self.next_expiry is None or expiry < self.next_expiry:
            self.next_expiry = expiry

    def next_sweep(self) -> int | None:
        """When the next sweep may find something: not right after the store came up, at most once a second."""
        expiry = self.next_expiry  # Read once: the event loop asks while the writer changes it.
        return None if expiry is None else max(expiry, self._sweep_from, self.swept_at + SWEEP_INTERVAL_MICROS)

    def may_sweep(self, now: int) -> bool:
        """Whether the store has been up for long enough to take what is silent for gone."""
        return now >= self._sweep_from

    def next_maintenance_at(self) -> int | None:
        """The next instant at which something is to be done."""
        if self.ended_parents:
            return 0
        instants = [instant for instant in (self.next_due, self.next_sweep()) if instant is not None]
        return min(instants, default=None)

    def definition(self, tenant: str, type: str) -> Definition:
        """The definition that holds: the tenant's own, or the one for all, or the defaults."""
        if not self.definitions:
            return _defaults(type)
        return self.definitions.get((tenant, type)) or self.definitions.get((None, type)) or _defaults(type)


@lru_cache(maxsize=1024)
def _defaults(type: str) -> Definition:
    return Definition(type=type)
