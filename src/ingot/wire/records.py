"""Query parameters of the routes that all kinds of records have."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ingot.kernel.validation import NUMBER_MAX
from ingot.wire.admin import PageQuery
from ingot.wire.jobs import RequestStruct


class RecordsQuery(PageQuery, frozen=True, kw_only=True):
    """The records to list."""

    prefix: str = ""
    """Only records whose names begin with this text."""


class RecordQuery(RequestStruct, frozen=True, kw_only=True):
    """The version that a record must have to be changed."""

    if_version: Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": NUMBER_MAX})] | UnsetType = UNSET
    """Version that the record must have; 0 if it must not exist. Otherwise the request fails with 409."""

    @property
    def expected_version(self) -> int | None:
        """The version that the record must have, or `None` for any version."""
        return None if self.if_version is UNSET else self.if_version
