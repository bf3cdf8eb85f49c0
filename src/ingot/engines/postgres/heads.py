"""Which of very many lanes of a tenant come first: looking into each of them would cost more than the work itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from heapq import nsmallest
from typing import Final

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.memory import FAR, HINT_SECONDS, START, LaneHint, Memory, patience
from ingot.jobs.lanes import Lane

LANES_MAX: Final = 64

Known = tuple[Lane, LaneHint]


async def foremost(db: Database, memory: Memory, lanes: Sequence[Known], most: int) -> list[Known]:
    """The lanes whose next job comes before that of the others.

    As many as jobs are wanted are enough: each has one that comes before all of those left out.
    """
    if len(lanes) <= most:
        return list(lanes)
    unknown = [(lane, hint) for lane, hint in lanes if hint.head is None or hint.is_old()]
    if unknown:
        await _find(db, memory, unknown)
    first = nsmallest(most, lanes, key=lambda known: known[1].head or START)
    for _, hint in first:
        hint.head = None  # It is about to be taken.
    return first


async def _find(db: Database, memory: Memory, lanes: Sequence[Known]) -> None:
    """Ask where the work of these lanes begins."""
    sent_at = time.monotonic()
    asked = [(lane, hint, hint.begin(), hint.version) for lane, hint in lanes]
    rows, cost = await db.timed(
        "SELECT * FROM ingot.heads($1, $2, $3, $4, $5, $6)",
        [lane.type for lane, *_ in asked],
        [lane.tenant for lane, *_ in asked],
        [lane.limit_key for lane, *_ in asked],
        [begin[0] for _, _, begin, _ in asked],
        [begin[1] for _, _, begin, _ in asked],
        [begin[2] for _, _, begin, _ in asked],
    )
    heads = {row["lane"]: (row["priority"], row["run_at"], row["id"]) for row in rows}
    for number, (lane, hint, begin, version) in enumerate(asked, start=1):
        if begin == START:
            hint.whole_at = sent_at
            hint.patience = patience(cost, least=HINT_SECONDS)
        if hint.version != version:  # Something was put into it meanwhile, perhaps before all else.
            continue
        hint.head = heads.get(number, FAR)
        if hint.head == FAR and begin == START:
            memory.drop(lane)
