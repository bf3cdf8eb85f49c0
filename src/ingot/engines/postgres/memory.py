"""What a process remembers between calls: hints that save looks at the database, and never the only truth."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from ingot.engines.listeners import Listeners, tell
from ingot.engines.postgres.batches import BATCH_ROWS_MAX
from ingot.identity.model import WEIGHT_DEFAULT
from ingot.jobs.lanes import Lane, Turns
from ingot.jobs.model import AttemptOutcome, Definition, JobStatus
from ingot.kernel.clock import MICROS, Clock
from ingot.kernel.ids import is_id

SWEEP_EVERY: Final = MICROS
HINT_SECONDS: Final = 1.0  # What other processes put before a position is found after this time.
LOOK_SECONDS: Final = 1.1
WHOLE_SWEEP_SECONDS: Final = 10.0
COST_FACTOR: Final = 50  # A look that walks over much that is dead may take this share of the time, and no more.
PATIENCE_SECONDS_MAX: Final = 120.0
RECENT_MAX: Final = 256  # More than can be put into a lane while a claim is under way, most of the time.
BUSY_SECONDS: Final = 0.01
CROWDED_SECONDS: Final = 5.0  # Longer than a claim takes.
JOBS_PER_TENANT: Final = 8
BATCH_ROWS_LARGE_MAX: Final = 8000
ALL: Final = 1_000_000
NIL: Final = "00000000-0000-0000-0000-000000000000"
ABOVE_ALL_IDS: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"

Position = tuple[int, int, str]
START: Final[Position] = (0, 0, NIL)
FAR: Final[Position] = (2**15 - 1, 0, NIL)  # Behind everything.


def patience(seconds: float, *, least: float) -> float:
    """How long to wait before something is done again that took so long."""
    return max(least, min(COST_FACTOR * seconds, PATIENCE_SECONDS_MAX))


def id_or_nil(text: str) -> str:
    """Return an id as it is, and for a text that is none the one that nothing has."""
    return text if is_id(text) else NIL


class LaneHint(msgspec.Struct):
    """How far a lane was claimed. `version` grows with everything put into the lane; `recent` says where it went.

    `head` is where its work begins, where that was asked and has not changed.
    """

    version: int = 0
    after: Position = START
    head: Position | None = None
    whole_at: float = 0.0
    patience: float = HINT_SECONDS
    recent: deque[Position] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT_MAX))

    def begin(self) -> Position:
        """Where the next scan of this lane begins."""
        return START if self.is_old() else self.after

    def is_old(self) -> bool:
        """Whether others may have put something before the position, so that the whole lane is to be looked at."""
        return time.monotonic() - self.whole_at > self.patience

    def put(self, first: Position) -> None:
        """More was put into the lane, the first of it at this position."""
        before = first[0], first[1], NIL
        self.version += 1
        self.recent.append(before)
        self.after = min(self.after, before)
        self.head = None if self.head is None else min(self.head, before)

    def claimed(self, begin: Position, last: Position, version: int) -> None:
        """A scan that began there, at that version, took everything up to `last`."""
        meanwhile = self.version - version
        if meanwhile <= len(self.recent):
            reached = last if begin == START else max(self.after, last)
            if begin <= self.after:  # Otherwise a look found work before it meanwhile.
                self.after = min([reached, *islice(reversed(self.recent), meanwhile)])


class Memory:
    """Lanes with ready work, and the next instants on the agenda, as far as this process knows."""

    def __init__(self, clock: Clock, *, lease: int) -> None:
        self._clock = clock
        self._ahead = 0  # The database's clock, compared with ours.
        self.lease = lease
        self.lanes: dict[str, dict[str, dict[Lane, LaneHint]]] = {}
        self.turns = Turns()
        self.parked: dict[str, dict[Lane, LaneHint]] = {}  # Lanes of tenants without room, until some of it is free.
        self.limited: set[tuple[str, str]] = set()  # Tenants and types of lanes that were found to be limited.
        self._crowded_at: dict[str, float] = {}  # When a claim last took from several lanes of a tenant, by type.
        self.one_at_a_time = asyncio.Lock()  # For claims that would stand in each other's way.
        self.bounded = False  # Whether anything is limited, so that others may wait for what ends here.
        self.rules: dict[
            tuple[str, str], Definition
        ] = {}  # Definitions with which orders must be made, as we know them.
        self.tenants: set[str] = set()
        self.removed: set[str] = set()  # Tenants that are gone, and have left something behind.
        self.weights: defaultdict[str, int] = defaultdict(lambda: WEIGHT_DEFAULT)  # As far as we have seen them.
        self.next_due: int | None = None
        self.next_expiry: int | None = None
        self.promoted_to = 0  # Nothing became due before this that was not looked at.
        self.promoted_whole_at = -HINT_SECONDS
        self.promote_patience = HINT_SECONDS
        self.swept_at = 0
        self.swept_to = 0  # No lease runs out before this that was not looked at.
        self.swept_whole_at = -WHOLE_SWEEP_SECONDS
        self.sweep_patience = WHOLE_SWEEP_SECONDS
        self.next_expiry_asked_at = 0.0
        self.next_expiry_patience = 0.0
        self.sweep_from = 0
        self.looked_at = -LOOK_SECONDS
        self.look_patience = LOOK_SECONDS
        self.look_cost = 0.0
        self.on_end: list[Callable[[Iterable[str], Iterable[tuple[str, str]]], None]] = []
        self.asked: dict[tuple[str, str], int] = {}  # By type and tenant, since the others were told.
        self.waits = False  # Whether some jobs wait for others.
        self.record_changes: int | None = None  # How often records had changed when we last looked.
        self.deltas = False  # Whether there is something to fold into the counts.
        self.listeners = Listeners()
        self.news = False  # Whether this process made work ready and has not told the others.
        self.on_news: list[Callable[[], None]] = []

    def set_clock(self, now: int) -> None:
        """The database said what time it is."""
        self._ahead = now - self._clock.micros()

    def now(self) -> int:
        """The time of the database, as near as we know."""
        return self._clock.micros() + self._ahead

    # -- removed tenants ------------------------------------------------------------------------------------

    def see_removed(self, tenants: Iterable[str]) -> None:
        """A look found that these have left something behind, and no others."""
        known, self.removed = self.removed, set(tenants)
        for tenant in self.removed:
            self._forget(tenant)
        for tenant in self.removed - known:
            tell(self.listeners.removed, tenant)

    def forget(self, tenant: str) -> None:
        """This tenant was removed."""
        self._forget(tenant)
        if tenant not in self.removed:
            self.removed.add(tenant)
            tell(self.listeners.removed, tenant)

    def _forget(self, tenant: str) -> None:
        for type in [type for type, tenants in self.lanes.items() if tenant in tenants]:
            del self.lanes[type][tenant]
            if not self.lanes[type]:
                del self.lanes[type]
        self.parked.pop(tenant, None)
        self.weights.pop(tenant, None)
        self.tenants.discard(tenant)
        self.limited = {kind for kind in self.limited if kind[0] != tenant}
        self.rules = {kind: rule for kind, rule in self.rules.items() if kind[0] != tenant}
        self.asked = {kind: at for kind, at in self.asked.items() if kind[1] != tenant}

    # -- lanes ----------------------------------------------------------------------------------------------

    def add(self, lane: Lane, jobs: int, *, first: Position = START) -> None:
        """This process made more work of this lane ready, the first of it at this position, or anywhere."""
        self.hear(lane, jobs, first=first)
        self.news = True
        tell(self.on_news)

    def hear(self, lane: Lane, jobs: int, *, first: Position = START) -> None:
        """More work of this lane is ready, whoever made it so."""
        hint = self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, {}).setdefault(lane, LaneHint())
        hint.put(first)
        tell(self.listeners.ready, lane.tenant, lane.type, jobs)

    def expect(self, lane: Lane) -> LaneHint:
        """The next call puts work into this lane, and claims from it. Nobody is told."""
        return self.lanes.setdefault(lane.type, {}).setdefault(lane.tenant, {}).setdefault(lane, LaneHint())

    def wake_early(self, lane: Lane, jobs: int) -> int:
        """So many jobs of this lane are about to be made: wake claims that wait for them. Answers how many it woke."""
        woken = 0
        for wake in self.listeners.coming:
            woken += wake(lane.tenant, lane.type, jobs)
        return woken

    def drop(self, lane: Lane, hint: LaneHint) -> None:
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

    def park(self, lane: Lane) -> None:
        """Nothing more may run of this lane for now."""
        hint = self.lanes.get(lane.type, {}).get(lane.tenant, {}).get(lane)
        if hint is not None:
            self.parked.setdefault(lane.tenant, {})[lane] = hint
            self.drop(lane, hint)

    def park_all(self, tenant: str, type: str) -> None:
        """Nothing more may run of this type of a tenant for now."""
        for lane in list(self.lanes.get(type, {}).get(tenant, {})):
            self.park(lane)

    def free(self, tenant: str, jobs: int = ALL) -> None:
        """So many jobs of this tenant ended, or may run again: its lanes are worth a look."""
        for lane, hint in self.parked.pop(tenant, {}).items():
            known = self.lanes.setdefault(lane.type, {}).setdefault(tenant, {})
            known.setdefault(lane, hint)
            tell(self.listeners.ready, tenant, lane.type, jobs)
        if self.bounded:
            self.news = True
            tell(self.on_news)

    def free_all(self) -> None:
        """The limits changed."""
        self.limited.clear()
        for tenant in list(self.parked):
            self.free(tenant)

    def see_record_changes(self, changes: int) -> None:
        """A look found that records have changed so often."""
        if self.record_changes not in (None, changes):
            self.tell_record()
        self.record_changes = changes

    def tell_record(self) -> None:
        """A record has changed."""
        tell(self.listeners.record)

    def ended(self, parents: Iterable[str], batches: Iterable[tuple[str, str]]) -> None:
        """These jobs have ended, or others have come to wait for them; jobs of these batches have ended."""
        tell(self.on_end, parents, batches)

    def told(self, tenants: Iterable[str]) -> None:
        """This process wrote events of these tenants."""
        for tenant in set(tenants) if self.listeners.event else ():
            tell(self.listeners.event, tenant)

    def ask(self, types: Iterable[str], tenant: str | None) -> None:
        """A worker asked for these types."""
        now = self.now()
        for type in types:
            self.asked[type, tenant or NIL] = now

    def asked_at(self, type: str, tenant: str) -> int | None:
        """When a worker last asked for this type, as far as this process knows."""
        times = (self.asked.get((type, known)) for known in (tenant, NIL))
        return max((at for at in times if at is not None), default=None)

    def is_crowded(self, types: Iterable[str], *, now: bool) -> bool:
        """Whether a claim of these types, or one shortly before it, takes from several lanes of a tenant."""
        at = time.monotonic()
        if now:
            self._crowded_at.update(dict.fromkeys(types, at))
        return now or any(at - self._crowded_at.get(type, -CROWDED_SECONDS) < CROWDED_SECONDS for type in types)

    def knock(self, lane: Lane) -> None:
        """Somebody else claims from this lane at this moment: those who wait try again in a while."""
        loop = asyncio.get_running_loop()
        loop.call_later(BUSY_SECONDS, tell, self.listeners.ready, lane.tenant, lane.type, 1)

    def lanes_for(self, types: Iterable[str], tenant: str | None) -> dict[str, list[tuple[Lane, LaneHint]]]:
        """The lanes a claim may take from, by tenant."""
        found: dict[str, list[tuple[Lane, LaneHint]]] = {}
        for type in dict.fromkeys(types):
            tenants = self.lanes.get(type, {})
            for known in tenants if tenant is None else tenants.keys() & {tenant}:
                found.setdefault(known, []).extend(tenants[known].items())
        return found

    def rows_max(self) -> int:
        """How many jobs are best claimed or settled together: some of each tenant, and many of what is limited.

        What is limited is claimed by one at a time, so that all who wait for it had better go together.
        """
        if self.limited:
            return BATCH_ROWS_LARGE_MAX
        tenants = max(map(len, self.lanes.values()), default=0)
        return min(max(BATCH_ROWS_MAX, JOBS_PER_TENANT * tenants), BATCH_ROWS_LARGE_MAX)

    def see(self, lane: Lane, weight: int) -> None:
        """A look found ready work in this lane. It is told, for all that this process knows it may be new."""
        self.weights[lane.tenant] = weight
        hint = self.lanes.get(lane.type, {}).get(lane.tenant, {}).get(lane)
        if hint is None:
            self.hear(lane, 1)
            return
        if hint.head == FAR:
            hint.head = None
        tell(self.listeners.ready, lane.tenant, lane.type, 1)

    # -- the agenda -----------------------------------------------------------------------------------------

    def look_is_old(self) -> bool:
        """Whether it is time to look at the database again."""
        return time.monotonic() - self.looked_at > self.look_patience

    def see_agenda(self, next_due: int | None, next_expiry: int | None) -> None:
        """A look found these instants."""
        if next_due is not None:
            self.due_at(next_due)
        if next_expiry is not None:
            self.expires_at(next_expiry)

    def pass_due(self, before: int | None, following: int | None) -> None:
        """What was due was moved; this comes next, unless something sooner was noted meanwhile."""
        self.next_due = min((at for at in (self.next_due, following) if at is not None), default=None)
        self._tell_agenda(before)

    def pass_expiry(self, following: int | None) -> None:
        """Leases were swept; this one runs out next, unless one that runs out sooner was noted meanwhile."""
        self.next_expiry = min((at for at in (self.next_expiry, following) if at is not None), default=None)

    def due_at(self, run_at: int) -> None:
        """Some work becomes due then."""
        before = self.agenda()
        self.next_due = run_at if self.next_due is None else min(self.next_due, run_at)
        self._tell_agenda(before)

    def expires_at(self, expiry: int) -> None:
        """Some lease runs out then."""
        before = self.agenda()
        self.next_expiry = expiry if self.next_expiry is None else min(self.next_expiry, expiry)
        self._tell_agenda(before)

    def next_sweep(self) -> int | None:
        """When the next sweep may find something: not right after the store came up, at most once a second."""
        if self.next_expiry is None:
            return None
        return max(self.next_expiry, self.sweep_from, self.swept_at + SWEEP_EVERY)

    def agenda(self) -> int | None:
        """The next instant at which something is to be done."""
        return min((at for at in (self.next_due, self.next_sweep()) if at is not None), default=None)

    def _tell_agenda(self, before: int | None) -> None:
        """Tell when the next instant came closer than it was before."""
        after = self.agenda()
        if after is not None and (before is None or after < before):
            tell(self.listeners.agenda)

    # -- figures --------------------------------------------------------------------------------------------

    def tell_ended(self, type: str, outcome: str, status: str, micros: Sequence[int]) -> None:
        """Attempts ended alike."""
        ended = [listener.ended for listener in self.listeners.figures]
        tell(ended, type, AttemptOutcome(outcome), JobStatus(status), micros)

    def tell_canceled(self, type: str, jobs: int) -> None:
        """Jobs were canceled while they waited."""
        tell([listener.canceled for listener in self.listeners.figures], type, jobs)

    def tell_committed(self, kind: str, commands: int) -> None:
        """Commands were committed together."""
        tell([listener.committed for listener in self.listeners.figures], "postgres", kind, commands)
