"""Which of very many lanes of a tenant come first: looking into each of them would cost more than the work itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from heapq import nsmallest
from itertools import islice
from typing import Final

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import (
    HINT_SECONDS,
    LANE_END,
    LANE_START,
    NIL_ID,
    LaneCache,
    LaneHint,
    Position,
    repeat_interval,
)
from ingot.jobs.lanes import Lane

LANES_MAX: Final = 64

HintedLane = tuple[Lane, LaneHint]


async def first_lanes(
    db: Database, memory: LaneCache, lanes: Sequence[HintedLane], most: int
) -> tuple[Sequence[HintedLane], Position]:
    """The lanes whose work begins before that of the others, and where that of the others begins.

    What is remembered of a lane may lie before its work, and never behind it, as far as this process knows: so lanes
    are asked again until those that seem to come first do.
    """
    asked = await _query_heads(db, memory, [known for known in lanes if known[1].head is None or known[1].is_stale()])
    looks = most + 1
    while True:
        first = nsmallest(looks, lanes, key=_head)
        if all(lane in asked for lane, _ in first[: most + 1]):
            return first[:most], _head(first[most])
        asked |= await _query_heads(db, memory, [known for known in first if known[0] not in asked])
        looks *= 2  # Where those that came first have gone, others have too.


def _head(known: HintedLane) -> Position:
    return known[1].head or LANE_START


async def _query_heads(db: Database, memory: LaneCache, lanes: Sequence[HintedLane]) -> set[Lane]:
    """Ask where the work of these lanes begins, and answer which were asked."""
    if not lanes:
        return set()
    sent_at = time.monotonic()
    asked = [(lane, hint, hint.scan_start(), hint.version) for lane, hint in lanes]
    rows, cost = await db.call_timed(
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
                hint.head = min([heads.get(number, LANE_END), *islice(reversed(hint.recent), meanwhile)])
            continue
        hint.head = heads.get(number, LANE_END)
        if begin == LANE_START:
            hint.full_scan_at = sent_at
            hint.full_scan_interval_seconds = repeat_interval(cost, minimum=HINT_SECONDS)
            hint.after = LANE_START if hint.head == LANE_END else (hint.head[0], hint.head[1], NIL_ID)
            if hint.head == LANE_END:
                memory.drop_lane(lane, hint)
    return {lane for lane, *_ in asked}
