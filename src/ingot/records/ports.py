"""The commands for records that an engine implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ingot.events.audit import Act
from ingot.kernel.commands import Command, Store
from ingot.records.model import Record


class PutRecord(Command[Record[msgspec.Raw]], frozen=True, kw_only=True):
    """Create or replace a record, and write an audit entry. `tenant=None` makes the record visible to all tenants.

    If `if_version` is set, it must be the current version, or 0 if the record must not exist; otherwise `RecordChanged`
    is raised. A record that already has this content keeps its version. Raises `TenantNotFound`, or `TooManyRecords` if
    the tenant has `records_max` other records of this kind.
    """

    kind: str
    tenant: str | None
    name: str
    body: bytes
    sealed: bytes | None = None
    if_version: int | None = None
    records_max: int
    act: Act
    action: str
    target: str


class DeleteRecord(Command[Record[msgspec.Raw]], frozen=True, kw_only=True):
    """Delete a record, write an audit entry, and return the deleted record.

    `if_version` works as in `PutRecord`. Raises `RecordNotFound`, `RecordChanged` or `TenantNotFound`.
    """

    kind: str
    tenant: str | None
    name: str
    if_version: int | None = None
    act: Act
    action: str
    target: str


class GetRecord(Command[Record[msgspec.Raw]], frozen=True, kw_only=True):
    """Read a record. Raises `RecordNotFound` or `TenantNotFound`."""

    kind: str
    tenant: str | None
    name: str


class ListRecords(Command[list[Record[msgspec.Raw]]], frozen=True, kw_only=True):
    """Read up to `limit` records whose names begin with `prefix`, ordered by name, starting after the name `after`.

    Raises `TenantNotFound` if the tenant does not exist.
    """

    kind: str
    tenant: str | None
    prefix: str = ""
    after: str = ""
    limit: int


class GetSealedValue(Command[tuple[int, bytes]], frozen=True, kw_only=True):
    """Read the version and the sealed value of a record. No other command returns sealed values.

    Raises `RecordNotFound` or `TenantNotFound`.
    """

    kind: str
    tenant: str
    name: str


class RecordStore(Store, Protocol):
    """An engine that stores records."""

    def on_record_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback()` within a second after any server of the database has changed a record."""
