"""Streams of events: read line by line, and gone on with where they broke off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.errors import ServerUnreachable, StreamEnded
from ingot.client.sse import SseEvent

SSE_HEADERS: Final = {"accept": "text/event-stream"}
RECONNECT_SECONDS: Final = 0.5
RECONNECT_SECONDS_MAX: Final = 10.0
FINAL_REASONS: Final = frozenset({"unauthorized", "forbidden", "tenant_not_found", "complete"})


async def follow_stream(http: AsyncHttp, path: str, query: dict[str, Any]) -> AsyncIterator[SseEvent]:
    """The events of a stream without gap or repeat, over any number of connections.

    It ends when there are no more; raises `StreamEnded` when the right to it is gone.
    """
    last: str | None = None
    pause = RECONNECT_SECONDS
    while True:
        headers = SSE_HEADERS if last is None else {**SSE_HEADERS, "last-event-id": last}
        ended = "lost"
        try:
            async with http.stream_lines(path, query=query, headers=headers) as lines:
                async for told in _parse_events(lines):
                    if told.name == "end":
                        ended = msgspec.json.decode(told.data)["reason"]
                        break
                    last, pause = told.id or last, RECONNECT_SECONDS
                    yield told
        except ServerUnreachable:
            if last is None:
                raise
        if ended == "complete":
            return
        if ended in FINAL_REASONS:
            raise StreamEnded(f"the server ended the stream: {ended}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, RECONNECT_SECONDS_MAX)


async def _parse_events(lines: AsyncIterator[str]) -> AsyncIterator[SseEvent]:
    """What stands between empty lines."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield SseEvent(name=fields.get("event", "message"), data=fields["data"], id=fields.get("id"))
        fields = {}
