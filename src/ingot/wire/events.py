"""Requests and answers about events."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ingot.jobs.model import NULL
from ingot.wire.jobs import RequestStruct


class PublishEventRequest(RequestStruct, frozen=True, kw_only=True):
    """An event to be published. `data` is kept as it was sent."""

    name: str
    data: Raw = msgspec.field(default_factory=lambda: NULL)
    dedupe_key: str | None = None


class PublishEventResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The id of an event, and the cursor to read on from, behind it."""

    id: str
    cursor: str
