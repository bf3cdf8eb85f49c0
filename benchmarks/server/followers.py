"""The process of clients that follow a stream or wait for work: opens connections and counts the frames.

It prints a line when all connections are open. After a line on its standard input, it prints the result and ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

import msgspec

from benchmarks.queue.adapter import component
from benchmarks.server.load import LoadRequest, encode_request

FRAME = b"event: bench.tick\n"


class FrameCounts(msgspec.Struct, frozen=True):
    """The number of frames of all connections, and of the connection with the fewest."""

    frames: int
    fewest: int
    closed: int


class FollowerConnection(asyncio.Protocol):
    """A connection that counts frames."""

    def __init__(self, request: bytes, opened: asyncio.Semaphore) -> None:
        self._request = request
        self._opened = opened
        self._tail = b""
        self._has_response = False
        self.frames = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._has_response:
            assert data.startswith(b"HTTP/1.1 200"), data[:300]
            self._has_response = True
            self._opened.release()
        received = self._tail + data
        self.frames += received.count(FRAME)
        self._tail = received[received.rfind(FRAME) + len(FRAME) if FRAME in received else 0 :][-len(FRAME) + 1 :]

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


async def follow(load: LoadRequest) -> FrameCounts:
    """Open all connections, wait for a line on standard input, and return the counts."""
    loop = asyncio.get_running_loop()
    is_claim = load.what == "claim"
    if is_claim:
        body = msgspec.json.encode({"worker_id": "w", "types": ["never-submitted"], "wait_seconds": 30})
        request = encode_request(load, "POST", "/api/v1/jobs/claim", body)
    else:
        request = encode_request(load, "GET", "/api/v1/events/stream")
    opened = asyncio.Semaphore(0)
    connections = []
    for _ in range(load.connections):
        _, connection = await loop.create_connection(
            lambda: FollowerConnection(request, opened), "127.0.0.1", load.port
        )
        connections.append(connection)
        if not is_claim:
            await opened.acquire()
    print("open", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    return FrameCounts(
        frames=sum(connection.frames for connection in connections),
        fewest=min(connection.frames for connection in connections),
        closed=sum(connection.closed for connection in connections),
    )


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(follow(msgspec.json.decode(sys.argv[1], type=LoadRequest)))).decode())
