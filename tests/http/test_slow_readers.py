"""Readers that are slow: a line may be, and who only holds an answer is waited for no more."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from ingot.http import slow_readers
from ingot.http.slow_readers import READ_RATE_BYTES_MIN, READ_WINDOW_SECONDS, SlowReaderGuard
from tests.http.byte_route_requests import GET
from tests.http.byte_routes import MIB, Depot
from tests.http.fast_forward_loop import HastyLoop
from tests.http.raw_connections import connected, connections
from tests.http.serving import serving
from tests.waiting import eventually

BUFFER_BYTES = 64 * 1024


class Giver(asyncio.Protocol):
    """Writes once; the connection is looked at meanwhile."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._taking = SlowReaderGuard(transport, asyncio.get_running_loop())
        transport.write(bytes(self._size))

    def pause_writing(self) -> None:
        self._taking.start()

    def resume_writing(self) -> None:
        self._taking.stop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._taking.stop()
        self.lost = True


def outlasts(size: int, *, every_seconds: float, seconds: float) -> bool:
    """Whether one who takes so much every so often of 8 MiB is still waited for in the end."""

    async def take() -> bool:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as door:
            ours = socket.socket()
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            ours.setblocking(False)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            await loop.sock_connect(ours, door.getsockname())
            theirs, _ = door.accept()
        with theirs:
            _, giver = await loop.create_connection(lambda: Giver(8 * MIB), sock=ours)
            for _ in range(int(seconds / every_seconds)):
                await asyncio.sleep(every_seconds)
                if giver.lost:
                    return False
                if size:
                    theirs.recv(size, socket.MSG_WAITALL)
            giver.transport.abort()
        return True

    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        return runner.run(take())


def test_who_takes_nothing_is_waited_for_no_more() -> None:
    assert outlasts(0, every_seconds=10, seconds=READ_WINDOW_SECONDS - 10)
    assert not outlasts(0, every_seconds=10, seconds=READ_WINDOW_SECONDS + 20)


def test_who_takes_a_little_now_and_then_is_waited_for_no_more() -> None:
    assert not outlasts(100, every_seconds=10, seconds=10 * READ_WINDOW_SECONDS)


def test_a_slow_line_is_waited_for() -> None:
    assert outlasts(READ_RATE_BYTES_MIN * 80, every_seconds=20, seconds=10 * READ_WINDOW_SECONDS)


async def test_an_answer_that_nobody_takes_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_readers, "READ_WINDOW_SECONDS", 0.2)
    depot = Depot()
    depot.size = 1024 * MIB
    async with serving(tmp_path / "data", more=depot.routes()) as site, connected(site) as (_, writer):
        stream = site.client.stream(
            "GET", "/api/v1/events/stream", headers={"authorization": f"Bearer {site.operator}"}
        )
        async with stream as idle:
            assert idle.status_code == 200
            writer.write(GET)
            await eventually(lambda: depot.closed == 1)
            await eventually(lambda: len(connections(site)) == 1)  # The stream is idle, and stays.


async def test_no_part_waits_in_memory_behind_one_that_is_not_taken(tmp_path: Path) -> None:
    depot = Depot()
    depot.size = 1024 * MIB
    async with serving(tmp_path / "data", more=depot.routes()) as site, connected(site) as (_, writer):
        writer.write(GET)
        await eventually(lambda: any(one.flow.write_paused for one in connections(site)))
        (one,) = connections(site)
        assert depot.given == depot.size - one.cycle.expected_content_length
