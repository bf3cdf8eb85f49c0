"""Events: publishing, reading, and removing old ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from ingot.engines.event_ids import format_event_id, parse_event_id
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import EVENTS_PER_ROW_MAX, Transaction
from ingot.events.errors import Gap
from ingot.events.model import Event, Forgotten, Published
from ingot.events.ports import DEDUPE_KEY_MICROS, ForgetEvents, GetNewestEventId, PublishEvent, ReadEvents
from ingot.identity.model import TenantNotFound
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IdempotencyMismatch, IngotError

BATCH_BYTES_MAX: Final = 256 * 1024  # Reading one event reads its whole batch.

EventKey = tuple[str, str | None]
EventPosition = tuple[int, int]


def publish_events(tx: Transaction, commands: Sequence[PublishEvent]) -> list[Published | IngotError]:
    """Append events in the order in which they arrived, those of a tenant together."""
    answers: dict[int, Published | IngotError] = {}
    by_tenant: dict[str, list[int]] = {}
    first: dict[EventKey, int] = {}
    repeats: list[tuple[int, int]] = []
    for index, command in enumerate(commands):
        key = command.tenant, command.dedupe_key
        if command.tenant not in tx.writer_state.tenants:
            answers[index] = TenantNotFound(f"there is no tenant {command.tenant[:64]!r}")
        elif command.dedupe_key is not None and key in first:
            repeats.append((index, first[key]))
        elif command.dedupe_key is not None and (answer := _find_repeat(tx, command)) is not None:
            answers[index] = answer
        else:
            first[key] = index
            by_tenant.setdefault(command.tenant, []).append(index)
    for tenant, indexes in by_tenant.items():
        positions = _append(tx, tenant, [commands[index] for index in indexes])
        for index, position in zip(indexes, positions, strict=True):
            answers[index] = Published(id=format_event_id(*position), created=True)
    for index, first_index in repeats:
        answers[index] = _repeat_answer(commands[index], commands[first_index], answers[first_index])
    return [answers[index] for index in range(len(commands))]


def _find_repeat(tx: Transaction, command: PublishEvent) -> Published | IngotError | None:
    """Return the answer to a command whose dedupe key was used before, or `None`."""
    number = tx.writer_state.tenants[command.tenant]
    row = tx.execute(SQL.event_of_dedupe_key, number, command.dedupe_key, tx.now - DEDUPE_KEY_MICROS).fetchone()
    if row is None:
        return None
    digest, batch, index = row
    if digest != command.digest:
        return IdempotencyMismatch()
    return Published(id=format_event_id(batch, index), created=False)


def _repeat_answer(
    command: PublishEvent, first: PublishEvent, answer: Published | IngotError
) -> Published | IngotError:
    if isinstance(answer, IngotError):
        return answer
    if command.digest != first.digest:
        return IdempotencyMismatch()
    return Published(id=answer.id, created=False)


def _append(tx: Transaction, tenant: str, commands: Sequence[PublishEvent]) -> list[EventPosition]:
    """Write events and their dedupe keys, and return the positions of the events."""
    number = tx.writer_state.tenants[tenant]
    positions: list[EventPosition] = []
    for chunk in _split_batches(commands):
        tx.writer_state.last_batch += 1
        entries = [(command.name, msgspec.Raw(command.data)) for command in chunk]
        tx.execute(SQL.insert_events, number, tx.writer_state.last_batch, tx.now, msgspec.json.encode(entries))
        positions += [(tx.writer_state.last_batch, index) for index in range(len(chunk))]
    for command, (batch, index) in zip(commands, positions, strict=True):
        if command.dedupe_key is not None:
            tx.execute(SQL.put_event_keys, number, command.dedupe_key, command.digest, batch, index, tx.now)
    tx.announce_events(tenant)
    return positions


def _split_batches(commands: Sequence[PublishEvent]) -> Iterator[list[PublishEvent]]:
    batch: list[PublishEvent] = []
    size = 0
    for command in commands:
        if batch and (size + len(command.data) > BATCH_BYTES_MAX or len(batch) == EVENTS_PER_ROW_MAX):
            yield batch
            batch, size = [], 0
        batch.append(command)
        size += len(command.data)
    yield batch


def forget_events(tx: Transaction, command: ForgetEvents) -> Forgotten:
    """Remove old batches, one tenant after the other, and expired dedupe keys, up to the limit of each."""
    keys = tx.execute(SQL.remove_event_keys, tx.now - DEDUPE_KEY_MICROS, command.limit).connection.changes()
    removed = 0
    if command.keep is not None:
        cutoff = tx.now - command.keep
        for number in tx.read(list[int], SQL.tenants_with_old_events, cutoff):
            if removed == command.limit:
                break
            removed += _forget_tenant_events(tx, number, cutoff, command.limit - removed)
    return Forgotten(batches=removed, keys=keys, more=command.limit in (removed, keys))


def _forget_tenant_events(tx: Transaction, number: int, cutoff: int, limit: int) -> int:
    oldest = tx.read(list[tuple[int, int]], SQL.oldest_event_batches, number, limit + 1)
    batches = [batch for batch, _ in takewhile(lambda row: row[1] <= cutoff, oldest[:-1])]  # The newest batch stays.
    if batches:
        entries = tx.execute(SQL.entries_of_batch, number, batches[-1]).get
        last_index = len(msgspec.json.decode(entries, type=list[msgspec.Raw])) - 1
        tx.execute(SQL.put_event_floor, number, batches[-1], last_index)
        tx.execute(SQL.remove_events, number, batches[-1])
    return len(batches)


def read_events(reader: Reader, command: ReadEvents) -> list[Event]:
    """Read a page of events, oldest first. Raises `Gap`."""
    tenant, after, limit = command.tenant, command.after, command.limit
    reader.writer_state.check_tenant(tenant)
    start = (0, -1) if after is None else parse_event_id(after)
    events: list[Event] = []
    with reader.snapshot():  # One for the events and the last removed position.
        floor = None if after is None else reader.execute(SQL.event_floor, tenant).fetchone()
        if floor is not None and start < floor:
            raise Gap(format_event_id(*floor))
        rows = reader.execute(SQL.event_batches, tenant, start[0], limit + 1)
        for batch, at, entries in rows:
            for index, (name, data) in enumerate(msgspec.json.decode(entries, type=list[tuple[str, msgspec.Raw]])):
                if (batch, index) > start:
                    event_id, moment = format_event_id(batch, index), to_datetime(at)
                    events.append(Event(id=event_id, tenant=tenant, name=name, at=moment, data=data.copy()))
            if len(events) >= limit:
                rows.close(True)
                break
    return events[:limit]


def get_newest_event_id(reader: Reader, command: GetNewestEventId) -> str | None:
    """Return the ID of a tenant's newest event, or `None`. All events up to it can be read."""
    reader.writer_state.check_tenant(command.tenant)
    row = reader.execute(SQL.newest_event_batch, command.tenant).fetchone()
    if row is None:
        return None
    batch, entries = row
    return format_event_id(batch, len(msgspec.json.decode(entries, type=list[msgspec.Raw])) - 1)
