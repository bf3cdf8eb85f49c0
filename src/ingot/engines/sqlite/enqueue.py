"""Accepting jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

import msgspec

from ingot.engines.jobs import Made, has_files, inputs_text, new_job_of
from ingot.engines.sqlite.caps import Caps
from ingot.engines.sqlite.follow import follow
from ingot.engines.sqlite.job_files import Given
from ingot.engines.sqlite.rows import JobRow, Place, State, job_of
from ingot.engines.sqlite.shelf import Shelf
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Later, Transaction, as_json
from ingot.engines.sqlite.uploads import begun
from ingot.identity.model import TenantNotFound
from ingot.jobs.after import wait_for
from ingot.jobs.errors import DuplicateJob, ParentNotFound
from ingot.jobs.lanes import Lane
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.limits import render
from ingot.jobs.model import Enqueued, JobStatus, NewJob, OnDead
from ingot.jobs.ports import Enqueue
from ingot.jobs.reuse import reuse_key
from ingot.kernel.errors import IdempotencyMismatch, IngotError

Accepted = tuple[NewJob, State]
Parent = tuple[str, str, int, bool]  # id, tenant, number, and whether it has ended


class Reused(msgspec.Struct, frozen=True):
    """The number of a job that answers because it asks for the same, and the id of the order that it answers."""

    number: int
    order: str


Answers = list[Accepted | int | Reused]  # A number is that of the job which an idempotency key made before.


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
    follow(tx)
    return [result if isinstance(result, IngotError) else batch.answer(result) for result in results]


class _Batch:
    """The keys that are taken, in the file or by an earlier order of this batch, and what is to be written."""

    def __init__(self, tx: Transaction, orders: Sequence[NewJob]) -> None:
        self._tx = tx
        self._accepted: list[Accepted] = []
        self._made: dict[tuple[str, str, str], tuple[int, bytes | None]] = {}
        self._holders: dict[tuple[str, str], str] = {}
        self._caps = Caps(tx, {order.tenant for order in orders})
        self._given = Given(tx, orders)
        # An order sent again after an unknown outcome carries the id it had before, and is not counted again.
        self._careful = tx.careful or self._caps.some or len({order.id for order in orders}) < len(orders)
        self._there = tx.states([order.id for order in orders]) if self._careful else {}
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
        self._has_keys = bool(keyed or deduped)
        self._reusable: dict[tuple[str, str, bytes], int] = {}
        kinds = {(order.tenant, order.type) for order in orders}
        same = []
        if any(tx.memory.definition(*kind).reuse for kind in kinds):
            same = [key for order in orders if (key := _reuse_key(tx, order)) is not None]
        self._reuses = bool(same)
        self._answered = False  # Whether jobs that were there before answer some orders.
        if same:
            asked = as_json([(tenants.get(tenant), type, key.hex()) for tenant, type, key in same])
            for at, number in tx.read(list[tuple[int, int]], SQL.jobs_by_reuse_key, asked):
                self._reusable[same[at]] = number
        self._parents: dict[tuple[str, str], tuple[int, bool]] = {}
        wanted = {parent for order in orders for parent in order.after}
        self._waits = bool(wanted)
        if wanted:
            for job_id, tenant, number, ended in tx.read(list[Parent], SQL.parents_by_id, as_json(sorted(wanted))):
                self._parents[tenant, job_id] = number, ended

    def accept(self, orders: Sequence[NewJob]) -> Answers:
        """Take all orders of a command, or raise and take none."""
        kept, made, holders, reusable = len(self._accepted), self._made, self._holders, self._reusable
        if self._reuses:
            self._reusable = reusable.copy()
        if self._has_keys and any(order.idempotency_key or order.dedupe_key for order in orders):
            self._made, self._holders = made.copy(), holders.copy()
        try:
            answers = [self._accept_one(order) for order in orders]
            if self._waits and any(order.after for order in orders):
                answers = self._name_parents(orders, answers, kept)
                self._check_parents(self._accepted[kept:])
            if self._given.some or self._caps.some:
                self._count([order for order, _ in self._accepted[kept:]])
            return answers
        except IngotError:
            for order, _ in self._accepted[kept:]:
                self._there.pop(order.id, None)
            del self._accepted[kept:]
            self._made, self._holders, self._reusable = made, holders, reusable
            raise

    def _count(self, orders: Sequence[NewJob]) -> None:
        """Count new jobs and their files, or raise and count none of them."""
        undo = self._given.take(orders) if self._given.some else None
        try:
            if self._caps.some:
                self._caps.count(Counter(order.tenant for order in orders))
        except IngotError:
            if undo is not None:
                undo()
            raise

    def _accept_one(self, order: NewJob) -> Accepted | int | Reused:
        tx = self._tx
        if order.tenant not in tx.memory.tenants:
            raise TenantNotFound(f"there is no tenant {order.tenant[:64]!r}")
        there = self._there.get(order.id)
        if there is not None and there.tenant == order.tenant:
            self._answered = True
            return there.number
        number = tx.memory.last_job_number + 1
        key = None if order.idempotency_key is None else (order.tenant, order.type, order.idempotency_key)
        if key is not None and key in self._made:
            made, digest = self._made[key]
            if digest != order.payload_digest:
                raise IdempotencyMismatch
            self._answered = True
            return made
        if self._reuses and (same := _reuse_key(tx, order)) is not None:
            if same in self._reusable and not order.force:
                self._answered = True
                return Reused(self._reusable[same], order.id)
            self._reusable[same] = number
        if key is not None:
            self._made[key] = number, order.payload_digest
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
            limit_key="" if definition.limit_key is None else render(definition.limit_key, order.payload),
            dedupe_key=order.dedupe_key,
            status=JobStatus.BLOCKED if order.after or order.uploads else JobStatus.QUEUED,
            batch=order.batch,
        )
        tx.memory.last_job_number = number
        accepted = order, state
        self._accepted.append(accepted)
        if self._careful:
            self._there[order.id] = state
        return accepted

    def _name_parents(self, orders: Sequence[NewJob], answers: Answers, kept: int) -> Answers:
        """Let orders of the call wait for the jobs that answer those they name."""
        own = {state.number: state.id for _, state in self._accepted}
        numbers = {order.id: number for order, answer in zip(orders, answers, strict=True)
                   if (number := _number(answer)) is not None}  # fmt: skip
        there = self._tx.whole_jobs([number for number in numbers.values() if number not in own]) if numbers else {}
        names = {id: own.get(number) or there[number].state.id for id, number in numbers.items()}
        if all(id == name for id, name in names.items()):
            return answers
        states = [state for _, state in self._accepted[kept:]]
        waiting = wait_for([order for order, _ in self._accepted[kept:]], names)
        self._accepted[kept:] = zip(waiting, states, strict=True)
        for number, row in there.items():
            self._parents[row.state.tenant, row.state.id] = number, row.state.status in FINISHED
        renamed = {state.number: (order, state) for order, state in self._accepted[kept:]}
        return [renamed[answer[1].number] if isinstance(answer, tuple) else answer for answer in answers]

    def _check_parents(self, accepted: Sequence[Accepted]) -> None:
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
        shelf = Shelf(tx) if self._given.some else None
        ready: defaultdict[tuple[str, str, str], list[Place]] = defaultdict(list)
        for order, state in self._accepted:
            same = _reuse_key(tx, order) if self._reuses else None
            if order.after:
                waits += self._edges(order, state)
            elif order.uploads:
                pass  # It waits for these.
            elif state.run_at <= tx.now:
                ready[state.type, state.tenant, state.limit_key].append(state.place)
            else:
                tx.queue_up(state, state.run_at)
            tx.moved(state, None, state.status)
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
            tenant = tx.memory.tenants[order.tenant]
            if order.idempotency_key is not None:
                keys.append((tenant, order.type, order.idempotency_key, state.number, order.payload_digest))
            if same is not None:
                reusable.append((tenant, order.type, same[2], state.number))
            if shelf is not None and has_files(order):
                files += self._given.rows(order, state.number)
                for upload in order.uploads:
                    shelf.save_upload(begun(upload, tx.now))
            tags += [(state.number, tag, tenant) for tag in order.tags]
        for lane, places in ready.items():
            tx.tell_ready(Lane(*lane), len(places), first=min(places))
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

    def _edges(self, order: NewJob, state: State) -> list[tuple[object, ...]]:
        """Whom this job waits for; one that has ended already is looked at like one that ends later."""
        parents = [(parent, *self._parents[order.tenant, parent]) for parent in order.after]
        self._tx.memory.parents.update(number for _, number, _ in parents)
        self._tx.memory.ended.update(number for _, number, ended in parents if ended)
        return [(state.number, number, parent, order.on_dead is OnDead.RUN) for parent, number, _ in parents]

    def answer(self, answers: Answers) -> Later:
        """The jobs that were accepted, and those that were there before."""
        rows: dict[int, JobRow] = {}
        if self._answered:
            known = [number for answer in answers if (number := _number(answer)) is not None]
            rows = self._tx.whole_jobs(known) if known else {}
        return Later(partial(_enqueued, answers, rows, self._tx.now))


def _enqueued(answers: Answers, rows: dict[int, JobRow], now: int) -> list[Enqueued]:
    enqueued: list[Enqueued] = []
    for answer in answers:
        if isinstance(answer, tuple):
            order, state = answer
            made = Made(state.priority, state.run_at, state.max_attempts, now, state.limit_key)
            enqueued.append(Enqueued(job=new_job_of(order, made), created=True))
        else:
            row = rows[answer.number if isinstance(answer, Reused) else answer]
            job = job_of(row.state, row.body)
            reused = isinstance(answer, Reused) and answer.order != job.id  # Otherwise the order was sent again.
            enqueued.append(Enqueued(job=job, created=False, reused=reused))
    return enqueued


def _number(answer: Accepted | int | Reused) -> int | None:
    """The number of a job that was there before."""
    if isinstance(answer, tuple):
        return None
    return answer.number if isinstance(answer, Reused) else answer


def _reuse_key(tx: Transaction, order: NewJob) -> tuple[str, str, bytes] | None:
    """What this order shares with those that ask for the same; `None` when nobody can."""
    key = reuse_key(tx.memory.definition(order.tenant, order.type), order)
    return None if key is None else (order.tenant, order.type, key)
