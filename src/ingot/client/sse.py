"""What a stream tells."""

from __future__ import annotations

import msgspec


class SseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; its data is JSON text."""

    name: str
    data: str
    id: str | None = None
