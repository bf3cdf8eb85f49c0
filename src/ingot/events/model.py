"""Events, and the results of commands for events."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a tenant.

    `id` is opaque. Reading continues after it. In the log, IDs grow in the order of the events; those that clients get
    have no order. `data` describes the affected object as JSON, in short form.
    """

    id: str
    """ID of the event: its position in the event log, encrypted."""
    tenant: str
    """ID of the tenant."""
    name: str
    """Name of the event: lower-case segments separated by dots, such as `order.paid`."""
    at: datetime
    """When the event happened."""
    data: msgspec.Raw
    """Data of the event: JSON of up to 64 KiB."""


class Published(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of publishing: the event ID, and whether this call created the event.

    `created` is false if an earlier event with the same dedupe key exists; `id` is then that of the earlier event.
    """

    id: str
    created: bool


class Forgotten(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of `ForgetEvents`: the removed batches of events and dedupe keys, and whether more can be removed."""

    batches: int = 0
    keys: int = 0
    more: bool = False
