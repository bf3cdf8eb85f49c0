"""The process of a broadcast with nothing around it but the HTTP server that Ingot runs on."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn

from benchmarks.queue.adapter import component
from benchmarks.server.bare_broadcast import FRAME


class Broadcast:
    """Sends the same frame to all who asked, whenever it is time."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._next = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One who asks: whatever they ask, they follow."""
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        while True:
            await self._next.wait()
            await send({"type": "http.response.body", "body": self._frame, "more_body": True})

    async def tick(self, per_second: float) -> None:
        """Send at this rate, for ever."""
        loop = asyncio.get_running_loop()
        at = loop.time()
        while True:
            waiting, self._next = self._next, asyncio.Event()
            waiting.set()
            at += 1 / per_second
            await asyncio.sleep(max(0.0, at - loop.time()))


async def serve(per_second: float, bytes_of_data: int) -> None:
    """Broadcast until TERM."""
    app = Broadcast(FRAME % (b"x" * bytes_of_data))
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_config": None, "access_log": False}
    config = uvicorn.Config(app, loop="uvloop", http="httptools", timeout_graceful_shutdown=1, **options)
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
        print(listening.getsockname()[1], flush=True)
        ticking = asyncio.create_task(app.tick(per_second))
        await uvicorn.Server(config).serve(sockets=[listening])
        ticking.cancel()


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    uvloop.run(serve(float(sys.argv[1]), int(sys.argv[2])))
