"""The process of a bare broadcast on the HTTP server that Ingot uses."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn

from benchmarks.queue.adapter import component
from benchmarks.server.bare_broadcast import FRAME


class Broadcast:
    """Sends the same frame to all clients at a steady rate."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._next = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send frames to a client, whatever its request is."""
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        while True:
            await self._next.wait()
            await send({"type": "http.response.body", "body": self._frame, "more_body": True})

    async def tick(self, per_second: float) -> None:
        """Release a frame at this rate, without end."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            current, self._next = self._next, asyncio.Event()
            current.set()
            due += 1 / per_second
            await asyncio.sleep(max(0.0, due - loop.time()))


async def serve(per_second: float, bytes_of_data: int) -> None:
    """Broadcast until SIGTERM."""
    app = Broadcast(FRAME % (b"x" * bytes_of_data))
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "log_config": None, "access_log": False}
    config = uvicorn.Config(app, loop="uvloop", http="httptools", timeout_graceful_shutdown=1, **options)
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        ticking = asyncio.create_task(app.tick(per_second))
        await uvicorn.Server(config).serve(sockets=[listener])
        ticking.cancel()


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    uvloop.run(serve(float(sys.argv[1]), int(sys.argv[2])))
