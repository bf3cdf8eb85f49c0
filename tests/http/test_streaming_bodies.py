"""Answers of bytes that are not in memory: as fast as they are taken, whole or visibly not, and closed in the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.http.request import ClientDisconnected
from ingot.http.streaming_body import BodySender
from tests.http.byte_route_requests import GET
from tests.http.byte_routes import ETAG, MIB, Depot
from tests.http.curl import curl
from tests.http.raw_connections import connected, connections, statuses
from tests.http.serving import Served, serving
from tests.waiting import eventually


class Transport:
    """A transport that can be found closing."""

    closing = False

    def is_closing(self) -> bool:
        return self.closing


class Cycle:
    """A request that is being answered; the client has not been reported gone."""

    disconnected = False

    def __init__(self) -> None:
        self.transport = Transport()

    async def receive(self) -> dict[str, Any]:
        raise AssertionError("nobody asks for the body")


@pytest.fixture
def depot() -> Depot:
    return Depot()


@pytest.fixture
async def site(tmp_path: Path, depot: Depot) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", more=depot.routes()) as served:
        yield served


@pytest.mark.parametrize("size", [0, 1, MIB, 3 * MIB + 5])
async def test_all_bytes_come_and_the_connection_stays(site: Served, depot: Depot, size: int) -> None:
    depot.size = size
    for _ in range(2):
        depot.given = 0
        answer = await site.client.get("/depot/give")
        assert (answer.status_code, len(answer.content)) == (200, size)
        assert answer.headers["content-length"] == str(size)
    assert len(connections(site)) == 1
    assert depot.closed == (2 if size else 0)


async def test_head_tells_the_length_and_touches_nothing(site: Served, depot: Depot) -> None:
    answer = await site.client.head("/depot/give")
    assert (answer.status_code, answer.headers["content-length"]) == (200, str(depot.size))
    assert (depot.given, depot.closed) == (0, 0)
    assert (await site.client.get("/depot/give")).status_code == 200


async def test_no_more_is_made_than_is_taken(site: Served, depot: Depot) -> None:
    depot.size = 1024 * MIB
    async with connected(site) as (reader, writer):
        writer.write(GET)
        await eventually(lambda: any(one.flow.write_paused for one in connections(site)))
        assert depot.given < 64 * MIB
        assert statuses(await reader.read(1000)) == [200]
    await eventually(lambda: depot.closed == 1)  # The caller is gone.
    assert depot.given < 128 * MIB


async def test_nothing_more_is_read_when_a_write_found_the_client_gone() -> None:
    """Before the loop has had a turn to say so: the transport is closing, and writes to it do nothing."""
    cycle, writes, parts_read = Cycle(), 0, 0

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal writes
        writes += 1
        cycle.transport.closing = writes == 3

    async def parts() -> AsyncIterator[bytes]:
        nonlocal parts_read
        while True:
            parts_read += 1
            yield b"x"

    with pytest.raises(ClientDisconnected):
        await BodySender(1000).send(parts(), {"type": "http.response.start"}, cycle.receive, send)
    assert (writes, parts_read) == (3, 2)  # The first write is that of the headers.


async def test_an_error_before_the_first_byte_is_told(site: Served, depot: Depot) -> None:
    depot.fails_at = 0
    answer = await site.client.get("/depot/give")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_failed")
    assert depot.closed == 1


async def test_what_cannot_be_whole_is_cut(site: Served, depot: Depot, caplog: pytest.LogCaptureFixture) -> None:
    depot.fails_at = 3 * MIB
    async with site.client.stream("GET", "/depot/give") as answer:
        assert (answer.status_code, answer.headers["content-length"]) == (200, str(64 * MIB))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await answer.aread()
    assert (depot.given, depot.closed) == (3 * MIB, 1)
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


async def test_more_bytes_than_announced_are_never_sent(site: Served, depot: Depot) -> None:
    depot.size, depot.too_much = 2 * MIB - 10, 10  # The last part is too large.
    async with connected(site) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(depot.size)


async def test_fewer_bytes_than_announced_are_cut(site: Served, depot: Depot) -> None:
    depot.size, depot.too_much, depot.given = 4 * MIB, -MIB, 0
    async with connected(site) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(4 * MIB)


# -- ranges, by tools that know them --------------------------------------------------------------------------


@pytest.mark.curl
async def test_curl_goes_on_where_it_stopped(site: Served, depot: Depot, tmp_path: Path) -> None:
    file = tmp_path / "part"
    file.write_bytes(depot.content[:4321])
    said = await curl("-C", "-", "-o", str(file), "-w", "%{http_code}", f"{site.url}/depot/file")
    assert said == "206"
    assert file.read_bytes() == depot.content


async def test_a_file_has_what_it_takes_to_be_cached_and_saved(site: Served, depot: Depot) -> None:
    whole = await site.client.get("/depot/file")
    assert (whole.status_code, whole.content) == (200, depot.content)
    assert whole.headers["accept-ranges"] == "bytes"
    assert (
        whole.headers["content-disposition"]
        == "attachment; filename=\"f_r__.txt\"; filename*=UTF-8''f%C3%BCr%0D%0A.txt"
    )
    assert (whole.headers["content-type"], whole.headers["x-content-type-options"]) == (
        "application/octet-stream",
        "nosniff",
    )
    same = await site.client.get("/depot/file", headers={"if-none-match": whole.headers["etag"]})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", ETAG)
    assert "content-length" not in same.headers
    assert (await site.client.get("/depot/file")).status_code == 200  # On the same connection.
    beyond = await site.client.get("/depot/file", headers={"range": "bytes=99999-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(depot.content)}")
    assert beyond.json()["code"] == "range_not_satisfiable"
    part = await site.client.get("/depot/file", headers={"range": "bytes=1-3"})
    assert (part.status_code, part.content, part.headers["content-length"]) == (206, depot.content[1:4], "3")
    head = await site.client.head("/depot/file", headers={"range": "bytes=1-3"})
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(depot.content)))
