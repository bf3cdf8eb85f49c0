"""Handing work to workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any, Final

import msgspec

from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.heads import LANES_MAX, Known, foremost
from ingot.engines.postgres.memory import FAR, HINT_SECONDS, START, LaneHint, Memory, Position, patience
from ingot.engines.postgres.rows import claim_of
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Claim
from ingot.jobs.ports import ClaimJobs
from ingot.kernel.logs import report

Kind = tuple[str, str]  # A tenant and a type.

READS_MIN: Final = 8
READS_SPREAD: Final = 3.0  # Lanes that are filled by chance differ by so many roots of what each has.
LANES_FACTOR: Final = 4
BUSY: Final = -1  # What is told of a limited lane that somebody else claims from at this moment.


class Scan(msgspec.Struct):
    """A lane that is looked into: from where to where, how far, and the share and place of its tenant."""

    lane: Lane
    hint: LaneHint
    begin: Position
    end: Position
    version: int
    turn: int
    step: int
    share: int
    reads: int


async def claim(db: Database, memory: Memory, commands: Sequence[ClaimJobs]) -> list[list[Claim]]:
    """Serve claims of the same types and tenant, in the order in which they came."""
    waiting = memory.lanes_for(commands[0].types, commands[0].tenant)
    own: list[list[Claim]] = [[] for _ in commands]
    asking = [index for index, command in enumerate(commands) if command.limit]
    lanes_max = LANES_MAX
    while waiting and asking:
        limits = [commands[index].limit - len(own[index]) for index in asking]
        try:
            scans, crowded = await deal(db, memory, commands[0].types, waiting, sum(limits), lanes_max)
            sent_at = time.monotonic()
            rows, cost = await _call(db, memory, scans, [commands[index] for index in asking], limits)
        except Exception as error:
            if not any(own):
                raise
            report("claim_cut_short", error)  # What was leased before is for those who asked.
            return own
        rooms, closed = note_limits(memory, scans, rows, crowded)
        for row in rows:
            asker, lane = asking[row[0] - 1], row[1] - 1
            own[asker].append(claim_of(row, scans[lane].lane, commands[asker]))
        note_claimed(memory, commands, scans, rows, waiting, rooms, closed, crowded, sent_at=sent_at, cost=cost)
        lanes_max *= LANES_FACTOR
        asking = [index for index in asking if len(own[index]) < commands[index].limit]
    return own


def note_claimed(
    memory: Memory,
    commands: Sequence[ClaimJobs],
    scans: list[Scan],
    rows: Sequence[Record],
    waiting: dict[str, list[Known]],
    rooms: dict[Lane, int],
    closed: set[Kind],
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
    more = _cut(scans, rows)
    _remember(memory, scans, rows, taken, rooms, more | crowded, sent_at=sent_at, cost=cost)
    for tenant in _exhausted(scans, taken, more):  # Their lanes have no more, and their turns go to the others.
        if rest := _worth_a_look(waiting[tenant], scans, given, rooms, closed) if tenant in crowded else []:
            waiting[tenant] = rest
        else:
            del waiting[tenant]
    memory.told(taken)
    memory.turns.of(commands[0].types).count(taken, memory.weights, waiting=waiting)
    if rows:
        _note_leases(memory, rows[0]["started_at"], commands)


async def deal(
    db: Database, memory: Memory, types: Sequence[str], waiting: dict[str, list[Known]], jobs: int, lanes_max: int
) -> tuple[list[Scan], set[str]]:
    """The lanes of the tenants whose turn it is, and the tenants that have still others.

    Of those, what lies behind the beginning of a lane that is left out is not taken: that comes first.
    """
    turns = memory.turns.of(types).deal(jobs, {tenant: memory.weights[tenant] for tenant in waiting})
    shares: Counter[str] = Counter()
    for turn in turns:
        shares[turn.tenant] += turn.jobs
    step = turns[0].jobs
    scans: list[Scan] = []
    crowded = set()
    for place, (tenant, share) in enumerate(shares.items()):
        lanes: Sequence[Known] = waiting[tenant]
        end = FAR
        if len(lanes) > max(share, lanes_max):
            lanes, end = await foremost(db, memory, lanes, max(share, lanes_max))
            end = FAR if end == START else end  # Something was put into very many lanes at this moment.
            crowded.add(tenant)
        reads = _reads(share, len(lanes))
        scans += [Scan(lane, hint, hint.begin(), end, hint.version, place, step, share, reads) for lane, hint in lanes]
    return scans, crowded


def _reads(share: int, lanes: int) -> int:
    """How far to look into each of a tenant's lanes, that they give its share together."""
    if lanes == 1:
        return share
    part = share / lanes
    return min(share, max(READS_MIN, ceil(part + READS_SPREAD * sqrt(part))))


def _worth_a_look(
    lanes: list[Known], scans: list[Scan], given: Counter[int], rooms: dict[Lane, int], closed: set[Kind]
) -> list[Known]:
    """A tenant's lanes but those that can give nothing now: looked into to the end for nothing, or without room."""
    idle = {
        scan.lane
        for number, scan in enumerate(scans, start=1)
        if not given[number] and (scan.end == FAR or rooms.get(scan.lane, 1) <= 0)
    }
    return [known for known in lanes if known[0] not in idle and _kind(known[0]) not in closed]


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
    # A claim locks more of several lanes than it takes: another of ours at the same time would pass over that.
    crowded = len({scan.turn for scan in scans}) < len(scans)
    if memory.is_crowded({scan.lane.type for scan in scans}, now=crowded) or (
        memory.limited and any(_kind(scan.lane) in memory.limited for scan in scans)
    ):
        async with memory.one_at_a_time:
            return await db.timed(CALL.claim, *parameters(scans, commands, limits))
    return await db.timed(CALL.claim, *parameters(scans, commands, limits))


def parameters(scans: list[Scan], commands: Sequence[ClaimJobs], limits: list[int]) -> list[Any]:
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
        None if all(scan.reads == scan.share for scan in scans) else [scan.reads for scan in scans],
    ]


def note_limits(
    memory: Memory, scans: list[Scan], rows: list[Record], crowded: set[str]
) -> tuple[dict[Lane, int], set[Kind]]:
    """Take off the rows that tell how many more may run of limited lanes, and answer that.

    Also the types of tenants of which nothing can be had now, whatever the lane.
    """
    told = next((place for place, row in enumerate(rows) if row[0]), len(rows))
    rooms = {scans[row["lane"] - 1].lane: row["attempts"] for row in rows[:told]}
    full = {_kind(scans[row["lane"] - 1].lane) for row in rows[:told] if row["failures"] == 0}
    del rows[:told]
    for lane, room in rooms.items():
        memory.limited.add(_kind(lane))
        if room == BUSY:
            memory.knock(lane)
        elif room == 0:
            memory.park(lane)
    for tenant, type in full:
        if tenant in crowded:  # Those that were left out are not to come before the others.
            memory.park_all(tenant, type)
    return rooms, full | {_kind(lane) for lane, room in rooms.items() if room == BUSY}


def _kind(lane: Lane) -> Kind:
    return lane.tenant, lane.type


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
        elif scan.begin == START and hint.version == scan.version:
            hint.after = START
        asked = min(scan.share, rooms.get(lane, scan.share))  # With no more room than this, it may have more.
        if lane.tenant in more:
            continue
        if scan.begin == START and taken[lane.tenant] < asked and hint.version == scan.version:
            memory.drop(lane, hint)


def _note_leases(memory: Memory, started_at: int, commands: Sequence[ClaimJobs]) -> None:
    for lease in {command.lease for command in commands}:
        memory.expires_at(started_at + lease)
