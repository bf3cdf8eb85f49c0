"""The commands for events that an engine implements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ingot.events.model import Event, Forgotten, Published
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Command, Store

DEDUPE_KEY_MICROS: Final = 24 * 3600 * MICROS  # How long a dedupe key is stored.


class PublishEvent(Command[Published], frozen=True, kw_only=True):
    """Append an event of a client to a tenant's log. `data` is JSON text, stored as received.

    If an event of the tenant was published with the same `dedupe_key` within `DEDUPE_KEY_MICROS`, that event is
    returned with `created=False`, and nothing is appended. A `dedupe_key` requires a `digest` of name and data; a
    different digest raises `IdempotencyMismatch`. Raises `TenantNotFound` if the tenant does not exist.
    """

    tenant: str
    name: str
    data: bytes
    dedupe_key: str | None = None
    digest: bytes | None = None


class ForgetEvents(Command[Forgotten], frozen=True, kw_only=True):
    """Remove up to `limit` batches of events older than `keep` microseconds, of any tenant, oldest first.

    `keep=None` keeps all events. Up to `limit` expired dedupe keys are removed as well. The newest batch of each tenant
    is always kept, so that IDs continue from it. A reader that has not read the removed events gets a `Gap`.
    """

    keep: int | None
    limit: int


class ReadEvents(Command[list[Event]], frozen=True, kw_only=True):
    """Read up to `limit` events of one tenant that follow the event `after`, oldest first.

    `after=None` reads from the oldest stored event. After an event was read, no event with a lower ID appears: a reader
    that continues after the last ID it has read misses nothing and reads nothing twice. Raises `Gap` if events that
    follow `after` were removed, and `TenantNotFound` if the tenant does not exist.
    """

    tenant: str
    after: str | None
    limit: int


class GetNewestEventId(Command[str | None], frozen=True, kw_only=True):
    """Read the ID of a tenant's newest event. The result is `None` if the tenant has no events.

    A reader that continues after this ID misses no event that is committed later. With `stable=False` it is the newest
    committed event, and an event with a lower ID may still be committed. Raises `TenantNotFound` if the tenant does not
    exist.
    """

    tenant: str
    stable: bool = True


class EventLog(Store, Protocol):
    """An engine that stores events. It appends them to the log in the transaction that makes the change."""

    def on_event(self, callback: Callable[[str], None]) -> None:
        """Call `callback(tenant)` on the event loop after this process has committed events of a tenant.

        The call is only a hint: it may be missing.
        """
