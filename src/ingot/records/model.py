"""A record, and the errors of all kinds."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from ingot.kernel.errors import Conflict, NotFound, TooMany

B = TypeVar("B")


class Record(msgspec.Struct, Generic[B], frozen=True, kw_only=True):
    """A small object with a name. Its version begins at 1 and grows by one with every change."""

    name: str
    """Name of the record."""
    version: int
    """Version of the record. It starts at 1 and grows by 1 with every change."""
    body: B
    """Visible content of the record."""
    created_at: datetime
    """When the record was created."""
    created_by: str | None
    """Caller that created the record, such as `token:` or `user:` and an ID."""
    updated_at: datetime
    """When the record was last changed."""
    updated_by: str | None
    """Caller that last changed the record, such as `token:` or `user:` and an ID."""


class RecordNotFound(NotFound):
    """There is no record with this name."""

    code = "record_not_found"
    hint = "Check the name; the list has those that exist."


class RecordChanged(Conflict):
    """The record has another version than expected."""

    code = "record_changed"
    hint = "Read the record again, and send your change with its current version; nothing was changed."

    def __init__(self, detail: str | None = None, *, version: int) -> None:
        super().__init__(detail or f"the current version is {version}, where 0 means that there is no record")
        self.version = version
        self.members = {"version": version}


class TooManyRecords(TooMany):
    """The tenant has as many records of this kind as it may have."""

    code = "too_many_records"
    hint = "Delete records that are not needed; nothing was changed."
