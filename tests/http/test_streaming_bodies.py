"""Streamed responses: sent as fast as they are read, complete or visibly cut, and closed in the end."""

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
from tests.http.byte_routes import ETAG, MIB, ByteRoutes
from tests.http.curl import curl
from tests.http.raw_connections import connected, open_connections, statuses
from tests.http.serving import Served, serving
from tests.waiting import eventually


class Transport:
    """A transport that can be closing."""

    closing = False

    def is_closing(self) -> bool:
        return self.closing


class Cycle:
    """A request in progress whose client has not been reported as disconnected."""

    disconnected = False

    def __init__(self) -> None:
        self.transport = Transport()

    async def receive(self) -> dict[str, Any]:
        raise AssertionError("the body must not be read")


@pytest.fixture
def byte_routes() -> ByteRoutes:
    return ByteRoutes()


@pytest.fixture
async def site(tmp_path: Path, byte_routes: ByteRoutes) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", extra_routes=byte_routes.routes()) as served:
        yield served


@pytest.mark.parametrize("size", [0, 1, MIB, 3 * MIB + 5])
async def test_a_streamed_response_is_complete_and_the_connection_is_reused(
    site: Served, byte_routes: ByteRoutes, size: int
) -> None:
    byte_routes.size = size
    for _ in range(2):
        byte_routes.given = 0
        response = await site.client.get("/bytes/give")
        assert (response.status_code, len(response.content)) == (200, size)
        assert response.headers["content-length"] == str(size)
    assert len(open_connections(site)) == 1
    assert byte_routes.closed == (2 if size else 0)


async def test_head_reports_the_length_without_producing_parts(site: Served, byte_routes: ByteRoutes) -> None:
    response = await site.client.head("/bytes/give")
    assert (response.status_code, response.headers["content-length"]) == (200, str(byte_routes.size))
    assert (byte_routes.given, byte_routes.closed) == (0, 0)
    assert (await site.client.get("/bytes/give")).status_code == 200


async def test_parts_are_produced_only_as_fast_as_they_are_read(site: Served, byte_routes: ByteRoutes) -> None:
    byte_routes.size = 1024 * MIB
    async with connected(site) as (reader, writer):
        writer.write(GET)
        await eventually(lambda: any(each.flow.write_paused for each in open_connections(site)))
        assert byte_routes.given < 64 * MIB
        assert statuses(await reader.read(1000)) == [200]
    await eventually(lambda: byte_routes.closed == 1)  # The client has disconnected.
    assert byte_routes.given < 128 * MIB


async def test_no_part_is_read_after_the_transport_is_closing() -> None:
    """The transport is closing before the event loop reports it, and writes to it do nothing."""
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
    assert (writes, parts_read) == (3, 2)  # The first write sends the headers.


async def test_an_error_before_the_first_byte_gets_a_problem_response(site: Served, byte_routes: ByteRoutes) -> None:
    byte_routes.fails_at = 0
    response = await site.client.get("/bytes/give")
    assert (response.status_code, response.json()["code"]) == (503, "store_failed")
    assert byte_routes.closed == 1


async def test_an_error_in_the_middle_closes_the_connection(
    site: Served, byte_routes: ByteRoutes, caplog: pytest.LogCaptureFixture
) -> None:
    byte_routes.fails_at = 3 * MIB
    async with site.client.stream("GET", "/bytes/give") as response:
        assert (response.status_code, response.headers["content-length"]) == (200, str(64 * MIB))
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await response.aread()
    assert (byte_routes.given, byte_routes.closed) == (3 * MIB, 1)
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


async def test_more_bytes_than_announced_are_never_sent(site: Served, byte_routes: ByteRoutes) -> None:
    byte_routes.size, byte_routes.extra_bytes = 2 * MIB - 10, 10  # The last part is too large.
    async with connected(site) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(byte_routes.size)


async def test_a_body_shorter_than_announced_closes_the_connection(site: Served, byte_routes: ByteRoutes) -> None:
    byte_routes.size, byte_routes.extra_bytes, byte_routes.given = 4 * MIB, -MIB, 0
    async with connected(site) as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(4 * MIB)


# -- ranges ---------------------------------------------------------------------------------------------------


@pytest.mark.curl
async def test_curl_resumes_a_download(site: Served, byte_routes: ByteRoutes, tmp_path: Path) -> None:
    file = tmp_path / "part"
    file.write_bytes(byte_routes.content[:4321])
    printed = await curl("-C", "-", "-o", str(file), "-w", "%{http_code}", f"{site.url}/bytes/file")
    assert printed == "206"
    assert file.read_bytes() == byte_routes.content


async def test_a_file_has_headers_for_caching_saving_and_ranges(site: Served, byte_routes: ByteRoutes) -> None:
    whole = await site.client.get("/bytes/file")
    assert (whole.status_code, whole.content) == (200, byte_routes.content)
    assert whole.headers["accept-ranges"] == "bytes"
    assert (
        whole.headers["content-disposition"]
        == "attachment; filename=\"f_r__.txt\"; filename*=UTF-8''f%C3%BCr%0D%0A.txt"
    )
    assert (whole.headers["content-type"], whole.headers["x-content-type-options"]) == (
        "application/octet-stream",
        "nosniff",
    )
    same = await site.client.get("/bytes/file", headers={"if-none-match": whole.headers["etag"]})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", ETAG)
    assert "content-length" not in same.headers
    assert (await site.client.get("/bytes/file")).status_code == 200  # On the same connection.
    beyond = await site.client.get("/bytes/file", headers={"range": "bytes=99999-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(byte_routes.content)}")
    assert beyond.json()["code"] == "range_not_satisfiable"
    part = await site.client.get("/bytes/file", headers={"range": "bytes=1-3"})
    assert (part.status_code, part.content, part.headers["content-length"]) == (206, byte_routes.content[1:4], "3")
    head = await site.client.head("/bytes/file", headers={"range": "bytes=1-3"})
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(byte_routes.content)))
