"""Slow readers: a slow connection is tolerated, a client that reads next to nothing is disconnected."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from ingot.http import slow_readers
from ingot.http.slow_readers import READ_RATE_BYTES_MIN, READ_WINDOW_SECONDS, SlowReaderGuard
from tests.http.byte_route_requests import GET
from tests.http.byte_routes import MIB, ByteRoutes
from tests.http.fast_forward_loop import FastForwardLoop
from tests.http.raw_connections import connected, open_connections
from tests.http.serving import serving
from tests.waiting import eventually

BUFFER_BYTES = 64 * 1024


class Writer(asyncio.Protocol):
    """Writes once, and guards the connection against slow readers."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._guard = SlowReaderGuard(transport, asyncio.get_running_loop())
        transport.write(bytes(self._size))

    def pause_writing(self) -> None:
        self._guard.start()

    def resume_writing(self) -> None:
        self._guard.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.stop()
        self.lost = True


def outlasts(size: int, *, every_seconds: float, seconds: float) -> bool:
    """Whether a client that reads `size` of 8 MiB every `every_seconds` is still connected in the end."""

    async def read() -> bool:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server_side = socket.socket()
            server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            server_side.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            await loop.sock_connect(server_side, listening.getsockname())
            client_side, _ = listening.accept()
        with client_side:
            _, writer = await loop.create_connection(lambda: Writer(8 * MIB), sock=server_side)
            for _ in range(int(seconds / every_seconds)):
                await asyncio.sleep(every_seconds)
                if writer.lost:
                    return False
                if size:
                    client_side.recv(size, socket.MSG_WAITALL)
            writer.transport.abort()
        return True

    with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
        return runner.run(read())


def test_a_client_that_reads_nothing_is_disconnected() -> None:
    assert outlasts(0, every_seconds=10, seconds=READ_WINDOW_SECONDS - 10)
    assert not outlasts(0, every_seconds=10, seconds=READ_WINDOW_SECONDS + 20)


def test_a_client_that_reads_a_little_now_and_then_is_disconnected() -> None:
    assert not outlasts(100, every_seconds=10, seconds=10 * READ_WINDOW_SECONDS)


def test_a_client_on_a_slow_connection_stays_connected() -> None:
    assert outlasts(READ_RATE_BYTES_MIN * 80, every_seconds=20, seconds=10 * READ_WINDOW_SECONDS)


async def test_an_unread_response_ends_with_its_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_readers, "READ_WINDOW_SECONDS", 0.2)
    byte_routes = ByteRoutes()
    byte_routes.size = 1024 * MIB
    async with serving(tmp_path / "data", extra_routes=byte_routes.routes()) as site, connected(site) as (_, writer):
        stream = site.client.stream(
            "GET", "/api/v1/events/stream", headers={"authorization": f"Bearer {site.operator}"}
        )
        async with stream as idle:
            assert idle.status_code == 200
            writer.write(GET)
            await eventually(lambda: byte_routes.closed == 1)
            await eventually(lambda: len(open_connections(site)) == 1)  # The idle stream stays open.


async def test_no_part_is_produced_while_an_earlier_one_is_unread(tmp_path: Path) -> None:
    byte_routes = ByteRoutes()
    byte_routes.size = 1024 * MIB
    async with serving(tmp_path / "data", extra_routes=byte_routes.routes()) as site, connected(site) as (_, writer):
        writer.write(GET)
        await eventually(lambda: any(each.flow.write_paused for each in open_connections(site)))
        (connection,) = open_connections(site)
        assert byte_routes.given == byte_routes.size - connection.cycle.expected_content_length
