"""Handing work to workers."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice

from ingot.engines.sqlite.memory import Lane
from ingot.engines.sqlite.rows import claim_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.tend import promote, sweep
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.jobs.model import Claim, JobStatus
from ingot.jobs.ports import ClaimJobs

FENCES_PER_EPOCH = 2**32

Place = tuple[int, int, str, int]  # priority, run_at, id: the order in which work starts; and the job's number


def claim(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[list[Claim]]:
    """Serve claims in the order in which they came."""
    promote(tx)
    sweep(tx)
    return [_claim_one(tx, command) for command in commands]


def _claim_one(tx: Transaction, command: ClaimJobs) -> list[Claim]:
    numbers = _pick(tx, command)
    if not numbers:
        return []
    expires_at = tx.now + command.lease
    listed = as_json(numbers)
    tx.execute(SQL.lease_jobs, next_fence(tx), command.worker_id, tx.now, expires_at, listed)
    tx.execute(SQL.insert_attempts, command.host, command.pid, listed)
    tx.memory.expires_at(expires_at)
    rows = tx.whole_jobs(numbers)
    claims = []
    for number in numbers:
        row = rows[number]
        tx.moved(row.state, JobStatus.QUEUED, JobStatus.RUNNING)
        tx.emit("job.started", row.state)
        claims.append(claim_of(row, tx.memory.definition(row.state.tenant, row.state.type)))
    return claims


def _pick(tx: Transaction, command: ClaimJobs) -> list[int]:
    """The numbers of the first ready jobs over all lanes the claim may take from."""
    heads: dict[Lane, list[Place]] = {}
    for lane in tx.memory.lanes_for(command.types, command.tenant):
        heads[lane] = tx.read(
            list[Place], SQL.ready_in_lane, lane.type, tx.memory.tenants[lane.tenant], lane.limit_key, command.limit
        )
    picked = [place[3] for place in islice(merge(*heads.values()), command.limit)]
    taken = set(picked)
    for lane, places in heads.items():
        if len(places) < command.limit and all(place[3] in taken for place in places):
            tx.memory.drop_lane(lane)
    return picked


def next_fence(tx: Transaction) -> int:
    """A number above every fence this store ever gave out."""
    tx.memory.fence += 1
    if tx.memory.fence % FENCES_PER_EPOCH == 0:
        tx.execute(SQL.begin_epoch).get  # noqa: B018 - the epoch the carry has reached is ours now
    return tx.memory.fence
