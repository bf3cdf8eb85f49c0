"""Claims: choose the lanes for workers' claims and lease their jobs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import ceil, sqrt
from typing import Any, Final

import msgspec

from ingot.engines.postgres import settle
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
from ingot.jobs.model import Claim, Release, Settle
from ingot.jobs.ports import ClaimJobs, SettleJobs
from ingot.kernel.errors import StoreError
from ingot.kernel.logs import report

TenantType = tuple[str, str]  # A tenant and a job type.

SCAN_ROWS_MIN: Final = 8
SCAN_SPREAD: Final = 3.0  # Standard deviations by which randomly filled lanes of a tenant may differ.
LANES_FACTOR: Final = 4  # Growth of the number of scanned lanes from round to round.
LANE_BUSY: Final = -1  # Capacity that `ingot.claim` returns for a limited lane while another claim takes from it.


class LaneScan(msgspec.Struct):
    """The range of a lane to read, and the share of its tenant.

    `version` is that of the hint when the scan was planned. `turn` numbers the tenants of a claim in the order of their
    turns, and `step` is the number of jobs in one turn. The tenant gets up to `share` jobs from all of its lanes.
    `rows_max` limits the rows that are read from this lane.
    """

    lane: Lane
    hint: LaneHint
    begin: Position
    end: Position
    version: int
    turn: int
    step: int
    share: int
    rows_max: int


async def claim(db: Database, lane_cache: LaneCache, commands: Sequence[ClaimJobs]) -> list[list[Claim]]:
    """Serve claims for the same types and tenant, in the order in which they arrived."""
    lanes_by_tenant = lane_cache.lanes_for(commands[0].types, commands[0].tenant)
    claims: list[list[Claim]] = [[] for _ in commands]
    unfilled = [index for index, command in enumerate(commands) if command.limit]
    lanes_max = LANES_MAX
    while lanes_by_tenant and unfilled:
        limits = [commands[index].limit - len(claims[index]) for index in unfilled]
        try:
            scans, partly_scanned = await plan_scans(
                db, lane_cache, commands[0].types, lanes_by_tenant, sum(limits), lanes_max
            )
            sent_at = time.monotonic()
            rows, seconds = await _call_claim(db, lane_cache, scans, [commands[index] for index in unfilled], limits)
        except Exception as error:
            if not any(claims):
                raise
            report("claim_cut_short", error)
            return claims  # Earlier rounds leased these jobs.
        capacities, unavailable = record_limits(lane_cache, scans, rows, partly_scanned)
        try:
            for row in rows:
                index, lane = unfilled[row[0] - 1], row[1] - 1
                claims[index].append(claim_of(row, scans[lane].lane, commands[index]))
        except Exception as error:
            earlier = [(claim.job.id, claim.fence) for group in claims for claim in group]
            await release(db, lane_cache, {*earlier, *((row["id"], row["fence"]) for row in rows)})
            raise StoreError("A claimed job could not be read. All jobs of the claim were released.") from error
        record_claims(
            lane_cache,
            commands,
            scans,
            rows,
            lanes_by_tenant,
            capacities,
            unavailable,
            partly_scanned,
            sent_at=sent_at,
            seconds=seconds,
        )
        lanes_max *= LANES_FACTOR
        unfilled = [index for index in unfilled if len(claims[index]) < commands[index].limit]
    return claims


async def release(db: Database, lane_cache: LaneCache, attempts: Iterable[tuple[str, int]]) -> None:
    """Release jobs that were leased by a claim whose rows cannot be read: a later build may have written them."""
    settles = [Settle(job_id=job_id, fence=fence, outcome=Release()) for job_id, fence in attempts]
    with suppress(StoreError):  # Then the next heartbeats of the worker release them.
        await settle.settle(db, lane_cache, [SettleJobs(settles=settles)])


def record_claims(
    lane_cache: LaneCache,
    commands: Sequence[ClaimJobs],
    scans: list[LaneScan],
    rows: Sequence[Record],
    lanes_by_tenant: dict[str, list[HintedLane]],
    capacities: dict[Lane, int],
    unavailable: set[TenantType],
    partly_scanned: set[str],
    *,
    sent_at: float,
    seconds: float,
) -> None:
    """Record which jobs were claimed, and remove the lanes without further jobs from `lanes_by_tenant`."""
    jobs_by_scan = Counter(row[1] for row in rows)
    jobs_by_tenant = Counter[str]()
    for number, jobs in jobs_by_scan.items():
        jobs_by_tenant[scans[number - 1].lane.tenant] += jobs
    truncated = _truncated_tenants(scans, rows)
    _update_hints(
        lane_cache,
        scans,
        rows,
        jobs_by_tenant,
        capacities,
        truncated | partly_scanned,
        sent_at=sent_at,
        seconds=seconds,
    )
    # The scanned lanes of these tenants have no more jobs to claim. Other tenants get their turns.
    for tenant in _exhausted_tenants(scans, jobs_by_tenant, truncated):
        if remaining := (
            _claimable_lanes(lanes_by_tenant[tenant], scans, jobs_by_scan, capacities, unavailable)
            if tenant in partly_scanned
            else []
        ):
            lanes_by_tenant[tenant] = remaining
        else:
            del lanes_by_tenant[tenant]
    lane_cache.notify_events_written(jobs_by_tenant)
    lane_cache.fair_shares.for_types(commands[0].types).record_claimed(
        jobs_by_tenant, lane_cache.weights, waiting=lanes_by_tenant
    )
    if rows:
        _record_expiries(lane_cache, rows[0]["started_at"], commands)


async def plan_scans(
    db: Database,
    lane_cache: LaneCache,
    types: Sequence[str],
    lanes_by_tenant: dict[str, list[HintedLane]],
    jobs: int,
    lanes_max: int,
) -> tuple[list[LaneScan], set[str]]:
    """Plan scans for the tenants that get the next turns. Also return the tenants of which lanes are left out.

    The scans of such a tenant end at the first head of the lanes that are left out, because that job comes first.
    """
    turns = lane_cache.fair_shares.for_types(types).next_turns(
        jobs, {tenant: lane_cache.weights[tenant] for tenant in lanes_by_tenant}
    )
    shares: Counter[str] = Counter()
    for turn in turns:
        shares[turn.tenant] += turn.jobs
    step = turns[0].jobs
    scans: list[LaneScan] = []
    partly_scanned = set()
    for index, (tenant, share) in enumerate(shares.items()):
        lanes: Sequence[HintedLane] = lanes_by_tenant[tenant]
        end = LANE_END
        if len(lanes) > max(share, lanes_max):
            lanes, end = await first_lanes(db, lane_cache, lanes, max(share, lanes_max))
            end = LANE_END if end == LANE_START else end  # Very many lanes got jobs during the query.
            partly_scanned.add(tenant)
        rows_max = _scan_rows_max(share, len(lanes))
        scans += [
            LaneScan(lane, hint, hint.scan_start(), end, hint.version, index, step, share, rows_max)
            for lane, hint in lanes
        ]
    return scans, partly_scanned


def _scan_rows_max(share: int, lanes: int) -> int:
    """Return how many rows to read from each lane of a tenant, so that all together contain its share."""
    if lanes == 1:
        return share
    mean = share / lanes
    return min(share, max(SCAN_ROWS_MIN, ceil(mean + SCAN_SPREAD * sqrt(mean))))


def _claimable_lanes(
    lanes: list[HintedLane],
    scans: list[LaneScan],
    jobs_by_scan: Counter[int],
    capacities: dict[Lane, int],
    unavailable: set[TenantType],
) -> list[HintedLane]:
    """Return the lanes of a tenant that may still give jobs to this claim.

    The others were scanned to the end without a job, or have no capacity.
    """
    idle = {
        scan.lane
        for number, scan in enumerate(scans, start=1)
        if not jobs_by_scan[number] and (scan.end == LANE_END or capacities.get(scan.lane, 1) <= 0)
    }
    return [hinted for hinted in lanes if hinted[0] not in idle and _tenant_type(hinted[0]) not in unavailable]


def _truncated_tenants(scans: list[LaneScan], rows: Sequence[Record]) -> set[str]:
    """Return the tenants with a lane of which all rows that were read were claimed. It may have more."""
    if all(scan.rows_max == scan.share for scan in scans):
        return set()
    jobs_by_scan = Counter(row["lane"] for row in rows)
    return {
        scan.lane.tenant
        for number, scan in enumerate(scans, start=1)
        if jobs_by_scan[number] == scan.rows_max < scan.share
    }


def _exhausted_tenants(scans: list[LaneScan], jobs_by_tenant: Counter[str], truncated: set[str]) -> set[str]:
    tenants = {scan.lane.tenant for scan in scans if jobs_by_tenant[scan.lane.tenant] < scan.share}
    return tenants - truncated


async def _call_claim(
    db: Database, lane_cache: LaneCache, scans: list[LaneScan], commands: list[ClaimJobs], limits: list[int]
) -> tuple[list[Record], float]:
    # A claim over several lanes locks more rows than it takes. A concurrent claim of this process would skip them.
    multi_lane = len({scan.turn for scan in scans}) < len(scans)
    if lane_cache.has_multi_lane_claims({scan.lane.type for scan in scans}, now=multi_lane) or (
        lane_cache.limited_types and any(_tenant_type(scan.lane) in lane_cache.limited_types for scan in scans)
    ):
        async with lane_cache.claim_lock:
            return await db.call_timed(CALL.claim, *claim_parameters(scans, commands, limits))
    return await db.call_timed(CALL.claim, *claim_parameters(scans, commands, limits))


def claim_parameters(scans: list[LaneScan], commands: Sequence[ClaimJobs], limits: list[int]) -> list[Any]:
    """Return the parameters of `ingot.claim`."""
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
        True,  # Workers over HTTP have access to files.
    ]


def record_limits(
    lane_cache: LaneCache, scans: list[LaneScan], rows: list[Record], partly_scanned: set[str]
) -> tuple[dict[Lane, int], set[TenantType]]:
    """Remove the rows about limits from `rows` and record them.

    Return the capacities of limited lanes, and the types of tenants that can give no jobs from any lane now.
    """
    limit_rows = next((index for index, row in enumerate(rows) if row[0]), len(rows))
    capacities = {scans[row["lane"] - 1].lane: row["attempts"] for row in rows[:limit_rows]}
    full_types = {_tenant_type(scans[row["lane"] - 1].lane) for row in rows[:limit_rows] if row["failures"] == 0}
    del rows[:limit_rows]
    for lane, capacity in capacities.items():
        lane_cache.limited_types.add(_tenant_type(lane))
        if capacity == LANE_BUSY:
            lane_cache.retry_busy_lane(lane)
        elif capacity == 0:
            lane_cache.suspend_lane(lane)
    for tenant, type in full_types:
        if tenant in partly_scanned:  # Otherwise the lanes that were left out would start before the others.
            lane_cache.suspend_type(tenant, type)
    return capacities, full_types | {
        _tenant_type(lane) for lane, capacity in capacities.items() if capacity == LANE_BUSY
    }


def _tenant_type(lane: Lane) -> TenantType:
    return lane.tenant, lane.type


def _update_hints(
    lane_cache: LaneCache,
    scans: list[LaneScan],
    rows: Sequence[Record],
    jobs_by_tenant: Counter[str],
    capacities: dict[Lane, int],
    tenants_with_more: set[str],
    *,
    sent_at: float,
    seconds: float,
) -> None:
    """Record how far each lane was claimed, and drop the lanes that are empty."""
    # Rows of a lane are in order, so the dict keeps the last one.
    last_rows = {row["lane"]: row for row in (rows if len(scans) > 1 else rows[-1:])}
    for number, scan in enumerate(scans, start=1):
        lane, hint = scan.lane, scan.hint
        if scan.begin == LANE_START:
            hint.full_scan_at = sent_at
            hint.full_scan_interval_seconds = repeat_interval(
                seconds, hint.full_scan_interval_seconds, minimum=HINT_SECONDS
            )
        if row := last_rows.get(number):
            hint.record_claim(scan.begin, (row["priority"], row["run_at"], row["id"]), scan.version)
        elif scan.begin == LANE_START and hint.version == scan.version:
            hint.after = LANE_START
        jobs_max = min(scan.share, capacities.get(lane, scan.share))  # A lane that gave so many may have more.
        if lane.tenant in tenants_with_more:
            continue
        if scan.begin == LANE_START and jobs_by_tenant[lane.tenant] < jobs_max and hint.version == scan.version:
            lane_cache.drop_lane(lane, hint)


def _record_expiries(lane_cache: LaneCache, started_at: int, commands: Sequence[ClaimJobs]) -> None:
    for lease in {command.lease for command in commands}:
        lane_cache.record_expiry(started_at + lease)
