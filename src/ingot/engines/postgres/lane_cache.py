"""What a process remembers between calls: hints that save looks at the database, and never the only truth."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from ingot.engines.listeners import StoreListeners, notify_all
from ingot.engines.postgres.command_batcher import BATCH_ROWS_MAX
from ingot.identity.model import WEIGHT_DEFAULT
from ingot.jobs.lanes import FairShares, Lane
from ingot.jobs.model import AttemptOutcome, Definition, JobStatus
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.ids import is_id

SWEEP_INTERVAL_MICROS: Final = MICROS
HINT_SECONDS: Final = 1.0  # What other processes put before a position is found after this time.
POLL_SECONDS: Final = 1.1
FULL_SWEEP_SECONDS: Final = 10.0
COST_FACTOR: Final = 50  # A look that walks over much that is dead may take this share of the time, and no more.
REPEAT_INTERVAL_SECONDS_MAX: Final = 120.0
RECENT_POSITIONS_MAX: Final = 256  # More than can be put into a lane while a claim is under way, most of the time.
BUSY_RETRY_SECONDS: Final = 0.01
CROWDED_SECONDS: Final = 5.0  # Longer than a claim takes.
JOBS_PER_TENANT: Final = 8
BATCH_ROWS_LARGE_MAX: Final = 8000
ALL_JOBS: Final = 1_000_000
NIL_ID: Final = "00000000-0000-0000-0000-000000000000"
ABOVE_ALL_IDS: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"

Position = tuple[int, int, str]
LANE_START: Final[Position] = (0, 0, NIL_ID)
LANE_END: Final[Position] = (2**15 - 1, 0, NIL_ID)  # Behind everything.


def repeat_interval(seconds: float, *, minimum: float) -> float:
    """How long to wait before something is done again that took so long."""
    return max(minimum, min(COST_FACTOR * seconds, REPEAT_INTERVAL_SECONDS_MAX))


def id_or_nil(text: str) -> str:
    """Return an id as it is, and for a text that is none the one that nothing has."""
    return text if is_id(text) else NIL_ID


class LaneHint(msgspec.Struct):
    """How far a lane was claimed. `version` grows with everything put into the lane; `recent` says where it went.

    `head` is where its work begins, where that was asked and has not changed.
    """

    version: int = 0
    after: Position = LANE_START
    head: Position | None = None
    full_scan_at: float = 0.0
    full_scan_interval_seconds: float = HINT_SECONDS
    recent: deque[Position] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT_POSITIONS_MAX))

    def scan_start(self) -> Position:
        """Where the next scan of this lane begins."""
        return LANE_START if self.is_stale() else self.after

    def is_stale(self) -> bool:
        """Whether others may have put something before the position, so that the whole lane is to be looked at."""
        return time.monotonic() - self.full_scan_at > self.full_scan_interval_seconds

    def record_insert(self, first: Position) -> None:
        """More was put into the lane, the first of it at this position."""
        before = first[0], first[1], NIL_ID
        self.version += 1
        self.recent.append(before)
        self.after = min(self.after, before)
        self.head = None if self.head is None else min(self.head, before)

    def record_claim(self, begin: Position, last: Position, version: int) -> None:
        """A scan that began there, at that version, took everything up to `last`."""
        meanwhile = self.version - version
        if meanwhile <= len(self.recent):
            reached = last if begin == LANE_START else max(self.after, last)
            if begin <= self.after:  # Otherwise a look found work before it meanwhile.
                self.after = min([reached, *islice(reversed(self.recent), meanwhile)])


class LaneCache:
    """Lanes with ready work, and the next instants on the agenda, as far as this process knows."""

    def __init__(self, clock: Clock, *, lease: int) -> None:
        self._clock = clock
        self._clock_offset = 0  # The database's clock, compared with ours.
        self.lease = lease
        self.lanes: dict[str, dict[str, dict[Lane, LaneHint]]] = {}
        self.turns = FairShares()
        self.suspended_lanes: dict[
            str, dict[Lane, LaneHint]
        ] = {}  # Lanes of tenants without room, until some of it is free.
        self.limited: set[tuple[str, str]] = set()  # Tenants and types of lanes that were found to be limited.
        self._crowded_at: dict[str, float] = {}  # When a claim last took from several lanes of a tenant, by type.
        self.claim_lock = asyncio.Lock()  # For claims that would stand in each other's way.
        self.has_running_limits = False  # Whether anything is limited, so that others may wait for what ends here.
        self.rules: dict[
            tuple[str, str], Definition
        ] = {}  # Definitions with which orders must be made, as we know them.
        self.known_tenants: set[str] = set()
        self.removed_tenants: set[str] = set()  # Tenants that are gone, and have left something behind.
        self.weights: defaultdict[str, int] = defaultdict(lambda: WEIGHT_DEFAULT)  # As far as we have seen them.
        self.next_due: int | None = None
        self.next_expiry: int | None = None
        self.promoted_to = 0  # Nothing became due before this that was not looked at.
        self.full_promote_at = -HINT_SECONDS
        self.full_promote_interval_seconds = HINT_SECONDS
        self.swept_at = 0
        self.swept_to = 0  # No lease runs out before this that was not looked at.
        self.full_sweep_at = -FULL_SWEEP_SECONDS
        self.full_sweep_interval_seconds = FULL_SWEEP_SECONDS
        self.next_expiry_queried_at = 0.0
        self.next_expiry_interval_seconds = 0.0
        self.sweep_from = 0
        self.polled_at = -POLL_SECONDS
        self.poll_interval_seconds = POLL_SECONDS
        self.poll_cost_seconds = 0.0
        self.jobs_ended_callbacks: list[Callable[[Iterable[str], Iterable[tuple[str, str]]], None]] = []
        self.requested_at: dict[tuple[str, str], int] = {}  # By type and tenant, since the others were told.
        self.has_dependencies = False  # Whether some jobs wait for others.
        self.record_changes: int | None = None  # How often records had changed when we last looked.
        self.has_count_deltas = False  # Whether there is something to fold into the counts.
        self.listeners = StoreListeners()
        self.notify_pending = False  # Whether this process made work ready and has not told the others.
        self.notify_callbacks: list[Callable[[], None]] = []

    def set_clock(self, now: int) -> None:
        """The database said what time it is."""
        self._clock_offset = now - self._clock.micros()

    def now(self) -> int:
        """The time of the database, as near as we know."""
        return self._clock.micros() + self._clock_offset

    # -- removed tenants ------------------------------------------------------------------------------------

    def update_removed_tenants(self, tenants: Iterable[str]) -> None:
        """A look found that these have left something behind, and no others."""
        known, self.removed_tenants = self.removed_tenants, set(tenants)
        for tenant in self.removed_tenants:
            self._drop_tenant(tenant)
        for tenant in self.removed_tenants - known:
            notify_all(self.listeners.tenant_removed, tenant)

    def forget_tenant(self, tenant: str) -> None:
        """This tenant was removed."""
        self._drop_tenant(tenant)
        if tenant not in self.removed_tenants:
            self.removed_tenants.add(tenant)
            notify_all(self.listeners.tenant_removed, tenant)

    def _drop_tenant(self, tenant: str) -> None:
        for type in [type for type, tenants in self.lanes.items() if tenant in tenants]:
            del self.lanes[type][tenant]
            if not self.lanes[type]:
                del self.lanes[type]
        self.suspended_lanes.pop(tenant, None)
        self.weights.pop(tenant, None)
        self.known_tenants.discard(tenant)
        self.limited = {kind for kind in self.limited if kind[0] != tenant}
        self.rules = {kind: rule for kind, rule in self.rules.items() if kind[0] != tenant}
        self.requested_at = {kind: at for kind, at in self.requested_at.items() if kind[1] != tenant}

    # -- lanes ----------------------------------------------------------------------------------------------

    def announce_ready(self, lane: Lane, jobs: int, *, first: Position = LANE_START) -> None:
        """This process made more work of this lane ready, the first of it at this position, or anywhere."""
        self.record_ready(lane, jobs, first=first)
        self.notify_pending = True
        notify_all(self.notify_callbacks)

    def record_ready(self, lane: Lane, jobs: int, *, first: Position = LANE_START) -> None:
        """More work of this lane is ready, whoever made it so."""
        hint = self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, {}).setdefault(lane, LaneHint())
        hint.record_insert(first)
        notify_all(self.listeners.ready, lane.tenant, lane.type, jobs)

    def ensure_lane(self, lane: Lane) -> LaneHint:
        """The next call puts work into this lane, and claims from it. Nobody is told."""
        return self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, {}).setdefault(lane, LaneHint())

    def wake_early(self, lane: Lane, jobs: int) -> int:
        """So many jobs of this lane are about to be made: wake claims that wait for them. Answers how many it woke."""
        woken = 0
        for wake in self.listeners.upcoming_jobs:
            woken += wake(lane.tenant, lane.type, jobs)
        return woken

    def drop_lane(self, lane: Lane, hint: LaneHint) -> None:
        """All ready work of this lane was taken, unless it was dropped before and has new work since."""
        tenants = self.lanes.get(lane.type, {})
        lanes = tenants.get(lane.tenant, {})
        if lanes.get(lane) is not hint:
            return
        del lanes[lane]
        if not lanes:
            tenants.pop(lane.tenant, None)
        if not tenants:
            self.lanes.pop(lane.type, None)

    def suspend_lane(self, lane: Lane) -> None:
        """Nothing more may run of this lane for now."""
        hint = self.lanes.get(lane.type, {}).get(lane.tenant, {}).get(lane)
        if hint is not None:
            self.suspended_lanes.setdefault(lane.tenant, {})[lane] = hint
            self.drop_lane(lane, hint)

    def suspend_type(self, tenant: str, type: str) -> None:
        """Nothing more may run of this type of a tenant for now."""
        for lane in list(self.lanes.get(type, {}).get(tenant, {})):
            self.suspend_lane(lane)

    def resume_lanes(self, tenant: str, jobs: int = ALL_JOBS) -> None:
        """So many jobs of this tenant ended, or may run again: its lanes are worth a look."""
        for lane, hint in self.suspended_lanes.pop(tenant, {}).items():
            known = self.lanes.setdefault(lane.type, {}).setdefault(tenant, {})
            known.setdefault(lane, hint)
            notify_all(self.listeners.ready, tenant, lane.type, jobs)
        if self.has_running_limits:
            self.notify_pending = True
            notify_all(self.notify_callbacks)

    def resume_all_lanes(self) -> None:
        """The limits changed."""
        self.limited.clear()
        for tenant in list(self.suspended_lanes):
            self.resume_lanes(tenant)

    def update_record_changes(self, changes: int) -> None:
        """A look found that records have changed so often."""
        if self.record_changes not in (None, changes):
            self.notify_record_changed()
        self.record_changes = changes

    def notify_record_changed(self) -> None:
        """A record has changed."""
        notify_all(self.listeners.record_changed)

    def notify_jobs_ended(self, parents: Iterable[str], batches: Iterable[tuple[str, str]]) -> None:
        """These jobs have ended, or others have come to wait for them; jobs of these batches have ended."""
        notify_all(self.jobs_ended_callbacks, parents, batches)

    def notify_events_written(self, tenants: Iterable[str]) -> None:
        """This process wrote events of these tenants."""
        for tenant in set(tenants) if self.listeners.event else ():
            notify_all(self.listeners.event, tenant)

    def record_request(self, types: Iterable[str], tenant: str | None) -> None:
        """A worker asked for these types."""
        now = self.now()
        for type in types:
            self.requested_at[type, tenant or NIL_ID] = now

    def last_request_at(self, type: str, tenant: str) -> int | None:
        """When a worker last asked for this type, as far as this process knows."""
        times = (self.requested_at.get((type, known)) for known in (tenant, NIL_ID))
        return max((at for at in times if at is not None), default=None)

    def is_crowded(self, types: Iterable[str], *, now: bool) -> bool:
        """Whether a claim of these types, or one shortly before it, takes from several lanes of a tenant."""
        at = time.monotonic()
        if now:
            self._crowded_at.update(dict.fromkeys(types, at))
        return now or any(at - self._crowded_at.get(type, -CROWDED_SECONDS) < CROWDED_SECONDS for type in types)

    def retry_busy_lane(self, lane: Lane) -> None:
        """Somebody else claims from this lane at this moment: those who wait try again in a while."""
        loop = asyncio.get_running_loop()
        loop.call_later(BUSY_RETRY_SECONDS, notify_all, self.listeners.ready, lane.tenant, lane.type, 1)

    def lanes_for(self, types: Iterable[str], tenant: str | None) -> dict[str, list[tuple[Lane, LaneHint]]]:
        """The lanes a claim may take from, by tenant."""
        found: dict[str, list[tuple[Lane, LaneHint]]] = {}
        for type in dict.fromkeys(types):
            tenants = self.lanes.get(type, {})
            for known in tenants if tenant is None else tenants.keys() & {tenant}:
                found.setdefault(known, []).extend(tenants[known].items())
        return found

    def batch_rows_max(self) -> int:
        """How many jobs are best claimed or settled together: some of each tenant, and many of what is limited.

        What is limited is claimed by one at a time, so that all who wait for it had better go together.
        """
        if self.limited:
            return BATCH_ROWS_LARGE_MAX
        tenants = max(map(len, self.lanes.values()), default=0)
        return min(max(BATCH_ROWS_MAX, JOBS_PER_TENANT * tenants), BATCH_ROWS_LARGE_MAX)

    def record_polled_lane(self, lane: Lane, weight: int) -> None:
        """A look found ready work in this lane. It is told, for all that this process knows it may be new."""
        self.weights[lane.tenant] = weight
        hint = self.lanes.get(lane.type, {}).get(lane.tenant, {}).get(lane)
        if hint is None:
            self.record_ready(lane, 1)
            return
        if hint.head == LANE_END:
            hint.head = None
        notify_all(self.listeners.ready, lane.tenant, lane.type, 1)

    # -- the agenda -----------------------------------------------------------------------------------------

    def is_poll_due(self) -> bool:
        """Whether it is time to look at the database again."""
        return time.monotonic() - self.polled_at > self.poll_interval_seconds

    def record_next_times(self, next_due: int | None, next_expiry: int | None) -> None:
        """A look found these instants."""
        if next_due is not None:
            self.record_due_time(next_due)
        if next_expiry is not None:
            self.record_expiry(next_expiry)

    def finish_promote(self, before: int | None, following: int | None) -> None:
        """What was due was moved; this comes next, unless something sooner was noted meanwhile."""
        self.next_due = min((at for at in (self.next_due, following) if at is not None), default=None)
        self._notify_maintenance(before)

    def finish_sweep(self, following: int | None) -> None:
        """Leases were swept; this one runs out next, unless one that runs out sooner was noted meanwhile."""
        self.next_expiry = min((at for at in (self.next_expiry, following) if at is not None), default=None)

    def record_due_time(self, run_at: int) -> None:
        """Some work becomes due then."""
        before = self.next_maintenance_at()
        self.next_due = run_at if self.next_due is None else min(self.next_due, run_at)
        self._notify_maintenance(before)

    def record_expiry(self, expiry: int) -> None:
        """Some lease runs out then."""
        before = self.next_maintenance_at()
        self.next_expiry = expiry if self.next_expiry is None else min(self.next_expiry, expiry)
        self._notify_maintenance(before)

    def next_sweep(self) -> int | None:
        """When the next sweep may find something: not right after the store came up, at most once a second."""
        if self.next_expiry is None:
            return None
        return max(self.next_expiry, self.sweep_from, self.swept_at + SWEEP_INTERVAL_MICROS)

    def next_maintenance_at(self) -> int | None:
        """The next instant at which something is to be done."""
        return min((at for at in (self.next_due, self.next_sweep()) if at is not None), default=None)

    def _notify_maintenance(self, before: int | None) -> None:
        """Tell when the next instant came closer than it was before."""
        after = self.next_maintenance_at()
        if after is not None and (before is None or after < before):
            notify_all(self.listeners.maintenance_rescheduled)

    # -- figures --------------------------------------------------------------------------------------------

    def notify_attempts_ended(self, type: str, outcome: str, status: str, micros: Sequence[int]) -> None:
        """Attempts ended alike."""
        ended = [listener.ended for listener in self.listeners.metrics]
        notify_all(ended, type, AttemptOutcome(outcome), JobStatus(status), micros)

    def notify_jobs_canceled(self, type: str, jobs: int) -> None:
        """Jobs were canceled while they waited."""
        notify_all([listener.canceled for listener in self.listeners.metrics], type, jobs)

    def notify_committed(self, kind: str, commands: int) -> None:
        """Commands were committed together."""
        notify_all([listener.committed for listener in self.listeners.metrics], "postgres", kind, commands)
