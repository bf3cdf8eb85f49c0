# Made of ingot.client.asynchronous by scripts/make_sync.py: change that, and run `make client`.
"""Streams of events: read line by line, and gone on with where they broke off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from ingot.client.errors import ServerUnreachable, StreamEnded
from ingot.client.synchronous.http import SyncHttp
from ingot.client.told import Told

EVENTS: Final = {"accept": "text/event-stream"}
AGAIN_SECONDS: Final = 0.5
AGAIN_SECONDS_MAX: Final = 10.0
ENDED_FOR_GOOD: Final = frozenset({"unauthorized", "forbidden", "tenant_not_found", "complete"})


def follow(http: SyncHttp, path: str, query: dict[str, Any]) -> Iterator[Told]:
    """The events of a stream without gap or repeat, over any number of connections.

    It ends when there are no more; raises `StreamEnded` when the right to it is gone.
    """
    last: str | None = None
    pause = AGAIN_SECONDS
    while True:
        headers = EVENTS if last is None else {**EVENTS, "last-event-id": last}
        ended = "lost"
        try:
            with http.stream(path, query=query, headers=headers) as lines:
                for told in _events(lines):
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
        time.sleep(pause)
        pause = min(2 * pause, AGAIN_SECONDS_MAX)


def _events(lines: Iterator[str]) -> Iterator[Told]:
    """What stands between empty lines."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield Told(name=fields.get("event", "message"), data=fields["data"], id=fields.get("id"))
        fields = {}
