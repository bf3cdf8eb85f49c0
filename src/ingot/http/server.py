"""The HTTP server process: its listening socket, its event loop and its shutdown."""

from __future__ import annotations

import asyncio
import gc
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
from ingot.kernel.hangup import log_hangups
from ingot.kernel.loops import Loop
from ingot.settings import SettingsError

STOP_SECONDS_MAX: Final = 10  # How long running requests may take during shutdown before they are canceled.
CANCEL_SECONDS_MAX: Final = 1.0  # How long canceled requests may take to send an error.
IDLE_SECONDS_MAX: Final = 75  # A connection is closed after this time without a request.
TCP_USER_TIMEOUT_SECONDS: Final = 60
GC_THRESHOLD_OBJECTS: Final = 10_000
BACKLOG: Final = 2048
RESERVED_FILES: Final = 200  # Open files of the store, the log and libraries.
FILES_PER_CONNECTION: Final = 1.5  # The socket; and one tenant may transfer files over half of the connections.
log = structlog.get_logger("ingot.http")


class AddressInUse(IngotError):
    """The server cannot listen at this address."""

    code = "address_in_use"
    hint = "Choose another port with INGOT_PORT or --port. Port 0 selects a free one."


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises `AddressInUse`, or `SettingsError` if this machine does not have the address."""
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
    # Connections inherit these options. The kernel closes those whose client has vanished or acknowledges nothing.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_SECONDS * 1000)
    return listening


def _no_such_host_error(host: str) -> SettingsError:
    return SettingsError(
        f"cannot listen at {host[:100]!r} (INGOT_HOST, or --host): this machine has no such address",
        hint="Use 127.0.0.1 for clients on this machine, or 0.0.0.0 for clients from anywhere.",
    )


def url_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def connections_within(open_files_limit: int) -> int:
    """Return how many connections a server can have with this limit of open files."""
    return max(1, int((open_files_limit - RESERVED_FILES) / FILES_PER_CONNECTION))


def collect_garbage_less_often() -> None:
    """Make the garbage collector of Python ignore all existing objects, and check new ones less often.

    Requests create few reference cycles, and searching for them took 5% of the CPU time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS, 20, 20)


class Server(uvicorn.Server):
    """A uvicorn server with our own shutdown: waiting requests end first, and then the socket is closed."""

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
                proxy_headers=False,  # `ClientAddressResolver` reads them, for trusted proxies only.
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
        """Start to listen, and start the background loops."""
        await super().startup(sockets)
        for loop in self._loops:
            loop.start()

    async def main_loop(self) -> None:
        """Wait until the server stops. Unlike uvicorn's loop, it does not wake up ten times a second."""
        await self.on_tick(0)
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests, and stop the background loops."""
        await super().shutdown(sockets)
        if (canceled := set(self.server_state.tasks)) and not self.force_exit:
            await asyncio.wait(canceled, timeout=CANCEL_SECONDS_MAX)
        for loop in self._loops:
            await loop.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, and at once on a second signal. Ignore SIGHUP. In other threads, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            with log_hangups():
                yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop the server: end long polls and streams, finish other requests, then return. A second call forces it."""
        if self.should_exit:
            self.force_exit = True
        log.info("stopping")
        self._on_stop()
        self.should_exit = True
        self._stopping.set()
