"""Records: small objects in one table. Definitions and pauses are also in the writer state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ingot.engines.sqlite.readers import Reader
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction
from ingot.jobs.record_kinds import DEFINITION_KIND, PAUSE_KIND, pause_from_record
from ingot.kernel.clock import to_datetime
from ingot.records.model import Record, RecordChanged, RecordNotFound, TooManyRecords
from ingot.records.ports import DeleteRecord, GetRecord, GetSealedValue, ListRecords, PutRecord

RawRecord = Record[msgspec.Raw]


def put_record(tx: Transaction, command: PutRecord) -> RawRecord:
    """Create or replace a record."""
    tx.writer_state.check_tenant(command.tenant)
    current, sealed = _find_record(tx, command)
    _check_version(command, 0 if current is None else current.version)
    body = command.body.decode()
    if current is not None and (bytes(current.body), sealed) == (command.body, command.sealed):
        return current
    key = command.kind, command.tenant or ""
    if current is None and tx.execute(SQL.count_records, *key).get >= command.records_max:
        raise TooManyRecords(f"at most {command.records_max} records of the kind {command.kind} are allowed")
    tx.execute(SQL.put_record, *key, command.name, body, command.sealed, tx.now, command.act.who)
    stored, _ = _find_record(tx, command)
    assert stored is not None, "the record was just written"
    _publish_change(tx, command, current, stored)
    return stored


def delete_record(tx: Transaction, command: DeleteRecord) -> RawRecord:
    """Delete a record."""
    tx.writer_state.check_tenant(command.tenant)
    current, _ = _find_record(tx, command)
    if current is None:
        raise RecordNotFound(f"there is no {command.kind} {command.name[:64]!r}")
    _check_version(command, current.version)
    tx.execute(SQL.delete_record, command.kind, command.tenant or "", command.name)
    _publish_change(tx, command, current, None)
    return current


def get_record(reader: Reader, command: GetRecord) -> RawRecord:
    """Read a record."""
    reader.writer_state.check_tenant(command.tenant)
    return _record_of(_get_row(reader, command)[:-1])


def get_sealed_value(reader: Reader, command: GetSealedValue) -> tuple[int, bytes]:
    """Read the version and the sealed value of a record."""
    reader.writer_state.check_tenant(command.tenant)
    row = _get_row(reader, command)
    return row[1], row[-1]


def list_records(reader: Reader, command: ListRecords) -> list[RawRecord]:
    """Read a page of records, by name."""
    reader.writer_state.check_tenant(command.tenant)
    values = (command.kind, command.tenant or "", command.prefix, command.after, command.limit)
    return [_record_of(row) for row in reader.execute(SQL.list_records, *values)]


def _get_row(reader: Reader, command: GetRecord | GetSealedValue) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = reader.execute(
        SQL.get_record, command.kind, command.tenant or "", command.name
    ).fetchone()
    if row is None:
        raise RecordNotFound(f"there is no {command.kind} {command.name[:64]!r}")
    return row


def _find_record(tx: Transaction, command: PutRecord | DeleteRecord) -> tuple[RawRecord | None, bytes | None]:
    row = tx.execute(SQL.get_record, command.kind, command.tenant or "", command.name).fetchone()
    return (None, None) if row is None else (_record_of(row[:-1]), row[-1])


def _record_of(row: tuple[Any, ...]) -> RawRecord:
    name, version, body, created_at, created_by, updated_at, updated_by = row
    return Record(
        name=name,
        version=version,
        body=msgspec.Raw(body.encode()),
        created_at=to_datetime(created_at),
        created_by=created_by,
        updated_at=to_datetime(updated_at),
        updated_by=updated_by,
    )


def _check_version(command: PutRecord | DeleteRecord, current: int) -> None:
    if command.if_version is not None and command.if_version != current:
        raise RecordChanged(version=current)


def _publish_change(
    tx: Transaction, command: PutRecord | DeleteRecord, before: RawRecord | None, after: RawRecord | None
) -> None:
    """Write the audit entry, and apply the change to the writer state."""
    bodies = [None if record is None else record.body for record in (before, after)]
    tx.audit(command.act, command.action, command.target, tenant=command.tenant, before=bodies[0], after=bodies[1])
    tx.effects.records_changed = True
    if command.kind in _CHANGE_HANDLERS:
        _CHANGE_HANDLERS[command.kind](tx, command.tenant, command.name, after)


def _on_definition_change(tx: Transaction, tenant: str | None, type: str, record: RawRecord | None) -> None:
    assert record is not None, "definitions are never deleted"
    if type in tx.writer_state.limited_types:  # The new definition may allow more jobs to run.
        tenants = tx.writer_state.tenants if tenant is None else [tenant]
        for ready_tenant in tx.writer_state.lanes.get(type, {}).keys() & tenants:
            tx.announce_capacity(ready_tenant, type)
    tx.writer_state.set_definition(DEFINITION_KIND.decode(record).body)


def _on_pause_change(tx: Transaction, tenant: str | None, type: str, record: RawRecord | None) -> None:
    assert tenant is not None, "a pause belongs to a tenant"
    if record is None:
        del tx.writer_state.pauses[tenant, type]
        tx.announce_capacity(tenant, type)
    else:
        tx.writer_state.pauses[tenant, type] = pause_from_record(PAUSE_KIND.decode(record))


_CHANGE_HANDLERS: Final[dict[str, Callable[[Transaction, str | None, str, RawRecord | None], None]]] = {
    DEFINITION_KIND.name: _on_definition_change,
    PAUSE_KIND.name: _on_pause_change,
}
