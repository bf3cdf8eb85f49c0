"""Streamed request bodies: little of them is in memory, and unread bodies are not received."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from zlib import crc32

import pytest

from ingot.http import protocol
from ingot.http import request as of_call
from ingot.http.problems import SlowSender
from ingot.http.request import ClientDisconnected
from ingot.http.server import listen
from ingot.settings import Settings
from tests.http.byte_route_requests import put
from tests.http.byte_routes import MIB, ByteRoutes
from tests.http.curl import curl
from tests.http.raw_connections import connected, open_connections, send_and_read, statuses
from tests.http.serving import Served, serving
from tests.processes import started_async
from tests.waiting import SECONDS_MAX, eventually

GROWTH_BYTES_MAX = 64 * MIB
BUFFER_BYTES = 64 * 1024


@pytest.fixture
def byte_routes() -> ByteRoutes:
    return ByteRoutes()


@pytest.fixture
async def site(tmp_path: Path, byte_routes: ByteRoutes) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", extra_routes=byte_routes.routes()) as served:
        yield served


@contextmanager
def sparse(folder: Path, size: int) -> Iterator[Path]:
    path = folder / "large"
    path.touch()
    os.truncate(path, size)
    yield path
    path.unlink()


@asynccontextmanager
async def own_process(folder: Path) -> AsyncIterator[tuple[str, int]]:
    """A server as a process: its URL and its process ID."""
    arguments = [sys.executable, "-m", "tests.http.byte_routes", str(folder)]
    async with started_async(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        yield (await running.stdout.readline()).decode().strip(), running.pid
        await running.communicate(b"")


def peak_memory(pid: int) -> int:
    """The peak memory of a process, in bytes."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


# -- streaming ------------------------------------------------------------------------------------------------


async def test_a_body_arrives_whole_and_in_large_parts(site: Served) -> None:
    body = os.urandom(20 * MIB)
    response = await site.client.put("/bytes/take", content=body, headers={"content-type": "image/png"})
    received = response.json()
    assert (received["size"], received["length"], received["content_type"]) == (len(body), len(body), "image/png")
    assert received["check"] == crc32(body)
    assert received["largest"] <= 2 * MIB
    assert received["parts"] <= len(body) / of_call.CHUNK_BYTES_MIN + 20


@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_a_body_needs_no_type_and_no_length(site: Served, size: int) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * size

    received = (await site.client.put("/bytes/take", content=parts())).json()
    assert (received["size"], received["length"], received["content_type"]) == (size, None, None)


@pytest.mark.parametrize("piece", [1000, 65_537, 3 * MIB])
async def test_large_pipelined_bodies_are_separated_correctly(site: Served, piece: int) -> None:
    bodies = [os.urandom(size) for size in (100_000, 5, 3 * MIB + 1)]
    sent = b"".join(put("take", b"content-length: %d" % len(body), body=body) for body in bodies)
    sent += put("take", b"connection: upgrade", b"upgrade: h2c", b"content-length: 4", body=b"last")
    bodies.append(b"last")
    async with connected(site) as (reader, writer):
        for start in range(0, len(sent), piece):
            writer.write(sent[start : start + piece])
            await writer.drain()
        response = await reader.read()
    assert statuses(response) == [200] * len(bodies)
    assert re.findall(rb'"check":(\d+)', response) == [b"%d" % crc32(body) for body in bodies]


async def test_buffered_chunks_keep_their_order(site: Served, byte_routes: ByteRoutes) -> None:
    pieces = [b"%d" % number * (number % 7 + 1) for number in range(2000)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    async with connected(site) as (reader, writer):
        writer.write(put("gated", b"transfer-encoding: chunked", body=chunks + b"0\r\n\r\n"))
        await byte_routes.entered.wait()
        byte_routes.go.set()
        response = await reader.read(4096)
    assert b'"check":%d' % crc32(b"".join(pieces)) in response


async def test_slow_bytes_are_delivered_at_once(site: Served, byte_routes: ByteRoutes) -> None:
    async with connected(site) as (reader, writer):
        writer.write(put("gated", b"content-length: 3"))
        await byte_routes.entered.wait()
        byte_routes.go.set()
        for number, byte in enumerate((b"a", b"b", b"c"), 1):
            writer.write(byte)
            await eventually(lambda number=number: byte_routes.parts_taken == number)  # type: ignore[misc]
        response = await reader.read(4096)
    assert b'"size":3,"parts":3' in response


async def test_a_sender_that_disconnects_raises_client_disconnected(site: Served, byte_routes: ByteRoutes) -> None:
    async with connected(site) as (_, writer):
        writer.write(put("take", b"content-length: 1000000", body=b"x" * 1000))
        await eventually(lambda: any(each.cycle is not None for each in open_connections(site)))
    await eventually(lambda: len(byte_routes.ended) == 1)
    assert isinstance(byte_routes.ended[0], ClientDisconnected)


async def test_a_sender_that_stops_sending_gets_a_timeout_response(
    site: Served, byte_routes: ByteRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_call, "QUIET_SECONDS_MAX", 0.1)
    response = await send_and_read(site, put("take", b"content-length: 1000000", body=b"x" * 1000))
    assert statuses(response) == [408]
    assert b"request_timeout" in response
    assert isinstance(byte_routes.ended[0], SlowSender)


@pytest.mark.parametrize("encoding", ["length", "chunks"])
async def test_the_size_limit_holds_with_and_without_a_length(
    site: Served, byte_routes: ByteRoutes, encoding: str
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 50_000

    content = parts() if encoding == "chunks" else b"x" * (MIB + 1)
    response = await site.client.put("/bytes/bounded", content=content)
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
    assert (await site.client.put("/bytes/bounded", content=b"x" * MIB)).json()["size"] == MIB
    assert len(byte_routes.ended) == 2


# -- memory ---------------------------------------------------------------------------------------------------


async def test_a_body_that_is_not_read_stays_with_its_sender(site: Served, byte_routes: ByteRoutes) -> None:
    async with connected(site) as (reader, writer):
        writer.write(put("gated", b"content-length: %d" % (64 * MIB)))
        await byte_routes.entered.wait()
        writer.write(bytes(64 * MIB))
        await eventually(lambda: any(each.flow.read_paused for each in open_connections(site)))
        (connection,) = open_connections(site)
        assert len(connection.cycle.body) < MIB
        byte_routes.go.set()
        assert b'"size":%d' % (64 * MIB) in await reader.read(4096)


@pytest.mark.curl
@pytest.mark.long
async def test_a_body_of_a_gigabyte_is_read_in_limited_memory(tmp_path: Path) -> None:
    async with own_process(tmp_path / "data") as (url, pid):
        with sparse(tmp_path, 32 * MIB) as file:
            assert '"size":33554432' in await curl("-T", str(file), f"{url}/bytes/take")
        before = peak_memory(pid)
        with sparse(tmp_path, 1024 * MIB) as file:
            assert '"size":1073741824' in await curl("-T", str(file), f"{url}/bytes/take")
        with sparse(tmp_path, 512 * MIB) as file:
            form = await curl("-F", "key=k", "-F", f"blob=@{file}", f"{url}/bytes/form")
            assert '"size":536870912' in form
        assert peak_memory(pid) - before < GROWTH_BYTES_MAX


# -- unread bodies --------------------------------------------------------------------------------------------


@pytest.mark.curl
@pytest.mark.parametrize("expect", ["Expect: 100-continue", "Expect:"])
@pytest.mark.parametrize(("path", "status"), [("refuse", "422"), ("ignore", "200")])
async def test_curl_gets_the_response_to_an_unread_body(
    site: Served, tmp_path: Path, expect: str, path: str, status: str
) -> None:
    with sparse(tmp_path, 256 * MIB) as file:
        summary = "\n%{http_code} %{size_upload}"
        arguments = [
            "-T",
            str(file),
            "-H",
            expect,
            "--max-time",
            str(SECONDS_MAX),
            "-w",
            summary,
            f"{site.url}/bytes/{path}",
        ]
        async with started_async("curl", "-sS", *arguments, stdout=-1, stderr=-1) as running:
            out, _ = await running.communicate()
    response, _, printed_summary = out.decode().rpartition("\n")
    assert printed_summary.split()[0] == status
    assert int(printed_summary.split()[1]) < 64 * MIB
    assert ("nothing is taken here" if status == "422" else "fine") in response


async def test_httpx_gets_the_response_to_an_unread_body(site: Served) -> None:
    for _ in range(3):
        response = await site.client.put("/bytes/refuse", content=bytes(protocol.DISCARDED_BYTES_MAX - MIB))
        assert (response.status_code, response.headers["connection"]) == (422, "close")


async def test_only_a_little_of_an_unread_body_is_received(
    tmp_path: Path, byte_routes: ByteRoutes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "DISCARDED_BYTES_MAX", MIB)
    with listen("127.0.0.1", 0) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # Accepted connections inherit it.
        async with (
            serving(tmp_path / "data", listening=listening, extra_routes=byte_routes.routes()) as site,
            connected(site) as (reader, writer),
        ):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            writer.write(put("refuse", b"content-length: %d" % (256 * MIB)))
            writer.write(bytes(256 * MIB))
            assert statuses(await reader.read()) == [422]
            await eventually(lambda: all(each.flow.read_paused for each in open_connections(site)))
            sent = 256 * MIB - writer.transport.get_write_buffer_size()
    assert sent < 2 * MIB, "the bytes that the server read, and those in socket buffers"


async def test_an_unread_body_does_not_hold_its_connection(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_LINGER_SECONDS", 0.1)
    async with connected(site) as (reader, writer):
        writer.write(put("refuse", b"content-length: %d" % (256 * MIB)))
        assert statuses(await reader.read()) == [422]
        await eventually(lambda: not open_connections(site))


async def test_a_connection_survives_a_small_unread_body(site: Served) -> None:
    async with connected(site) as (reader, writer):
        writer.write(put("refuse", b"content-length: 60000"))
        first = await reader.readuntil(b"}")
        writer.write(b"x" * 60000 + put("ignore", b"connection: close", b"content-length: 0"))
        assert statuses(first + await reader.read()) == [422, 200]


async def test_100_continue_is_sent_when_the_body_is_read(site: Served, byte_routes: ByteRoutes) -> None:
    expects = b"expect: 100-continue"
    async with connected(site) as (reader, writer):
        writer.write(put("gated", expects, b"content-length: 3"))
        await byte_routes.entered.wait()
        (connection,) = open_connections(site)
        assert connection.cycle.waiting_for_100_continue
        byte_routes.go.set()
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert statuses(await reader.readuntil(b"}")) == [200]
    rejected = await send_and_read(site, put("refuse", expects, b"content-length: 3"))
    assert statuses(rejected) == [422]  # No 100 before it, because later bytes could be a body or a request.
    assert b"connection: close" in rejected


async def test_unread_bodies_of_one_client_cannot_hold_all_connections(tmp_path: Path, byte_routes: ByteRoutes) -> None:
    settings, gated = Settings(connections_max=4), put("gated", b"content-length: 3")
    async with (
        serving(tmp_path / "data", settings, extra_routes=byte_routes.routes()) as site,
        connected(site) as (_, first),
        connected(site) as (_, second),
    ):
        first.write(gated)
        second.write(gated)
        await eventually(lambda: byte_routes.waiting == 2)
        last = put("gated", b"content-length: 3", b"connection: close", body=b"abc")
        assert statuses(await send_and_read(site, last)) == [429]
        byte_routes.go.set()
