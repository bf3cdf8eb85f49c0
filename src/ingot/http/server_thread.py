"""A server in a thread with its own event loop, which code elsewhere in the process cannot block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import uvloop

from ingot.http.server import Server

ServeFunction = Callable[[Callable[[Server], None]], Coroutine[Any, Any, None]]


class ServerThread:
    """Runs the coroutine `serve` in a thread. It must call its argument once its server accepts connections."""

    def __init__(self, serve: ServeFunction, *, name: str) -> None:
        self._serve = serve
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready: Future[tuple[Server, asyncio.AbstractEventLoop]] = Future()

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Raises the error of a failed start."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Stop the server and wait for the thread to end."""
        server, loop = self._ready.result()
        if self._thread.is_alive():
            loop.call_soon_threadsafe(server.stop)
        self._thread.join()

    def _run(self) -> None:
        try:
            uvloop.run(self._serve(self._set_ready))
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    def _set_ready(self, server: Server) -> None:
        self._ready.set_result((server, asyncio.get_running_loop()))
