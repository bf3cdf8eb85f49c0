"""Enqueue: create jobs from orders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from itertools import chain, islice
from typing import Any, Final

import msgspec

from ingot.blobs.errors import BlobNotFound, QuotaExceeded, UploadEnded
from ingot.engines.jobs import AcceptedValues, has_files, inputs_text, new_job_of
from ingot.engines.postgres.connection import CONFLICTS_MAX, Database, RowAlreadyExists
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import job_of
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.engines.postgres.sql import SQL
from ingot.events.audit import PROCESS
from ingot.identity.model import TenantNotFound
from ingot.jobs.dependencies import resolve_parents
from ingot.jobs.errors import ParentNotFound
from ingot.jobs.files import PAYLOAD
from ingot.jobs.lanes import Lane
from ingot.jobs.limits import render_limit_key
from ingot.jobs.model import Definition, Enqueued, Job, NewJob, OnDead
from ingot.jobs.ports import Enqueue
from ingot.jobs.reuse import reuse_key
from ingot.kernel.errors import IngotError, StoreBusy, StoreError, TooMany
from ingot.kernel.ids import is_id

GATE_TRIES_MAX: Final = 3
GATE_PAUSE_SECONDS: Final = 0.02
TYPE_PAUSE_SECONDS: Final = 0.05

EnqueueAnswer = list[Enqueued] | IngotError
SendResult = tuple[list[list[Enqueued] | None], bool]
SendOrders = Callable[[Database, LaneCache, Sequence[Sequence[NewJob]]], Awaitable[SendResult]]


async def send_orders(db: Database, lane_cache: LaneCache, groups: Sequence[Sequence[NewJob]]) -> SendResult:
    """Create the jobs of each group, all or none. Return them by group, and whether the call was sent twice.

    `None` stands for a group that was not created because of existing jobs, a limit, or a missing parent.
    """
    rows, sent_twice = await db.insert(CALL.enqueue, *order_columns(lane_cache, groups))
    return record_enqueued(lane_cache, groups, {row["place"]: AcceptedValues(*row[1:]) for row in rows}), sent_twice


async def enqueue(
    db: Database, lane_cache: LaneCache, commands: Sequence[Enqueue], *, send: SendOrders = send_orders
) -> list[EnqueueAnswer]:
    """Create the jobs of several commands in one call. Commands that conflict with existing jobs are run alone."""
    used_keys: set[tuple[str, ...]] = set()
    answers: dict[int, EnqueueAnswer] = {}
    batch: list[int] = []
    for index, command in enumerate(commands):
        keys = [key for order in command.jobs for key in _keys(lane_cache, order)]
        if not all(is_id(order.tenant) for order in command.jobs):
            answers[index] = TenantNotFound("there is no such tenant")
        elif len(set(keys)) == len(keys) and used_keys.isdisjoint(keys):
            used_keys.update(keys)
            batch.append(index)
    results: list[list[Enqueued] | None] = []
    maybe_ours = False
    try:
        if batch:
            results, maybe_ours = await send(db, lane_cache, [commands[index].jobs for index in batch])
    except RowAlreadyExists as error:
        results = [None] * len(batch)  # Run each alone to find out which ones conflict.
        maybe_ours = error.maybe_ours
    except (BlobNotFound, QuotaExceeded, UploadEnded):
        results = [None] * len(batch)  # The jobs may already exist, which is not an error.
    answers |= {index: enqueued for index, enqueued in zip(batch, results, strict=True) if enqueued is not None}
    return [
        answers[index]
        if index in answers
        else await _enqueue_or_fail(db, lane_cache, command.jobs, maybe_ours=maybe_ours)
        for index, command in enumerate(commands)
    ]


def _keys(lane_cache: LaneCache, order: NewJob) -> list[tuple[str, ...]]:
    """Return what must be unique within a call."""
    keys: list[tuple[str, ...]] = [(order.id,)]
    if lane_cache.rules and (reused := _reuse_key(lane_cache, order)) is not None:
        keys.append(("reuse", order.tenant, order.type, reused.hex()))
    if order.idempotency_key is not None:
        keys.append(("idempotency", order.tenant, order.type, order.idempotency_key))
    if order.dedupe_key is not None:
        keys.append(("dedupe", order.tenant, order.dedupe_key))
    return keys


def record_enqueued(
    lane_cache: LaneCache,
    groups: Sequence[Sequence[NewJob]],
    rows: dict[int, AcceptedValues],
    *,
    claimed: Container[str] = (),
) -> list[list[Enqueued] | None]:
    """Record new jobs, and return them by group; `None` stands for a group that was not created.

    `rows` has the new jobs by the number of their order, counted from 1. Jobs in `claimed` are not announced.
    """
    orders = [order for group in groups for order in group]
    _update_lane_cache(lane_cache, orders, rows, claimed)
    lane_cache.notify_events_written(orders[number - 1].tenant for number in rows)
    in_order = (rows.get(number) for number in range(1, len(orders) + 1))
    answers: list[list[Enqueued] | None] = []
    for group in groups:
        group_rows = list(islice(in_order, len(group)))
        enqueued = [Enqueued(job=new_job_of(order, row), created=True)
                    for order, row in zip(group, group_rows, strict=True) if row is not None]  # fmt: skip
        answers.append(enqueued if len(enqueued) == len(group) else None)
    return answers


def order_columns(lane_cache: LaneCache, groups: Sequence[Sequence[NewJob]]) -> list[Any]:
    """Return the parameters of `ingot.enqueue`, most of them columns of the orders."""
    numbered = [(number, o) for number, group in enumerate(groups) for o in group]
    orders = [order for _, order in numbered]
    tagged = [(o.id, o.tenant, tag, number) for number, o in numbered for tag in o.tags]
    return [
        [number for number, _ in numbered],
        [o.id for o in orders],
        [o.tenant for o in orders],
        [o.type for o in orders],
        [o.payload for o in orders],
        _column([o.metadata for o in orders]),
        _column([o.priority for o in orders]),
        _column([o.run_at for o in orders]),
        _column([o.delay or None for o in orders]),
        _column([o.max_attempts for o in orders]),
        _column([o.idempotency_key for o in orders]),
        _column([o.payload_digest for o in orders]),
        _column([o.dedupe_key for o in orders]),
        [o.source for o in orders],
        _column([o.source_ref for o in orders]),
        _column([o.created_by for o in orders]),
        _column([o.correlation_id for o in orders]),
        _column([o.trace_id for o in orders]),
        [o.depth for o in orders],
        *([row[column] for row in tagged] or None for column in range(4)),
        *_rule_columns(lane_cache, orders),
        _column([inputs_text(o) for o in orders]),
        _column([o.batch for o in orders]),
        *_dependency_columns(groups),
        _column([o.payload_blob and bytes.fromhex(o.payload_blob) for o in orders]),
        _files_json(groups),
        False,  # Not called by an application.
    ]


def _column(values: list[Any]) -> list[Any] | None:
    """Return a column for `ingot.enqueue`. One without values is not sent, which is faster."""
    return None if values.count(None) == len(values) else values


def _dependency_columns(groups: Sequence[Sequence[NewJob]]) -> list[list[Any] | None]:
    """Return which orders are blocked, and the columns of the dependencies.

    The columns are the job, the parent, the tenant, whether the job also runs if the parent is dead, whether the parent
    is in the same command, and the number of the command.
    """
    if not any(order.after or order.uploads for group in groups for order in group):
        return [None] * 7
    edges: list[tuple[Any, ...]] = []
    for number, group in enumerate(groups):
        group_ids = {(order.tenant, order.id) for order in group}
        edges += [
            (order.id, parent, order.tenant, order.on_dead is OnDead.RUN, (order.tenant, parent) in group_ids, number)
            for order in group
            for parent in order.after
        ]
    is_blocked = [bool(order.after or order.uploads) for group in groups for order in group]
    return [is_blocked, *map(list, zip(*edges, strict=True))] if edges else [is_blocked, *[None] * 6]


def weigh(order: NewJob) -> int:
    """Return the number of rows that an order counts for."""
    return 1 + len(order.inputs) + len(order.uploads)


def _files_json(groups: Sequence[Sequence[NewJob]]) -> str | None:
    """Return the files of orders and the uploads that they wait for as JSON, or `None` if there are none."""
    files: list[dict[str, Any]] = []
    for number, group in enumerate(groups):
        for order in filter(has_files, group):
            job = {"command": number, "job": order.id, "tenant": order.tenant}
            owned = {**job, "owner": order.created_by or PROCESS, "quota": order.owner_quota}
            files += [{**owned, "kind": "input", "name": name, "blob": blob} for name, blob in order.inputs.items()]
            if order.payload_blob is not None:
                files.append({**owned, "kind": PAYLOAD, "name": PAYLOAD, "blob": order.payload_blob})
            files += [
                {**job, "owner": upload.owner, "quota": upload.owner_quota, "upload": upload}
                for upload in order.uploads
            ]
    return msgspec.json.encode(files).decode() if files else None


def _rule_columns(lane_cache: LaneCache, orders: Sequence[NewJob]) -> list[list[Any] | None]:
    """Return the columns of rules, limit keys, reuse keys and forced orders, each `None` if no rules apply."""
    rules = [lane_cache.rules.get((order.tenant, order.type)) for order in orders] if lane_cache.rules else []
    if not any(rules):
        return [None] * 4
    return [
        [None if rule is None else rule_text(rule) for rule in rules],
        [None if rule is None else _limit_key(rule, order) for order, rule in zip(orders, rules, strict=True)],
        [_reuse_key(lane_cache, order) for order in orders],
        [order.force for order in orders],
    ]


def rule_text(rule: Definition) -> str:
    """Return the rule as `ingot.definitions` stores it."""
    return f"{rule.limit_key or ''}\n{rule.version if rule.reuse else ''}"


def _limit_key(rule: Definition, order: NewJob) -> str | None:
    return None if rule.limit_key is None else render_limit_key(rule.limit_key, order.payload) or None


def _reuse_key(lane_cache: LaneCache, order: NewJob) -> bytes | None:
    rule = lane_cache.rules.get((order.tenant, order.type))
    return None if rule is None else reuse_key(rule, order)


def _update_lane_cache(
    lane_cache: LaneCache, orders: Sequence[NewJob], rows: dict[int, AcceptedValues], claimed: Container[str]
) -> None:
    lanes: dict[Lane, list[tuple[int, int, str]]] = {}
    for number, row in rows.items():
        order = orders[number - 1]
        if order.after or order.uploads or order.id in claimed:
            continue
        if row.run_at <= row.created_at:
            lane = Lane(order.type, order.tenant, row.limit_key)
            lanes.setdefault(lane, []).append((row.priority, row.run_at, order.id))
        else:
            lane_cache.record_due_time(row.run_at)
    for lane, positions in lanes.items():
        lane_cache.announce_ready(lane, len(positions), first=min(positions))
    if parents := {parent for number in rows for parent in orders[number - 1].after}:
        lane_cache.notify_jobs_ended(parents, ())


async def _enqueue_or_fail(
    db: Database, lane_cache: LaneCache, orders: Sequence[NewJob], *, maybe_ours: bool
) -> EnqueueAnswer:
    """Enqueue as `_enqueue_alone` does. Its error must not replace the answers of other commands in the batch."""
    try:
        return await _enqueue_alone(db, lane_cache, orders, maybe_ours=maybe_ours)
    except StoreError as error:
        return error


async def _enqueue_alone(
    db: Database, lane_cache: LaneCache, orders: Sequence[NewJob], *, maybe_ours: bool
) -> EnqueueAnswer:
    """Create the jobs of one command, all or none, and return existing jobs where the keys name them.

    With `maybe_ours`, existing jobs with the IDs of the orders were created by an earlier try of this call whose answer
    was lost.
    """
    gate_conflicts = 0
    for _ in range(CONFLICTS_MAX):
        try:
            await _load_rules(db, lane_cache, orders)
            resolved_ids, reused = await _resolve_orders(db, lane_cache, orders)
            new = resolve_parents(
                list({order.id: order for order in orders if order.id not in resolved_ids}.values()), resolved_ids
            )
        except IngotError as error:
            return error
        enqueued: list[Enqueued] = []
        try:
            if new:
                ((result,), sent_twice) = await send_orders(db, lane_cache, [new])
                maybe_ours = maybe_ours or sent_twice
                if result is None:  # Another call was faster, a cap is reached, or a parent does not exist.
                    await _check_parents(db, new)
                    if await _is_gate_held(db, lane_cache, new):
                        gate_conflicts += 1
                        if gate_conflicts > GATE_TRIES_MAX:
                            return _gate_held_error()
                        await asyncio.sleep(GATE_PAUSE_SECONDS)  # Most transactions are short.
                        continue
                    tenants, types = [order.tenant for order in new], [order.type for order in new]
                    await db.call(CALL.expect_capacity, tenants, read_only=True)
                    ((has_new_types,),) = await db.call(CALL.expect_types, tenants, types, read_only=True)
                    if has_new_types:
                        await asyncio.sleep(TYPE_PAUSE_SECONDS)  # Another transaction adds types of the tenant.
                    continue
                enqueued = result
        except RowAlreadyExists as error:
            maybe_ours = maybe_ours or error.maybe_ours
            continue
        except (TooMany, ParentNotFound, BlobNotFound, QuotaExceeded, UploadEnded) as error:
            return error
        new_jobs = {answer.job.id: answer for answer in enqueued}
        existing_jobs = await _read_jobs(
            db, orders, {job_id for job_id in resolved_ids.values() if job_id not in new_jobs}
        )
        if maybe_ours:
            order_ids = {order.id for order in orders}
            existing_jobs = {
                job_id: Enqueued(job=answer.job, created=job_id in order_ids)
                for job_id, answer in existing_jobs.items()
            }
        answers_or_none = [
            new_jobs.get(order.id)
            or new_jobs.get(resolved_ids.get(order.id, ""))
            or existing_jobs.get(resolved_ids.get(order.id, ""))
            for order in orders
        ]
        answers = [answer for answer in answers_or_none if answer is not None]
        if len(answers) < len(orders):  # An existing job was removed in the meantime, and its key is free.
            maybe_ours = maybe_ours or bool(enqueued)
            continue
        seen: set[str] = set()
        distinct: list[Enqueued] = []
        for order, answer in zip(orders, answers, strict=True):
            created = answer.created and answer.job.id not in seen
            distinct.append(Enqueued(job=answer.job, created=created, reused=order.id in reused))
            seen.add(answer.job.id)
        return distinct
    return StoreBusy()


async def _is_gate_held(db: Database, lane_cache: LaneCache, orders: Sequence[NewJob]) -> bool:
    """Whether an open transaction of an application holds a lock that these orders need."""
    (row,) = await db.call(
        CALL.is_locked_by_app,
        [order.tenant for order in orders],
        [order.type for order in orders],
        [order.idempotency_key for order in orders],
        [order.dedupe_key for order in orders],
        [_reuse_key(lane_cache, order) for order in orders],
        read_only=True,
    )
    return bool(row[0])


def _gate_held_error() -> StoreBusy:
    return StoreBusy(
        "An open transaction of an application holds a key of this job or the caps of its tenant.",
        hint="Nothing was changed. Retry after the application has committed.",
    )


async def _check_parents(db: Database, orders: Sequence[NewJob]) -> None:
    """Raise `ParentNotFound` if a parent of these orders does not exist."""
    for tenant in {order.tenant for order in orders if order.after}:
        tenant_orders = [order for order in orders if order.tenant == tenant]
        parents = {parent for order in tenant_orders for parent in order.after} - {order.id for order in tenant_orders}
        existing = {job.id for job in map(job_of, await db.read_at_once(tenant, SQL.get_jobs, list(parents)))}
        for parent in sorted(parents - existing):
            raise ParentNotFound(f"there is no job {parent} in this tenant")


async def _load_rules(db: Database, lane_cache: LaneCache, orders: Sequence[NewJob]) -> None:
    """Load the rules of these orders into the cache."""
    types = list(dict.fromkeys((order.tenant, order.type) for order in orders))
    rows = await db.call(CALL.find_rules, [tenant for tenant, _ in types], [type for _, type in types])
    rules = {types[place - 1]: msgspec.json.decode(definition, type=Definition) for place, definition in rows}
    for key in types:
        if key in rules:
            lane_cache.rules[key] = rules[key]
        else:
            lane_cache.rules.pop(key, None)


async def _resolve_orders(
    db: Database, lane_cache: LaneCache, orders: Sequence[NewJob]
) -> tuple[dict[str, str], set[str]]:
    """Return the orders that need no new job with the IDs of their jobs, and those of them that are answered by reuse.

    The job can be one that exists, or that of an earlier order. Raises the error of an order that cannot be accepted.
    """
    rows = await db.call(
        CALL.resolve_orders,
        [order.id for order in orders],
        [order.tenant for order in orders],
        [order.type for order in orders],
        [order.idempotency_key for order in orders],
        [order.payload_digest for order in orders],
        [order.dedupe_key for order in orders],
        [_reuse_key(lane_cache, order) for order in orders],
        [order.force for order in orders],
        read_only=True,
    )
    existing = [(order.id, row) for order, row in zip(orders, rows, strict=True) if not row["is_new"]]
    return {id: str(row["answer"]) for id, row in existing}, {id for id, row in existing if row["is_reused"]}


async def _read_jobs(db: Database, orders: Sequence[NewJob], ids: set[str]) -> dict[str, Enqueued]:
    if not ids:
        return {}
    tenants = {order.tenant for order in orders}
    rows = chain.from_iterable([await db.read_at_once(tenant, SQL.get_jobs, list(ids)) for tenant in tenants])
    jobs: list[Job] = [job_of(row) for row in rows]
    return {job.id: Enqueued(job=job, created=False) for job in jobs}
