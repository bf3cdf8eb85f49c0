"""Handing work to workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from heapq import merge
from itertools import groupby, islice

from ingot.engines.sqlite.memory import FENCES_PER_EPOCH
from ingot.engines.sqlite.rows import JobRow, claim_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.tend import promote, sweep
from ingot.engines.sqlite.transaction import Later, Transaction, as_json
from ingot.identity.model import TenantNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.model import Claim, Definition, JobStatus
from ingot.jobs.ports import ClaimJobs
from ingot.kernel.errors import IngotError

Place = tuple[int, int, str, int]  # priority, run_at, id: the order in which work starts; and the job's number


def claim(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[Later | IngotError]:
    """Serve claims in the order in which they came; neighbors that ask for the same are served together."""
    promote(tx)
    sweep(tx)
    answers: list[Later | IngotError] = []
    for (_, tenant), alike in groupby(commands, key=lambda command: (command.types, command.tenant)):
        if tenant is None or tenant in tx.memory.tenants:
            answers += _claim_alike(tx, list(alike))
        else:
            answers += [TenantNotFound(f"there is no tenant {tenant[:64]!r}") for _ in alike]
    return answers


def _claim_alike(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[Later]:
    """Hand out jobs to claims of the same types and tenant, each as far as they go."""
    numbers = _pick(tx, commands[0], sum(command.limit for command in commands))
    if not numbers:
        return [Later(list) for _ in commands]
    waiting = iter(numbers)
    shares = [list(islice(waiting, command.limit)) for command in commands]
    takers = as_json([_taker(tx, command, share) for command, share in zip(commands, shares, strict=True) if share])
    tx.execute(SQL.lease_jobs, tx.now, takers)
    tx.execute(SQL.insert_attempts, tx.now, takers)
    rows = tx.whole_jobs(numbers)
    for number in numbers:
        state = rows[number].state
        tx.moved(state, JobStatus.QUEUED, JobStatus.RUNNING)
        tx.emit("job.started", state)
    return [Later(partial(_claims, [_claimed(tx, rows[number]) for number in share])) for share in shares]


def _taker(tx: Transaction, command: ClaimJobs, share: list[int]) -> tuple[object, ...]:
    """Who takes which jobs, in the order of `lease_jobs` and `insert_attempts`."""
    expires_at = tx.now + command.lease
    tx.memory.expires_at(expires_at)
    return next_fence(tx), command.worker_id, expires_at, command.host, command.pid, share


def _claimed(tx: Transaction, row: JobRow) -> tuple[JobRow, Definition]:
    return row, tx.memory.definition(row.state.tenant, row.state.type)


def _claims(claimed: list[tuple[JobRow, Definition]]) -> list[Claim]:
    return [claim_of(row, definition) for row, definition in claimed]


def _pick(tx: Transaction, command: ClaimJobs, limit: int) -> list[int]:
    """The numbers of the next ready jobs: tenants take turns, and each gives the first of all its lanes."""
    waiting = tx.memory.lanes_for(command.types, command.tenant)
    line = tx.memory.turns.of(command.types)
    picked: list[int] = []
    given: Counter[str] = Counter()
    while waiting and len(picked) < limit:
        dealt = line.deal(limit - len(picked), {tenant: tx.memory.weights[tenant] for tenant in waiting})
        wanted: Counter[str] = Counter()
        for turn in dealt:
            wanted[turn.tenant] += turn.jobs
        heads = {tenant: _first(tx, waiting[tenant], given[tenant], jobs) for tenant, jobs in wanted.items()}
        taken = {tenant: len(places) for tenant, places in heads.items()}
        given.update(taken)
        for tenant, jobs in wanted.items():
            if taken[tenant] < jobs:  # It has no more, and its turns go to the others.
                for lane in waiting.pop(tenant):
                    tx.memory.drop_lane(lane)
        line.count(taken, tx.memory.weights, waiting=waiting)
        in_line = {tenant: iter(places) for tenant, places in heads.items()}
        for turn in dealt:
            picked += [place[3] for place in islice(in_line[turn.tenant], turn.jobs)]
    return picked


def _first(tx: Transaction, lanes: Sequence[Lane], given: int, jobs: int) -> list[Place]:
    """The first jobs over some lanes of one tenant, after those that were given away already."""
    heads: list[list[Place]] = [
        tx.read(
            list[Place], SQL.ready_in_lane, lane.type, tx.memory.tenants[lane.tenant], lane.limit_key, given + jobs
        )
        for lane in lanes
    ]
    return list(islice(merge(*heads), given, given + jobs))


def next_fence(tx: Transaction) -> int:
    """A number above every fence this store ever gave out."""
    memory = tx.memory
    memory.fence += 1
    if memory.fence // FENCES_PER_EPOCH > memory.epoch:
        memory.epoch = tx.execute(SQL.begin_epoch).get
    return memory.fence
