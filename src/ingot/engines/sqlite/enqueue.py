"""Accepting jobs."""

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
from ingot.engines.sqlite.tenant_caps import TenantCaps
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
ParentRow = tuple[str, str, int, bool]  # id, tenant, number, and whether it has ended


class ReusedJob(msgspec.Struct, frozen=True):
    """The number of a job that answers because it asks for the same, and the id of the order that it answers."""

    number: int
    order: str


OrderAnswers = list[
    AcceptedOrder | int | ReusedJob
]  # A number is that of the job which an idempotency key made before.


def enqueue(tx: Transaction, commands: Sequence[Enqueue]) -> list[DeferredAnswer | IngotError]:
    """Each command is accepted whole or not at all; all that are accepted are written together."""
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
    """The keys that are taken, in the file or by an earlier order of this batch, and what is to be written."""

    def __init__(self, tx: Transaction, orders: Sequence[NewJob]) -> None:
        self._tx = tx
        self._accepted: list[AcceptedOrder] = []
        self._jobs_by_idempotency_key: dict[tuple[str, str, str], tuple[int, bytes | None]] = {}
        self._dedupe_holders: dict[tuple[str, str], str] = {}
        self._caps = TenantCaps(tx, {order.tenant for order in orders})
        self._order_files = OrderFiles(tx, orders)
        # An order sent again after an unknown outcome carries the id it had before, and is not counted again.
        self._checks_ids = tx.retrying or self._caps.any_limited or len({order.id for order in orders}) < len(orders)
        self._existing_states = tx.job_states([order.id for order in orders]) if self._checks_ids else {}
        tenants = tx.writer_state.tenants
        keyed = [(o.tenant, o.type, o.idempotency_key) for o in orders if o.idempotency_key is not None]
        if keyed:
            asked = as_json([(tenants.get(tenant), type, key) for tenant, type, key in keyed])
            for at, number, digest in tx.read(list[tuple[int, int, str]], SQL.jobs_by_idempotency_key, asked):
                self._jobs_by_idempotency_key[keyed[at]] = number, bytes.fromhex(digest)
        deduped = [(o.tenant, o.dedupe_key) for o in orders if o.dedupe_key is not None]
        if deduped:
            asked = as_json([(tenants.get(tenant), key) for tenant, key in deduped])
            for at, job_id in tx.read(list[tuple[int, str]], SQL.jobs_by_dedupe_key, asked):
                self._dedupe_holders[deduped[at]] = job_id
        self._has_keys = bool(keyed or deduped)
        self._reusable: dict[tuple[str, str, bytes], int] = {}
        kinds = {(order.tenant, order.type) for order in orders}
        same = []
        if any(tx.writer_state.definition(*kind).reuse for kind in kinds):
            same = [key for order in orders if (key := _reuse_key(tx, order)) is not None]
        self._has_reuse = bool(same)
        self._has_existing = False  # Whether jobs that were there before answer some orders.
        if same:
            asked = as_json([(tenants.get(tenant), type, key.hex()) for tenant, type, key in same])
            for at, number in tx.read(list[tuple[int, int]], SQL.jobs_by_reuse_key, asked):
                self._reusable[same[at]] = number
        self._parents: dict[tuple[str, str], tuple[int, bool]] = {}
        wanted = {parent for order in orders for parent in order.after}
        self._has_parents = bool(wanted)
        if wanted:
            for job_id, tenant, number, ended in tx.read(list[ParentRow], SQL.parents_by_id, as_json(sorted(wanted))):
                self._parents[tenant, job_id] = number, ended

    def accept(self, orders: Sequence[NewJob]) -> OrderAnswers:
        """Take all orders of a command, or raise and take none."""
        kept, made, holders, reusable = (
            len(self._accepted),
            self._jobs_by_idempotency_key,
            self._dedupe_holders,
            self._reusable,
        )
        if self._has_reuse:
            self._reusable = reusable.copy()
        if self._has_keys and any(order.idempotency_key or order.dedupe_key for order in orders):
            self._jobs_by_idempotency_key, self._dedupe_holders = made.copy(), holders.copy()
        try:
            answers = [self._accept_one(order) for order in orders]
            if self._has_parents and any(order.after for order in orders):
                answers = self._resolve_parents(orders, answers, kept)
                self._check_parents(self._accepted[kept:])
            if self._order_files.has_any or self._caps.any_limited:
                self._count_orders([order for order, _ in self._accepted[kept:]])
            return answers
        except IngotError:
            for order, _ in self._accepted[kept:]:
                self._existing_states.pop(order.id, None)
            del self._accepted[kept:]
            self._jobs_by_idempotency_key, self._dedupe_holders, self._reusable = made, holders, reusable
            raise

    def _count_orders(self, orders: Sequence[NewJob]) -> None:
        """Count new jobs and their files, or raise and count none of them."""
        undo = self._order_files.charge(orders) if self._order_files.has_any else None
        try:
            if self._caps.any_limited:
                self._caps.count_jobs(Counter(order.tenant for order in orders))
        except IngotError:
            if undo is not None:
                undo()
            raise

    def _accept_one(self, order: NewJob) -> AcceptedOrder | int | ReusedJob:
        tx = self._tx
        if order.tenant not in tx.writer_state.tenants:
            raise TenantNotFound(f"there is no tenant {order.tenant[:64]!r}")
        there = self._existing_states.get(order.id)
        if there is not None and there.tenant == order.tenant:
            self._has_existing = True
            return there.number
        number = tx.writer_state.last_job_number + 1
        key = None if order.idempotency_key is None else (order.tenant, order.type, order.idempotency_key)
        if key is not None and key in self._jobs_by_idempotency_key:
            made, digest = self._jobs_by_idempotency_key[key]
            if digest != order.payload_digest:
                raise IdempotencyMismatch
            self._has_existing = True
            return made
        if self._has_reuse and (same := _reuse_key(tx, order)) is not None:
            if same in self._reusable and not order.force:
                self._has_existing = True
                return ReusedJob(self._reusable[same], order.id)
            self._reusable[same] = number
        if key is not None:
            self._jobs_by_idempotency_key[key] = number, order.payload_digest
        if order.dedupe_key is not None:
            holder = self._dedupe_holders.setdefault((order.tenant, order.dedupe_key), order.id)
            if holder != order.id:
                raise DuplicateJob(f"the unfinished job {holder} holds this dedupe key", holder_id=holder)
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

    def _resolve_parents(self, orders: Sequence[NewJob], answers: OrderAnswers, kept: int) -> OrderAnswers:
        """Let orders of the call wait for the jobs that answer those they name."""
        own = {state.number: state.id for _, state in self._accepted}
        numbers = {order.id: number for order, answer in zip(orders, answers, strict=True)
                   if (number := _existing_number(answer)) is not None}  # fmt: skip
        there = self._tx.whole_jobs([number for number in numbers.values() if number not in own]) if numbers else {}
        names = {id: own.get(number) or there[number].state.id for id, number in numbers.items()}
        if all(id == name for id, name in names.items()):
            return answers
        states = [state for _, state in self._accepted[kept:]]
        waiting = resolve_parents([order for order, _ in self._accepted[kept:]], names)
        self._accepted[kept:] = zip(waiting, states, strict=True)
        for number, row in there.items():
            self._parents[row.state.tenant, row.state.id] = number, row.state.status in FINISHED
        renamed = {state.number: (order, state) for order, state in self._accepted[kept:]}
        return [renamed[answer[1].number] if isinstance(answer, tuple) else answer for answer in answers]

    def _check_parents(self, accepted: Sequence[AcceptedOrder]) -> None:
        """Raise `ParentNotFound` when one of these would wait for what is not there."""
        inside = {(order.tenant, order.id): (state.number, False) for order, state in accepted}
        for order, _ in accepted:
            for parent in order.after:
                if (order.tenant, parent) not in self._parents and (order.tenant, parent) not in inside:
                    raise ParentNotFound(f"there is no job {parent} in this tenant")
        self._parents.update(inside)

    def write(self) -> None:
        """Write what was accepted."""
        tx = self._tx
        jobs: list[tuple[object, ...]] = []
        keys: list[tuple[object, ...]] = []
        tags: list[tuple[object, ...]] = []
        reusable: list[tuple[object, ...]] = []
        waits: list[tuple[object, ...]] = []
        files: list[tuple[object, ...]] = []
        shelf = BlobBatch(tx) if self._order_files.has_any else None
        ready: defaultdict[tuple[str, str, str], list[ReadyPosition]] = defaultdict(list)
        for order, state in self._accepted:
            same = _reuse_key(tx, order) if self._has_reuse else None
            if order.after:
                waits += self._dependency_rows(order, state)
            elif order.uploads:
                pass  # It waits for these.
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
                    tx.now,
                    order.source,
                    order.source_ref,
                    order.created_by,
                    order.correlation_id,
                    order.trace_id,
                    order.idempotency_key,
                    inputs_text(order),
                    order.payload_blob,
                    None if same is None else same[2],
                    order.depth,
                )
            )
            tenant = tx.writer_state.tenants[order.tenant]
            if order.idempotency_key is not None:
                keys.append((tenant, order.type, order.idempotency_key, state.number, order.payload_digest))
            if same is not None:
                reusable.append((tenant, order.type, same[2], state.number))
            if shelf is not None and has_files(order):
                files += self._order_files.file_rows(order, state.number)
                for upload in order.uploads:
                    shelf.save_upload(new_upload_row(upload, tx.now))
            tags += [(state.number, tag, tenant) for tag in order.tags]
        for lane, places in ready.items():
            tx.announce_ready(Lane(*lane), len(places), first=min(places))
        tx.write_rows(SQL.insert_jobs, jobs)
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
        if shelf is not None:
            shelf.write()

    def _dependency_rows(self, order: NewJob, state: JobState) -> list[tuple[object, ...]]:
        """Whom this job waits for; one that has ended already is looked at like one that ends later."""
        parents = [(parent, *self._parents[order.tenant, parent]) for parent in order.after]
        self._tx.writer_state.parents.update(number for _, number, _ in parents)
        self._tx.writer_state.ended_parents.update(number for _, number, ended in parents if ended)
        return [(state.number, number, parent, order.on_dead is OnDead.RUN) for parent, number, _ in parents]

    def answer(self, answers: OrderAnswers) -> DeferredAnswer:
        """The jobs that were accepted, and those that were there before."""
        rows: dict[int, JobRow] = {}
        if self._has_existing:
            known = [number for answer in answers if (number := _existing_number(answer)) is not None]
            rows = self._tx.whole_jobs(known) if known else {}
        return DeferredAnswer(partial(_enqueued, answers, rows, self._tx.now))


def _enqueued(answers: OrderAnswers, rows: dict[int, JobRow], now: int) -> list[Enqueued]:
    enqueued: list[Enqueued] = []
    for answer in answers:
        if isinstance(answer, tuple):
            order, state = answer
            made = AcceptedValues(state.priority, state.run_at, state.max_attempts, now, state.limit_key)
            enqueued.append(Enqueued(job=new_job_of(order, made), created=True))
        else:
            row = rows[answer.number if isinstance(answer, ReusedJob) else answer]
            job = job_of(row.state, row.body)
            reused = isinstance(answer, ReusedJob) and answer.order != job.id  # Otherwise the order was sent again.
            enqueued.append(Enqueued(job=job, created=False, reused=reused))
    return enqueued


def _existing_number(answer: AcceptedOrder | int | ReusedJob) -> int | None:
    """The number of a job that was there before."""
    if isinstance(answer, tuple):
        return None
    return answer.number if isinstance(answer, ReusedJob) else answer


def _reuse_key(tx: Transaction, order: NewJob) -> tuple[str, str, bytes] | None:
    """What this order shares with those that ask for the same; `None` when nobody can."""
    key = reuse_key(tx.writer_state.definition(order.tenant, order.type), order)
    return None if key is None else (order.tenant, order.type, key)
