"""Accepting jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from ingot.engines.sqlite.rows import JobRow, State, job_of, new_job_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Later, Transaction, as_json
from ingot.identity.model import TenantNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.errors import DuplicateJob, IdempotencyMismatch
from ingot.jobs.model import Enqueued, JobStatus, NewJob
from ingot.jobs.ports import Enqueue
from ingot.kernel.errors import IngotError

Accepted = tuple[NewJob, State]
Answers = list[Accepted | int]  # A number is that of the job which an idempotency key made before.


def enqueue(tx: Transaction, commands: Sequence[Enqueue]) -> list[Later | IngotError]:
    """Each command is accepted whole or not at all; all that are accepted are written together."""
    batch = _Batch(tx, [order for command in commands for order in command.orders])
    results: list[Answers | IngotError] = []
    for command in commands:
        try:
            results.append(batch.accept(command.orders))
        except IngotError as error:
            results.append(error)
    batch.write()
    return [result if isinstance(result, IngotError) else batch.answer(result) for result in results]


class _Batch:
    """The keys that are taken, in the file or by an earlier order of this batch, and what is to be written."""

    def __init__(self, tx: Transaction, orders: Sequence[NewJob]) -> None:
        self._tx = tx
        self._accepted: list[Accepted] = []
        self._made: dict[tuple[str, str, str], tuple[int, bytes | None]] = {}
        self._holders: dict[tuple[str, str], str] = {}
        # An order sent again after an unknown outcome carries the id it had before.
        self._there = tx.states([order.id for order in orders]) if tx.careful else {}
        tenants = tx.memory.tenants
        keyed = [(o.tenant, o.type, o.idempotency_key) for o in orders if o.idempotency_key is not None]
        if keyed:
            asked = as_json([(tenants.get(tenant), type, key) for tenant, type, key in keyed])
            for at, number, digest in tx.read(list[tuple[int, int, str]], SQL.jobs_by_idempotency_key, asked):
                self._made[keyed[at]] = number, bytes.fromhex(digest)
        deduped = [(o.tenant, o.dedupe_key) for o in orders if o.dedupe_key is not None]
        if deduped:
            asked = as_json([(tenants.get(tenant), key) for tenant, key in deduped])
            for at, job_id in tx.read(list[tuple[int, str]], SQL.jobs_by_dedupe_key, asked):
                self._holders[deduped[at]] = job_id

    def accept(self, orders: Sequence[NewJob]) -> Answers:
        """Take all orders of a command, or raise and take none."""
        kept, made, holders = len(self._accepted), self._made, self._holders
        if any(order.idempotency_key or order.dedupe_key for order in orders):
            self._made, self._holders = made.copy(), holders.copy()
        try:
            return [self._accept_one(order) for order in orders]
        except IngotError:
            del self._accepted[kept:]
            self._made, self._holders = made, holders
            raise

    def _accept_one(self, order: NewJob) -> Accepted | int:
        tx = self._tx
        if order.tenant not in tx.memory.tenants:
            raise TenantNotFound(f"there is no tenant {order.tenant[:64]!r}")
        there = self._there.get(order.id)
        if there is not None and there.tenant == order.tenant:
            return there.number
        number = tx.memory.last_job_number + 1
        if order.idempotency_key is not None:
            made, digest = self._made.setdefault(
                (order.tenant, order.type, order.idempotency_key), (number, order.payload_digest)
            )
            if digest != order.payload_digest:
                raise IdempotencyMismatch
            if made != number:
                return made
        if order.dedupe_key is not None:
            holder = self._holders.setdefault((order.tenant, order.dedupe_key), order.id)
            if holder != order.id:
                raise DuplicateJob(f"the unfinished job {holder} holds this dedupe key", holder_id=holder)
        definition = tx.memory.definition(order.tenant, order.type)
        state = State(
            number=number,
            id=order.id,
            tenant=order.tenant,
            type=order.type,
            priority=order.priority or definition.priority,
            run_at=max(tx.now + order.delay, order.run_at or 0),
            max_attempts=order.max_attempts or definition.max_attempts,
            dedupe_key=order.dedupe_key,
        )
        tx.memory.last_job_number = number
        accepted = order, state
        self._accepted.append(accepted)
        if tx.careful:
            self._there[order.id] = state
        return accepted

    def write(self) -> None:
        """Write what was accepted."""
        tx = self._tx
        jobs: list[tuple[object, ...]] = []
        keys: list[tuple[object, ...]] = []
        tags: list[tuple[object, ...]] = []
        ready: Counter[tuple[str, str, str]] = Counter()
        for order, state in self._accepted:
            if state.run_at <= tx.now:
                ready[state.type, state.tenant, state.limit_key] += 1
            else:
                tx.queue_up(state, state.run_at)
            tx.moved(state, None, JobStatus.QUEUED)
            tx.emit("job.created", state)
            jobs.append(
                (
                    state.number,
                    order.payload,
                    order.metadata,
                    tx.now,
                    order.source,
                    order.source_ref,
                    order.created_by,
                    order.correlation_id,
                    order.trace_id,
                    order.idempotency_key,
                    order.depth,
                )
            )
            tenant = tx.memory.tenants[order.tenant]
            if order.idempotency_key is not None:
                keys.append((tenant, order.type, order.idempotency_key, state.number, order.payload_digest))
            tags += [(state.number, tag, tenant) for tag in order.tags]
        for lane, number in ready.items():
            tx.tell_ready(Lane(*lane), number)
        tx.write_rows(SQL.insert_jobs, jobs)
        tx.insert_states([state for _, state in self._accepted])
        tx.write_rows(SQL.insert_idempotency_keys, keys)
        tx.write_rows(SQL.insert_tags, tags)

    def answer(self, answers: Answers) -> Later:
        """The jobs that were accepted, and those that were there before."""
        known = [answer for answer in answers if isinstance(answer, int)]
        rows = self._tx.whole_jobs(known) if known else {}
        return Later(partial(_enqueued, answers, rows, self._tx.now))


def _enqueued(answers: Answers, rows: dict[int, JobRow], now: int) -> list[Enqueued]:
    return [
        Enqueued(job=job_of(rows[answer].state, rows[answer].body), created=False)
        if isinstance(answer, int)
        else Enqueued(job=new_job_of(*answer, now), created=True)
        for answer in answers
    ]
