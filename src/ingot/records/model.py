"""Records, and the errors that all record kinds share."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from ingot.kernel.errors import Conflict, NotFound, TooMany

B = TypeVar("B")


class Record(msgspec.Struct, Generic[B], frozen=True, kw_only=True):
    """A small named object. Its version starts at 1 and increases by one with every change."""

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
    """The record does not exist."""

    code = "record_not_found"
    hint = "Check the name and the tenant. List the records to see which names exist."


class RecordChanged(Conflict):
    """The record does not have the expected version."""

    code = "record_changed"
    hint = "Read the record again, and repeat the change with its current version. Nothing was changed."

    def __init__(self, detail: str | None = None, *, version: int) -> None:
        super().__init__(
            detail or (f"the current version is {version}" if version else "the record does not exist (version 0)")
        )
        self.version = version
        self.members = {"version": version}


class TooManyRecords(TooMany):
    """The tenant has reached its limit of records of this kind."""

    code = "too_many_records"
    hint = "Delete records that are no longer needed. Nothing was changed."
