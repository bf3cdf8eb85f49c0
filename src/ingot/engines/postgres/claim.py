"""Handing work to workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from math import ceil, sqrt
from typing import Final

import msgspec

from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.heads import LANES_MAX, Known, foremost
from ingot.engines.postgres.memory import HINT_SECONDS, START, LaneHint, Memory, Position, patience
from ingot.engines.postgres.rows import claim_of
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Claim
from ingot.jobs.ports import ClaimJobs

READS_MIN: Final = 8
READS_SPREAD: Final = 3.0  # Lanes that are filled by chance differ by so many roots of what each has.
LANES_FACTOR: Final = 4
BUSY: Final = -1  # What is told of a limited lane that somebody else claims from at this moment.
CALL: Final = "SELECT * FROM ingot.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"


class Scan(msgspec.Struct):
    """A lane that is looked into: where, how far, since which version of it, and the share and place of its tenant."""

    lane: Lane
    hint: LaneHint
    begin: Position
    version: int
    turn: int
    step: int
    share: int
    reads: int


async def claim(db: Database, memory: Memory, commands: Sequence[ClaimJobs]) -> list[list[Claim]]:
    """Serve claims of the same types and tenant, in the order in which they came."""
    waiting = memory.lanes_for(commands[0].types, commands[0].tenant)
    own: list[list[Claim]] = [[] for _ in commands]
    asking = [place for place, command in enumerate(commands) if command.limit]
    lanes_max = LANES_MAX
    while waiting and asking:
        limits = [commands[place].limit - len(own[place]) for place in asking]
        scans, left_out = await _deal(db, memory, commands[0].types, waiting, sum(limits), lanes_max)
        sent_at = time.monotonic()
        rows, cost = await _call(db, memory, scans, [commands[place] for place in asking], limits)
        rooms, full = _note_limits(memory, scans, rows, left_out)
        for row in rows:
            asker, lane = asking[row[0] - 1], row[1] - 1
            own[asker].append(claim_of(row, scans[lane].lane, commands[asker]))
        taken = Counter[str]()
        for lane, jobs in Counter(row[1] for row in rows).items():
            taken[scans[lane - 1].lane.tenant] += jobs
        more = _cut(scans, rows)
        _remember(memory, scans, rows, taken, rooms, more, sent_at=sent_at, cost=cost)
        for tenant in _exhausted(scans, taken, more):  # Their lanes have no more, and their turns go to the others.
            if rest := _left_out(waiting[tenant], scans, full) if tenant in left_out else []:
                waiting[tenant] = rest
                lanes_max *= LANES_FACTOR
            else:
                del waiting[tenant]
        memory.turns.of(commands[0].types).count(taken, memory.weights, waiting=waiting)
        if rows:
            _note_leases(memory, rows[0]["started_at"], commands)
        asking = [place for place in asking if len(own[place]) < commands[place].limit]
    return own


async def _deal(
    db: Database, memory: Memory, types: Sequence[str], waiting: dict[str, list[Known]], jobs: int, lanes_max: int
) -> tuple[list[Scan], set[str]]:
    """The lanes of the tenants whose turn it is, and which tenants have still others."""
    turns = memory.turns.of(types).deal(jobs, {tenant: memory.weights[tenant] for tenant in waiting})
    shares: Counter[str] = Counter()
    for turn in turns:
        shares[turn.tenant] += turn.jobs
    step = turns[0].jobs
    scans: list[Scan] = []
    left_out = set()
    for place, (tenant, share) in enumerate(shares.items()):
        lanes = waiting[tenant]
        if len(lanes) > max(share, lanes_max):
            lanes = await foremost(db, memory, lanes, max(share, lanes_max))
            left_out.add(tenant)
        reads = _reads(share, len(lanes))
        scans += [Scan(lane, hint, hint.begin(), hint.version, place, step, share, reads) for lane, hint in lanes]
    return scans, left_out


def _reads(share: int, lanes: int) -> int:
    """How far to look into each of a tenant's lanes, that they give its share together."""
    if lanes == 1:
        return share
    part = share / lanes
    return min(share, max(READS_MIN, ceil(part + READS_SPREAD * sqrt(part))))


def _left_out(lanes: list[Known], scans: list[Scan], full: set[tuple[str, str]]) -> list[Known]:
    """Those of a tenant's lanes that were not looked into, and may have room."""
    seen = {scan.lane for scan in scans}
    return [known for known in lanes if known[0] not in seen and (known[0].tenant, known[0].type) not in full]


def _cut(scans: list[Scan], rows: Sequence[Record]) -> set[str]:
    """The tenants with a lane that gave all that was read of it: they may have more than they could give."""
    if all(scan.reads == scan.share for scan in scans):
        return set()
    given = Counter(row["lane"] for row in rows)
    return {scan.lane.tenant for number, scan in enumerate(scans, start=1) if given[number] == scan.reads < scan.share}


def _exhausted(scans: list[Scan], taken: Counter[str], more: set[str]) -> set[str]:
    tenants = {scan.lane.tenant for scan in scans if taken[scan.lane.tenant] < scan.share}
    return tenants - more


async def _call(
    db: Database, memory: Memory, scans: list[Scan], commands: list[ClaimJobs], limits: list[int]
) -> tuple[list[Record], float]:
    if memory.limited and any((scan.lane.tenant, scan.lane.type) in memory.limited for scan in scans):
        async with memory.limited_turn:  # Two claims of ours at once would stand in each other's way.
            return await _send(db, scans, commands, limits)
    return await _send(db, scans, commands, limits)


async def _send(
    db: Database, scans: list[Scan], commands: list[ClaimJobs], limits: list[int]
) -> tuple[list[Record], float]:
    return await db.timed(
        CALL,
        [scan.lane.type for scan in scans],
        [scan.lane.tenant for scan in scans],
        [scan.lane.limit_key for scan in scans],
        [scan.begin[0] for scan in scans],
        [scan.begin[1] for scan in scans],
        [scan.begin[2] for scan in scans],
        [scan.turn for scan in scans],
        [scan.step for scan in scans],
        [scan.share for scan in scans],
        [command.worker_id for command in commands],
        [command.host for command in commands],
        [command.pid for command in commands],
        limits,
        [command.lease for command in commands],
        None if all(scan.reads == scan.share for scan in scans) else [scan.reads for scan in scans],
    )


def _note_limits(
    memory: Memory, scans: list[Scan], rows: list[Record], left_out: set[str]
) -> tuple[dict[Lane, int], set[tuple[str, str]]]:
    """Take off the rows that tell how many more may run of limited lanes, and answer that.

    Also the tenants and types of which nothing more can be had now, whatever the lane.
    """
    told = next((place for place, row in enumerate(rows) if row[0]), len(rows))
    rooms = {scans[row["lane"] - 1].lane: row["attempts"] for row in rows[:told]}
    closed = [scans[row["lane"] - 1].lane for row in rows[:told] if row["attempts"] == BUSY or row["failures"] == 0]
    full = {(lane.tenant, lane.type) for lane in closed}
    del rows[:told]
    for lane, room in rooms.items():
        kind = lane.tenant, lane.type
        memory.limited.add(kind)
        if room == BUSY:
            memory.knock(lane)
        elif room == 0 and (kind not in full or lane.tenant not in left_out):  # Those left out would come before it.
            memory.park(lane)
    return rooms, full


def _remember(
    memory: Memory,
    scans: list[Scan],
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
        if scan.begin == START:
            hint.whole_at = sent_at
            hint.patience = patience(cost, least=HINT_SECONDS)
        if row := last.get(number):
            hint.claimed(scan.begin, (row["priority"], row["run_at"], row["id"]), scan.version)
        asked = min(scan.share, rooms.get(lane, scan.share))  # With no more room than this, it may have more.
        if lane.tenant in more:
            continue
        if scan.begin == START and taken[lane.tenant] < asked and hint.version == scan.version:
            memory.drop(lane)


def _note_leases(memory: Memory, started_at: int, commands: Sequence[ClaimJobs]) -> None:
    for lease in {command.lease for command in commands}:
        memory.expires_at(started_at + lease)
