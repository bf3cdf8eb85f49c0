"""Handing work to workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import groupby, islice

from ingot.engines.sqlite.dependents import release_dependents
from ingot.engines.sqlite.job_rows import JobRow, claim_of
from ingot.engines.sqlite.maintenance import promote, sweep
from ingot.engines.sqlite.ready_queue import Capacity, ReadyQueue, read_ahead
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import DeferredAnswer, Transaction, as_json
from ingot.engines.sqlite.writer_state import FENCES_PER_EPOCH
from ingot.identity.model import TenantNotFound
from ingot.jobs.model import Claim, Definition, JobStatus
from ingot.jobs.ports import ClaimJobs
from ingot.kernel.errors import IngotError


def claim(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[DeferredAnswer | IngotError]:
    """Serve claims in the order in which they came; neighbors that ask for the same are served together."""
    promote(tx)
    sweep(tx)
    release_dependents(tx)
    answers: list[DeferredAnswer | IngotError] = []
    for command in commands:
        for type in command.types:
            tx.writer_state.requested_at[type, command.tenant] = tx.now
    for (_, tenant), alike in groupby(commands, key=lambda command: (command.types, command.tenant)):
        if tenant is None or tenant in tx.writer_state.tenants:
            answers += _claim_group(tx, list(alike))
        else:
            answers += [TenantNotFound(f"there is no tenant {tenant[:64]!r}") for _ in alike]
    return answers


def _claim_group(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[DeferredAnswer]:
    """Hand out jobs to claims of the same types and tenant, each as far as they go."""
    numbers = _pick_jobs(tx, commands[0], sum(command.limit for command in commands))
    if not numbers:
        return [DeferredAnswer(list) for _ in commands]
    waiting = iter(numbers)
    shares = [list(islice(waiting, command.limit)) for command in commands]
    takers = as_json(
        [_lease_values(tx, command, share) for command, share in zip(commands, shares, strict=True) if share]
    )
    tx.execute(SQL.lease_jobs, tx.now, takers)
    tx.execute(SQL.insert_attempts, tx.now, takers)
    rows = tx.whole_jobs(numbers)
    for number in numbers:
        state = rows[number].state
        tx.record_transition(state, JobStatus.QUEUED, JobStatus.RUNNING)
        tx.emit("job.started", state)
    return [
        DeferredAnswer(partial(_claims_of, [_with_definition(tx, rows[number]) for number in share]))
        for share in shares
    ]


def _lease_values(tx: Transaction, command: ClaimJobs, share: list[int]) -> tuple[object, ...]:
    """Who takes which jobs, in the order of `lease_jobs` and `insert_attempts`."""
    expires_at = tx.now + command.lease
    tx.writer_state.record_expiry(expires_at)
    return next_fence(tx), command.worker_id, expires_at, command.host, command.pid, share


def _with_definition(tx: Transaction, row: JobRow) -> tuple[JobRow, Definition]:
    return row, tx.writer_state.definition(row.state.tenant, row.state.type)


def _claims_of(claimed: list[tuple[JobRow, Definition]]) -> list[Claim]:
    return [claim_of(row, definition) for row, definition in claimed]


def _pick_jobs(tx: Transaction, command: ClaimJobs, limit: int) -> list[int]:
    """The numbers of the next ready jobs: tenants take turns, and each gives the first of all its lanes."""
    lanes = tx.writer_state.lanes_for(command.types, command.tenant)
    room = Capacity(tx, command.types, lanes.keys())
    waiting = {
        tenant: ReadyQueue(tx, own, room)
        for tenant, heads in lanes.items()
        if (own := room.lanes_with_capacity(tenant, heads))
    }
    line = tx.writer_state.turns.for_types(command.types)
    picked: list[int] = []
    while waiting and len(picked) < limit:
        dealt = line.next_turns(limit - len(picked), {tenant: tx.writer_state.weights[tenant] for tenant in waiting})
        wanted: Counter[str] = Counter()
        for turn in dealt:
            wanted[turn.tenant] += turn.jobs
        read_ahead(tx, waiting, wanted)
        given = {tenant: waiting[tenant].take(jobs) for tenant, jobs in wanted.items()}
        for tenant, jobs in wanted.items():
            if len(given[tenant]) < jobs:  # It has no more to give, and its turns go to the others.
                del waiting[tenant]
        line.record_claimed(
            {tenant: len(own) for tenant, own in given.items()}, tx.writer_state.weights, waiting=waiting
        )
        in_line = {tenant: iter(own) for tenant, own in given.items()}
        for turn in dealt:
            picked += islice(in_line[turn.tenant], turn.jobs)
    return picked


def next_fence(tx: Transaction) -> int:
    """A number above every fence this store ever gave out."""
    memory = tx.writer_state
    memory.fence += 1
    if memory.fence // FENCES_PER_EPOCH > memory.epoch:
        memory.epoch = tx.execute(SQL.begin_epoch).get
    return memory.fence
