"""Claims: handing out jobs to workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    """Serve claims in order. Adjacent claims for the same types and tenant are served together."""
    promote(tx)
    sweep(tx)
    release_dependents(tx)
    answers: list[DeferredAnswer | IngotError] = []
    for command in commands:
        for type in command.types:
            tx.writer_state.requested_at[type, command.tenant] = tx.now
    for (_, tenant), group in groupby(commands, key=lambda command: (command.types, command.tenant)):
        if tenant is None or tenant in tx.writer_state.tenants:
            answers += _claim_group(tx, list(group))
        else:
            answers += [TenantNotFound(f"there is no tenant {tenant[:64]!r}") for _ in group]
    return answers


def _claim_group(tx: Transaction, commands: Sequence[ClaimJobs]) -> list[DeferredAnswer]:
    """Hand out jobs to claims for the same types and tenant, in order, while there are jobs."""
    numbers = _pick_jobs(tx, commands[0], sum(command.limit for command in commands))
    if not numbers:
        return [DeferredAnswer(_claim_of) for _ in commands]
    remaining = iter(numbers)
    shares = [list(islice(remaining, command.limit)) for command in commands]
    claims = as_json(
        [_lease_values(tx, command, share) for command, share in zip(commands, shares, strict=True) if share]
    )
    tx.execute(SQL.lease_jobs, tx.now, claims)
    tx.execute(SQL.insert_attempts, tx.now, claims)
    rows = tx.whole_jobs(numbers)
    for number in numbers:
        state = rows[number].state
        tx.record_transition(state, JobStatus.QUEUED, JobStatus.RUNNING)
        tx.emit("job.started", state)
    return [DeferredAnswer(_claim_of, [_with_definition(tx, rows[number]) for number in share]) for share in shares]


def _lease_values(tx: Transaction, command: ClaimJobs, share: list[int]) -> tuple[object, ...]:
    """Return the values of one claim, in the order of `lease_jobs` and `insert_attempts`."""
    expires_at = tx.now + command.lease
    tx.writer_state.record_expiry(expires_at)
    return next_fence(tx), command.worker_id, expires_at, command.host, command.pid, share


def _with_definition(tx: Transaction, row: JobRow) -> tuple[JobRow, Definition]:
    return row, tx.writer_state.definition(row.state.tenant, row.state.type)


def _claim_of(claimed: tuple[JobRow, Definition]) -> Claim:
    return claim_of(*claimed)


def _pick_jobs(tx: Transaction, command: ClaimJobs, limit: int) -> list[int]:
    """Return the numbers of the next ready jobs. Tenants take turns, and each gives the first jobs of all its lanes."""
    lanes = tx.writer_state.lanes_for(command.types, command.tenant)
    capacity = Capacity(tx, command.types, lanes.keys())
    queues = {
        tenant: ReadyQueue(tx, open_lanes, capacity)
        for tenant, heads in lanes.items()
        if (open_lanes := capacity.lanes_with_capacity(tenant, heads))
    }
    fair_share = tx.writer_state.turns.for_types(command.types)
    picked: list[int] = []
    while queues and len(picked) < limit:
        turns = fair_share.next_turns(
            limit - len(picked), {tenant: tx.writer_state.weights[tenant] for tenant in queues}
        )
        counts: Counter[str] = Counter()
        for turn in turns:
            counts[turn.tenant] += turn.jobs
        read_ahead(tx, queues, counts)
        taken = {tenant: queues[tenant].take(jobs) for tenant, jobs in counts.items()}
        for tenant, jobs in counts.items():
            if len(taken[tenant]) < jobs:  # It has no more jobs, and its turns go to other tenants.
                del queues[tenant]
        fair_share.record_claimed(
            {tenant: len(numbers) for tenant, numbers in taken.items()}, tx.writer_state.weights, waiting=queues
        )
        remaining = {tenant: iter(numbers) for tenant, numbers in taken.items()}
        for turn in turns:
            picked += islice(remaining[turn.tenant], turn.jobs)
    return picked


def next_fence(tx: Transaction) -> int:
    """Return a fence above all fences that this store has issued."""
    writer_state = tx.writer_state
    writer_state.fence += 1
    if writer_state.fence // FENCES_PER_EPOCH > writer_state.epoch:
        writer_state.epoch = tx.execute(SQL.begin_epoch).get
    return writer_state.fence
