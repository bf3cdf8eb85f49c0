"""Events: publishing them, reading them, and removing those that have been kept long enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Final

import msgspec

from ingot.engines.event_ids import BATCH_EVENTS_MAX, format_event_id, parse_event_id
from ingot.engines.postgres.command_batcher import in_turns
from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.job_rows import EventEntryRow
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.engines.postgres.sql import SQL
from ingot.engines.postgres.tenants import check_tenant
from ingot.events.errors import Gap
from ingot.events.model import Event, Forgotten, Published
from ingot.events.ports import DEDUPE_KEY_MICROS, ForgetEvents, GetNewestEventId, PublishEvent, ReadEvents
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IdempotencyMismatch, IngotError, StoreBusy

BYTES_PER_ROW: Final = 1024  # So many bytes weigh as much as a small event: who reads one reads all that came with it.
HORIZON_SECONDS_MAX: Final = 0.25
HORIZON_PAUSE_SECONDS: Final = 0.002

PublishAnswer = Published | IngotError


def weigh(command: PublishEvent) -> int:
    """How many small events a command stands for."""
    return 1 + len(command.data) // BYTES_PER_ROW


async def publish(db: Database, memory: LaneCache, commands: Sequence[PublishEvent]) -> list[PublishAnswer]:
    """Append events together. Those that share a key go one after the other."""
    return await in_turns(commands, _key, partial(_publish, db, memory))


def _key(command: PublishEvent) -> Hashable:
    """What no two events of one call may share: one without a key shares nothing."""
    return id(command) if command.dedupe_key is None else (command.tenant, command.dedupe_key)


async def _publish(db: Database, memory: LaneCache, commands: list[PublishEvent]) -> list[PublishAnswer]:
    rows = await db.call(
        CALL.publish,
        [command.tenant for command in commands],
        [command.name for command in commands],
        [command.data.decode() for command in commands],
        [command.dedupe_key for command in commands],
        [command.digest for command in commands],
        DEDUPE_KEY_MICROS,
        # An event without a key that was sent twice would be there twice.
        once=any(command.dedupe_key is None for command in commands),
    )
    memory.notify_events_written(commands[row["place"] - 1].tenant for row in rows if row["created"])
    answers = {row["place"]: _answer(row) for row in rows}
    return [answers[place] if place in answers else _gate_held_error() for place in range(1, len(commands) + 1)]


def _gate_held_error() -> StoreBusy:
    return StoreBusy(
        "A transaction that has not ended holds the key of this event.",
        hint="Nothing was changed; try again when the application has committed.",
    )


def _answer(row: Record) -> PublishAnswer:
    if not row["same"]:
        return IdempotencyMismatch()
    return Published(id=format_event_id(*divmod(row["event"], BATCH_EVENTS_MAX)), created=row["created"])


async def forget_events(context: Context, command: ForgetEvents) -> Forgotten:
    """Remove a bounded number of batches and keys."""
    (row,) = await context.database.call(CALL.forget_events, command.keep, command.limit, DEDUPE_KEY_MICROS)
    return Forgotten(batches=row["batches"], keys=row["keys"], more=row["more"])


async def read_events(context: Context, command: ReadEvents) -> list[Event]:
    """Events of a tenant, oldest first. What is committed but above a transaction that still runs is waited for."""
    tenant, limit = command.tenant, command.limit
    await check_tenant(context, tenant)
    start = (0, -1) if command.after is None else parse_event_id(command.after)
    deadline, pause = time.monotonic() + HORIZON_SECONDS_MAX, HORIZON_PAUSE_SECONDS
    while True:
        rows = await context.database.read(tenant, SQL.read_events, tenant, start[0], limit + 1)
        if command.after is not None and rows and start < divmod(rows[0]["floor"] or 0, BATCH_EVENTS_MAX):
            raise Gap(format_event_id(*divmod(rows[0]["floor"], BATCH_EVENTS_MAX)))
        hidden = next((place for place, row in enumerate(rows) if not row["settled"]), None)
        events: list[Event] = []
        for row in rows[:hidden]:
            if len(events) >= limit:
                break
            entries = msgspec.json.decode(row["entries"], type=list[EventEntryRow])
            told = ((entry.name, news) for entry in entries for news in entry.event_data())
            for place, (name, news) in enumerate(told):
                if (row["position"], place) > start and len(events) < limit:
                    event_id = format_event_id(row["position"], place)
                    data = msgspec.Raw(msgspec.json.encode(news))
                    at = to_datetime(row["at"])
                    events.append(Event(id=event_id, tenant=tenant, name=name, at=at, data=data))
        if hidden is None or len(events) >= limit or time.monotonic() > deadline:
            return events
        await asyncio.sleep(pause)
        pause *= 2


async def get_newest_event_id(context: Context, command: GetNewestEventId) -> str | None:
    """The id of a tenant's newest event."""
    await check_tenant(context, command.tenant)
    rows = await context.database.read(command.tenant, SQL.newest_events, command.tenant, command.stable)
    if not rows:
        return None
    entries = msgspec.json.decode(rows[0]["entries"], type=list[EventEntryRow])
    return format_event_id(rows[0]["position"], sum(len(entry.event_data()) for entry in entries) - 1)
