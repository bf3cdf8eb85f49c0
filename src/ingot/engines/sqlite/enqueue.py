"""Accepting jobs."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.engines.sqlite.rows import State, body_of, job_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity.model import TenantNotFound
from ingot.jobs.errors import DuplicateJob, IdempotencyMismatch
from ingot.jobs.model import Enqueued, JobStatus, NewJob
from ingot.jobs.ports import Enqueue
from ingot.kernel.errors import IngotError

Answers = list[Enqueued | str]  # A text is the id of the job that an idempotency key made before.


def enqueue(tx: Transaction, commands: Sequence[Enqueue]) -> list[list[Enqueued] | IngotError]:
    """Each command is accepted whole or not at all; all that are accepted are written together."""
    batch = _Batch(tx, [order for command in commands for order in command.orders])
    results: list[Answers | IngotError] = []
    for command in commands:
        try:
            results.append(batch.accept(command.orders))
        except IngotError as error:
            results.append(error)
    batch.write()
    return [result if isinstance(result, IngotError) else batch.fill_in(result) for result in results]


class _Batch:
    """The keys that are taken, in the file or by an earlier order of this batch, and what is to be written."""

    def __init__(self, tx: Transaction, orders: Sequence[NewJob]) -> None:
        self._tx = tx
        self._accepted: list[tuple[NewJob, State]] = []
        keyed = [order for order in orders if order.idempotency_key is not None]
        self._made: dict[tuple[str, str, str | None], tuple[str, bytes | None]] = {}
        if keyed:
            asked = [(order.tenant, order.type, order.idempotency_key) for order in keyed]
            for at, job_id, digest in tx.read(list[tuple[int, str, str]], SQL.jobs_by_idempotency_key, as_json(asked)):
                self._made[asked[at]] = job_id, bytes.fromhex(digest)
        deduped = [(order.tenant, order.dedupe_key) for order in orders if order.dedupe_key is not None]
        self._holders: dict[tuple[str, str | None], str] = {}
        if deduped:
            for at, job_id in tx.read(list[tuple[int, str]], SQL.jobs_by_dedupe_key, as_json(deduped)):
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

    def _accept_one(self, order: NewJob) -> Enqueued | str:
        tx = self._tx
        if order.tenant not in tx.memory.tenants:
            raise TenantNotFound(f"there is no tenant {order.tenant[:64]!r}")
        key = order.tenant, order.type, order.idempotency_key
        if order.idempotency_key is not None:
            if key in self._made:
                job_id, digest = self._made[key]
                if digest != order.payload_digest:
                    raise IdempotencyMismatch(job_id=job_id)
                return job_id
            self._made[key] = order.id, order.payload_digest
        if order.dedupe_key is not None:
            holder = self._holders.setdefault((order.tenant, order.dedupe_key), order.id)
            if holder != order.id:
                raise DuplicateJob(f"the unfinished job {holder} holds this dedupe key", holder_id=holder)
        definition = tx.memory.definition(order.tenant, order.type)
        run_at = max(tx.now + order.delay, order.run_at or 0)
        state = State(
            order.id,
            0,
            order.tenant,
            order.type,
            "",
            JobStatus.QUEUED,
            run_at <= tx.now,
            order.priority or definition.priority,
            run_at,
            0,
            0,
            0,
            order.max_attempts or definition.max_attempts,
            0,
            order.dedupe_key,
            None,
            None,
            None,
            False,
            None,
            None,
            0,
            None,
        )
        self._accepted.append((order, state))
        return Enqueued(job=job_of(state, body_of(order, tx.now)), created=True)

    def write(self) -> None:
        """Write what was accepted."""
        tx = self._tx
        jobs, states, keys, tags = [], [], [], []
        for order, state in self._accepted:
            tx.memory.last_body += 1
            state.body = tx.memory.last_body
            tx.queue_up(state, state.run_at)
            tx.moved(state, None, JobStatus.QUEUED)
            tx.emit("job.created", state)
            jobs.append(
                (
                    state.body,
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
            states.append(
                (
                    state.id,
                    state.body,
                    state.tenant,
                    state.type,
                    state.limit_key,
                    state.status,
                    state.due,
                    state.priority,
                    state.run_at,
                    0,
                    0,
                    0,
                    state.max_attempts,
                    0,
                    state.dedupe_key,
                    None,
                    None,
                    None,
                    0,
                    None,
                    None,
                    0,
                    None,
                )
            )
            if order.idempotency_key is not None:
                keys.append((order.tenant, order.type, order.idempotency_key, order.id, order.payload_digest))
            tags += [(order.id, tag, order.tenant) for tag in order.tags]
        tx.write_rows(SQL.insert_jobs, jobs)
        tx.write_rows(SQL.insert_states, states)
        tx.write_rows(SQL.insert_idempotency_keys, keys)
        tx.write_rows(SQL.insert_tags, tags)

    def fill_in(self, answers: Answers) -> list[Enqueued]:
        """Put the jobs that were there before in place of their ids."""
        known = [answer for answer in answers if isinstance(answer, str)]
        if not known:
            return [answer for answer in answers if isinstance(answer, Enqueued)]
        rows = self._tx.whole_jobs(known)
        return [
            answer
            if isinstance(answer, Enqueued)
            else Enqueued(job=job_of(rows[answer].state, rows[answer].body), created=False)
            for answer in answers
        ]
