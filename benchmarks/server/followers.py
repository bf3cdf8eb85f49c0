"""The process of many who follow a stream, or wait for work: opens connections, and counts what comes.

Prints a line when all are there, and its figures at the end, which comes with a line on its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import msgspec

from benchmarks.queue.adapter import component
from benchmarks.server.load import LoadRequest, request

FRAME = b"event: bench.tick\n"


class FrameCounts(msgspec.Struct, frozen=True):
    """How many frames came, over all connections, and how many came to the one that got the fewest."""

    frames: int
    least: int
    closed: int


class FollowerConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, text: bytes, opened: asyncio.Semaphore) -> None:
        self._text = text
        self._opened = opened
        self._rest = b""
        self._known = False
        self.frames = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._text)

    def data_received(self, data: bytes) -> None:
        if not self._known:
            assert data.startswith(b"HTTP/1.1 200"), data[:300]
            self._known = True
            self._opened.release()
        whole = self._rest + data
        self.frames += whole.count(FRAME)
        self._rest = whole[whole.rfind(FRAME) + len(FRAME) if FRAME in whole else 0 :][-len(FRAME) + 1 :]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


async def follow(order: LoadRequest) -> FrameCounts:
    """Open all, wait for the word, tell what came."""
    loop = asyncio.get_running_loop()
    waits = order.what == "claim"
    if waits:
        ask = msgspec.json.encode({"worker_id": "w", "types": ["nobody-makes-these"], "wait_seconds": 30})
        text = request(order, "POST", "/api/v1/jobs/claim", ask)
    else:
        text = request(order, "GET", "/api/v1/events/stream")
    opened = asyncio.Semaphore(0)
    all_of_them = []
    for _ in range(order.connections):
        _, one = await loop.create_connection(lambda: FollowerConnection(text, opened), "127.0.0.1", order.port)
        all_of_them.append(one)
        if not waits:
            await opened.acquire()
    print("open", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    return FrameCounts(
        frames=sum(one.frames for one in all_of_them),
        least=min(one.frames for one in all_of_them),
        closed=sum(one.closed for one in all_of_them),
    )


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(follow(msgspec.json.decode(sys.argv[1], type=LoadRequest)))).decode())
