"""Queries of the routes that all kinds of records have."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ingot.kernel.validation import NUMBER_MAX
from ingot.wire.admin import PageQuery
from ingot.wire.jobs import RequestStruct


class RecordsQuery(PageQuery, frozen=True, kw_only=True):
    """Which records to list."""

    prefix: Annotated[str, Meta(description="Only names that begin with this.")] = ""


class RecordQuery(RequestStruct, frozen=True, kw_only=True):
    """Which version a record must have to be changed; 0 means that it must not exist."""

    if_version: (
        Annotated[
            int,
            Meta(
                description="The version that the record must have; 0: it must not exist. Otherwise 409.",
                extra_json_schema={"minimum": 0, "maximum": NUMBER_MAX},
            ),
        ]
        | UnsetType
    ) = UNSET

    @property
    def expected_version(self) -> int | None:
        """The version that the record must have, or `None` for any."""
        return None if self.if_version is UNSET else self.if_version
