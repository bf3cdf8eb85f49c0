"""Commands for records."""

from __future__ import annotations

import msgspec

from ingot.engines.postgres.connection import Database
from ingot.engines.postgres.connection import Record as Row
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.lane_cache import NIL_ID
from ingot.engines.postgres.sql import SQL
from ingot.engines.postgres.tenants import check_tenant, check_tenant_id
from ingot.jobs.record_kinds import DEFINITION_KIND, PAUSE_KIND
from ingot.kernel.clock import to_datetime
from ingot.kernel.errors import OutcomeUnknown
from ingot.records.model import Record, RecordNotFound
from ingot.records.ports import DeleteRecord, GetRecord, GetSealedValue, ListRecords, PutRecord

RawRecord = Record[msgspec.Raw]


async def put_record(context: Context, command: PutRecord) -> RawRecord:
    """See `PutRecord`."""
    check_tenant_id(command.tenant)
    rows = await context.database.call(
        CALL.put_record,
        command.kind,
        command.tenant or NIL_ID,
        command.name,
        command.body.decode(),
        command.sealed,
        command.if_version,
        command.records_max,
        json_text(command.act),
        command.action,
        command.target,
    )
    if not rows:  # The call was repeated after its response was lost, and the record has been deleted since.
        raise OutcomeUnknown("The first response was lost, and the record has been deleted since.")
    if command.kind == DEFINITION_KIND.name:
        context.lane_cache.resume_all_lanes()
    context.lane_cache.notify_record_changed()
    return _record_of(rows[0])


async def delete_record(context: Context, command: DeleteRecord) -> RawRecord:
    """See `DeleteRecord`."""
    check_tenant_id(command.tenant)
    (row,) = await context.database.call(
        CALL.delete_record,
        command.kind,
        command.tenant or NIL_ID,
        command.name,
        command.if_version,
        json_text(command.act),
        command.action,
        command.target,
    )
    if command.kind == PAUSE_KIND.name and command.tenant is not None:
        context.lane_cache.resume_lanes(command.tenant)
    context.lane_cache.notify_record_changed()
    return _record_of(row)


async def get_record(context: Context, command: GetRecord) -> RawRecord:
    """See `GetRecord`."""
    if command.tenant is not None:
        await check_tenant(context, command.tenant)
    record = await find_record(context.database, command.kind, command.tenant, command.name)
    if record is None:
        raise _not_found(command)
    return record


async def find_record(database: Database, kind: str, tenant: str | None, name: str) -> RawRecord | None:
    """Read a record. The result is `None` if it does not exist."""
    owner = tenant or NIL_ID
    rows = await database.read(owner, SQL.get_record, kind, owner, name)
    return _record_of(rows[0]) if rows else None


async def get_sealed_value(context: Context, command: GetSealedValue) -> tuple[int, bytes]:
    """See `GetSealedValue`."""
    await check_tenant(context, command.tenant)
    rows = await context.database.call(CALL.get_sealed, command.kind, command.tenant, command.name)
    if not rows:
        raise _not_found(command)
    return rows[0]["version"], rows[0]["sealed"]


async def list_records(context: Context, command: ListRecords) -> list[RawRecord]:
    """See `ListRecords`."""
    if command.tenant is not None:
        await check_tenant(context, command.tenant)
    owner = command.tenant or NIL_ID
    values = (command.kind, owner, command.prefix, command.after, command.limit)
    return [_record_of(row) for row in await context.database.read(owner, SQL.list_records, *values)]


def _not_found(command: GetRecord | GetSealedValue) -> RecordNotFound:
    return RecordNotFound(f"there is no {command.kind} {command.name[:64]!r}")


def _record_of(row: Row) -> RawRecord:
    return Record(
        name=row["name"],
        version=row["version"],
        body=msgspec.Raw(row["body"].encode()),
        created_at=to_datetime(row["created_at"]),
        created_by=row["created_by"],
        updated_at=to_datetime(row["updated_at"]),
        updated_by=row["updated_by"],
    )
