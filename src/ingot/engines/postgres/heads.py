"""Which of very many lanes of a tenant come first: looking into each of them would cost more than the work itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from heapq import nsmallest
from itertools import islice
from typing import Final

from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.memory import FAR, HINT_SECONDS, NIL, START, LaneHint, Memory, Position, patience
from ingot.jobs.lanes import Lane

LANES_MAX: Final = 64

Known = tuple[Lane, LaneHint]


async def foremost(db: Database, memory: Memory, lanes: Sequence[Known], most: int) -> tuple[Sequence[Known], Position]:
    """The lanes whose work begins before that of the others, and where that of the others begins.

    What is remembered of a lane may lie before its work, and never behind it, as far as this process knows: so lanes
    are asked again until those that seem to come first do.
    """
    asked = await _find(db, memory, [known for known in lanes if known[1].head is None or known[1].is_old()])
    looks = most + 1
    while True:
        first = nsmallest(looks, lanes, key=_head)
        if all(lane in asked for lane, _ in first[: most + 1]):
            return first[:most], _head(first[most])
        asked |= await _find(db, memory, [known for known in first if known[0] not in asked])
        looks *= 2  # Where those that came first have gone, others have too.


def _head(known: Known) -> Position:
    return known[1].head or START


async def _find(db: Database, memory: Memory, lanes: Sequence[Known]) -> set[Lane]:
    """Ask where the work of these lanes begins, and answer which were asked."""
    if not lanes:
        return set()
    sent_at = time.monotonic()
    asked = [(lane, hint, hint.begin(), hint.version) for lane, hint in lanes]
    rows, cost = await db.timed(
        CALL.heads,
        [lane.type for lane, *_ in asked],
        [lane.tenant for lane, *_ in asked],
        [lane.limit_key for lane, *_ in asked],
        [begin[0] for _, _, begin, _ in asked],
        [begin[1] for _, _, begin, _ in asked],
        [begin[2] for _, _, begin, _ in asked],
    )
    heads = {row["lane"]: (row["priority"], row["run_at"], row["id"]) for row in rows}
    for number, (lane, hint, begin, version) in enumerate(asked, start=1):
        if meanwhile := hint.version - version:  # Something was put into it, perhaps before all else.
            if meanwhile <= len(hint.recent):
                hint.head = min([heads.get(number, FAR), *islice(reversed(hint.recent), meanwhile)])
            continue
        hint.head = heads.get(number, FAR)
        if begin == START:
            hint.whole_at = sent_at
            hint.patience = patience(cost, least=HINT_SECONDS)
            hint.after = START if hint.head == FAR else (hint.head[0], hint.head[1], NIL)
            if hint.head == FAR:
                memory.drop(lane, hint)
    return {lane for lane, *_ in asked}
