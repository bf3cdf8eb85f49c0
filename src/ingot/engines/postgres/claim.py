"""Handing work to workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.memory import HINT_SECONDS, START, Lane, LaneHint, Memory, Position, patience
from ingot.engines.postgres.rows import claim_of
from ingot.jobs.model import Claim
from ingot.jobs.ports import ClaimJobs

CALL: Final = "SELECT * FROM ingot.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"

Scan = tuple[Lane, LaneHint, Position, int]  # A lane, its hint, where its scan began, and the version it had then.


async def claim(db: Database, memory: Memory, commands: Sequence[ClaimJobs]) -> list[list[Claim]]:
    """Serve claims of the same types and tenant, in the order in which they came."""
    scans: list[Scan] = [
        (lane, hint, hint.begin(), hint.version)
        for lane, hint in memory.lanes_for(commands[0].types, commands[0].tenant)
    ]
    own: list[list[Claim]] = [[] for _ in commands]
    if not scans:
        return own
    sent_at = time.monotonic()
    rows, cost = await db.timed(
        CALL,
        [lane.type for lane, *_ in scans],
        [lane.tenant for lane, *_ in scans],
        [lane.limit_key for lane, *_ in scans],
        [begin[0] for _, _, begin, _ in scans],
        [begin[1] for _, _, begin, _ in scans],
        [begin[2] for _, _, begin, _ in scans],
        [command.worker_id for command in commands],
        [command.host for command in commands],
        [command.pid for command in commands],
        [command.limit for command in commands],
        [command.lease for command in commands],
    )
    for row in rows:
        asker, lane = row[0] - 1, row[1] - 1
        own[asker].append(claim_of(row, scans[lane][0], commands[asker]))
    short = len(rows) < sum(command.limit for command in commands)
    _remember(memory, scans, rows, sent_at=sent_at, cost=cost, short=short)
    for command, claims in zip(commands, own, strict=True):
        if claims:
            memory.expires_at(rows[0]["started_at"] + command.lease)
    return own


def _remember(
    memory: Memory, scans: list[Scan], rows: Sequence[Record], *, sent_at: float, cost: float, short: bool
) -> None:
    """Note how far each lane was claimed, and which have nothing more."""
    # They come in order, so that the last of a lane tells.
    last = {row["lane"]: row for row in (rows if len(scans) > 1 else rows[-1:])}
    for number, (lane, hint, begin, version) in enumerate(scans, start=1):
        if begin == START:
            hint.whole_at = sent_at
            hint.patience = patience(cost, least=HINT_SECONDS)
        if row := last.get(number):
            hint.claimed(begin, (row["priority"], row["run_at"], row["id"]), version)
        if short and begin == START and hint.version == version:
            memory.drop(lane)
