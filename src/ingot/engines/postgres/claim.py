"""Handing work to workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any, Final

import msgspec

from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import claim_of
from ingot.engines.postgres.lane_cache import (
    HINT_SECONDS,
    LANE_END,
    LANE_START,
    LaneCache,
    LaneHint,
    Position,
    repeat_interval,
)
from ingot.engines.postgres.lane_heads import LANES_MAX, HintedLane, first_lanes
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Claim
from ingot.jobs.ports import ClaimJobs
from ingot.kernel.logs import report

TenantType = tuple[str, str]  # A tenant and a type.

SCAN_ROWS_MIN: Final = 8
SCAN_SPREAD: Final = 3.0  # Lanes that are filled by chance differ by so many roots of what each has.
LANES_FACTOR: Final = 4
LANE_BUSY: Final = -1  # What is told of a limited lane that somebody else claims from at this moment.


class LaneScan(msgspec.Struct):
    """A lane that is looked into: from where to where, how far, and the share and place of its tenant."""

    lane: Lane
    hint: LaneHint
    begin: Position
    end: Position
    version: int
    turn: int
    step: int
    share: int
    rows_max: int


async def claim(db: Database, memory: LaneCache, commands: Sequence[ClaimJobs]) -> list[list[Claim]]:
    """Serve claims of the same types and tenant, in the order in which they came."""
    waiting = memory.lanes_for(commands[0].types, commands[0].tenant)
    own: list[list[Claim]] = [[] for _ in commands]
    asking = [index for index, command in enumerate(commands) if command.limit]
    lanes_max = LANES_MAX
    while waiting and asking:
        limits = [commands[index].limit - len(own[index]) for index in asking]
        try:
            scans, crowded = await plan_scans(db, memory, commands[0].types, waiting, sum(limits), lanes_max)
            sent_at = time.monotonic()
            rows, cost = await _call_claim(db, memory, scans, [commands[index] for index in asking], limits)
        except Exception as error:
            if not any(own):
                raise
            report("claim_cut_short", error)  # What was leased before is for those who asked.
            return own
        rooms, closed = record_limits(memory, scans, rows, crowded)
        for row in rows:
            asker, lane = asking[row[0] - 1], row[1] - 1
            own[asker].append(claim_of(row, scans[lane].lane, commands[asker]))
        record_claims(memory, commands, scans, rows, waiting, rooms, closed, crowded, sent_at=sent_at, cost=cost)
        lanes_max *= LANES_FACTOR
        asking = [index for index in asking if len(own[index]) < commands[index].limit]
    return own


def record_claims(
    memory: LaneCache,
    commands: Sequence[ClaimJobs],
    scans: list[LaneScan],
    rows: Sequence[Record],
    waiting: dict[str, list[HintedLane]],
    rooms: dict[Lane, int],
    closed: set[TenantType],
    crowded: set[str],
    *,
    sent_at: float,
    cost: float,
) -> None:
    """Note which jobs were claimed, and take the lanes that have no more off those that are `waiting`."""
    given = Counter(row[1] for row in rows)
    taken = Counter[str]()
    for lane, jobs in given.items():
        taken[scans[lane - 1].lane.tenant] += jobs
    more = _truncated_tenants(scans, rows)
    _update_hints(memory, scans, rows, taken, rooms, more | crowded, sent_at=sent_at, cost=cost)
    for tenant in _exhausted_tenants(scans, taken, more):  # Their lanes have no more, and their turns go to the others.
        if rest := _claimable_lanes(waiting[tenant], scans, given, rooms, closed) if tenant in crowded else []:
            waiting[tenant] = rest
        else:
            del waiting[tenant]
    memory.notify_events_written(taken)
    memory.turns.for_types(commands[0].types).record_claimed(taken, memory.weights, waiting=waiting)
    if rows:
        _record_expiries(memory, rows[0]["started_at"], commands)


async def plan_scans(
    db: Database,
    memory: LaneCache,
    types: Sequence[str],
    waiting: dict[str, list[HintedLane]],
    jobs: int,
    lanes_max: int,
) -> tuple[list[LaneScan], set[str]]:
    """The lanes of the tenants whose turn it is, and the tenants that have still others.

    Of those, what lies behind the beginning of a lane that is left out is not taken: that comes first.
    """
    turns = memory.turns.for_types(types).next_turns(jobs, {tenant: memory.weights[tenant] for tenant in waiting})
    shares: Counter[str] = Counter()
    for turn in turns:
        shares[turn.tenant] += turn.jobs
    step = turns[0].jobs
    scans: list[LaneScan] = []
    crowded = set()
    for place, (tenant, share) in enumerate(shares.items()):
        lanes: Sequence[HintedLane] = waiting[tenant]
        end = LANE_END
        if len(lanes) > max(share, lanes_max):
            lanes, end = await first_lanes(db, memory, lanes, max(share, lanes_max))
            end = LANE_END if end == LANE_START else end  # Something was put into very many lanes at this moment.
            crowded.add(tenant)
        reads = _scan_rows_max(share, len(lanes))
        scans += [
            LaneScan(lane, hint, hint.scan_start(), end, hint.version, place, step, share, reads)
            for lane, hint in lanes
        ]
    return scans, crowded


def _scan_rows_max(share: int, lanes: int) -> int:
    """How far to look into each of a tenant's lanes, that they give its share together."""
    if lanes == 1:
        return share
    part = share / lanes
    return min(share, max(SCAN_ROWS_MIN, ceil(part + SCAN_SPREAD * sqrt(part))))


def _claimable_lanes(
    lanes: list[HintedLane], scans: list[LaneScan], given: Counter[int], rooms: dict[Lane, int], closed: set[TenantType]
) -> list[HintedLane]:
    """A tenant's lanes but those that can give nothing now: looked into to the end for nothing, or without room."""
    idle = {
        scan.lane
        for number, scan in enumerate(scans, start=1)
        if not given[number] and (scan.end == LANE_END or rooms.get(scan.lane, 1) <= 0)
    }
    return [known for known in lanes if known[0] not in idle and _tenant_type(known[0]) not in closed]


def _truncated_tenants(scans: list[LaneScan], rows: Sequence[Record]) -> set[str]:
    """The tenants with a lane that gave all that was read of it: they may have more than they could give."""
    if all(scan.rows_max == scan.share for scan in scans):
        return set()
    given = Counter(row["lane"] for row in rows)
    return {
        scan.lane.tenant for number, scan in enumerate(scans, start=1) if given[number] == scan.rows_max < scan.share
    }


def _exhausted_tenants(scans: list[LaneScan], taken: Counter[str], more: set[str]) -> set[str]:
    tenants = {scan.lane.tenant for scan in scans if taken[scan.lane.tenant] < scan.share}
    return tenants - more


async def _call_claim(
    db: Database, memory: LaneCache, scans: list[LaneScan], commands: list[ClaimJobs], limits: list[int]
) -> tuple[list[Record], float]:
    # A claim locks more of several lanes than it takes: another of ours at the same time would pass over that.
    crowded = len({scan.turn for scan in scans}) < len(scans)
    if memory.is_crowded({scan.lane.type for scan in scans}, now=crowded) or (
        memory.limited and any(_tenant_type(scan.lane) in memory.limited for scan in scans)
    ):
        async with memory.claim_lock:
            return await db.call_timed(CALL.claim, *claim_parameters(scans, commands, limits))
    return await db.call_timed(CALL.claim, *claim_parameters(scans, commands, limits))


def claim_parameters(scans: list[LaneScan], commands: Sequence[ClaimJobs], limits: list[int]) -> list[Any]:
    """The parameters of `ingot.claim`."""
    return [
        [scan.lane.type for scan in scans],
        [scan.lane.tenant for scan in scans],
        [scan.lane.limit_key for scan in scans],
        [scan.begin[0] for scan in scans],
        [scan.begin[1] for scan in scans],
        [scan.begin[2] for scan in scans],
        [scan.end[0] for scan in scans],
        [scan.end[1] for scan in scans],
        [scan.end[2] for scan in scans],
        [scan.turn for scan in scans],
        [scan.step for scan in scans],
        [scan.share for scan in scans],
        [command.worker_id for command in commands],
        [command.host for command in commands],
        [command.pid for command in commands],
        limits,
        [command.lease for command in commands],
        None if all(scan.rows_max == scan.share for scan in scans) else [scan.rows_max for scan in scans],
    ]


def record_limits(
    memory: LaneCache, scans: list[LaneScan], rows: list[Record], crowded: set[str]
) -> tuple[dict[Lane, int], set[TenantType]]:
    """Take off the rows that tell how many more may run of limited lanes, and answer that.

    Also the types of tenants of which nothing can be had now, whatever the lane.
    """
    told = next((place for place, row in enumerate(rows) if row[0]), len(rows))
    rooms = {scans[row["lane"] - 1].lane: row["attempts"] for row in rows[:told]}
    full = {_tenant_type(scans[row["lane"] - 1].lane) for row in rows[:told] if row["failures"] == 0}
    del rows[:told]
    for lane, room in rooms.items():
        memory.limited.add(_tenant_type(lane))
        if room == LANE_BUSY:
            memory.retry_busy_lane(lane)
        elif room == 0:
            memory.suspend_lane(lane)
    for tenant, type in full:
        if tenant in crowded:  # Those that were left out are not to come before the others.
            memory.suspend_type(tenant, type)
    return rooms, full | {_tenant_type(lane) for lane, room in rooms.items() if room == LANE_BUSY}


def _tenant_type(lane: Lane) -> TenantType:
    return lane.tenant, lane.type


def _update_hints(
    memory: LaneCache,
    scans: list[LaneScan],
    rows: Sequence[Record],
    taken: Counter[str],
    rooms: dict[Lane, int],
    more: set[str],
    *,
    sent_at: float,
    cost: float,
) -> None:
    """Note how far each lane was claimed, and which have nothing more."""
    # They come in order, so that the last of a lane tells.
    last = {row["lane"]: row for row in (rows if len(scans) > 1 else rows[-1:])}
    for number, scan in enumerate(scans, start=1):
        lane, hint = scan.lane, scan.hint
        if scan.begin == LANE_START:
            hint.full_scan_at = sent_at
            hint.full_scan_interval_seconds = repeat_interval(cost, minimum=HINT_SECONDS)
        if row := last.get(number):
            hint.record_claim(scan.begin, (row["priority"], row["run_at"], row["id"]), scan.version)
        elif scan.begin == LANE_START and hint.version == scan.version:
            hint.after = LANE_START
        asked = min(scan.share, rooms.get(lane, scan.share))  # With no more room than this, it may have more.
        if lane.tenant in more:
            continue
        if scan.begin == LANE_START and taken[lane.tenant] < asked and hint.version == scan.version:
            memory.drop_lane(lane, hint)


def _record_expiries(memory: LaneCache, started_at: int, commands: Sequence[ClaimJobs]) -> None:
    for lease in {command.lease for command in commands}:
        memory.record_expiry(started_at + lease)
