"""What records need from an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ingot.events.audit import Act
from ingot.kernel.commands import Command, Store
from ingot.records.model import Record


class PutRecord(Command[Record[msgspec.Raw]], frozen=True, kw_only=True):
    """Create or replace a record, with its audit entry. Without a tenant it is shared: all tenants see it.

    With `if_version` that must be the current version, 0 for no record: else `RecordChanged`. A record that is the same
    already keeps its version. `TooManyRecords` when the tenant has `records_max` others, `TenantNotFound`.
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
    """Delete a record, with its audit entry, and answer what it was. `RecordNotFound`, `RecordChanged`."""

    kind: str
    tenant: str | None
    name: str
    if_version: int | None = None
    act: Act
    action: str
    target: str


class GetRecord(Command[Record[msgspec.Raw]], frozen=True, kw_only=True):
    """Read a record. `RecordNotFound`; `TenantNotFound` for a tenant that does not exist."""

    kind: str
    tenant: str | None
    name: str


class ListRecords(Command[list[Record[msgspec.Raw]]], frozen=True, kw_only=True):
    """Read up to `limit` records whose names begin with `prefix`, from behind the name `after`, ordered by name.

    `TenantNotFound` for a tenant that does not exist.
    """

    kind: str
    tenant: str | None
    prefix: str = ""
    after: str = ""
    limit: int


class GetSealedValue(Command[tuple[int, bytes]], frozen=True, kw_only=True):
    """Read the version of a record and its sealed value, which no other command answers. `RecordNotFound`."""

    kind: str
    tenant: str
    name: str


class RecordStore(Store, Protocol):
    """An engine that keeps records."""

    def on_record_changed(self, tell: Callable[[], None]) -> None:
        """Call this within a second after a record changed, by this server or by another of the same database."""
