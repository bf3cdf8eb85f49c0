"""Senders that are slow: a line may be, and who only holds it is waited for no more."""

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
from tests.http.byte_routes import MIB, Depot
from tests.http.fast_forward_loop import HastyLoop
from tests.http.raw_connections import connected, statuses
from tests.http.serving import Served, serving

Piece = tuple[float, int]  # After so many seconds, so many bytes.


class Sender:
    """Sends pieces, each so long after the one before, whether anybody waits for it or not."""

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


def taken(pieces: Iterable[Piece], *, pause_seconds: float = 0.0) -> tuple[int, float, SlowSender | None]:
    """How many bytes are taken, in how many seconds, and how it ends, when there is a pause after each part."""

    async def take() -> tuple[int, float, SlowSender | None]:
        loop, size = asyncio.get_running_loop(), 0
        began = loop.time()
        try:
            async for part in RequestBody(Headers([]), Sender(pieces).receive, bytes_max=None).chunks():
                size += len(part)
                await asyncio.sleep(pause_seconds)
        except SlowSender as error:
            return size, loop.time() - began, error
        return size, loop.time() - began, None

    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        return runner.run(take())


@pytest.mark.parametrize("seconds", [29.0, 10.0, 0.01])
def test_who_sends_a_byte_now_and_then_is_waited_for_no_more(seconds: float) -> None:
    size, after, error = taken([(seconds, 1)] * int(600 / seconds))
    assert error is not None
    assert "bytes of the body arrived in" in error.detail
    assert size < 60 / seconds + 2
    assert of_call.PACE_SECONDS <= after <= of_call.PACE_SECONDS + of_call.QUIET_SECONDS_MAX + 1


def test_what_was_sent_fast_buys_no_hour_of_nothing() -> None:
    size, after, error = taken([(0.0, 100 * MIB), (1.0, 100 * MIB), *[(25.0, 1)] * 1000])
    assert size >= 200 * MIB
    assert error is not None
    assert after < 3 * (of_call.PACE_SECONDS + of_call.QUIET_SECONDS_MAX)


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param((1.0, 600), id="a steady line"),
        pytest.param((0.1, 60), id="in small pieces"),
        pytest.param((28.0, 16_384), id="in bursts"),
    ],
)
def test_a_slow_line_is_waited_for_as_long_as_it_takes(piece: Piece) -> None:
    pieces = [piece] * int(3600 / piece[0])
    size, after, error = taken(pieces)
    assert (size, error) == (sum(size for _, size in pieces), None)
    assert after > 3500


def test_time_that_we_take_ourselves_is_not_the_senders() -> None:
    pieces = [(0.0, 100)] + [(50.0, 100)] * 60  # There before anybody asks for them.
    size, after, error = taken(pieces, pause_seconds=50.1)
    assert (size, error) == (6100, None)
    assert after > 3000


def test_what_is_all_there_was_not_too_slow() -> None:
    assert taken([(25.0, 1)] * 3)[::2] == (3, None)


# -- on a real line -------------------------------------------------------------------------------------------


@pytest.fixture
def depot() -> Depot:
    return Depot()


@pytest.fixture
async def site(tmp_path: Path, depot: Depot) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", more=depot.routes()) as served:
        yield served


async def test_a_sender_of_single_bytes_is_answered(
    site: Served, depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_call, "PACE_SECONDS", 0.2)
    async with connected(site) as (reader, writer):
        writer.write(put("take", b"content-length: 1000000"))
        answering = asyncio.create_task(reader.read())
        while not answering.done():
            writer.write(b"x")
            await asyncio.sleep(0.03)
        answer = await answering
    assert statuses(answer) == [408]
    assert b"request_timeout" in answer
    assert isinstance(depot.ended[0], SlowSender)
