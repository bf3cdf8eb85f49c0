"""Accepting jobs."""

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
from ingot.kernel.errors import IngotError, StoreBusy, TooMany
from ingot.kernel.ids import is_id

GATE_TRIES_MAX: Final = 3
GATE_PAUSE_SECONDS: Final = 0.02

EnqueueAnswer = list[Enqueued] | IngotError
SendResult = tuple[list[list[Enqueued] | None], bool]
SendOrders = Callable[[Database, LaneCache, Sequence[Sequence[NewJob]]], Awaitable[SendResult]]


async def send_orders(db: Database, memory: LaneCache, groups: Sequence[Sequence[NewJob]]) -> SendResult:
    """Make the jobs of each group, or none of it: `None` is a group that met something. And: was it sent twice?"""
    rows, sent_twice = await db.insert(CALL.enqueue, *order_columns(memory, groups))
    return record_enqueued(memory, groups, {row["place"]: AcceptedValues(*row[1:]) for row in rows}), sent_twice


async def enqueue(
    db: Database, memory: LaneCache, commands: Sequence[Enqueue], *, send: SendOrders = send_orders
) -> list[EnqueueAnswer]:
    """Accept commands together; one that meets what is there already is looked at by itself."""
    taken: set[tuple[str, ...]] = set()
    answers: dict[int, EnqueueAnswer] = {}
    together: list[int] = []
    for place, command in enumerate(commands):
        keys = [key for order in command.jobs for key in _keys(memory, order)]
        if not all(is_id(order.tenant) for order in command.jobs):
            answers[place] = TenantNotFound("there is no such tenant")
        elif len(set(keys)) == len(keys) and taken.isdisjoint(keys):
            taken.update(keys)
            together.append(place)
    rows: list[list[Enqueued] | None] = []
    maybe_ours = False
    try:
        if together:
            rows, maybe_ours = await send(db, memory, [commands[place].jobs for place in together])
    except RowAlreadyExists as error:
        rows = [None] * len(together)  # Each by itself finds out who was quicker.
        maybe_ours = error.maybe_ours
    except (BlobNotFound, QuotaExceeded, UploadEnded):
        rows = [None] * len(together)  # It may have been made before.
    answers |= {place: made for place, made in zip(together, rows, strict=True) if made is not None}
    return [
        answers[place] if place in answers else await _enqueue_alone(db, memory, command.jobs, maybe_ours=maybe_ours)
            for place, command in enumerate(commands)]  # fmt: skip


def _keys(memory: LaneCache, order: NewJob) -> list[tuple[str, ...]]:
    """What no two orders of one call may share."""
    keys: list[tuple[str, ...]] = [(order.id,)]
    if memory.rules and (same := _reuse_key(memory, order)) is not None:
        keys.append(("reuse", order.tenant, order.type, same.hex()))
    if order.idempotency_key is not None:
        keys.append(("idempotency", order.tenant, order.type, order.idempotency_key))
    if order.dedupe_key is not None:
        keys.append(("dedupe", order.tenant, order.dedupe_key))
    return keys


def record_enqueued(
    memory: LaneCache,
    groups: Sequence[Sequence[NewJob]],
    rows: dict[int, AcceptedValues],
    *,
    claimed: Container[str] = (),
) -> list[list[Enqueued] | None]:
    """Note what was made of these orders, by their place, and has not been claimed; answers the jobs of each group."""
    orders = [order for group in groups for order in group]
    _update_lane_cache(memory, orders, rows, claimed)
    memory.notify_events_written(orders[place - 1].tenant for place in rows)
    in_order = (rows.get(place + 1) for place in range(len(orders)))
    answers: list[list[Enqueued] | None] = []
    for group in groups:
        own = list(islice(in_order, len(group)))
        made = [Enqueued(job=new_job_of(order, row), created=True)
                for order, row in zip(group, own, strict=True) if row is not None]  # fmt: skip
        answers.append(made if len(made) == len(group) else None)
    return answers


def order_columns(memory: LaneCache, groups: Sequence[Sequence[NewJob]]) -> list[Any]:
    """The orders as the arrays that `ingot.enqueue` takes."""
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
        *_rule_columns(memory, orders),
        _column([inputs_text(o) for o in orders]),
        _column([o.batch for o in orders]),
        *_dependency_columns(groups),
        _column([o.payload_blob and bytes.fromhex(o.payload_blob) for o in orders]),
        _files_json(groups),
        False,  # It is no application.
    ]


def _column(values: list[Any]) -> list[Any] | None:
    """A column as `ingot.enqueue` takes it; one without any value is not sent, which is quicker."""
    return None if values.count(None) == len(values) else values


def _dependency_columns(groups: Sequence[Sequence[NewJob]]) -> list[list[Any] | None]:
    """Which orders wait, and for whom: jobs, parents, tenants, whether they run anyway, parents inside, commands."""
    if not any(order.after or order.uploads for group in groups for order in group):
        return [None] * 7
    edges: list[tuple[Any, ...]] = []
    for number, group in enumerate(groups):
        inside = {(order.tenant, order.id) for order in group}
        edges += [
            (order.id, parent, order.tenant, order.on_dead is OnDead.RUN, (order.tenant, parent) in inside, number)
            for order in group
            for parent in order.after
        ]
    waiting = [bool(order.after or order.uploads) for group in groups for order in group]
    return [waiting, *map(list, zip(*edges, strict=True))] if edges else [waiting, *[None] * 6]


def weigh(order: NewJob) -> int:
    """How many rows an order stands for."""
    return 1 + len(order.inputs) + len(order.uploads)


def _files_json(groups: Sequence[Sequence[NewJob]]) -> str | None:
    """The files that orders are given, and the uploads that they wait for, as JSON; `None` without any."""
    files: list[dict[str, Any]] = []
    for number, group in enumerate(groups):
        for order in filter(has_files, group):
            of = {"command": number, "job": order.id, "tenant": order.tenant}
            own = {**of, "owner": order.created_by or PROCESS, "quota": order.owner_quota}
            files += [{**own, "kind": "input", "name": name, "blob": blob} for name, blob in order.inputs.items()]
            if order.payload_blob is not None:
                files.append({**own, "kind": PAYLOAD, "name": PAYLOAD, "blob": order.payload_blob})
            files += [{**of, "owner": one.owner, "quota": one.owner_quota, "upload": one} for one in order.uploads]
    return msgspec.json.encode(files).decode() if files else None


def _rule_columns(memory: LaneCache, orders: Sequence[NewJob]) -> list[list[Any] | None]:
    """With which rules orders are made, their limit keys and reuse keys, and which are forced; without any, nothing."""
    found = [memory.rules.get((order.tenant, order.type)) for order in orders] if memory.rules else []
    if not any(found):
        return [None] * 4
    made = list(zip(orders, found, strict=True))
    return [
        [None if rule is None else rule_text(rule) for _, rule in made],
        [None if rule is None else _limit_key(rule, order) for order, rule in made],
        [_reuse_key(memory, order) for order in orders],
        [order.force for order in orders],
    ]


def rule_text(rule: Definition) -> str:
    """What `ingot.definitions` calls the rule."""
    return f"{rule.limit_key or ''}\n{rule.version if rule.reuse else ''}"


def _limit_key(rule: Definition, order: NewJob) -> str | None:
    return None if rule.limit_key is None else render_limit_key(rule.limit_key, order.payload) or None


def _reuse_key(memory: LaneCache, order: NewJob) -> bytes | None:
    rule = memory.rules.get((order.tenant, order.type))
    return None if rule is None else reuse_key(rule, order)


def _update_lane_cache(
    memory: LaneCache, orders: Sequence[NewJob], rows: dict[int, AcceptedValues], claimed: Container[str]
) -> None:
    lanes: dict[Lane, list[tuple[int, int, str]]] = {}
    for place, row in rows.items():
        order = orders[place - 1]
        if order.after or order.uploads or order.id in claimed:
            continue
        if row.run_at <= row.created_at:
            lane = Lane(order.type, order.tenant, row.limit_key)
            lanes.setdefault(lane, []).append((row.priority, row.run_at, order.id))
        else:
            memory.record_due_time(row.run_at)
    for lane, positions in lanes.items():
        memory.announce_ready(lane, len(positions), first=min(positions))
    if parents := {parent for place in rows for parent in orders[place - 1].after}:
        memory.notify_jobs_ended(parents, ())


async def _enqueue_alone(
    db: Database, memory: LaneCache, orders: Sequence[NewJob], *, maybe_ours: bool
) -> EnqueueAnswer:
    """Accept the orders of one command, all or none, whatever is there already.

    With `maybe_ours` jobs with the ids of the orders are what this very call made before its answer was lost.
    """
    held = 0
    for _ in range(CONFLICTS_MAX):
        try:
            await _load_rules(db, memory, orders)
            known, reused = await _resolve_orders(db, memory, orders)
            new = resolve_parents(list({order.id: order for order in orders if order.id not in known}.values()), known)
        except IngotError as error:
            return error
        made: list[Enqueued] = []
        try:
            if new:
                ((accepted,), sent_twice) = await send_orders(db, memory, [new])
                maybe_ours = maybe_ours or sent_twice
                if accepted is None:  # Somebody was quicker, there is no room, or what it waits for is not there.
                    await _check_parents(db, new)
                    if await _is_gate_held(db, memory, new):
                        held += 1
                        if held > GATE_TRIES_MAX:
                            return _gate_held_error()
                        await asyncio.sleep(GATE_PAUSE_SECONDS)  # Most transactions are short.
                        continue
                    await db.call(CALL.expect_room, [order.tenant for order in new])
                    continue
                made = accepted
        except RowAlreadyExists as error:
            maybe_ours = maybe_ours or error.maybe_ours
            continue
        except (TooMany, ParentNotFound, BlobNotFound, QuotaExceeded, UploadEnded) as error:
            return error
        jobs = {enqueued.job.id: enqueued for enqueued in made}
        there = await _read_jobs(db, orders, {job_id for job_id in known.values() if job_id not in jobs})
        if maybe_ours:
            ours = {order.id for order in orders}
            there = {job_id: Enqueued(job=old.job, created=job_id in ours) for job_id, old in there.items()}
        answers = [jobs.get(order.id) or jobs.get(known.get(order.id, "")) or there.get(known.get(order.id, ""))
                   for order in orders]  # fmt: skip
        found = [answer for answer in answers if answer is not None]
        if len(found) < len(answers):  # One that was there has been removed since, and its key is free.
            maybe_ours = maybe_ours or bool(made)
            continue
        first: set[str] = set()
        whole: list[Enqueued] = []
        for order, answer in zip(orders, found, strict=True):
            created = answer.created and answer.job.id not in first
            whole.append(Enqueued(job=answer.job, created=created, reused=order.id in reused))
            first.add(answer.job.id)
        return whole
    return StoreBusy()


async def _is_gate_held(db: Database, memory: LaneCache, orders: Sequence[NewJob]) -> bool:
    """Whether an application's own transaction, which has not ended, holds what these need."""
    (row,) = await db.call(
        CALL.is_held,
        [order.tenant for order in orders],
        [order.type for order in orders],
        [order.idempotency_key for order in orders],
        [order.dedupe_key for order in orders],
        [_reuse_key(memory, order) for order in orders],
    )
    return bool(row[0])


def _gate_held_error() -> StoreBusy:
    return StoreBusy(
        "A transaction that has not ended holds a key of this job, or the turn of its tenant.",
        hint="Nothing was changed; try again when the application has committed.",
    )


async def _check_parents(db: Database, orders: Sequence[NewJob]) -> None:
    """Raise `ParentNotFound` when these would wait for what is not there."""
    for tenant in {order.tenant for order in orders if order.after}:
        own = [order for order in orders if order.tenant == tenant]
        parents = {parent for order in own for parent in order.after} - {order.id for order in own}
        there = {job.id for job in map(job_of, await db.read(tenant, SQL.get_jobs, list(parents)))}
        for parent in sorted(parents - there):
            raise ParentNotFound(f"there is no job {parent} in this tenant")


async def _load_rules(db: Database, memory: LaneCache, orders: Sequence[NewJob]) -> None:
    """See with which rules these orders must be made."""
    for tenant, type in {(order.tenant, order.type) for order in orders}:
        rows = await db.call(CALL.find_definition, tenant, type)
        definition = msgspec.json.decode(rows[0][0], type=Definition) if rows else Definition(type=type)
        if definition.limit_key is not None or definition.reuse:
            memory.rules[tenant, type] = definition
        else:
            memory.rules.pop((tenant, type), None)


async def _resolve_orders(db: Database, memory: LaneCache, orders: Sequence[NewJob]) -> tuple[dict[str, str], set[str]]:
    """Orders that need not be made, by id, with the job that is there for them, and those of them that are reused.

    Raises what stands in the way.
    """
    rows = await db.call(
        CALL.resolve_orders,
        [order.id for order in orders],
        [order.tenant for order in orders],
        [order.type for order in orders],
        [order.idempotency_key for order in orders],
        [order.payload_digest for order in orders],
        [order.dedupe_key for order in orders],
        [_reuse_key(memory, order) for order in orders],
        [order.force for order in orders],
        read_only=True,
    )
    there = [(order.id, row) for order, row in zip(orders, rows, strict=True) if not row["is_new"]]
    return {id: str(row["answer"]) for id, row in there}, {id for id, row in there if row["is_reused"]}


async def _read_jobs(db: Database, orders: Sequence[NewJob], ids: set[str]) -> dict[str, Enqueued]:
    if not ids:
        return {}
    tenants = {order.tenant for order in orders}
    rows = chain.from_iterable([await db.read(tenant, SQL.get_jobs, list(ids)) for tenant in tenants])
    jobs: list[Job] = [job_of(row) for row in rows]
    return {job.id: Enqueued(job=job, created=False) for job in jobs}
