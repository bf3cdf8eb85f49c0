"""What the event log asks of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ingot.events.model import Event, Forgotten, Published
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Command, Store

DEDUPE_KEY_MICROS: Final = 24 * 3600 * MICROS  # A dedupe key stands for its event so long.


class PublishEvent(Command[Published], frozen=True, kw_only=True):
    """Append a user's own event to a tenant's log. `data` is JSON text, kept as received.

    A `key` comes with a `digest` of name and data, by which repeats are told from mistakes.

    Append an event, durable when it returns.

    A `key` that made an event of the tenant within `KEY_KEPT` answers with that event and `created=False`, and
    appends nothing; with another digest: `IdempotencyMismatch`. `TenantNotFound` for a tenant that is not there.
    """

    tenant: str
    name: str
    data: bytes
    dedupe_key: str | None = None
    digest: bytes | None = None


class ForgetEvents(Command[Forgotten], frozen=True, kw_only=True):
    """Remove up to `limit` batches of events older than `keep` microseconds, of any tenant, oldest first.

    `None` keeps events. As many keys that stand for nothing any more are removed too.

    The newest batch of each tenant stays, so that ids go on from it. Readers behind are told of the `Gap`.
    """

    keep: int | None
    limit: int


class ReadEvents(Command[list[Event]], frozen=True, kw_only=True):
    """Up to `limit` events of one tenant after the event `after`, oldest first.

    A committed event whose id is below one already read never appears later: reading on from the
    last id seen misses nothing and repeats nothing. `TenantNotFound` for a tenant that is not there.
    `Gap` when events behind `after` were removed; without it the oldest that is kept comes first.
    """

    tenant: str
    after: str | None
    limit: int


class GetNewestEventId(Command[str | None], frozen=True, kw_only=True):
    """The id of a tenant's newest event, or `None` when it has none. `TenantNotFound` for one that is not there.

    Reading on from it misses nothing that is committed later. Without `settled` it is the newest that is committed,
    and one that is not committed yet may still come before it.
    """

    tenant: str
    stable: bool = True


class EventLog(Store, Protocol):
    """An engine that keeps events: it appends to the log inside the command that makes the change."""

    def on_event(self, tell: Callable[[str], None]) -> None:
        """Call `tell(tenant)` on the event loop after events of a tenant were committed here. Only a hint."""
