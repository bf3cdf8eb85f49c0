"""Requests and responses of events."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ingot.jobs.model import NULL
from ingot.wire.jobs import RequestStruct


class PublishEventRequest(RequestStruct, frozen=True, kw_only=True):
    """An event to publish."""

    name: str
    """Name of the event: lower-case segments separated by dots, such as `order.paid`."""
    data: Raw = msgspec.field(default_factory=lambda: NULL)
    """Data of the event: JSON of up to 64 KiB. It is stored unchanged."""
    dedupe_key: str | None = None
    """Key that makes the request repeatable for a day: the same key returns the first event."""


class PublishEventResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The published event."""

    id: str
    """ID of the event."""
    cursor: str
    """Position after the event, from which reading can continue."""
