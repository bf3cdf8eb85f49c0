"""What has to be done as time goes by: due work joins the ready work, the leases of silent workers are swept."""

from __future__ import annotations

import time
from typing import Final

import asyncpg

from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import (
    FULL_SWEEP_SECONDS,
    HINT_SECONDS,
    NIL_ID,
    POLL_SECONDS,
    SWEEP_INTERVAL_MICROS,
    LaneCache,
    repeat_interval,
)
from ingot.engines.postgres.settle import record_ended_attempts
from ingot.jobs.lanes import Lane
from ingot.jobs.model import MaintenanceResult
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import StoreError
from ingot.kernel.logs import report

PROMOTE_JOBS_MAX: Final = 5000
LATE_COMMIT_MICROS: Final = 5 * MICROS  # What was put down to become due is there after this time.
SWEEP_JOBS_MAX: Final = 1000
FOLD_DELTAS_MAX: Final = 20_000


async def maintain(db: Database, memory: LaneCache) -> MaintenanceResult:
    """One round of each, as far as it is time for it."""
    if memory.is_poll_due():
        await poll(db, memory)
    return MaintenanceResult(promoted=await promote(db, memory), swept=await sweep(db, memory))


async def poll(db: Database, memory: LaneCache) -> None:
    """See what other processes did: lanes that have work, and what is next on the agenda."""
    memory.polled_at = time.monotonic()
    parked, memory.suspended_lanes = memory.suspended_lanes, {}  # What has work is seen, and tried again.
    try:
        rows, memory.poll_cost_seconds = await db.call_timed(CALL.look)
    except BaseException:
        for tenant, lanes in parked.items():
            memory.suspended_lanes[tenant] = lanes | memory.suspended_lanes.get(tenant, {})
        raise
    memory.poll_interval_seconds = repeat_interval(memory.poll_cost_seconds, minimum=POLL_SECONDS)
    memory.update_removed_tenants(row["tenant"] for row in rows if row["now"] is None and row["type"] is None)
    for row in rows:
        if row["now"] is not None:
            memory.set_clock(row["now"])
            memory.record_next_times(row["next_due"], row["next_expiry"])
            memory.has_count_deltas = row["deltas"]
            memory.has_running_limits = row["bounded"]
            memory.has_dependencies = row["waits"]
            memory.update_record_changes(row["record_changes"])
        elif row["type"] is not None:
            memory.record_polled_lane(Lane(row["type"], row["tenant"], row["limit_key"]), row["weight"])


async def fold_counts(db: Database) -> None:
    """Fold deltas into the counts, as many as there are."""
    folded = FOLD_DELTAS_MAX
    while folded == FOLD_DELTAS_MAX:
        ((folded,),) = await db.call(CALL.fold_counts, FOLD_DELTAS_MAX)


async def record_requests(db: Database, memory: LaneCache) -> None:
    """Let the others know what workers ask for."""
    asked = memory.requested_at.copy()
    types, tenants = zip(*sorted(asked), strict=True)
    await db.call(CALL.note_askers, list(types), list(tenants))
    memory.requested_at = {key: at for key, at in memory.requested_at.items() if asked.get(key) != at}


async def promote(db: Database, memory: LaneCache) -> int:
    """Move work that has become due to the ready work of its lane."""
    if memory.next_due is None or memory.next_due > memory.now():
        return 0
    before, memory.next_due = memory.next_due, None  # What comes meanwhile is noted again.
    began, now = time.monotonic(), memory.now()
    whole = began - memory.full_promote_at > memory.full_promote_interval_seconds
    after = 0 if whole else memory.promoted_to
    lanes, cost = await db.call_timed(CALL.promote, PROMOTE_JOBS_MAX, after)
    ((next_due,),) = await db.call(CALL.next_due, after)
    memory.finish_promote(before, next_due)
    for row in lanes:
        memory.announce_ready(
            Lane(row["type"], row["tenant"], row["limit_key"]), row["jobs"], first=(*row["first"], NIL_ID)
        )
    promoted: int = sum(row["jobs"] for row in lanes)
    if promoted < PROMOTE_JOBS_MAX:
        memory.promoted_to = now - LATE_COMMIT_MICROS
        if whole:
            memory.full_promote_at = began
            memory.full_promote_interval_seconds = repeat_interval(cost, minimum=HINT_SECONDS)
    return promoted


async def sweep(db: Database, memory: LaneCache) -> int:
    """Judge running jobs whose lease ran out, at most once a second, never right after the store came up."""
    next_sweep = memory.next_sweep()
    now = memory.now()
    if next_sweep is None or next_sweep > now:
        return 0
    memory.next_expiry = None  # What comes meanwhile is noted again.
    began = time.monotonic()
    whole = began - memory.full_sweep_at > memory.full_sweep_interval_seconds
    after = 0 if whole else memory.swept_to
    expired, cost = await db.call_timed(CALL.expired, memory.lease, SWEEP_JOBS_MAX, after)
    swept = await _end_expired(db, memory, expired)
    if len(expired) < SWEEP_JOBS_MAX:
        memory.swept_at = memory.swept_to = now  # A full round is followed by the next at once.
        if whole:
            memory.full_sweep_at = began
            memory.full_sweep_interval_seconds = repeat_interval(cost, minimum=FULL_SWEEP_SECONDS)
    memory.finish_sweep(await _query_next_expiry(db, memory, after))
    return swept


async def _query_next_expiry(db: Database, memory: LaneCache, after: int) -> int | None:
    """When the next lease runs out. Finding it leads over leases that ended long ago; a round more may cost less."""
    if time.monotonic() - memory.next_expiry_queried_at < memory.next_expiry_interval_seconds:
        return memory.now() + SWEEP_INTERVAL_MICROS
    ((next_expiry,),), cost = await db.call_timed(CALL.next_expiry, after)
    memory.next_expiry_queried_at = time.monotonic()
    memory.next_expiry_interval_seconds = repeat_interval(cost, minimum=0.0)
    return None if next_expiry is None else int(next_expiry)


async def _end_expired(db: Database, memory: LaneCache, expired: list[Record]) -> int:
    if not expired:
        return 0
    try:
        rows = await _mark_lost(db, expired)
    except (StoreError, asyncpg.PostgresError):
        # One bad row must not keep the others from being swept.
        rows = []
        for row in expired:
            try:
                rows += await _mark_lost(db, [row])
            except (StoreError, asyncpg.PostgresError) as error:
                report("sweep_failed", error, job_id=row["id"])
    for row in rows:
        record_ended_attempts(memory, row)
    return sum(len(row["places"] or ()) for row in rows)


async def _mark_lost(db: Database, expired: list[Record]) -> list[Record]:
    return await db.call(CALL.sweep, [row["id"] for row in expired], [row["fence"] for row in expired])
