"""Handover of new jobs to waiting claims, in the call that creates them: one commit instead of two."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from itertools import chain
from typing import Final

import asyncpg
import msgspec

from ingot.engines.jobs import AcceptedValues
from ingot.engines.postgres import claim, enqueue
from ingot.engines.postgres.command_batcher import deliver
from ingot.engines.postgres.connection import UNREACHABLE_ERRORS, Database
from ingot.engines.postgres.enqueue import EnqueueAnswer, SendResult
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import claim_of
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.engines.postgres.lane_heads import LANES_MAX
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Claim, NewJob
from ingot.jobs.ports import ClaimJobs, Enqueue
from ingot.kernel.errors import OutcomeUnknown, StoreError
from ingot.kernel.ids import is_id
from ingot.kernel.logs import report

GATHER_TURNS_MAX: Final = 8  # Event loop turns in which woken claims send their request.
START_TURNS: Final = 4  # Event loop turns from the answer to a claim until its handler has started.
NEW_JOB_ROW: Final = -1  # Marks rows of created jobs. In the other rows, the first column numbers the claim.
_ENQUEUE_PARAMETERS: Final = CALL.enqueue.count("$")
_CLAIM_CALL: Final = re.sub(r"\$(\d+)", lambda number: f"${int(number[1]) + _ENQUEUE_PARAMETERS}", CALL.claim)
_NEW_JOB_COLUMNS: Final = f"""
    {NEW_JOB_ROW} AS claimer, place AS lane, NULL AS id, priority, run_at,
    NULL AS attempts, NULL AS failures, NULL AS crashes,
    max_attempts_ AS max_attempts, NULL AS fence, now_ AS started_at, NULL AS payload, NULL AS metadata,
    NULL AS created_at, limit_key AS source, NULL AS depth, NULL AS timeout_seconds, NULL AS texts, NULL AS tags,
    NULL AS last_error, NULL AS after, NULL AS runs_anyway, NULL AS inputs
"""
# UNION ALL runs the claim after the enqueue. In the other order it would find no job, and the claims would keep
# waiting.
ENQUEUE_AND_CLAIM: Final = (
    f"SELECT {_NEW_JOB_COLUMNS} FROM {CALL.enqueue.partition(' FROM ')[2]} UNION ALL {_CLAIM_CALL}"
)


class WokenClaims(msgspec.Struct, eq=False):
    """Claims that were woken for jobs that are about to be created. All have the same types and tenant.

    `expected` is the number of woken claims that have not sent their request yet.
    """

    lane: Lane
    expected: int
    claims: list[tuple[ClaimJobs, asyncio.Future[list[Claim]]]] = []

    def release(self) -> None:
        """Let the claims that got no job continue to wait."""
        for _, future in self.claims:
            deliver(future, [])


class Handover:
    """Creates jobs and leases them to waiting claims of this process in one call."""

    def __init__(self, db: Database, lane_cache: LaneCache) -> None:
        self._db = db
        self._lane_cache = lane_cache
        self._woken_claims: list[WokenClaims] = []

    def enqueue(self, commands: Sequence[Enqueue]) -> Awaitable[list[EnqueueAnswer]]:
        """Create the jobs of these commands, and lease them to waiting claims if that keeps the order of jobs."""
        orders = [order for command in commands for order in command.jobs]
        lane = _common_lane(self._lane_cache, orders)
        if lane is None or not (woken := self._lane_cache.wake_early(lane, len(orders))):
            return enqueue.enqueue(self._db, self._lane_cache, commands)
        return self._enqueue(commands, WokenClaims(lane, woken))

    async def _enqueue(self, commands: Sequence[Enqueue], woken: WokenClaims) -> list[EnqueueAnswer]:
        self._woken_claims.append(woken)
        try:
            for _ in range(GATHER_TURNS_MAX):
                if woken.expected <= 0:
                    break
                await asyncio.sleep(0)
        finally:
            self._woken_claims.remove(woken)
        send = partial(_enqueue_and_claim, woken) if woken.claims else enqueue.send_orders
        try:
            return await enqueue.enqueue(self._db, self._lane_cache, commands, send=send)
        finally:
            woken.release()

    def join(self, command: ClaimJobs) -> asyncio.Future[list[Claim]] | None:
        """Add a claim to the batch for which it was woken. Return `None` if there is no such batch, or it was sent."""
        for woken in self._woken_claims:
            lane, claims = woken.lane, woken.claims
            if lane.type not in command.types or command.tenant not in (None, lane.tenant):
                continue
            woken.expected -= 1
            first = claims[0][0] if claims else command
            is_alike = (command.types, command.tenant) == (first.types, first.tenant)
            if is_alike and not self._lane_cache.lanes_for(command.types, command.tenant):
                future: asyncio.Future[list[Claim]] = asyncio.get_running_loop().create_future()
                claims.append((command, future))
                return future
        return None


def _common_lane(lane_cache: LaneCache, orders: Sequence[NewJob]) -> Lane | None:
    """Return the lane of these orders if a handover cannot change the order of jobs, otherwise `None`.

    All orders must be plain and due jobs of one type and tenant, without other ready jobs of the type and without
    limits.
    """
    tenant, type = orders[0].tenant, orders[0].type
    if (
        lane_cache.has_running_limits
        or lane_cache.limited_types
        or type in lane_cache.lanes
        or lane_cache.has_multi_lane_claims([type], now=False)
    ):
        return None
    for order in orders:
        if order.tenant != tenant or order.type != type or order.run_at is not None or order.delay or order.after:
            return None
    if (tenant, type) in lane_cache.rules or not is_id(tenant):
        return None
    return Lane(type, tenant, "")


def _is_refused_by_database(error: BaseException) -> bool:
    """Whether the database rejected the call for a reason that is not one of ours, so that it changed nothing."""
    cause = error.__cause__
    is_definite = isinstance(cause, asyncpg.PostgresError) and not isinstance(cause, UNREACHABLE_ERRORS)
    return isinstance(error, StoreError) and not isinstance(error, OutcomeUnknown) and is_definite


async def _enqueue_and_claim(
    woken: WokenClaims, db: Database, lane_cache: LaneCache, groups: Sequence[Sequence[NewJob]]
) -> SendResult:
    """Create jobs as `enqueue.send_orders` does, and serve the woken claims."""
    lane, commands = woken.lane, [command for command, _ in woken.claims]
    hint = lane_cache.ensure_lane(lane)
    limits = [command.limit for command in commands]
    lanes_by_tenant = {lane.tenant: [(lane, hint)]}
    try:
        scans, partly_scanned = await claim.plan_scans(
            db, lane_cache, commands[0].types, lanes_by_tenant, sum(limits), LANES_MAX
        )
        sent_at = time.monotonic()
        parameters = enqueue.order_columns(lane_cache, groups), claim.claim_parameters(scans, commands, limits)
        rows, sent_twice = await db.insert(ENQUEUE_AND_CLAIM, *chain.from_iterable(parameters))
    except BaseException as error:
        if not hint.version:
            lane_cache.drop_lane(lane, hint)
        woken.release()
        if not _is_refused_by_database(error):
            raise
        report("handover_failed", error)
        return await enqueue.send_orders(db, lane_cache, groups)
    seconds = time.monotonic() - sent_at
    claimed_rows = [row for row in rows if row["claimer"] != NEW_JOB_ROW]
    capacities, unavailable = claim.record_limits(lane_cache, scans, claimed_rows, partly_scanned)
    claims: list[list[Claim]] = [[] for _ in commands]
    try:
        for row in claimed_rows:
            index = row["claimer"] - 1
            claims[index].append(claim_of(row, lane, commands[index]))
    except Exception as error:  # The jobs were created. The claims keep waiting, and then fail by themselves.
        report("handover_failed", error)
        await claim.release(db, lane_cache, [(row["id"], row["fence"]) for row in claimed_rows])
        claims = [[] for _ in commands]
    for (_, future), jobs in zip(woken.claims, claims, strict=True):
        deliver(future, jobs)
    for _ in range(START_TURNS):  # Let handlers start before the bookkeeping below.
        await asyncio.sleep(0)
    claim.record_claims(
        lane_cache,
        commands,
        scans,
        claimed_rows,
        lanes_by_tenant,
        capacities,
        unavailable,
        partly_scanned,
        sent_at=sent_at,
        seconds=seconds,
    )
    new_jobs = {
        row["lane"]: AcceptedValues(
            row["priority"], row["run_at"], row["max_attempts"], row["started_at"], row["source"]
        )
        for row in rows
        if row["claimer"] == NEW_JOB_ROW
    }
    answers = enqueue.record_enqueued(lane_cache, groups, new_jobs, claimed={row["id"] for row in claimed_rows})
    if not hint.version:  # All jobs were claimed and none inserted since, so the lane is not live.
        lane_cache.drop_lane(lane, hint)
    lane_cache.notify_committed("claim", len(commands))
    return answers, sent_twice
