"""Events: those that users publish, reading them all, and those that have been kept long enough."""

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

BATCH_BYTES_MAX: Final = 256 * 1024  # Somebody who reads one event reads the batch it is in.

EventKey = tuple[str, str | None]
EventPosition = tuple[int, int]


def publish(tx: Transaction, commands: Sequence[PublishEvent]) -> list[Published | IngotError]:
    """Append events, those of one tenant together, in the order in which they came."""
    answers: dict[int, Published | IngotError] = {}
    own: dict[str, list[int]] = {}
    first: dict[EventKey, int] = {}
    repeats: list[tuple[int, int]] = []
    for number, command in enumerate(commands):
        key = command.tenant, command.dedupe_key
        if command.tenant not in tx.writer_state.tenants:
            answers[number] = TenantNotFound(f"there is no tenant {command.tenant[:64]!r}")
        elif command.dedupe_key is not None and key in first:
            repeats.append((number, first[key]))
        elif command.dedupe_key is not None and (known := _find_repeat(tx, command)) is not None:
            answers[number] = known
        else:
            first[key] = number
            own.setdefault(command.tenant, []).append(number)
    for tenant, numbers in own.items():
        places = _append(tx, tenant, [commands[number] for number in numbers])
        for number, place in zip(numbers, places, strict=True):
            answers[number] = Published(id=format_event_id(*place), created=True)
    for number, of in repeats:
        answers[number] = _repeat_answer(commands[number], commands[of], answers[of])
    return [answers[number] for number in range(len(commands))]


def _find_repeat(tx: Transaction, command: PublishEvent) -> Published | IngotError | None:
    """What the key of a command stands for already."""
    number = tx.writer_state.tenants[command.tenant]
    row = tx.execute(SQL.event_of_dedupe_key, number, command.dedupe_key, tx.now - DEDUPE_KEY_MICROS).fetchone()
    if row is None:
        return None
    digest, batch, place = row
    if digest != command.digest:
        return IdempotencyMismatch()
    return Published(id=format_event_id(batch, place), created=False)


def _repeat_answer(
    command: PublishEvent, first: PublishEvent, answer: Published | IngotError
) -> Published | IngotError:
    if isinstance(answer, IngotError):
        return answer
    if command.digest != first.digest:
        return IdempotencyMismatch()
    return Published(id=answer.id, created=False)


def _append(tx: Transaction, tenant: str, commands: Sequence[PublishEvent]) -> list[EventPosition]:
    """Write events and their keys, and answer their places."""
    number = tx.writer_state.tenants[tenant]
    places: list[EventPosition] = []
    for together in _split_batches(commands):
        tx.writer_state.last_batch += 1
        entries = [(command.name, msgspec.Raw(command.data)) for command in together]
        tx.execute(SQL.insert_events, number, tx.writer_state.last_batch, tx.now, msgspec.json.encode(entries))
        places += [(tx.writer_state.last_batch, place) for place in range(len(together))]
    for command, (batch, place) in zip(commands, places, strict=True):
        if command.dedupe_key is not None:
            tx.execute(SQL.put_event_keys, number, command.dedupe_key, command.digest, batch, place, tx.now)
    tx.announce_events(tenant)
    return places


def _split_batches(commands: Sequence[PublishEvent]) -> Iterator[list[PublishEvent]]:
    together: list[PublishEvent] = []
    size = 0
    for command in commands:
        if together and (size + len(command.data) > BATCH_BYTES_MAX or len(together) == EVENTS_PER_ROW_MAX):
            yield together
            together, size = [], 0
        together.append(command)
        size += len(command.data)
    yield together


def forget_events(tx: Transaction, command: ForgetEvents) -> Forgotten:
    """Remove old batches of one tenant after the other, and old keys, until as many as the limit says are gone."""
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
    gone = [batch for batch, _ in takewhile(lambda row: row[1] <= cutoff, oldest[:-1])]  # The newest stays.
    if gone:
        entries = tx.execute(SQL.entries_of_batch, number, gone[-1]).get
        last = len(msgspec.json.decode(entries, type=list[msgspec.Raw])) - 1
        tx.execute(SQL.put_event_floor, number, gone[-1], last)
        tx.execute(SQL.remove_events, number, gone[-1])
    return len(gone)


def read_events(reader: Reader, command: ReadEvents) -> list[Event]:
    """Read a page of events, oldest first. Raises `Gap`."""
    tenant, after, limit = command.tenant, command.after, command.limit
    reader.writer_state.check_tenant(tenant)
    start = (0, -1) if after is None else parse_event_id(after)
    events: list[Event] = []
    with reader.snapshot():  # One for the events and what is missing of them.
        floor = None if after is None else reader.execute(SQL.event_floor, tenant).fetchone()
        if floor is not None and start < floor:
            raise Gap(format_event_id(*floor))
        rows = reader.execute(SQL.event_batches, tenant, start[0], limit + 1)
        for batch, at, entries in rows:
            for place, (name, data) in enumerate(msgspec.json.decode(entries, type=list[tuple[str, msgspec.Raw]])):
                if (batch, place) > start:
                    event_id, moment = format_event_id(batch, place), to_datetime(at)
                    events.append(Event(id=event_id, tenant=tenant, name=name, at=moment, data=data.copy()))
            if len(events) >= limit:
                rows.close(True)
                break
    return events[:limit]


def get_newest_event_id(reader: Reader, command: GetNewestEventId) -> str | None:
    """Find the id of a tenant's newest event; all that are committed are settled."""
    reader.writer_state.check_tenant(command.tenant)
    row = reader.execute(SQL.newest_event_batch, command.tenant).fetchone()
    if row is None:
        return None
    batch, entries = row
    return format_event_id(batch, len(msgspec.json.decode(entries, type=list[msgspec.Raw])) - 1)
