"""A cache of lanes, due times and limits. It saves queries, and it is never the only truth."""

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
from ingot.engines.sweep_guard import SweepGuard
from ingot.identity.model import WEIGHT_DEFAULT
from ingot.jobs.lanes import FairShares, Lane
from ingot.jobs.model import AttemptOutcome, Definition, JobStatus, LostLease
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.ids import is_id

SWEEP_INTERVAL_MICROS: Final = MICROS
HINT_SECONDS: Final = 1.0  # Jobs that other processes inserted before a position are found after this time.
POLL_SECONDS: Final = 1.1
FULL_SWEEP_SECONDS: Final = 10.0
COST_FACTOR: Final = 50  # Queries that may walk over many dead rows take at most 1/50 of the time.
REPEAT_INTERVAL_SECONDS_MAX: Final = 120.0
REPEAT_INTERVAL_GROWTH_MAX: Final = 4.0
RECENT_POSITIONS_MAX: Final = 256  # Usually more than the inserts into a lane during one claim.
BUSY_RETRY_SECONDS: Final = 0.01
MULTI_LANE_SECONDS: Final = 5.0  # Longer than a claim takes.
JOBS_PER_TENANT: Final = 8
BATCH_ROWS_LARGE_MAX: Final = 8000
ALL_JOBS: Final = 1_000_000
NIL_ID: Final = "00000000-0000-0000-0000-000000000000"
ABOVE_ALL_IDS: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"

Position = tuple[int, int, str]
LANE_START: Final[Position] = (0, 0, NIL_ID)
LANE_END: Final[Position] = (2**15 - 1, 0, NIL_ID)  # After all jobs.


def repeat_interval(seconds: float, previous: float, *, minimum: float) -> float:
    """Return how long to wait before repeating a query that took this long. `previous` is the interval so far.

    The interval grows gradually, because a single slow query may have waited for the network and not worked.
    """
    growing = REPEAT_INTERVAL_GROWTH_MAX * max(previous, HINT_SECONDS)
    return max(minimum, min(COST_FACTOR * seconds, growing, REPEAT_INTERVAL_SECONDS_MAX))


def id_or_nil(text: str) -> str:
    """Return the text if it is an ID, otherwise the nil ID, which no row has."""
    return text if is_id(text) else NIL_ID


class LaneHint(msgspec.Struct):
    """How far a lane was claimed.

    A scan may begin after the position `after`. `version` counts the inserts into the lane, and `recent_inserts` has
    the positions of the latest ones. `head` is the cached lane head, or `None` if it is not known. It may be earlier
    than the first ready job of the lane, but never later, except for jobs that other processes inserted.
    """

    version: int = 0
    after: Position = LANE_START
    head: Position | None = None
    full_scan_at: float = 0.0
    full_scan_interval_seconds: float = HINT_SECONDS
    recent_inserts: deque[Position] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT_POSITIONS_MAX))

    def scan_start(self) -> Position:
        """Return the position after which the next scan of this lane begins."""
        return LANE_START if self.is_stale() else self.after

    def is_stale(self) -> bool:
        """Whether to scan the lane from its start, because other processes may have inserted jobs before `after`."""
        return time.monotonic() - self.full_scan_at > self.full_scan_interval_seconds

    def record_insert(self, first: Position) -> None:
        """Record an insert of jobs into the lane, the first of them at this position."""
        before = first[0], first[1], NIL_ID
        self.version += 1
        self.recent_inserts.append(before)
        self.after = min(self.after, before)
        self.head = None if self.head is None else min(self.head, before)

    def record_claim(self, begin: Position, last: Position, version: int) -> None:
        """Record that a scan from `begin`, planned at `version`, claimed all jobs up to `last`."""
        inserts = self.version - version
        if inserts <= len(self.recent_inserts):
            reached = last if begin == LANE_START else max(self.after, last)
            if begin <= self.after:  # Otherwise `after` has moved back to earlier jobs since then.
                self.after = min([reached, *islice(reversed(self.recent_inserts), inserts)])


class LaneCache:
    """Live lanes, due times, lease expiries and limits, as far as this process knows.

    Lanes are stored by type and tenant. Due times, expiries and the times of sweeps are microseconds of the database's
    clock. The times of polls, full promotions, full sweeps and queries are seconds of `time.monotonic()`.
    """

    def __init__(self, clock: Clock, *, lease: int) -> None:
        self._clock = clock
        self._clock_offset = 0  # The database's clock minus ours.
        self.lease = lease
        self.lanes: dict[str, dict[str, dict[Lane, LaneHint]]] = {}
        self._type_tenants_max = 0  # No type has had lanes of more tenants since the last poll.
        self.fair_shares = FairShares()
        self.suspended_lanes: dict[str, dict[Lane, LaneHint]] = {}  # Lanes whose limit is full, by tenant.
        self.limited_types: set[tuple[str, str]] = set()  # Tenants and types for which a claim reported a limit.
        self._multi_lane_claim_at: dict[str, float] = {}  # Time of the last claim over several lanes, by type.
        self.claim_lock = asyncio.Lock()  # Held by claims that would skip each other's rows.
        self.has_running_limits = False  # Whether any limit exists, so that claims elsewhere may wait for jobs here.
        self.rules: dict[tuple[str, str], Definition] = {}  # Known definitions with a limit key or reuse.
        self.known_tenants: set[str] = set()
        self.removed_tenants: set[str] = set()  # Removed tenants that still have rows.
        self.weights: defaultdict[str, int] = defaultdict(lambda: WEIGHT_DEFAULT)  # Weights of tenants, where known.
        self.next_due: int | None = None
        self.next_expiry: int | None = None
        self.promoted_to = 0  # All jobs due before this time were found, unless committed late.
        self.full_promote_at = -HINT_SECONDS
        self.full_promote_interval_seconds = HINT_SECONDS
        self.swept_at = 0
        self.swept_to = 0  # All leases that expire before this time were found, unless committed late.
        self.full_sweep_at = -FULL_SWEEP_SECONDS
        self.full_sweep_interval_seconds = FULL_SWEEP_SECONDS
        self.next_expiry_queried_at = 0.0
        self.next_expiry_interval_seconds = 0.0
        self.sweep_guard = SweepGuard(lease)
        self.polled_at = -POLL_SECONDS
        self.poll_interval_seconds = POLL_SECONDS
        self.poll_cost_seconds = 0.0
        self.jobs_ended_callbacks: list[Callable[[Iterable[str], Iterable[tuple[str, str]]], None]] = []
        self.requested_at: dict[tuple[str, str], int] = {}  # Requests by type and tenant that are not recorded yet.
        self.has_dependencies = False  # Whether any job waits for others.
        self.record_changes: int | None = None  # The number of changes of records at the last poll.
        self.applied_revision: str | None = None  # The comment of the schema at the last poll.
        self.has_count_deltas = False  # Whether there are deltas to fold.
        self.listeners = StoreListeners()
        self.notify_pending = False  # Whether other processes should be notified of ready work.
        self.notify_callbacks: list[Callable[[], None]] = []

    def set_clock(self, now: int) -> None:
        """Set the time of the database. Its clock may have been set, or this machine may have been suspended."""
        estimate, self._clock_offset = self.now(), now - self._clock.micros()
        self.sweep_guard.record_jump(now - estimate, now)

    def now(self) -> int:
        """Return the estimated time of the database."""
        return self._clock.micros() + self._clock_offset

    # -- removed tenants ------------------------------------------------------------------------------------

    def update_removed_tenants(self, tenants: Iterable[str]) -> None:
        """Set the removed tenants that still have rows, as found by a poll."""
        previous, self.removed_tenants = self.removed_tenants, set(tenants)
        for tenant in self.removed_tenants:
            self._drop_tenant(tenant)
        for tenant in self.removed_tenants - previous:
            notify_all(self.listeners.tenant_removed, tenant)

    def forget_tenant(self, tenant: str) -> None:
        """Remove everything cached about a tenant that was removed."""
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
        self.limited_types = {key for key in self.limited_types if key[0] != tenant}
        self.rules = {key: rule for key, rule in self.rules.items() if key[0] != tenant}
        self.requested_at = {key: at for key, at in self.requested_at.items() if key[1] != tenant}

    # -- lanes ----------------------------------------------------------------------------------------------

    def announce_ready(self, lane: Lane, jobs: int, *, first: Position = LANE_START) -> None:
        """Record jobs that this process made ready, and notify other processes.

        The first of the jobs is at the position `first`; without it, they can be anywhere in the lane.
        """
        self.record_ready(lane, jobs, first=first)
        self.notify_pending = True
        notify_all(self.notify_callbacks)

    def record_ready(self, lane: Lane, jobs: int, *, first: Position = LANE_START) -> None:
        """Record that this lane has more ready jobs, and wake claims that wait for them."""
        tenants = self.lanes.setdefault(lane.type, {})
        hint = tenants.setdefault(lane.tenant, {}).setdefault(lane, LaneHint())
        self._type_tenants_max = max(self._type_tenants_max, len(tenants))
        hint.record_insert(first)
        notify_all(self.listeners.ready, lane.tenant, lane.type, jobs)

    def ensure_lane(self, lane: Lane) -> LaneHint:
        """Return the hint of a lane, added if it is missing, without waking claims."""
        return self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, {}).setdefault(lane, LaneHint())

    def wake_early(self, lane: Lane, jobs: int) -> int:
        """Wake claims for jobs of this lane that are about to be created, and return how many were woken."""
        woken = 0
        for wake in self.listeners.upcoming_jobs:
            woken += wake(lane.tenant, lane.type, jobs)
        return woken

    def drop_lane(self, lane: Lane, hint: LaneHint) -> None:
        """Remove a lane without ready jobs. A lane that was dropped and added again has another hint and is kept."""
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
        """Keep a lane whose limit is full apart from the live lanes."""
        hint = self.lanes.get(lane.type, {}).get(lane.tenant, {}).get(lane)
        if hint is not None:
            self.suspended_lanes.setdefault(lane.tenant, {})[lane] = hint
            self.drop_lane(lane, hint)

    def suspend_type(self, tenant: str, type: str) -> None:
        """Suspend all lanes of this type and tenant, because their limit is full."""
        for lane in list(self.lanes.get(type, {}).get(tenant, {})):
            self.suspend_lane(lane)

    def resume_lanes(self, tenant: str, jobs: int = ALL_JOBS) -> None:
        """Resume the suspended lanes of a tenant, because jobs ended or limits changed, and wake claims."""
        for lane, hint in self.suspended_lanes.pop(tenant, {}).items():
            live_lanes = self.lanes.setdefault(lane.type, {}).setdefault(tenant, {})
            live_lanes.setdefault(lane, hint)
            notify_all(self.listeners.ready, tenant, lane.type, jobs)
        if self.has_running_limits:
            self.notify_pending = True
            notify_all(self.notify_callbacks)

    def resume_all_lanes(self) -> None:
        """Resume the lanes of all tenants after a change of limits."""
        self.limited_types.clear()
        for tenant in list(self.suspended_lanes):
            self.resume_lanes(tenant)

    def update_record_changes(self, changes: int) -> None:
        """Set the number of changes of records found by a poll, and notify listeners if it is new."""
        if self.record_changes not in (None, changes):
            self.notify_record_changed()
        self.record_changes = changes

    def notify_record_changed(self) -> None:
        """Notify listeners that a record has changed."""
        notify_all(self.listeners.record_changed)

    def notify_jobs_ended(self, parents: Iterable[str], batches: Iterable[tuple[str, str]]) -> None:
        """Report jobs that ended or got new dependents, and batches of which jobs ended."""
        notify_all(self.jobs_ended_callbacks, parents, batches)

    def notify_events_written(self, tenants: Iterable[str]) -> None:
        """Notify listeners that this process wrote events of these tenants."""
        for tenant in set(tenants) if self.listeners.event else ():
            notify_all(self.listeners.event, tenant)

    def record_request(self, types: Iterable[str], tenant: str | None) -> None:
        """Record that a worker requested jobs of these types."""
        now = self.now()
        for type in types:
            self.requested_at[type, tenant or NIL_ID] = now

    def last_request_at(self, type: str, tenant: str) -> int | None:
        """Return when a worker last requested this type, if that is not recorded in the database yet."""
        times = (self.requested_at.get((type, requested)) for requested in (tenant, NIL_ID))
        return max((at for at in times if at is not None), default=None)

    def has_multi_lane_claims(self, types: Iterable[str], *, now: bool) -> bool:
        """Whether a claim of these types reads several lanes of a tenant: this one (`now`) or one shortly before."""
        at = time.monotonic()
        if now:
            self._multi_lane_claim_at.update(dict.fromkeys(types, at))
        return now or any(
            at - self._multi_lane_claim_at.get(type, -MULTI_LANE_SECONDS) < MULTI_LANE_SECONDS for type in types
        )

    def retry_busy_lane(self, lane: Lane) -> None:
        """Wake waiting claims after a pause, because another claim takes from this limited lane now."""
        loop = asyncio.get_running_loop()
        loop.call_later(BUSY_RETRY_SECONDS, notify_all, self.listeners.ready, lane.tenant, lane.type, 1)

    def lanes_for(self, types: Iterable[str], tenant: str | None) -> dict[str, list[tuple[Lane, LaneHint]]]:
        """Return the live lanes that a claim may take from, by tenant."""
        lanes_by_tenant: dict[str, list[tuple[Lane, LaneHint]]] = {}
        for type in dict.fromkeys(types):
            tenants = self.lanes.get(type, {})
            for owner in tenants if tenant is None else tenants.keys() & {tenant}:
                lanes_by_tenant.setdefault(owner, []).extend(tenants[owner].items())
        return lanes_by_tenant

    def batch_rows_max(self) -> int:
        """Return how many jobs to claim or settle in one batch: some for each tenant, and many if there are limits.

        Only one claim at a time takes from a limited lane, so waiting claims are served faster in one batch.
        """
        if self.limited_types:
            return BATCH_ROWS_LARGE_MAX
        return min(max(BATCH_ROWS_MAX, JOBS_PER_TENANT * self._type_tenants_max), BATCH_ROWS_LARGE_MAX)

    def count_tenants(self) -> None:
        """Count the tenants of each type again. Only a poll does this, because there can be very many types."""
        self._type_tenants_max = max(map(len, self.lanes.values()), default=0)

    def record_polled_lane(self, lane: Lane, weight: int) -> None:
        """Record a lane in which a poll found ready jobs. They may be new, so waiting claims are woken."""
        self.weights[lane.tenant] = weight
        hint = self.lanes.get(lane.type, {}).get(lane.tenant, {}).get(lane)
        if hint is None:
            self.record_ready(lane, 1)
            return
        if hint.head == LANE_END:
            hint.head = None
        notify_all(self.listeners.ready, lane.tenant, lane.type, 1)

    # -- maintenance ----------------------------------------------------------------------------------------

    def is_poll_due(self) -> bool:
        """Whether it is time for the next poll."""
        return time.monotonic() - self.polled_at > self.poll_interval_seconds

    def record_next_times(self, next_due: int | None, next_expiry: int | None) -> None:
        """Record the next due time and lease expiry found by a poll."""
        if next_due is not None:
            self.record_due_time(next_due)
        if next_expiry is not None:
            self.record_expiry(next_expiry)

    def finish_promote(self, before: int | None, following: int | None) -> None:
        """Set the next due time after a promotion, unless an earlier one was recorded in the meantime."""
        self.next_due = min((at for at in (self.next_due, following) if at is not None), default=None)
        self._notify_maintenance(before)

    def finish_sweep(self, following: int | None) -> None:
        """Set the next lease expiry after a sweep, unless an earlier one was recorded in the meantime."""
        self.next_expiry = min((at for at in (self.next_expiry, following) if at is not None), default=None)

    def record_due_time(self, run_at: int) -> None:
        """Record that a job becomes due at this time."""
        before = self.next_maintenance_at()
        self.next_due = run_at if self.next_due is None else min(self.next_due, run_at)
        self._notify_maintenance(before)

    def record_expiry(self, expiry: int) -> None:
        """Record that a lease expires at this time."""
        before = self.next_maintenance_at()
        self.next_expiry = expiry if self.next_expiry is None else min(self.next_expiry, expiry)
        self._notify_maintenance(before)

    def next_sweep(self) -> int | None:
        """Return the time of the next sweep: at most once a second, and not within one lease of opening the store."""
        if self.next_expiry is None:
            return None
        return max(self.next_expiry, self.sweep_guard.sweep_from, self.swept_at + SWEEP_INTERVAL_MICROS)

    def next_maintenance_at(self) -> int | None:
        """Return the time of the next promotion or sweep."""
        return min((at for at in (self.next_due, self.next_sweep()) if at is not None), default=None)

    def _notify_maintenance(self, before: int | None) -> None:
        """Notify listeners if the next maintenance is now earlier than `before`."""
        after = self.next_maintenance_at()
        if after is not None and (before is None or after < before):
            notify_all(self.listeners.maintenance_rescheduled)

    # -- metrics --------------------------------------------------------------------------------------------

    def notify_attempts_ended(self, type: str, outcome: str, status: str, micros: Sequence[int]) -> None:
        """Report attempts that ended with the same outcome and status, and how long each took."""
        ended = [listener.ended for listener in self.listeners.metrics]
        notify_all(ended, type, AttemptOutcome(outcome), JobStatus(status), micros)

    def notify_leases_lost(self, leases: Sequence[LostLease]) -> None:
        """Report attempts that this process ended because their leases had expired."""
        notify_all(self.listeners.leases_lost, leases)

    def notify_jobs_canceled(self, type: str, jobs: int) -> None:
        """Report waiting jobs that were canceled."""
        notify_all([listener.canceled for listener in self.listeners.metrics], type, jobs)

    def notify_committed(self, kind: str, commands: int) -> None:
        """Report the number of commands in a committed batch."""
        notify_all([listener.committed for listener in self.listeners.metrics], "postgres", kind, commands)
