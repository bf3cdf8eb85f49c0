"""Handing work to workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby, islice

from ingot.engines.sqlite.follow import follow
from ingot.engines.sqlite.memory import FENCES_PER_EPOCH
from ingot.engines.sqlite.ready import Queue, Room, read_ahead
from ingot.engines.sqlite.rows import JobRow, claim_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.tend import promote, sweep
from ingot.engines.sqlite.transaction import Later, Transaction, as_json
from ingot.identity.model import TenantNotFound
from ingot.jobs.model import Claim, Definition, JobStatus
from ingot.jobs.ports import ClaimJobs
from ingot.kernel.errors import IngotError


def claim(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[Later | IngotError]:
    """Serve claims in the order in which they came; neighbors that ask for the same are served together."""
    promote(tx)
    sweep(tx)
    follow(tx)
    answers: list[Later | IngotError] = []
    for command in commands:
        for type in command.types:
            tx.memory.asked[type, command.tenant] = tx.now
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
    lanes = tx.memory.lanes_for(command.types, command.tenant)
    room = Room(tx, command.types, lanes.keys())
    waiting = {tenant: Queue(tx, own, room) for tenant, heads in lanes.items() if (own := room.sift(tenant, heads))}
    line = tx.memory.turns.of(command.types)
    picked: list[int] = []
    while waiting and len(picked) < limit:
        dealt = line.deal(limit - len(picked), {tenant: tx.memory.weights[tenant] for tenant in waiting})
        wanted: Counter[str] = Counter()
        for turn in dealt:
            wanted[turn.tenant] += turn.jobs
        read_ahead(tx, waiting, wanted)
        given = {tenant: waiting[tenant].take(jobs) for tenant, jobs in wanted.items()}
        for tenant, jobs in wanted.items():
            if len(given[tenant]) < jobs:  # It has no more to give, and its turns go to the others.
                del waiting[tenant]
        line.count({tenant: len(own) for tenant, own in given.items()}, tx.memory.weights, waiting=waiting)
        in_line = {tenant: iter(own) for tenant, own in given.items()}
        for turn in dealt:
            picked += islice(in_line[turn.tenant], turn.jobs)
    return picked


def next_fence(tx: Transaction) -> int:
    """A number above every fence this store ever gave out."""
    memory = tx.memory
    memory.fence += 1
    if memory.fence // FENCES_PER_EPOCH > memory.epoch:
        memory.epoch = tx.execute(SQL.begin_epoch).get
    return memory.fence
