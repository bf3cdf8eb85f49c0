"""Handing new jobs to claims that wait for them, in the call that makes the jobs: one commit instead of two."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

import msgspec

from ingot.engines.jobs import AcceptedValues
from ingot.engines.postgres import claim, enqueue
from ingot.engines.postgres.command_batcher import deliver
from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.enqueue import EnqueueAnswer, SendResult
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import claim_of
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.engines.postgres.lane_heads import LANES_MAX
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Claim, NewJob
from ingot.jobs.ports import ClaimJobs, Enqueue
from ingot.kernel.ids import is_id

GATHER_TURNS_MAX: Final = 8  # Event loop turns until every claim that was woken has asked.
START_TURNS: Final = 4  # Event loop turns from the answer of a claim to the start of its handler.
NEW_JOB_ROW: Final = (
    -1
)  # The asker in rows that tell of jobs that were made; the others tell of jobs that were claimed.
_ENQUEUE_PARAMETERS: Final = CALL.enqueue.count("$")
_CLAIM_CALL: Final = re.sub(r"\$(\d+)", lambda number: f"${int(number[1]) + _ENQUEUE_PARAMETERS}", CALL.claim)
_NEW_JOB_COLUMNS: Final = f"""
    {NEW_JOB_ROW} AS asker, place AS lane, NULL AS id, priority, run_at,
    NULL AS attempts, NULL AS failures, NULL AS crashes,
    max_attempts_ AS max_attempts, NULL AS fence, now_ AS started_at, NULL AS payload, NULL AS metadata,
    NULL AS created_at, limit_key AS source, NULL AS depth, NULL AS timeout_seconds, NULL AS texts, NULL AS tags,
    NULL AS last_error, NULL AS after, NULL AS runs_anyway, NULL AS inputs
"""
# The claim runs after the jobs were made, and sees them. If it ran before, it would find nothing, and wait on.
ENQUEUE_AND_CLAIM: Final = f"{CALL.enqueue.replace('*', _NEW_JOB_COLUMNS, 1)} UNION ALL {_CLAIM_CALL}"


class WokenClaims(msgspec.Struct, eq=False):
    """Claims that were woken for jobs which are about to be made. All of them ask for the same."""

    lane: Lane
    expected: int
    claims: list[tuple[ClaimJobs, asyncio.Future[list[Claim]]]] = []


class Handover:
    """Accepts orders, and gives their jobs to claims of this process that wait for them."""

    def __init__(self, db: Database, memory: LaneCache) -> None:
        self._db = db
        self._lane_cache = memory
        self._woken_claims: list[WokenClaims] = []

    def enqueue(self, commands: Sequence[Enqueue]) -> Awaitable[list[EnqueueAnswer]]:
        """Accept commands together, and serve claims that wait for their jobs."""
        orders = [order for command in commands for order in command.jobs]
        lane = _common_lane(self._lane_cache, orders)
        if lane is None or not (woken := self._lane_cache.wake_early(lane, len(orders))):
            return enqueue.enqueue(self._db, self._lane_cache, commands)
        return self._enqueue(commands, WokenClaims(lane, woken))

    async def _enqueue(self, commands: Sequence[Enqueue], gathering: WokenClaims) -> list[EnqueueAnswer]:
        self._woken_claims.append(gathering)
        try:
            for _ in range(GATHER_TURNS_MAX):
                if gathering.expected <= 0:
                    break
                await asyncio.sleep(0)
        finally:
            self._woken_claims.remove(gathering)
        send = partial(_enqueue_and_claim, gathering) if gathering.claims else enqueue.send_orders
        try:
            return await enqueue.enqueue(self._db, self._lane_cache, commands, send=send)
        finally:
            for _, answer in gathering.claims:
                deliver(answer, [])  # When nothing could be made, they wait on.

    def join(self, command: ClaimJobs) -> asyncio.Future[list[Claim]] | None:
        """Serve this claim with the jobs that it was woken for, when they were not sent yet."""
        for gathering in self._woken_claims:
            lane, claims = gathering.lane, gathering.claims
            if lane.type not in command.types or command.tenant not in (None, lane.tenant):
                continue
            gathering.expected -= 1
            first = claims[0][0] if claims else command
            alike = (command.types, command.tenant) == (first.types, first.tenant)
            if alike and not self._lane_cache.lanes_for(command.types, command.tenant):
                answer: asyncio.Future[list[Claim]] = asyncio.get_running_loop().create_future()
                claims.append((command, answer))
                return answer
        return None


def _common_lane(memory: LaneCache, orders: Sequence[NewJob]) -> Lane | None:
    """The lane of these orders, when all of them are due, and there is nothing else of their type to be weighed."""
    tenant, type = orders[0].tenant, orders[0].type
    if memory.has_running_limits or memory.limited or type in memory.lanes or memory.is_crowded([type], now=False):
        return None
    for order in orders:
        if order.tenant != tenant or order.type != type or order.run_at is not None or order.delay or order.after:
            return None
    if (tenant, type) in memory.rules or not is_id(tenant):
        return None
    return Lane(type, tenant, "")


async def _enqueue_and_claim(
    gathering: WokenClaims, db: Database, memory: LaneCache, groups: Sequence[Sequence[NewJob]]
) -> SendResult:
    """The same as `enqueue.send`, and serve the claims that were gathered."""
    lane, commands = gathering.lane, [command for command, _ in gathering.claims]
    hint = memory.ensure_lane(lane)
    limits = [command.limit for command in commands]
    lanes = {lane.tenant: [(lane, hint)]}
    scans, crowded = await claim.plan_scans(db, memory, commands[0].types, lanes, sum(limits), LANES_MAX)
    sent_at = time.monotonic()
    rows, sent_twice = await db.insert(
        ENQUEUE_AND_CLAIM, *enqueue.order_columns(memory, groups), *claim.claim_parameters(scans, commands, limits)
    )
    cost = time.monotonic() - sent_at
    claimed = [row for row in rows if row["asker"] != NEW_JOB_ROW]
    rooms, closed = claim.record_limits(memory, scans, claimed, crowded)
    claims: list[list[Claim]] = [[] for _ in commands]
    for row in claimed:
        asker = row["asker"] - 1
        claims[asker].append(claim_of(row, lane, commands[asker]))
    for (_, answer), own in zip(gathering.claims, claims, strict=True):
        deliver(answer, own)
    for _ in range(START_TURNS):  # Let handlers start before the bookkeeping below.
        await asyncio.sleep(0)
    claim.record_claims(memory, commands, scans, claimed, lanes, rooms, closed, crowded, sent_at=sent_at, cost=cost)
    made = {
        row["lane"]: AcceptedValues(
            row["priority"], row["run_at"], row["max_attempts"], row["started_at"], row["source"]
        )
        for row in rows
        if row["asker"] == NEW_JOB_ROW
    }
    answers = enqueue.record_enqueued(memory, groups, made, claimed={row["id"] for row in claimed})
    if not hint.version:  # Nothing was left, and nothing came since: the lane is as unknown as before.
        memory.drop_lane(lane, hint)
    memory.notify_committed("claim", len(commands))
    return answers, sent_twice
