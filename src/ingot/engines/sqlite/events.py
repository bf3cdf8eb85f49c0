"""Events: those that users publish, reading them all, and those that have been kept long enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from ingot.engines.events import read_event_id, write_event_id
from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import EVENTS_PER_ROW_MAX, Transaction
from ingot.events.errors import Gap
from ingot.events.model import Event, Forgotten, Published
from ingot.events.ports import KEY_KEPT, ForgetEvents, NewestEvent, PublishEvent, ReadEvents
from ingot.identity.model import TenantNotFound
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import IdempotencyMismatch, IngotError

BATCH_BYTES_MAX: Final = 256 * 1024  # Somebody who reads one event reads the batch it is in.

Key = tuple[str, str | None]
Place = tuple[int, int]


def publish(tx: Transaction, commands: Sequence[PublishEvent]) -> list[Published | IngotError]:
    """Append events, those of one tenant together, in the order in which they came."""
    answers: dict[int, Published | IngotError] = {}
    own: dict[str, list[int]] = {}
    first: dict[Key, int] = {}
    repeats: list[tuple[int, int]] = []
    for number, command in enumerate(commands):
        key = command.tenant, command.key
        if command.tenant not in tx.memory.tenants:
            answers[number] = TenantNotFound(f"there is no tenant {command.tenant[:64]!r}")
        elif command.key is not None and key in first:
            repeats.append((number, first[key]))
        elif command.key is not None and (known := _known(tx, command)) is not None:
            answers[number] = known
        else:
            first[key] = number
            own.setdefault(command.tenant, []).append(number)
    for tenant, numbers in own.items():
        places = _append(tx, tenant, [commands[number] for number in numbers])
        for number, place in zip(numbers, places, strict=True):
            answers[number] = Published(id=write_event_id(*place), created=True)
    for number, of in repeats:
        answers[number] = _repeated(commands[number], commands[of], answers[of])
    return [answers[number] for number in range(len(commands))]


def _known(tx: Transaction, command: PublishEvent) -> Published | IngotError | None:
    """What the key of a command stands for already."""
    number = tx.memory.tenants[command.tenant]
    row = tx.execute(SQL.event_of_key, number, command.key, tx.now - KEY_KEPT).fetchone()
    if row is None:
        return None
    digest, batch, place = row
    if digest != command.digest:
        return IdempotencyMismatch()
    return Published(id=write_event_id(batch, place), created=False)


def _repeated(command: PublishEvent, first: PublishEvent, answer: Published | IngotError) -> Published | IngotError:
    if isinstance(answer, IngotError):
        return answer
    if command.digest != first.digest:
        return IdempotencyMismatch()
    return Published(id=answer.id, created=False)


def _append(tx: Transaction, tenant: str, commands: Sequence[PublishEvent]) -> list[Place]:
    """Write events and their keys, and answer their places."""
    number = tx.memory.tenants[tenant]
    places: list[Place] = []
    for together in _batches(commands):
        tx.memory.last_batch += 1
        entries = [(command.name, msgspec.Raw(command.data)) for command in together]
        tx.execute(SQL.insert_events, number, tx.memory.last_batch, tx.now, msgspec.json.encode(entries))
        places += [(tx.memory.last_batch, place) for place in range(len(together))]
    for command, (batch, place) in zip(commands, places, strict=True):
        if command.key is not None:
            tx.execute(SQL.put_event_keys, number, command.key, command.digest, batch, place, tx.now)
    tx.tell_events(tenant)
    return places


def _batches(commands: Sequence[PublishEvent]) -> Iterator[list[PublishEvent]]:
    together: list[PublishEvent] = []
    size = 0
    for command in commands:
        if together and (size + len(command.data) > BATCH_BYTES_MAX or len(together) == EVENTS_PER_ROW_MAX):
            yield together
            together, size = [], 0
        together.append(command)
        size += len(command.data)
    yield together


def forget(tx: Transaction, command: ForgetEvents) -> Forgotten:
    """Remove old batches of one tenant after the other, and old keys, until as many as the limit says are gone."""
    keys = tx.execute(SQL.remove_event_keys, tx.now - KEY_KEPT, command.limit).connection.changes()
    removed = 0
    if command.keep is not None:
        cutoff = tx.now - command.keep
        for number in tx.read(list[int], SQL.tenants_with_old_events, cutoff):
            if removed == command.limit:
                break
            removed += _forget_of(tx, number, cutoff, command.limit - removed)
    return Forgotten(batches=removed, keys=keys, more=command.limit in (removed, keys))


def _forget_of(tx: Transaction, number: int, cutoff: int, limit: int) -> int:
    oldest = tx.read(list[tuple[int, int]], SQL.oldest_events, number, limit + 1)
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
    reader.memory.check_tenant(tenant)
    start = (0, -1) if after is None else read_event_id(after)
    events: list[Event] = []
    with reader.snapshot():  # One for the events and what is missing of them.
        floor = None if after is None else reader.execute(SQL.event_floor, tenant).fetchone()
        if floor is not None and start < floor:
            raise Gap(write_event_id(*floor))
        rows = reader.execute(SQL.read_events, tenant, start[0], limit + 1)
        for batch, at, entries in rows:
            for place, (name, data) in enumerate(msgspec.json.decode(entries, type=list[tuple[str, msgspec.Raw]])):
                if (batch, place) > start:
                    event_id, moment = write_event_id(batch, place), to_datetime(at)
                    events.append(Event(id=event_id, tenant=tenant, name=name, at=moment, data=data.copy()))
            if len(events) >= limit:
                rows.close(True)
                break
    return events[:limit]


def newest_event(reader: Reader, command: NewestEvent) -> str | None:
    """Find the id of a tenant's newest event; all that are committed are settled."""
    reader.memory.check_tenant(command.tenant)
    row = reader.execute(SQL.newest_events, command.tenant).fetchone()
    if row is None:
        return None
    batch, entries = row
    return write_event_id(batch, len(msgspec.json.decode(entries, type=list[msgspec.Raw])) - 1)
