"""Slow senders: a slow connection is tolerated, a client that sends next to nothing is disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.http import request as of_call
from ingot.http.problems import SlowSender
from ingot.http.request import Headers, RequestBody
from tests.http.byte_route_requests import put
from tests.http.byte_routes import MIB, ByteRoutes
from tests.http.fast_forward_loop import FastForwardLoop
from tests.http.raw_connections import connected, statuses
from tests.http.serving import Served, serving

Piece = tuple[float, int]  # Seconds of waiting, then a number of bytes.


class Sender:
    """Sends pieces at their times, whether the server waits for them or not."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces: Iterator[Piece] = iter(pieces)
        self._next = next(self._pieces, None)
        self._at: float | None = None

    async def receive(self) -> dict[str, Any]:
        now = asyncio.get_running_loop().time
        if self._next is None:
            return {"type": "http.request", "body": b"", "more_body": False}
        seconds, size = self._next
        if self._at is None:
            self._at = now() + seconds
        await asyncio.sleep(max(0.0, self._at - now()))
        self._next = next(self._pieces, None)
        self._at = None if self._next is None else self._at + self._next[0]
        return {"type": "http.request", "body": b"x" * size, "more_body": self._next is not None}


def read_body(pieces: Iterable[Piece], *, pause_seconds: float = 0.0) -> tuple[int, float, SlowSender | None]:
    """The bytes read, the seconds that it took, and the error, when the handler pauses after each part."""

    async def read() -> tuple[int, float, SlowSender | None]:
        loop, size = asyncio.get_running_loop(), 0
        start = loop.time()
        try:
            async for part in RequestBody(Headers([]), Sender(pieces).receive, bytes_max=None).chunks():
                size += len(part)
                await asyncio.sleep(pause_seconds)
        except SlowSender as error:
            return size, loop.time() - start, error
        return size, loop.time() - start, None

    with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
        return runner.run(read())


@pytest.mark.parametrize("seconds", [29.0, 10.0, 0.01])
def test_a_client_that_sends_single_bytes_is_disconnected(seconds: float) -> None:
    size, after, error = read_body([(seconds, 1)] * int(600 / seconds))
    assert error is not None
    assert "bytes of the body arrived in" in error.detail
    assert size < 60 / seconds + 2
    assert of_call.PACE_SECONDS <= after <= of_call.PACE_SECONDS + of_call.QUIET_SECONDS_MAX + 1


def test_a_fast_start_does_not_excuse_a_later_standstill() -> None:
    size, after, error = read_body([(0.0, 100 * MIB), (1.0, 100 * MIB), *[(25.0, 1)] * 1000])
    assert size >= 200 * MIB
    assert error is not None
    assert after < 3 * (of_call.PACE_SECONDS + of_call.QUIET_SECONDS_MAX)


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param((1.0, 600), id="steady"),
        pytest.param((0.1, 60), id="in small pieces"),
        pytest.param((28.0, 16_384), id="in bursts"),
    ],
)
def test_a_client_on_a_slow_connection_can_take_an_hour(piece: Piece) -> None:
    pieces = [piece] * int(3600 / piece[0])
    size, after, error = read_body(pieces)
    assert (size, error) == (sum(size for _, size in pieces), None)
    assert after > 3500


def test_pauses_of_the_handler_do_not_count_as_slow_sending() -> None:
    pieces = [(0.0, 100)] + [(50.0, 100)] * 60  # They arrive before the handler reads them.
    size, after, error = read_body(pieces, pause_seconds=50.1)
    assert (size, error) == (6100, None)
    assert after > 3000


def test_a_short_body_that_is_complete_was_not_too_slow() -> None:
    assert read_body([(25.0, 1)] * 3)[::2] == (3, None)


# -- on a real connection -------------------------------------------------------------------------------------


@pytest.fixture
def byte_routes() -> ByteRoutes:
    return ByteRoutes()


@pytest.fixture
async def site(tmp_path: Path, byte_routes: ByteRoutes) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", extra_routes=byte_routes.routes()) as served:
        yield served


async def test_a_sender_of_single_bytes_gets_a_timeout_response(
    site: Served, byte_routes: ByteRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_call, "PACE_SECONDS", 0.2)
    async with connected(site) as (reader, writer):
        writer.write(put("take", b"content-length: 1000000"))
        answering = asyncio.create_task(reader.read())
        while not answering.done():
            writer.write(b"x")
            await asyncio.sleep(0.03)
        response = await answering
    assert statuses(response) == [408]
    assert b"request_timeout" in response
    assert isinstance(byte_routes.ended[0], SlowSender)
