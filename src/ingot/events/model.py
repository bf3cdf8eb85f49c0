"""What an event is."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a tenant's things.

    `id` is opaque and grows in the order in which things happened; it is also the cursor to read on from.
    `data` is the thing itself as JSON, in short form.
    """

    id: str
    """ID of the event: its position in the event log."""
    tenant: str
    """ID of the tenant."""
    name: str
    """Name of the event: lower-case segments separated by dots, such as `order.paid`."""
    at: datetime
    """When the event happened."""
    data: msgspec.Raw
    """Data of the event: JSON of up to 64 KiB."""


class Published(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The id of an event, and whether this call made it: its dedupe key may have made it before."""

    id: str
    created: bool


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a round of forgetting removed: batches of events, dedupe keys; and whether there are more."""

    batches: int = 0
    keys: int = 0
    more: bool = False
