"""Listening: one socket, one event loop, and an end that comes when it is asked for."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EADDRNOTAVAIL
from functools import partial
from os import strerror
from typing import Any, Final

import structlog
import uvicorn

from ingot.http.protocol import CONNECTIONS_MAX, ConnectionLimits, HttpProtocol
from ingot.kernel.errors import IngotError
from ingot.kernel.loops import Loop
from ingot.settings import SettingsError

STOP_SECONDS_MAX: Final = 10  # Requests that are under way get so long to end.
CANCEL_SECONDS_MAX: Final = 1.0  # And those that did not, so long to say so.
IDLE_SECONDS_MAX: Final = 75  # A connection without requests is closed then.
TCP_USER_TIMEOUT_SECONDS: Final = 60
GC_THRESHOLD_OBJECTS: Final = 10_000
BACKLOG: Final = 2048
RESERVED_FILES: Final = 200  # Those of the store, the log and the libraries.
log = structlog.get_logger("ingot.http")


class AddressInUse(IngotError):
    """Something else listens at this address."""

    code = "address_in_use"
    hint = "Choose another port (INGOT_PORT, or --port; 0 is any that is free)."


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address. Raises `AddressInUse`, or `SettingsError` when there is no such address here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.getaddrinfo(host, port, family=family)
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (socket.gaierror, UnicodeError):
        raise _no_such_host_error(host) from None
    except OSError as error:
        if error.errno == EADDRNOTAVAIL:
            raise _no_such_host_error(host) from None
        raise AddressInUse(f"cannot listen at {host}, port {port}: {strerror(error.errno or 0)}") from error
    # Connections have these too: one whose other end takes nothing, or has vanished, is closed by the kernel.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_SECONDS * 1000)
    return listening


def _no_such_host_error(host: str) -> SettingsError:
    return SettingsError(
        f"cannot listen at {host[:100]!r} (INGOT_HOST, or --host): this machine has no such address",
        hint="Use 127.0.0.1 for callers on this machine, or 0.0.0.0 for those from anywhere.",
    )


def url_of(listening: socket.socket) -> str:
    """Where it can be reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_open_files_limit(connections_max: int) -> int:
    """Let the process open as many files as it may, and tell how many connections that is enough for, at most these."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return connections_max if most == resource.RLIM_INFINITY else min(connections_max, most - RESERVED_FILES)


def collect_garbage_less_often() -> None:
    """Let the collector leave alone what was made at the start, and look at the rest ten times less often.

    Requests leave few cycles, and looking for them took one part in twenty of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, 20, 20)


class Server(uvicorn.Server):
    """A server whose signals are ours: first those who wait are let go, then the socket."""

    def __init__(
        self,
        app: Any,
        *,
        on_stop: Callable[[], None],
        connections_max: int = CONNECTIONS_MAX,
        loops: Sequence[Loop] = (),
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=partial(HttpProtocol, limits=ConnectionLimits(connections_max)),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,  # Whom to believe is a setting of ours.
                server_header=False,
                date_header=False,
                timeout_keep_alive=IDLE_SECONDS_MAX,
                timeout_graceful_shutdown=STOP_SECONDS_MAX,
            )
        )
        self._on_stop = on_stop
        self._loops = loops
        self._stopping = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and what goes on beside that."""
        await super().startup(sockets)
        for loop in self._loops:
            loop.start()

    async def main_loop(self) -> None:
        """Sleep until told to stop: there is nothing to do ten times a second."""
        await self.on_tick(0)
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the requests, and what went on beside them."""
        await super().shutdown(sockets)
        if (late := set(self.server_state.tasks)) and not self.force_exit:
            await asyncio.wait(late, timeout=CANCEL_SECONDS_MAX)
        for loop in self._loops:
            await loop.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at TERM and INT; a second one stops at once. Signals are for the main thread, and nothing to others."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """End: long polls and streams are let go, requests under way are finished, then the server returns."""
        if self.should_exit:
            self.force_exit = True
        log.info("stopping")
        self._on_stop()
        self.should_exit = True
        self._stopping.set()
