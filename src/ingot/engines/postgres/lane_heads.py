"""Lane heads: find the first of very many lanes of a tenant without scanning all of them."""

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
    db: Database, lane_cache: LaneCache, lanes: Sequence[HintedLane], count: int
) -> tuple[Sequence[HintedLane], Position]:
    """Return the `count` lanes whose heads come first, and the first head of the other lanes.

    A cached head may be earlier than the first ready job of its lane, never later, as far as this process knows. So the
    lanes that seem to come first are queried until their order is confirmed.
    """
    queried = await _query_heads(
        db, lane_cache, [hinted for hinted in lanes if hinted[1].head is None or hinted[1].is_stale()]
    )
    candidates = count + 1
    while True:
        first = nsmallest(candidates, lanes, key=_head)
        if all(lane in queried for lane, _ in first[: count + 1]):
            return first[:count], _head(first[count])
        queried |= await _query_heads(db, lane_cache, [hinted for hinted in first if hinted[0] not in queried])
        candidates *= 2  # If the jobs of the first lanes are gone, those of the next lanes probably are too.


def _head(hinted: HintedLane) -> Position:
    return hinted[1].head or LANE_START


async def _query_heads(db: Database, lane_cache: LaneCache, lanes: Sequence[HintedLane]) -> set[Lane]:
    """Query and cache the heads of these lanes, and return the lanes."""
    if not lanes:
        return set()
    sent_at = time.monotonic()
    queries = [(lane, hint, hint.scan_start(), hint.version) for lane, hint in lanes]
    rows, seconds = await db.call_timed(
        CALL.lane_heads,
        [lane.type for lane, *_ in queries],
        [lane.tenant for lane, *_ in queries],
        [lane.limit_key for lane, *_ in queries],
        [begin[0] for _, _, begin, _ in queries],
        [begin[1] for _, _, begin, _ in queries],
        [begin[2] for _, _, begin, _ in queries],
    )
    heads = {row["lane"]: (row["priority"], row["run_at"], row["id"]) for row in rows}
    for number, (lane, hint, begin, version) in enumerate(queries, start=1):
        if inserts := hint.version - version:  # Jobs were inserted during the query, perhaps before the head.
            if inserts <= len(hint.recent_inserts):
                hint.head = min([heads.get(number, LANE_END), *islice(reversed(hint.recent_inserts), inserts)])
            continue
        hint.head = heads.get(number, LANE_END)
        if begin == LANE_START:
            hint.full_scan_at = sent_at
            hint.full_scan_interval_seconds = repeat_interval(
                seconds, hint.full_scan_interval_seconds, minimum=HINT_SECONDS
            )
            hint.after = LANE_START if hint.head == LANE_END else (hint.head[0], hint.head[1], NIL_ID)
            if hint.head == LANE_END:
                lane_cache.drop_lane(lane, hint)
    return {lane for lane, *_ in queries}
