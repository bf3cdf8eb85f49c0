"""Streams of events: read line by line, and gone on with where they broke off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.errors import ServerUnreachable, StreamEnded
from ingot.client.told import Told

EVENTS: Final = {"accept": "text/event-stream"}
AGAIN_SECONDS: Final = 0.5
AGAIN_SECONDS_MAX: Final = 10.0
ENDED_FOR_GOOD: Final = frozenset({"unauthorized", "forbidden", "tenant_not_found", "complete"})


async def follow(http: AsyncHttp, path: str, query: dict[str, Any]) -> AsyncIterator[Told]:
    """The events of a stream without gap or repeat, over any number of connections.

    It ends when there are no more; raises `StreamEnded` when the right to it is gone.
    """
    last: str | None = None
    pause = AGAIN_SECONDS
    while True:
        headers = EVENTS if last is None else {**EVENTS, "last-event-id": last}
        ended = "lost"
        try:
            async with http.stream(path, query=query, headers=headers) as lines:
                async for told in _events(lines):
                    if told.name == "end":
                        ended = msgspec.json.decode(told.data)["reason"]
                        break
                    last, pause = told.id or last, AGAIN_SECONDS
                    yield told
        except ServerUnreachable:
            if last is None:
                raise
        if ended == "complete":
            return
        if ended in ENDED_FOR_GOOD:
            raise StreamEnded(f"the server ended the stream: {ended}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, AGAIN_SECONDS_MAX)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[Told]:
    """What stands between empty lines."""
    fields: dict[str, str] = {}
    async for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield Told(name=fields.get("event", "message"), data=fields["data"], id=fields.get("id"))
        fields = {}
