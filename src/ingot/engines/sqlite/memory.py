"""What the writer thread keeps in memory: derived from the file, and read from it again after a rollback."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import apsw
import msgspec

from ingot.engines.sqlite.sql import SQL
from ingot.jobs.lanes import Lane, Turns
from ingot.jobs.model import Definition
from ingot.kernel.clock import MICROS

SWEEP_EVERY = MICROS
FENCES_PER_EPOCH = 2**32


class Memory:
    """Lanes with ready work, the next instants on the agenda, definitions, and the last numbers given out."""

    def __init__(self, connection: apsw.Connection, *, epoch: int, sweep_from: int) -> None:
        self._connection = connection
        self.fence = epoch * FENCES_PER_EPOCH
        self.swept_at = 0
        self._sweep_from = sweep_from
        self.turns = Turns()
        self.reload()

    def reload(self) -> None:
        """Read everything again that a rollback may have made untrue."""
        rows = self._connection.execute(SQL.live_lanes)
        self.lanes: dict[str, dict[str, set[Lane]]] = {}
        for type, tenant, limit_key in rows:
            self.add_lane(Lane(type, tenant, limit_key))
        self.epoch: int = self._connection.execute(SQL.store_epoch).get
        self.next_due: int | None = self._connection.execute(SQL.next_due).get
        self.next_expiry: int | None = self._connection.execute(SQL.next_expiry).get
        self.last_job_number: int = self._connection.execute(SQL.last_job_number).get
        self.last_batch: int = self._connection.execute(SQL.last_event_batch).get
        tenants = msgspec.json.decode(
            self._connection.execute(SQL.tenant_weights).get, type=list[tuple[str, int, int]]
        )
        self.tenants = {id: number for id, number, _ in tenants}
        self.weights = {id: weight for id, _, weight in tenants}
        definitions = msgspec.json.decode(self._connection.execute(SQL.all_definitions).get, type=list[Definition])
        self.definitions = {(definition.tenant, definition.type): definition for definition in definitions}

    def add_lane(self, lane: Lane) -> None:
        """There is ready work in this lane."""
        self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, set()).add(lane)

    def drop_lane(self, lane: Lane) -> None:
        """All ready work of this lane was taken."""
        tenants = self.lanes[lane.type]
        tenants[lane.tenant].discard(lane)
        if not tenants[lane.tenant]:
            del tenants[lane.tenant]
        if not tenants:
            del self.lanes[lane.type]

    def lanes_for(self, types: Iterable[str], tenant: str | None) -> dict[str, list[Lane]]:
        """The lanes a claim may take from, by tenant."""
        found: dict[str, list[Lane]] = {}
        for type in dict.fromkeys(types):
            tenants = self.lanes.get(type, {})
            for known in tenants if tenant is None else tenants.keys() & {tenant}:
                found.setdefault(known, []).extend(tenants[known])
        return found

    def due_at(self, run_at: int) -> None:
        """Some work becomes due then."""
        if self.next_due is None or run_at < self.next_due:
            self.next_due = run_at

    def expires_at(self, expiry: int) -> None:
        """Some lease runs out then."""
        if self.next_expiry is None or expiry < self.next_expiry:
            self.next_expiry = expiry

    def next_sweep(self) -> int | None:
        """When the next sweep may find something: not right after the store came up, at most once a second."""
        expiry = self.next_expiry  # Read once: the event loop asks while the writer changes it.
        return None if expiry is None else max(expiry, self._sweep_from, self.swept_at + SWEEP_EVERY)

    def agenda(self) -> int | None:
        """The next instant at which something is to be done."""
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
