"""The service for the records of one kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from ingot.events.audit import Act, new_act
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import (
    PAGE_ROWS_DEFAULT,
    PAGE_ROWS_MAX,
    Page,
    check_limit,
    decode_cursor_position,
    encode_cursor,
)
from ingot.kernel.validation import NUMBER_MAX, check_integer, check_storable, check_text
from ingot.records.kinds import NAME_CHARS_MAX, RecordKind
from ingot.records.model import Record
from ingot.records.ports import DeleteRecord, GetRecord, GetSealedValue, ListRecords, PutRecord, RecordStore

B = TypeVar("B")


class Records(Generic[B]):
    """The records of one kind. Each belongs to a tenant, or is visible to all tenants if the tenant is `None`."""

    def __init__(self, store: RecordStore, kind: RecordKind[B]) -> None:
        self._store = store
        self.kind = kind

    async def put(
        self,
        tenant: str | None,
        name: str,
        body: B,
        *,
        sealed: bytes | None = None,
        if_version: int | None = None,
        audit_verb: str | None = None,
        act: Act | None = None,
    ) -> Record[B]:
        """Create or replace a record. Raises `InvalidInput`, `RecordChanged`, `TooManyRecords` or `TenantNotFound`."""
        kind, name = self.kind, self.kind.check_name(name)
        body_text = msgspec.json.encode(body)
        if len(body_text) > kind.body_bytes_max:
            raise InvalidInput(f"the body must have at most {kind.body_bytes_max} bytes, got {len(body_text)} bytes")
        command = PutRecord(
            kind=kind.name,
            tenant=tenant,
            name=name,
            body=body_text,
            sealed=sealed,
            if_version=_check_version(if_version),
            records_max=kind.records_max,
            act=new_act(act),
            action=kind.audit_action(audit_verb or kind.put_verb),
            target=kind.audit_target(name),
        )
        return self.kind.decode(await self._store.run(command))

    async def write(
        self, tenant: str | None, name: str, request_body: Any, *, if_version: int | None = None, act: Act | None = None
    ) -> Record[B]:
        """Put the body of a request, which has the kind's `request_type`. Raises as `put` does."""
        return await self.put(tenant, name, request_body, if_version=if_version, act=act)

    async def delete(
        self, tenant: str | None, name: str, *, if_version: int | None = None, act: Act | None = None
    ) -> Record[B]:
        """Delete a record and return it. Raises `RecordNotFound`, `RecordChanged` or `TenantNotFound`."""
        kind, name = self.kind, self.kind.check_name(name)
        command = DeleteRecord(
            kind=kind.name,
            tenant=tenant,
            name=name,
            if_version=_check_version(if_version),
            act=new_act(act),
            action=kind.audit_action(kind.delete_verb),
            target=kind.audit_target(name),
        )
        return self.kind.decode(await self._store.run(command))

    async def get(self, tenant: str | None, name: str) -> Record[B]:
        """Read a record. Raises `RecordNotFound` or `TenantNotFound`."""
        command = GetRecord(kind=self.kind.name, tenant=tenant, name=self.kind.check_name(name))
        return self.kind.decode(await self._store.run(command))

    async def get_sealed_value(self, tenant: str, name: str) -> tuple[int, bytes]:
        """Read the version of a record and its encrypted value. Raises `RecordNotFound` or `TenantNotFound`."""
        return await self._store.run(
            GetSealedValue(kind=self.kind.name, tenant=tenant, name=self.kind.check_name(name))
        )

    async def page(
        self,
        tenant: str | None,
        *,
        prefix: str = "",
        cursor: str | None = None,
        limit: int = PAGE_ROWS_DEFAULT,
        is_visible: Callable[[str], bool] = lambda _: True,
    ) -> Page[Record[B]]:
        """Read a page of the records whose names are visible, ordered by name.

        The page does not reveal whether there are other records. Raises `InvalidInput` or `TenantNotFound`.
        """
        limit, prefix = (
            check_limit(limit),
            check_storable(check_text(prefix, name="prefix"), name="prefix")[: NAME_CHARS_MAX + 1],
        )
        bound_to = ("records", self.kind.name, tenant, prefix)
        after = decode_cursor_position(cursor, bound_to=bound_to, is_valid=self._is_valid_name) or ""
        visible: list[Record[B]] = []
        query_limit = limit + 1
        while len(visible) <= limit:
            records = await self._read_records(tenant, prefix=prefix, after=after, limit=query_limit)
            visible += [record for record in records if is_visible(record.name)]
            if len(records) < query_limit:
                break
            after, query_limit = records[-1].name, PAGE_ROWS_MAX  # Not all are visible, so read more at once.
        next_cursor = encode_cursor(visible[limit - 1].name, bound_to=bound_to) if len(visible) > limit else None
        return Page(items=visible[:limit], next_cursor=next_cursor)

    def _is_valid_name(self, name: str) -> bool:
        try:
            return bool(self.kind.check_name(name))
        except InvalidInput:
            return False

    async def all(self, tenant: str | None) -> list[Record[B]]:
        """Read all records of a tenant, ordered by name."""
        records: list[Record[B]] = []
        while True:
            after = records[-1].name if records else ""
            page = await self._read_records(tenant, prefix="", after=after, limit=PAGE_ROWS_MAX)
            records += page
            if len(page) < PAGE_ROWS_MAX:
                return records

    async def _read_records(self, tenant: str | None, *, prefix: str, after: str, limit: int) -> list[Record[B]]:
        command = ListRecords(kind=self.kind.name, tenant=tenant, prefix=prefix, after=after, limit=limit)
        return [self.kind.decode(record) for record in await self._store.run(command)]


def _check_version(value: int | None) -> int | None:
    return None if value is None else check_integer(value, name="if_version", minimum=0, maximum=NUMBER_MAX)
