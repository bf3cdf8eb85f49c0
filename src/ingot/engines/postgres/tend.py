"""What has to be done as time goes by: due work joins the ready work, the leases of silent workers are swept."""

from __future__ import annotations

import time
from typing import Final

import asyncpg

from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.memory import (
    HINT_SECONDS,
    LOOK_SECONDS,
    NIL,
    SWEEP_EVERY,
    WHOLE_SWEEP_SECONDS,
    Memory,
    patience,
)
from ingot.engines.postgres.settle import came_back
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Tended
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import StoreError
from ingot.kernel.logs import report

PROMOTE_JOBS_MAX: Final = 5000
LATE_COMMIT: Final = 5 * MICROS  # What was put down to become due is there after this time.
SWEEP_JOBS_MAX: Final = 1000
FOLD_DELTAS_MAX: Final = 20_000


async def tend(db: Database, memory: Memory) -> Tended:
    """One round of each, as far as it is time for it."""
    if memory.look_is_old():
        await look(db, memory)
    return Tended(promoted=await promote(db, memory), swept=await sweep(db, memory))


async def look(db: Database, memory: Memory) -> None:
    """See what other processes did: lanes that have work, and what is next on the agenda."""
    memory.looked_at = time.monotonic()
    parked, memory.parked = memory.parked, {}  # What has work is seen, and tried again.
    try:
        rows, memory.look_cost = await db.timed(CALL.look)
    except BaseException:
        for tenant, lanes in parked.items():
            memory.parked[tenant] = lanes | memory.parked.get(tenant, {})
        raise
    memory.look_patience = patience(memory.look_cost, least=LOOK_SECONDS)
    memory.see_removed(row["tenant"] for row in rows if row["now"] is None and row["type"] is None)
    for row in rows:
        if row["now"] is not None:
            memory.set_clock(row["now"])
            memory.see_agenda(row["next_due"], row["next_expiry"])
            memory.deltas = row["deltas"]
            memory.bounded = row["bounded"]
            memory.waits = row["waits"]
            memory.see_record_changes(row["record_changes"])
        elif row["type"] is not None:
            memory.see(Lane(row["type"], row["tenant"], row["limit_key"]), row["weight"])


async def fold(db: Database) -> None:
    """Fold deltas into the counts, as many as there are."""
    folded = FOLD_DELTAS_MAX
    while folded == FOLD_DELTAS_MAX:
        ((folded,),) = await db.call(CALL.fold_counts, FOLD_DELTAS_MAX)


async def note_askers(db: Database, memory: Memory) -> None:
    """Let the others know what workers ask for."""
    asked = memory.asked.copy()
    types, tenants = zip(*sorted(asked), strict=True)
    await db.call(CALL.note_askers, list(types), list(tenants))
    memory.asked = {key: at for key, at in memory.asked.items() if asked.get(key) != at}


async def promote(db: Database, memory: Memory) -> int:
    """Move work that has become due to the ready work of its lane."""
    if memory.next_due is None or memory.next_due > memory.now():
        return 0
    before, memory.next_due = memory.next_due, None  # What comes meanwhile is noted again.
    began, now = time.monotonic(), memory.now()
    whole = began - memory.promoted_whole_at > memory.promote_patience
    after = 0 if whole else memory.promoted_to
    lanes, cost = await db.timed(CALL.promote, PROMOTE_JOBS_MAX, after)
    ((next_due,),) = await db.call(CALL.next_due, after)
    memory.pass_due(before, next_due)
    for row in lanes:
        memory.add(Lane(row["type"], row["tenant"], row["limit_key"]), row["jobs"], first=(*row["first"], NIL))
    promoted: int = sum(row["jobs"] for row in lanes)
    if promoted < PROMOTE_JOBS_MAX:
        memory.promoted_to = now - LATE_COMMIT
        if whole:
            memory.promoted_whole_at = began
            memory.promote_patience = patience(cost, least=HINT_SECONDS)
    return promoted


async def sweep(db: Database, memory: Memory) -> int:
    """Judge running jobs whose lease ran out, at most once a second, never right after the store came up."""
    next_sweep = memory.next_sweep()
    now = memory.now()
    if next_sweep is None or next_sweep > now:
        return 0
    memory.next_expiry = None  # What comes meanwhile is noted again.
    began = time.monotonic()
    whole = began - memory.swept_whole_at > memory.sweep_patience
    after = 0 if whole else memory.swept_to
    expired, cost = await db.timed(CALL.expired, memory.lease, SWEEP_JOBS_MAX, after)
    swept = await _end(db, memory, expired)
    if len(expired) < SWEEP_JOBS_MAX:
        memory.swept_at = memory.swept_to = now  # A full round is followed by the next at once.
        if whole:
            memory.swept_whole_at = began
            memory.sweep_patience = patience(cost, least=WHOLE_SWEEP_SECONDS)
    memory.pass_expiry(await _next_expiry(db, memory, after))
    return swept


async def _next_expiry(db: Database, memory: Memory, after: int) -> int | None:
    """When the next lease runs out. Finding it leads over leases that ended long ago; a round more may cost less."""
    if time.monotonic() - memory.next_expiry_asked_at < memory.next_expiry_patience:
        return memory.now() + SWEEP_EVERY
    ((next_expiry,),), cost = await db.timed(CALL.next_expiry, after)
    memory.next_expiry_asked_at = time.monotonic()
    memory.next_expiry_patience = patience(cost, least=0.0)
    return None if next_expiry is None else int(next_expiry)


async def _end(db: Database, memory: Memory, expired: list[Record]) -> int:
    if not expired:
        return 0
    try:
        rows = await _lose(db, expired)
    except (StoreError, asyncpg.PostgresError):
        # One bad row must not keep the others from being swept.
        rows = []
        for row in expired:
            try:
                rows += await _lose(db, [row])
            except (StoreError, asyncpg.PostgresError) as error:
                report("sweep_failed", error, job_id=row["id"])
    for row in rows:
        came_back(memory, row)
    return sum(len(row["places"] or ()) for row in rows)


async def _lose(db: Database, expired: list[Record]) -> list[Record]:
    return await db.call(CALL.sweep, [row["id"] for row in expired], [row["fence"] for row in expired])
