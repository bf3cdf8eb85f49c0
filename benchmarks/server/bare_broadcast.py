"""The process of a bare broadcast, which only writes the same frame to every connection."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final, cast

from benchmarks.queue.adapter import component

HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FRAME: Final = b'id: 0000000000000000\nevent: bench.tick\ndata: {"id":"0000000000000000","data":"%s"}\n\n'


class BroadcastConnection(asyncio.Protocol):
    """A connection that receives all frames after its first bytes."""

    def __init__(self, followers: set[asyncio.Transport]) -> None:
        self._followers = followers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(HEAD)
        self._followers.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._followers.discard(self._transport)


async def serve(per_second: float, bytes_of_data: int) -> None:
    """Broadcast at this rate, without end."""
    loop = asyncio.get_running_loop()
    followers: set[asyncio.Transport] = set()
    server = await loop.create_server(lambda: BroadcastConnection(followers), "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    frame = FRAME % (b"x" * bytes_of_data)
    chunk = b"%x\r\n%s\r\n" % (len(frame), frame)
    due = loop.time()
    while True:
        for transport in followers:
            transport.write(chunk)
        due += 1 / per_second
        await asyncio.sleep(max(0.0, due - loop.time()))


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    uvloop.run(serve(float(sys.argv[1]), int(sys.argv[2])))
