"""Enqueueing jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

import msgspec

from ingot.engines.jobs import AcceptedValues, has_files, inputs_text, new_job_of
from ingot.engines.sqlite.blob_batch import BlobBatch
from ingot.engines.sqlite.dependents import release_dependents
from ingot.engines.sqlite.job_files import OrderFiles
from ingot.engines.sqlite.job_rows import JobRow, JobState, ReadyPosition, job_of
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.tenant_caps import TenantCaps, check_and_count_type
from ingot.engines.sqlite.transaction import DeferredAnswer, Transaction, as_json
from ingot.engines.sqlite.uploads import new_upload_row
from ingot.identity.model import TenantNotFound
from ingot.jobs.dependencies import resolve_parents
from ingot.jobs.errors import DuplicateJob, ParentNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.limits import render_limit_key
from ingot.jobs.model import Enqueued, JobStatus, NewJob, OnDead
from ingot.jobs.ports import Enqueue
from ingot.jobs.reuse import reuse_key
from ingot.kernel.errors import IdempotencyMismatch, IngotError

AcceptedOrder = tuple[NewJob, JobState]
ParentRow = tuple[str, str, int, bool]  # The ID, tenant and number of a parent, and whether it is finished.


class ReusedJob(msgspec.Struct, frozen=True):
    """The number of an existing job that is reused, and the ID of the order that it answers."""

    number: int
    order_id: str


# A number is that of an existing job with the idempotency key or the ID of the order.
OrderAnswer = AcceptedOrder | int | ReusedJob
OrderAnswers = list[OrderAnswer]


def enqueue(tx: Transaction, commands: Sequence[Enqueue]) -> list[DeferredAnswer | IngotError]:
    """Accept each command whole or not at all, and write all accepted jobs together."""
    batch = _EnqueueBatch(tx, [order for command in commands for order in command.jobs])
    results: list[OrderAnswers | IngotError] = []
    for command in commands:
        try:
            results.append(batch.accept(command.jobs))
        except IngotError as error:
            results.append(error)
    batch.write()
    release_dependents(tx)
    return [result if isinstance(result, IngotError) else batch.answer(result) for result in results]


class _EnqueueBatch:
    """The accepted orders of a batch of commands, and the keys that are taken in the file or by earlier orders."""

    def __init__(self, tx: Transaction, orders: Sequence[NewJob]) -> None:
        self._tx = tx
        self._created_at = max(tx.now, tx.writer_state.newest_created_at)
        self._accepted: list[AcceptedOrder] = []
        self._new_types: list[tuple[str, str]] = []  # Tenants and their types that had no jobs.
        self._jobs_by_idempotency_key: dict[tuple[str, str, str], tuple[int, bytes | None]] = {}
        self._dedupe_holders: dict[tuple[str, str], str] = {}
        self._caps = TenantCaps(tx, {order.tenant for order in orders})
        self._order_files = OrderFiles(tx, orders)
        # An order that is repeated after an unknown outcome has the same ID, and must not be counted again.
        self._checks_ids = tx.retrying or self._caps.any_limited or len({order.id for order in orders}) < len(orders)
        self._existing_states = tx.job_states([order.id for order in orders]) if self._checks_ids else {}
        tenants = tx.writer_state.tenants
        keyed = [(o.tenant, o.type, o.idempotency_key) for o in orders if o.idempotency_key is not None]
        if keyed:
            keys = as_json([(tenants.get(tenant), type, key) for tenant, type, key in keyed])
            for index, number, digest in tx.read(list[tuple[int, int, str]], SQL.jobs_by_idempotency_key, keys):
                self._jobs_by_idempotency_key[keyed[index]] = number, bytes.fromhex(digest)
        deduped = [(o.tenant, o.dedupe_key) for o in orders if o.dedupe_key is not None]
        if deduped:
            keys = as_json([(tenants.get(tenant), key) for tenant, key in deduped])
            for index, job_id in tx.read(list[tuple[int, str]], SQL.jobs_by_dedupe_key, keys):
                self._dedupe_holders[deduped[index]] = job_id
        self._has_keys = bool(keyed or deduped)
        self._reusable: dict[tuple[str, str, bytes], int] = {}
        kinds = {(order.tenant, order.type) for order in orders}
        reuse_keys = []
        if any(tx.writer_state.definition(*kind).reuse for kind in kinds):
            reuse_keys = [key for order in orders if (key := _reuse_key(tx, order)) is not None]
        self._has_reuse = bool(reuse_keys)
        self._has_existing = False  # Whether existing jobs answer some of the orders.
        if reuse_keys:
            keys = as_json([(tenants.get(tenant), type, key.hex()) for tenant, type, key in reuse_keys])
            for index, number in tx.read(list[tuple[int, int]], SQL.jobs_by_reuse_key, keys):
                self._reusable[reuse_keys[index]] = number
        self._parents: dict[tuple[str, str], tuple[int, bool]] = {}
        parent_ids = {parent for order in orders for parent in order.after}
        self._has_parents = bool(parent_ids)
        if parent_ids:
            parents = tx.read(list[ParentRow], SQL.parents_by_id, as_json(sorted(parent_ids)))
            self._parents = {(tenant, job_id): (number, ended) for job_id, tenant, number, ended in parents}

    def accept(self, orders: Sequence[NewJob]) -> OrderAnswers:
        """Accept all orders of a command, or raise and accept none."""
        accepted_before, idempotent_jobs = len(self._accepted), self._jobs_by_idempotency_key
        dedupe_holders, reusable, types_before = self._dedupe_holders, self._reusable, len(self._new_types)
        if self._has_reuse:
            self._reusable = reusable.copy()
        if self._has_keys and any(order.idempotency_key or order.dedupe_key for order in orders):
            self._jobs_by_idempotency_key, self._dedupe_holders = idempotent_jobs.copy(), dedupe_holders.copy()
        try:
            answers = [self._accept_one(order) for order in orders]
            if self._has_parents and any(order.after for order in orders):
                answers = self._resolve_parents(orders, answers, accepted_before)
                self._check_parents(self._accepted[accepted_before:])
            if self._order_files.has_any or self._caps.any_limited:
                self._count_orders([order for order, _ in self._accepted[accepted_before:]])
            return answers
        except IngotError:
            for order, _ in self._accepted[accepted_before:]:
                self._existing_states.pop(order.id, None)
            del self._accepted[accepted_before:]
            for tenant, type in self._new_types[types_before:]:
                self._tx.writer_state.types[tenant].discard(type)
            del self._new_types[types_before:]
            self._jobs_by_idempotency_key = idempotent_jobs
            self._dedupe_holders, self._reusable = dedupe_holders, reusable
            raise

    def _count_orders(self, orders: Sequence[NewJob]) -> None:
        """Count new jobs and their files against caps and quotas, or raise and count none of them."""
        undo = self._order_files.charge(orders) if self._order_files.has_any else None
        try:
            if self._caps.any_limited:
                self._caps.check_and_count_jobs(Counter(order.tenant for order in orders))
        except IngotError:
            if undo is not None:
                undo()
            raise

    def _accept_one(self, order: NewJob) -> OrderAnswer:
        tx = self._tx
        if order.tenant not in tx.writer_state.tenants:
            raise TenantNotFound(f"there is no tenant {order.tenant[:64]!r}")
        existing = self._existing_states.get(order.id)
        if existing is not None and existing.tenant == order.tenant:
            self._has_existing = True
            return existing.number
        number = tx.writer_state.last_job_number + 1
        key = None if order.idempotency_key is None else (order.tenant, order.type, order.idempotency_key)
        if key is not None and key in self._jobs_by_idempotency_key:
            existing_number, digest = self._jobs_by_idempotency_key[key]
            if digest != order.payload_digest:
                raise IdempotencyMismatch
            self._has_existing = True
            return existing_number
        if self._has_reuse and (reusable_key := _reuse_key(tx, order)) is not None:
            if reusable_key in self._reusable and not order.force:
                self._has_existing = True
                return ReusedJob(self._reusable[reusable_key], order.id)
            self._reusable[reusable_key] = number
        if key is not None:
            self._jobs_by_idempotency_key[key] = number, order.payload_digest
        if order.dedupe_key is not None:
            holder = self._dedupe_holders.setdefault((order.tenant, order.dedupe_key), order.id)
            if holder != order.id:
                raise DuplicateJob(f"the unfinished job {holder} holds this dedupe key", holder_id=holder)
        if order.type not in tx.writer_state.types[order.tenant]:
            check_and_count_type(tx, order.tenant, order.type)
            self._new_types.append((order.tenant, order.type))
        definition = tx.writer_state.definition(order.tenant, order.type)
        state = JobState(
            number=number,
            id=order.id,
            tenant=order.tenant,
            type=order.type,
            priority=order.priority or definition.priority,
            run_at=max(tx.now + order.delay, order.run_at or 0),
            max_attempts=order.max_attempts or definition.max_attempts,
            limit_key="" if definition.limit_key is None else render_limit_key(definition.limit_key, order.payload),
            dedupe_key=order.dedupe_key,
            status=JobStatus.BLOCKED if order.after or order.uploads else JobStatus.QUEUED,
            batch=order.batch,
        )
        tx.writer_state.last_job_number = number
        accepted = order, state
        self._accepted.append(accepted)
        if self._checks_ids:
            self._existing_states[order.id] = state
        return accepted

    def _resolve_parents(self, orders: Sequence[NewJob], answers: OrderAnswers, accepted_before: int) -> OrderAnswers:
        """Where existing jobs answer parents of the same call, let the orders wait for these jobs instead."""
        accepted_ids = {state.number: state.id for _, state in self._accepted}
        numbers = {order.id: number for order, answer in zip(orders, answers, strict=True)
                   if (number := _existing_number(answer)) is not None}  # fmt: skip
        existing = [number for number in numbers.values() if number not in accepted_ids]
        existing_rows = self._tx.whole_jobs(existing) if numbers else {}
        job_ids = {id: accepted_ids.get(number) or existing_rows[number].state.id for id, number in numbers.items()}
        if all(id == job_id for id, job_id in job_ids.items()):
            return answers
        states = [state for _, state in self._accepted[accepted_before:]]
        resolved = resolve_parents([order for order, _ in self._accepted[accepted_before:]], job_ids)
        self._accepted[accepted_before:] = zip(resolved, states, strict=True)
        for number, row in existing_rows.items():
            self._parents[row.state.tenant, row.state.id] = number, row.state.status in FINISHED
        renamed = {state.number: (order, state) for order, state in self._accepted[accepted_before:]}
        return [renamed[answer[1].number] if isinstance(answer, tuple) else answer for answer in answers]

    def _check_parents(self, accepted: Sequence[AcceptedOrder]) -> None:
        """Raise `ParentNotFound` if a parent of these orders does not exist."""
        own_parents = {(order.tenant, order.id): (state.number, False) for order, state in accepted}
        for order, _ in accepted:
            for parent in order.after:
                if (order.tenant, parent) not in self._parents and (order.tenant, parent) not in own_parents:
                    raise ParentNotFound(f"there is no job {parent} in this tenant")
        self._parents.update(own_parents)

    def write(self) -> None:
        """Write the accepted jobs."""
        tx = self._tx
        jobs: list[tuple[object, ...]] = []
        keys: list[tuple[object, ...]] = []
        tags: list[tuple[object, ...]] = []
        reusable: list[tuple[object, ...]] = []
        waits: list[tuple[object, ...]] = []
        files: list[tuple[object, ...]] = []
        blob_batch = BlobBatch(tx) if self._order_files.has_any else None
        ready: defaultdict[tuple[str, str, str], list[ReadyPosition]] = defaultdict(list)
        for order, state in self._accepted:
            reusable_key = _reuse_key(tx, order) if self._has_reuse else None
            if order.after:
                waits += self._dependency_rows(order, state)
            elif order.uploads:
                pass  # The job is queued when its uploads are complete.
            elif state.run_at <= tx.now:
                ready[state.type, state.tenant, state.limit_key].append(state.position)
            else:
                tx.queue_job(state, state.run_at)
            tx.record_transition(state, None, state.status)
            tx.emit("job.created", state)
            jobs.append(
                (
                    state.number,
                    order.payload,
                    order.metadata,
                    self._created_at,
                    order.source,
                    order.source_ref,
                    order.created_by,
                    order.correlation_id,
                    order.trace_id,
                    order.idempotency_key,
                    inputs_text(order),
                    order.payload_blob,
                    None if reusable_key is None else reusable_key[2],
                    order.depth,
                )
            )
            tenant = tx.writer_state.tenants[order.tenant]
            if order.idempotency_key is not None:
                keys.append((tenant, order.type, order.idempotency_key, state.number, order.payload_digest))
            if reusable_key is not None:
                reusable.append((tenant, order.type, reusable_key[2], state.number))
            if blob_batch is not None and has_files(order):
                files += self._order_files.file_rows(order, state.number)
                for upload in order.uploads:
                    blob_batch.save_upload(new_upload_row(upload, tx.now))
            tags += [(state.number, tag, tenant) for tag in order.tags]
        for lane, positions in ready.items():
            tx.announce_ready(Lane(*lane), len(positions), first=min(positions))
        tx.write_rows(SQL.insert_jobs, jobs)
        tx.writer_state.newest_created_at = self._created_at
        tx.insert_states([state for _, state in self._accepted])
        for statement, rows in (
            (SQL.insert_idempotency_keys, keys),
            (SQL.insert_reuse_keys, reusable),
            (SQL.insert_tags, tags),
            (SQL.insert_waits, waits),
            (SQL.put_job_files, files),
        ):
            if rows:
                tx.write_rows(statement, rows)
        if blob_batch is not None:
            blob_batch.write()

    def _dependency_rows(self, order: NewJob, state: JobState) -> list[tuple[object, ...]]:
        """Return the rows of a job's dependencies. Finished parents are released like those that finish later."""
        parents = [(parent, *self._parents[order.tenant, parent]) for parent in order.after]
        self._tx.writer_state.parents.update(number for _, number, _ in parents)
        self._tx.writer_state.ended_parents.update(number for _, number, ended in parents if ended)
        return [(state.number, number, parent, order.on_dead is OnDead.RUN) for parent, number, _ in parents]

    def answer(self, answers: OrderAnswers) -> DeferredAnswer:
        """Return the answer to a command, with accepted and existing jobs."""
        rows: dict[int, JobRow] = {}
        if self._has_existing:
            numbers = [number for answer in answers if (number := _existing_number(answer)) is not None]
            rows = self._tx.whole_jobs(numbers) if numbers else {}
        return DeferredAnswer(partial(_enqueued, rows, self._created_at), answers)


def _enqueued(rows: dict[int, JobRow], created_at: int, answer: OrderAnswer) -> Enqueued:
    if isinstance(answer, tuple):
        order, state = answer
        values = AcceptedValues(state.priority, state.run_at, state.max_attempts, created_at, state.limit_key)
        return Enqueued(job=new_job_of(order, values), created=True)
    row = rows[answer.number if isinstance(answer, ReusedJob) else answer]
    job = job_of(row.state, row.body)
    reused = isinstance(answer, ReusedJob) and answer.order_id != job.id  # Otherwise the order was repeated.
    return Enqueued(job=job, created=False, reused=reused)


def _existing_number(answer: OrderAnswer) -> int | None:
    """Return the number of an existing job, or `None` for an accepted order."""
    if isinstance(answer, tuple):
        return None
    return answer.number if isinstance(answer, ReusedJob) else answer


def _reuse_key(tx: Transaction, order: NewJob) -> tuple[str, str, bytes] | None:
    """Return the reuse key of an order, or `None` if its definition does not allow reuse."""
    key = reuse_key(tx.writer_state.definition(order.tenant, order.type), order)
    return None if key is None else (order.tenant, order.type, key)
