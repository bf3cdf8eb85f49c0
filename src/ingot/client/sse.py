"""Server-sent events."""

from __future__ import annotations

import msgspec


class SseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A server-sent event. `data` is JSON text."""

    name: str
    data: str
    id: str | None = None
