"""A server in a thread of its own: nothing that goes on elsewhere in the process keeps it from answering."""

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
    """Runs `serve`, which tells its server when that can be reached, and ends when the server does."""

    def __init__(self, serve: ServeFunction, *, name: str) -> None:
        self._serve = serve
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready: Future[tuple[Server, asyncio.AbstractEventLoop]] = Future()

    def start(self) -> None:
        """Serve. Raises why it cannot."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Serve no more."""
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
