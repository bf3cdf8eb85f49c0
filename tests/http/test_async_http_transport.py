"""The worker's own way over HTTP, against servers that answer, close, and keep silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from ingot.client.errors import NotIngot, ServerTooOld
from ingot.client.server_address import ServerAddress
from ingot.kernel.errors import IngotError
from ingot.worker.async_http_transport import AsyncKeepAliveTransport
from ingot.worker.http_job_source import HttpJobSource
from tests.http.serving import Served
from tests.waiting import eventually

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def asking(serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that does this with each connection."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=AsyncKeepAliveTransport()) as client,
    ):
        yield client


async def test_requests_are_answered(served: Served) -> None:
    headers = {"authorization": f"Bearer {served.operator}"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, transport=AsyncKeepAliveTransport()) as client:
        made = await client.post("/api/v1/jobs", json={"type": "noop", "payload": "ö" * 20_000})
        assert made.status_code == 201
        read = await client.get(f"/api/v1/jobs/{made.json()['id']}")
        assert read.json()["payload"] == "ö" * 20_000
        assert (await client.get("/api/v1/jobs/none")).status_code == 404
        nothing = await client.post("/api/v1/jobs/claim", json={"worker_id": "w", "types": ["other"]})
        assert (nothing.status_code, nothing.content) == (204, b"")


async def test_a_connection_is_used_again() -> None:
    connections, ended = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)
        writer.close()
        ended.set()

    async with asking(serve) as client:
        for _ in range(3):
            assert (await client.get("/")).text == "ok"
        await client.aclose()
        await ended.wait()
    assert connections == 1


async def test_a_connection_that_was_closed_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connections, connect = 0, asyncio.open_connection
    readers: list[asyncio.StreamReader] = []

    async def connect_noted(*args: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await connect(*args, **options)
        readers.append(reader)
        return reader, writer

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ANSWER)
        writer.close()

    monkeypatch.setattr(asyncio, "open_connection", connect_noted)
    async with asking(serve) as client:
        for expected in (1, 2):
            assert (await client.get("/")).text == "ok"
            assert connections == expected
            await eventually(readers[-1].at_eof)


async def test_what_comes_before_or_after_the_answer_is_none_of_it() -> None:
    connections = 0
    ended = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: early\r\n\r\n")
        await writer.drain()
        writer.write(ANSWER + ANSWER.replace(b"ok", b"no"))
        await reader.read()
        writer.close()
        ended.release()

    async with asking(serve) as client:
        for expected in (1, 2):
            answer = await client.get("/")
            assert (answer.status_code, answer.text, answer.headers.get("link")) == (200, "ok", None)
            assert connections == expected, "on which more was said is not used again"
            await ended.acquire()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b"no HTTP at all\r\n\r\n"])
async def test_half_an_answer_is_none(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with asking(serve) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/")


@pytest.mark.parametrize(
    ("said", "error"), [(b"<html>maintenance</html>", NotIngot), (b'{"jobs": [{"id": 7}]}', ServerTooOld)]
)
async def test_what_is_no_answer_to_a_claim_is_told_as_such(said: bytes, error: type[IngotError]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(said), said))
        writer.close()

    async with asking(serve) as client:
        board = HttpJobSource(ServerAddress(url=str(client.base_url).rstrip("/"), headers={}), "press")
        with pytest.raises(error):
            await board.claim("print", limit=1, wait_seconds=0)
        await board.close()


async def test_who_is_silent_or_away_is_told_apart() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with asking(serve) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=0.05)
    async with httpx.AsyncClient(transport=AsyncKeepAliveTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")
