"""Handing work to workers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import merge
from itertools import islice

from ingot.engines.sqlite.memory import FENCES_PER_EPOCH, Lane
from ingot.engines.sqlite.rows import JobRow, claim_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.tend import promote, sweep
from ingot.engines.sqlite.transaction import Later, Transaction, as_json
from ingot.identity.model import TenantNotFound
from ingot.jobs.model import Claim, Definition, JobStatus
from ingot.jobs.ports import ClaimJobs
from ingot.kernel.errors import IngotError

Place = tuple[int, int, str, int]  # priority, run_at, id: the order in which work starts; and the job's number


def claim(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[Later | IngotError]:
    """Serve claims in the order in which they came."""
    promote(tx)
    sweep(tx)
    return [_claim_one(tx, command) for command in commands]


def _claim_one(tx: Transaction, command: ClaimJobs) -> Later | IngotError:
    if command.tenant is not None and command.tenant not in tx.memory.tenants:
        return TenantNotFound(f"there is no tenant {command.tenant[:64]!r}")
    numbers = _pick(tx, command)
    if not numbers:
        return Later(list)
    expires_at = tx.now + command.lease
    listed = as_json(numbers)
    tx.execute(SQL.lease_jobs, next_fence(tx), command.worker_id, tx.now, expires_at, listed)
    tx.execute(SQL.insert_attempts, command.host, command.pid, listed)
    tx.memory.expires_at(expires_at)
    rows = tx.whole_jobs(numbers)
    claimed: list[tuple[JobRow, Definition]] = []
    for number in numbers:
        row = rows[number]
        state = row.state
        tx.moved(state, JobStatus.QUEUED, JobStatus.RUNNING)
        tx.emit("job.started", state)
        claimed.append((row, tx.memory.definition(state.tenant, state.type)))
    return Later(partial(_claims, claimed))


def _claims(claimed: list[tuple[JobRow, Definition]]) -> list[Claim]:
    return [claim_of(row, definition) for row, definition in claimed]


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
    memory = tx.memory
    memory.fence += 1
    if memory.fence // FENCES_PER_EPOCH > memory.epoch:
        memory.epoch = tx.execute(SQL.begin_epoch).get
    return memory.fence
