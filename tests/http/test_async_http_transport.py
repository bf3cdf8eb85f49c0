"""The worker's asynchronous HTTP transport, against servers that respond, close the connection or send nothing."""

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
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@asynccontextmanager
async def client_of(serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server that handles each connection with this function."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", transport=AsyncKeepAliveTransport()) as client,
    ):
        yield client


async def test_the_transport_sends_requests_to_a_real_server(served: Served) -> None:
    headers = {"authorization": f"Bearer {served.operator}"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, transport=AsyncKeepAliveTransport()) as client:
        created = await client.post("/api/v1/jobs", json={"type": "noop", "payload": "ö" * 20_000})
        assert created.status_code == 201
        read = await client.get(f"/api/v1/jobs/{created.json()['id']}")
        assert read.json()["payload"] == "ö" * 20_000
        assert (await client.get("/api/v1/jobs/none")).status_code == 404
        nothing = await client.post("/api/v1/jobs/claim", json={"worker_id": "w", "types": ["other"]})
        assert (nothing.status_code, nothing.content) == (204, b"")


async def test_a_connection_is_reused() -> None:
    connections, ended = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(RESPONSE)
        writer.close()
        ended.set()

    async with client_of(serve) as client:
        for _ in range(3):
            assert (await client.get("/")).text == "ok"
        await client.aclose()
        await ended.wait()
    assert connections == 1


async def test_a_closed_connection_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    connections, connect = 0, asyncio.open_connection
    readers: list[asyncio.StreamReader] = []

    async def recording_connect(*args: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await connect(*args, **options)
        readers.append(reader)
        return reader, writer

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(RESPONSE)
        writer.close()

    monkeypatch.setattr(asyncio, "open_connection", recording_connect)
    async with client_of(serve) as client:
        for expected in (1, 2):
            assert (await client.get("/")).text == "ok"
            assert connections == expected
            await eventually(readers[-1].at_eof)


async def test_bytes_before_and_after_a_response_are_not_part_of_it() -> None:
    connections = 0
    ended = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nlink: early\r\n\r\n")
        await writer.drain()
        writer.write(RESPONSE + RESPONSE.replace(b"ok", b"no"))
        await reader.read()
        writer.close()
        ended.release()

    async with client_of(serve) as client:
        for expected in (1, 2):
            response = await client.get("/")
            assert (response.status_code, response.text, response.headers.get("link")) == (200, "ok", None)
            assert connections == expected, "a connection with unexpected bytes must not be reused"
            await ended.acquire()


@pytest.mark.parametrize(
    "content", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", b"no HTTP at all\r\n\r\n"]
)
async def test_an_incomplete_response_is_a_transport_error(content: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(content)
        writer.close()

    async with client_of(serve) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/")


@pytest.mark.parametrize(
    ("content", "error"), [(b"<html>maintenance</html>", NotIngot), (b'{"jobs": [{"id": 7}]}', ServerTooOld)]
)
async def test_a_claim_response_that_is_not_from_a_current_server_raises_the_matching_error(
    content: bytes, error: type[IngotError]
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(content), content))
        writer.close()

    async with client_of(serve) as client:
        job_source = HttpJobSource(ServerAddress(url=str(client.base_url).rstrip("/"), headers={}), "press")
        with pytest.raises(error):
            await job_source.claim("print", limit=1, wait_seconds=0)
        await job_source.close()


async def test_a_silent_server_and_an_absent_server_raise_different_errors() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with client_of(serve) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/", timeout=0.05)
    async with httpx.AsyncClient(transport=AsyncKeepAliveTransport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")
