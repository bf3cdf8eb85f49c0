"""Bodies that are read as they come: never more in memory than is asked for, and none read for nothing."""

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
from tests.http.byte_routes import MIB, Depot
from tests.http.curl import curl
from tests.http.raw_connections import connected, connections, statuses, told
from tests.http.serving import Served, serving
from tests.processes import started_async
from tests.waiting import SECONDS_MAX, eventually

GROWTH_BYTES_MAX = 64 * MIB
BUFFER_BYTES = 64 * 1024


@pytest.fixture
def depot() -> Depot:
    return Depot()


@pytest.fixture
async def site(tmp_path: Path, depot: Depot) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", more=depot.routes()) as served:
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
    """A server in a process of its own: its address and its id."""
    words = [sys.executable, "-m", "tests.http.byte_routes", str(folder)]
    async with started_async(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        yield (await running.stdout.readline()).decode().strip(), running.pid
        await running.communicate(b"")


def most_memory(pid: int) -> int:
    """The most that a process ever had in memory, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


# -- as it comes ----------------------------------------------------------------------------------------------


async def test_a_body_comes_whole_and_in_large_parts(site: Served) -> None:
    body = os.urandom(20 * MIB)
    answer = await site.client.put("/depot/take", content=body, headers={"content-type": "image/png"})
    taken = answer.json()
    assert (taken["size"], taken["length"], taken["content_type"]) == (len(body), len(body), "image/png")
    assert taken["check"] == crc32(body)
    assert taken["largest"] <= 2 * MIB
    assert taken["parts"] <= len(body) / of_call.CHUNK_BYTES_MIN + 20


@pytest.mark.parametrize("size", [0, 1, 100_000])
async def test_a_body_needs_no_type_and_no_length(site: Served, size: int) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * size

    taken = (await site.client.put("/depot/take", content=parts())).json()
    assert (taken["size"], taken["length"], taken["content_type"]) == (size, None, None)


@pytest.mark.parametrize("piece", [1000, 65_537, 3 * MIB])
async def test_large_bodies_one_behind_the_other_end_where_they_should(site: Served, piece: int) -> None:
    bodies = [os.urandom(size) for size in (100_000, 5, 3 * MIB + 1)]
    sent = b"".join(put("take", b"content-length: %d" % len(body), body=body) for body in bodies)
    sent += put("take", b"connection: upgrade", b"upgrade: h2c", b"content-length: 4", body=b"last")
    bodies.append(b"last")
    async with connected(site) as (reader, writer):
        for start in range(0, len(sent), piece):
            writer.write(sent[start : start + piece])
            await writer.drain()
        answer = await reader.read()
    assert statuses(answer) == [200] * len(bodies)
    assert re.findall(rb'"check":(\d+)', answer) == [b"%d" % crc32(body) for body in bodies]


async def test_pieces_that_wait_to_be_taken_keep_their_order(site: Served, depot: Depot) -> None:
    pieces = [b"%d" % number * (number % 7 + 1) for number in range(2000)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    async with connected(site) as (reader, writer):
        writer.write(put("gated", b"transfer-encoding: chunked", body=chunks + b"0\r\n\r\n"))
        await depot.entered.wait()
        depot.go.set()
        answer = await reader.read(4096)
    assert b'"check":%d' % crc32(b"".join(pieces)) in answer


async def test_what_comes_slowly_is_not_kept_back(site: Served, depot: Depot) -> None:
    async with connected(site) as (reader, writer):
        writer.write(put("gated", b"content-length: 3"))
        await depot.entered.wait()
        depot.go.set()
        for number, byte in enumerate((b"a", b"b", b"c"), 1):
            writer.write(byte)
            await eventually(lambda number=number: depot.parts_taken == number)  # type: ignore[misc]
        answer = await reader.read(4096)
    assert b'"size":3,"parts":3' in answer


async def test_a_sender_that_leaves_is_told_from_one_that_has_ended(site: Served, depot: Depot) -> None:
    async with connected(site) as (_, writer):
        writer.write(put("take", b"content-length: 1000000", body=b"x" * 1000))
        await eventually(lambda: any(one.cycle is not None for one in connections(site)))
    await eventually(lambda: len(depot.ended) == 1)
    assert isinstance(depot.ended[0], ClientDisconnected)


async def test_a_sender_that_sends_nothing_is_told_so(
    site: Served, depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_call, "QUIET_SECONDS_MAX", 0.1)
    answer = await told(site, put("take", b"content-length: 1000000", body=b"x" * 1000))
    assert statuses(answer) == [408]
    assert b"request_timeout" in answer
    assert isinstance(depot.ended[0], SlowSender)


@pytest.mark.parametrize("way", ["length", "chunks"])
async def test_a_bound_holds_whatever_was_announced(site: Served, depot: Depot, way: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 50_000

    content = parts() if way == "chunks" else b"x" * (MIB + 1)
    answer = await site.client.put("/depot/bounded", content=content)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert (await site.client.put("/depot/bounded", content=b"x" * MIB)).json()["size"] == MIB
    assert len(depot.ended) == 2


# -- in bounded memory ----------------------------------------------------------------------------------------


async def test_what_nobody_asks_for_stays_with_its_sender(site: Served, depot: Depot) -> None:
    async with connected(site) as (reader, writer):
        writer.write(put("gated", b"content-length: %d" % (64 * MIB)))
        await depot.entered.wait()
        writer.write(bytes(64 * MIB))
        await eventually(lambda: any(one.flow.read_paused for one in connections(site)))
        (one,) = connections(site)
        assert len(one.cycle.body) < MIB
        depot.go.set()
        assert b'"size":%d' % (64 * MIB) in await reader.read(4096)


@pytest.mark.curl
@pytest.mark.long
async def test_a_gigabyte_goes_through_in_bounded_memory(tmp_path: Path) -> None:
    async with own_process(tmp_path / "data") as (url, pid):
        with sparse(tmp_path, 32 * MIB) as file:
            assert '"size":33554432' in await curl("-T", str(file), f"{url}/depot/take")
        before = most_memory(pid)
        with sparse(tmp_path, 1024 * MIB) as file:
            assert '"size":1073741824' in await curl("-T", str(file), f"{url}/depot/take")
        with sparse(tmp_path, 512 * MIB) as file:
            form = await curl("-F", "key=k", "-F", f"blob=@{file}", f"{url}/depot/form")
            assert '"size":536870912' in form
        assert most_memory(pid) - before < GROWTH_BYTES_MAX


# -- not for nothing ------------------------------------------------------------------------------------------


@pytest.mark.curl
@pytest.mark.parametrize("expect", ["Expect: 100-continue", "Expect:"])
@pytest.mark.parametrize(("path", "status"), [("refuse", "422"), ("ignore", "200")])
async def test_curl_gets_an_answer_to_a_body_that_nobody_read(
    site: Served, tmp_path: Path, expect: str, path: str, status: str
) -> None:
    with sparse(tmp_path, 256 * MIB) as file:
        said = "\n%{http_code} %{size_upload}"
        words = ["-T", str(file), "-H", expect, "--max-time", str(SECONDS_MAX), "-w", said, f"{site.url}/depot/{path}"]
        async with started_async("curl", "-sS", *words, stdout=-1, stderr=-1) as running:
            out, _ = await running.communicate()
    answer, _, told_by_curl = out.decode().rpartition("\n")
    assert told_by_curl.split()[0] == status
    assert int(told_by_curl.split()[1]) < 64 * MIB
    assert ("nothing is taken here" if status == "422" else "fine") in answer


async def test_httpx_gets_an_answer_to_a_body_that_nobody_read(site: Served) -> None:
    for _ in range(3):
        answer = await site.client.put("/depot/refuse", content=bytes(protocol.DISCARDED_BYTES_MAX - MIB))
        assert (answer.status_code, answer.headers["connection"]) == (422, "close")


async def test_no_more_than_a_little_is_read_of_a_body_that_nobody_wants(
    tmp_path: Path, depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "DISCARDED_BYTES_MAX", MIB)
    with listen("127.0.0.1", 0) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # Connections inherit it.
        async with (
            serving(tmp_path / "data", door=door, more=depot.routes()) as site,
            connected(site) as (reader, writer),
        ):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            writer.write(put("refuse", b"content-length: %d" % (256 * MIB)))
            writer.write(bytes(256 * MIB))
            assert statuses(await reader.read()) == [422]
            await eventually(lambda: all(one.flow.read_paused for one in connections(site)))
            sent = 256 * MIB - writer.transport.get_write_buffer_size()
    assert sent < 2 * MIB, "what the server read, and what the operating system holds on both sides"


async def test_a_body_that_nobody_reads_does_not_hold_its_connection(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "BODY_LINGER_SECONDS", 0.1)
    async with connected(site) as (reader, writer):
        writer.write(put("refuse", b"content-length: %d" % (256 * MIB)))
        assert statuses(await reader.read()) == [422]
        await eventually(lambda: not connections(site))


async def test_a_small_body_that_nobody_read_costs_no_connection(site: Served) -> None:
    async with connected(site) as (reader, writer):
        writer.write(put("refuse", b"content-length: 60000"))
        first = await reader.readuntil(b"}")
        writer.write(b"x" * 60000 + put("ignore", b"connection: close", b"content-length: 0"))
        assert statuses(first + await reader.read()) == [422, 200]


async def test_who_waits_for_a_word_gets_it_when_the_body_is_read(site: Served, depot: Depot) -> None:
    expects = b"expect: 100-continue"
    async with connected(site) as (reader, writer):
        writer.write(put("gated", expects, b"content-length: 3"))
        await depot.entered.wait()
        (one,) = connections(site)
        assert one.cycle.waiting_for_100_continue
        depot.go.set()
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert statuses(await reader.readuntil(b"}")) == [200]
    refused = await told(site, put("refuse", expects, b"content-length: 3"))
    assert statuses(refused) == [422]  # And nothing before; what follows can be read in two ways.
    assert b"connection: close" in refused


async def test_nobody_takes_all_connections_for_bodies(tmp_path: Path, depot: Depot) -> None:
    settings, gated = Settings(connections_max=4), put("gated", b"content-length: 3")
    async with (
        serving(tmp_path / "data", settings, more=depot.routes()) as site,
        connected(site) as (_, one),
        connected(site) as (_, two),
    ):
        one.write(gated)
        two.write(gated)
        await eventually(lambda: depot.waiting == 2)
        last = put("gated", b"content-length: 3", b"connection: close", body=b"abc")
        assert statuses(await told(site, last)) == [429]
        depot.go.set()
