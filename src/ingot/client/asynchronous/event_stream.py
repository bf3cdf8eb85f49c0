"""Streams of server-sent events that reconnect and resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.errors import ServerUnreachable, StreamEnded
from ingot.client.sse import SseEvent
from ingot.kernel.errors import IngotError

SSE_HEADERS: Final = {"accept": "text/event-stream"}
RECONNECT_SECONDS: Final = 0.5
RECONNECT_SECONDS_MAX: Final = 10.0
FINAL_REASONS: Final = frozenset({"unauthorized", "forbidden", "tenant_not_found", "complete"})


async def follow_stream(http: AsyncHttp, path: str, query: dict[str, Any]) -> AsyncIterator[SseEvent]:
    """Yield the events of a stream without gaps or repeats, reconnecting when the connection is lost.

    Returns when the stream is complete. Raises `StreamEnded` if the caller may not read it any more, and
    `ServerUnreachable` if the stream cannot be opened at all. Once it has been open, it is opened again for ever, also
    while a proxy or a starting server responds with 502, 503 or 504.
    """
    last_event_id: str | None = None
    was_open = False
    delay = RECONNECT_SECONDS
    while True:
        headers = SSE_HEADERS if last_event_id is None else {**SSE_HEADERS, "last-event-id": last_event_id}
        end_reason = "lost"
        try:
            async with http.stream_lines(path, query=query, headers=headers) as lines:
                was_open = True
                async for event in _parse_events(lines):
                    if event.name == "end":
                        end_reason = msgspec.json.decode(event.data)["reason"]
                        break
                    last_event_id, delay = event.id or last_event_id, RECONNECT_SECONDS
                    yield event
        except IngotError as error:
            if not was_open or error.status != ServerUnreachable.status:
                raise
        if end_reason == "complete":
            return
        if end_reason in FINAL_REASONS:
            raise StreamEnded(f"the server ended the stream: {end_reason}")
        await asyncio.sleep(delay)
        delay = min(2 * delay, RECONNECT_SECONDS_MAX)


async def _parse_events(lines: AsyncIterator[str]) -> AsyncIterator[SseEvent]:
    """Parse lines into events, which are separated by empty lines."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield SseEvent(name=fields.get("event", "message"), data=fields["data"], id=fields.get("id"))
        fields = {}
