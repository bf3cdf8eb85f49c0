"""Events: publish them, read them, and remove old ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Final

import msgspec

from ingot.engines.event_ids import BATCH_EVENTS_MAX, format_event_id, parse_event_id
from ingot.engines.postgres.command_batcher import send_distinct
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

BYTES_PER_ROW: Final = 1024  # Data of this size counts as one small event, because a batch is read whole.
HORIZON_SECONDS_MAX: Final = 0.25
HORIZON_PAUSE_SECONDS: Final = 0.002

PublishAnswer = Published | IngotError


def weigh(command: PublishEvent) -> int:
    """Return the number of small events that a command counts for."""
    return 1 + len(command.data) // BYTES_PER_ROW


async def publish(db: Database, lane_cache: LaneCache, commands: Sequence[PublishEvent]) -> list[PublishAnswer]:
    """Append events in batches. Events with the same dedupe key are sent one after another."""
    return await send_distinct(commands, _key, partial(_publish, db, lane_cache))


def _key(command: PublishEvent) -> Hashable:
    """Return what must be unique within a call. Events without a dedupe key never collide."""
    return id(command) if command.dedupe_key is None else (command.tenant, command.dedupe_key)


async def _publish(db: Database, lane_cache: LaneCache, commands: list[PublishEvent]) -> list[PublishAnswer]:
    rows = await db.call(
        CALL.publish,
        [command.tenant for command in commands],
        [command.name for command in commands],
        [command.data.decode() for command in commands],
        [command.dedupe_key for command in commands],
        [command.digest for command in commands],
        DEDUPE_KEY_MICROS,
        # An event without a key would be stored twice if it were sent twice.
        once=any(command.dedupe_key is None for command in commands),
    )
    lane_cache.notify_events_written(commands[row["place"] - 1].tenant for row in rows if row["created"])
    answers = {row["place"]: _answer(row) for row in rows}
    return [answers[number] if number in answers else _gate_held_error() for number in range(1, len(commands) + 1)]


def _gate_held_error() -> StoreBusy:
    return StoreBusy(
        "An open transaction of an application holds the dedupe key of this event.",
        hint="Nothing was changed. Retry after the application has committed.",
    )


def _answer(row: Record) -> PublishAnswer:
    if not row["same"]:
        return IdempotencyMismatch()
    return Published(id=format_event_id(*divmod(row["event"], BATCH_EVENTS_MAX)), created=row["created"])


async def forget_events(context: Context, command: ForgetEvents) -> Forgotten:
    """Remove a bounded number of old batches and dedupe keys."""
    (row,) = await context.database.call(CALL.delete_old_events, command.keep, command.limit, DEDUPE_KEY_MICROS)
    return Forgotten(batches=row["batches"], keys=row["keys"], more=row["more"])


async def read_events(context: Context, command: ReadEvents) -> list[Event]:
    """Return events of a tenant, oldest first. Raises `Gap` if events after the given one were removed.

    Committed events above the oldest running transaction cannot be read yet. Wait for them for a short time.
    """
    tenant, limit = command.tenant, command.limit
    await check_tenant(context, tenant)
    start = (0, -1) if command.after is None else parse_event_id(command.after)
    deadline, pause = time.monotonic() + HORIZON_SECONDS_MAX, HORIZON_PAUSE_SECONDS
    while True:
        rows = await context.database.read(tenant, SQL.read_events, tenant, start[0], limit + 1)
        if command.after is not None and rows and start < divmod(rows[0]["floor"] or 0, BATCH_EVENTS_MAX):
            raise Gap(format_event_id(*divmod(rows[0]["floor"], BATCH_EVENTS_MAX)))
        hidden = next((index for index, row in enumerate(rows) if not row["settled"]), None)
        events: list[Event] = []
        for row in rows[:hidden]:
            if len(events) >= limit:
                break
            entries = msgspec.json.decode(row["entries"], type=list[EventEntryRow])
            named_values = ((entry.name, value) for entry in entries for value in entry.event_data())
            for index, (name, value) in enumerate(named_values):
                if (row["position"], index) > start and len(events) < limit:
                    event_id = format_event_id(row["position"], index)
                    data = msgspec.Raw(msgspec.json.encode(value))
                    at = to_datetime(row["at"])
                    events.append(Event(id=event_id, tenant=tenant, name=name, at=at, data=data))
        if hidden is None or len(events) >= limit or time.monotonic() > deadline:
            return events
        await asyncio.sleep(pause)
        pause *= 2


async def get_newest_event_id(context: Context, command: GetNewestEventId) -> str | None:
    """Return the ID of a tenant's newest event, or `None` if it has no events."""
    await check_tenant(context, command.tenant)
    rows = await context.database.read(command.tenant, SQL.newest_events, command.tenant, command.stable)
    if not rows:
        return None
    entries = msgspec.json.decode(rows[0]["entries"], type=list[EventEntryRow])
    return format_event_id(rows[0]["position"], sum(len(entry.event_data()) for entry in entries) - 1)
