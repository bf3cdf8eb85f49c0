"""Maintenance: polls, promotion of due jobs, sweeps of expired leases, and folding of counters."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

import asyncpg

from ingot.engines.postgres.connection import Database, Record, is_unavailable
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
from ingot.jobs.model import JobStatus, LostLease, MaintenanceResult
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import StoreError
from ingot.kernel.logs import report

PROMOTE_JOBS_MAX: Final = 5000
LATE_COMMIT_MICROS: Final = 5 * MICROS  # Jobs with an earlier due time may be committed this much later.
SWEEP_JOBS_MAX: Final = 1000
FOLD_DELTAS_MAX: Final = 20_000
LANES_PER_TURN: Final = 500  # Lanes of a poll that are recorded in one turn of the event loop.


async def maintain(db: Database, lane_cache: LaneCache) -> MaintenanceResult:
    """Run one round each of the poll, the promotion and the sweep, if they are due."""
    if lane_cache.is_poll_due():
        await poll(db, lane_cache)
    started_at = time.monotonic()
    promoted = await promote(db, lane_cache)
    lane_cache.sweep_guard.record_call(time.monotonic() - started_at, lane_cache.now())
    return MaintenanceResult(promoted=promoted, swept=await sweep(db, lane_cache))


async def poll(db: Database, lane_cache: LaneCache) -> None:
    """Find out what other processes did: lanes with ready jobs, due times, lease expiries, limits."""
    started_at = lane_cache.polled_at = time.monotonic()  # Another poll may begin before this one ends.
    suspended, lane_cache.suspended_lanes = (
        lane_cache.suspended_lanes,
        {},
    )  # The poll finds those with ready jobs again.
    try:
        rows, lane_cache.poll_cost_seconds = await db.call_timed(CALL.poll, read_only=True)
    except BaseException:
        lane_cache.sweep_guard.record_call(time.monotonic() - started_at, lane_cache.now())
        for tenant, lanes in suspended.items():
            lane_cache.suspended_lanes[tenant] = lanes | lane_cache.suspended_lanes.get(tenant, {})
        raise
    lane_cache.sweep_guard.record_call(time.monotonic() - started_at, lane_cache.now())
    lane_cache.poll_interval_seconds = repeat_interval(
        lane_cache.poll_cost_seconds, lane_cache.poll_interval_seconds, minimum=POLL_SECONDS
    )
    lane_cache.update_removed_tenants(row["tenant"] for row in rows if row["now"] is None and row["type"] is None)
    for row in rows:
        if row["now"] is not None:  # First, because the time passes while the lanes are recorded.
            lane_cache.set_clock(row["now"])
            lane_cache.record_next_times(row["next_due"], row["next_expiry"])
            lane_cache.has_count_deltas = row["deltas"]
            lane_cache.has_running_limits = row["bounded"]
            lane_cache.has_dependencies = row["waits"]
            lane_cache.update_record_changes(row["record_changes"])
            lane_cache.applied_revision = row["applied_revision"]
    for number, row in enumerate(rows, start=1):
        if row["type"] is not None:
            lane_cache.record_polled_lane(Lane(row["type"], row["tenant"], row["limit_key"]), row["weight"])
        if number % LANES_PER_TURN == 0:
            await asyncio.sleep(0)  # There can be very many lanes. Others must not wait until all are recorded.
    lane_cache.count_tenants()


async def fold_counts(db: Database) -> None:
    """Fold all deltas into the counters."""
    folded = FOLD_DELTAS_MAX
    while folded == FOLD_DELTAS_MAX:
        ((folded,),) = await db.call(CALL.fold_counts, FOLD_DELTAS_MAX)


async def record_requests(db: Database, lane_cache: LaneCache) -> None:
    """Record for other processes which types workers requested."""
    recorded = lane_cache.requested_at.copy()
    types, tenants = zip(*sorted(recorded), strict=True)
    await db.call(CALL.record_askers, list(types), list(tenants), True)
    lane_cache.requested_at = {key: at for key, at in lane_cache.requested_at.items() if recorded.get(key) != at}


async def promote(db: Database, lane_cache: LaneCache) -> int:
    """Make due jobs ready, and return how many."""
    if lane_cache.next_due is None or lane_cache.next_due > lane_cache.now():
        return 0
    before, lane_cache.next_due = lane_cache.next_due, None  # Due times that are recorded during the call are kept.
    started_at, now = time.monotonic(), lane_cache.now()
    is_full = started_at - lane_cache.full_promote_at > lane_cache.full_promote_interval_seconds
    after = 0 if is_full else lane_cache.promoted_to
    lanes, seconds = await db.call_timed(CALL.promote, PROMOTE_JOBS_MAX, after)
    ((next_due,),) = await db.call(CALL.next_due, after)
    lane_cache.finish_promote(before, next_due)
    for row in lanes:
        lane_cache.announce_ready(
            Lane(row["type"], row["tenant"], row["limit_key"]), row["jobs"], first=(*row["first"], NIL_ID)
        )
    promoted: int = sum(row["jobs"] for row in lanes)
    if promoted < PROMOTE_JOBS_MAX:
        lane_cache.promoted_to = now - LATE_COMMIT_MICROS
        if is_full:
            lane_cache.full_promote_at = started_at
            lane_cache.full_promote_interval_seconds = repeat_interval(
                seconds, lane_cache.full_promote_interval_seconds, minimum=HINT_SECONDS
            )
    return promoted


async def sweep(db: Database, lane_cache: LaneCache) -> int:
    """End attempts whose lease has expired, and return how many.

    Sweeps at most once a second, and not while the sweep guard forbids it.
    """
    next_sweep, next_expiry = lane_cache.next_sweep(), lane_cache.next_expiry
    now = lane_cache.now()
    if next_sweep is None or next_sweep > now or not lane_cache.sweep_guard.may_sweep(now):
        return 0
    lane_cache.next_expiry = None  # Expiries that are recorded during the call are kept.
    started_at = time.monotonic()
    is_full = started_at - lane_cache.full_sweep_at > lane_cache.full_sweep_interval_seconds
    after = 0 if is_full else lane_cache.swept_to
    expired, seconds = await db.call_timed(CALL.expired_leases, lane_cache.lease, SWEEP_JOBS_MAX, after, read_only=True)
    lane_cache.sweep_guard.record_call(time.monotonic() - started_at, lane_cache.now())
    if not lane_cache.sweep_guard.may_sweep(lane_cache.now()):  # These leases expired while the database was away.
        lane_cache.finish_sweep(next_expiry)
        return 0
    swept = await _end_expired(db, lane_cache, expired)
    if len(expired) < SWEEP_JOBS_MAX:
        lane_cache.swept_at = lane_cache.swept_to = now  # If the limit was reached, the next sweep follows at once.
        if is_full:
            lane_cache.full_sweep_at = started_at
            lane_cache.full_sweep_interval_seconds = repeat_interval(
                seconds, lane_cache.full_sweep_interval_seconds, minimum=FULL_SWEEP_SECONDS
            )
    lane_cache.finish_sweep(await _query_next_expiry(db, lane_cache, after))
    return swept


async def _query_next_expiry(db: Database, lane_cache: LaneCache, after: int) -> int | None:
    """Return when the next lease expires.

    The query may walk over many dead rows. If it is too early to repeat it, return the time of the next sweep.
    """
    if time.monotonic() - lane_cache.next_expiry_queried_at < lane_cache.next_expiry_interval_seconds:
        return lane_cache.now() + SWEEP_INTERVAL_MICROS
    ((next_expiry,),), seconds = await db.call_timed(CALL.next_expiry, after)
    lane_cache.next_expiry_queried_at = time.monotonic()
    lane_cache.next_expiry_interval_seconds = repeat_interval(
        seconds, lane_cache.next_expiry_interval_seconds, minimum=0.0
    )
    return None if next_expiry is None else int(next_expiry)


async def _end_expired(db: Database, lane_cache: LaneCache, expired: list[Record]) -> int:
    if not expired:
        return 0
    try:
        lost = await _mark_lost(db, lane_cache, expired)
    except (StoreError, asyncpg.PostgresError) as sweep_error:
        if is_unavailable(sweep_error):
            raise
        # An error in one row must not prevent the sweep of the others.
        lost = []
        for row in expired:
            try:
                lost += await _mark_lost(db, lane_cache, [row])
            except (StoreError, asyncpg.PostgresError) as error:
                report("sweep_failed", error, job_id=row["id"])
    if lost:
        await _notify_lost(db, lane_cache, lost)
    return len(lost)


async def _mark_lost(db: Database, lane_cache: LaneCache, expired: list[Record]) -> list[tuple[Record, str]]:
    """End these attempts. Return those that had not been renewed or ended in the meantime, with their job types."""
    rows = await db.call(CALL.sweep, *_names_of(expired))
    for row in rows:
        record_ended_attempts(lane_cache, row)
    return [(expired[place - 1], row["type"]) for row in rows for place in row["places"] or ()]


async def _notify_lost(db: Database, lane_cache: LaneCache, lost: list[tuple[Record, str]]) -> None:
    """Report lost leases with their workers, which only the stored outcomes name."""
    leases = [lease for lease, _ in lost]
    with suppress(StoreError, asyncpg.PostgresError):  # The attempts have ended; only the report would be missing.
        attempts = await db.call(CALL.find_attempts, *_names_of(leases))
        lane_cache.notify_leases_lost(
            [
                LostLease(
                    tenant=row["tenant"],
                    job_id=leases[row["place"] - 1]["id"],
                    type=lost[row["place"] - 1][1],
                    worker_id=row["worker_id"] or "",
                    is_dead=row["status_after"] == JobStatus.DEAD,
                )
                for row in attempts
            ]
        )


def _names_of(leases: list[Record]) -> tuple[list[str], list[int]]:
    """Return the columns of job IDs and fences."""
    return [row["id"] for row in leases], [row["fence"] for row in leases]
