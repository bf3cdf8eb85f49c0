"""Streams: parts are sent as they arrive, and a stream ends with its client, its credential or the server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from ingot.http import streams
from ingot.http.app import App
from ingot.http.authentication import RequestAuthenticator
from ingot.http.metrics import Metrics
from ingot.http.rate_limits import RateLimiter
from ingot.http.request import Request, StreamResponse
from ingot.http.routes import Granted, Route, RouteTable
from ingot.http.server import Server, listen, url_of
from ingot.settings import Settings
from ingot.wiring import services
from tests.waiting import eventually


class TickRoute:
    """A route that streams the parts of a queue."""

    def __init__(self) -> None:
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def ticks(self, call: Request) -> StreamResponse:
        """Stream the parts."""
        return StreamResponse(self._ticks())

    async def _ticks(self) -> AsyncGenerator[bytes, None]:
        try:
            while (part := await self.parts.get()) is not None:
                if part == b"broken":
                    raise RuntimeError(part)
                yield part
        finally:
            self.closed.set()


class Site:
    """A server with only that route."""

    def __init__(self, route: TickRoute, ingot: services.Ingot, server: Server, url: str) -> None:
        self.route = route
        self.ingot = ingot
        self.server = server
        self.client = httpx.AsyncClient(base_url=url, timeout=30, verify=False)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site, None]:
    ticks = TickRoute()
    async with services.open(settings=Settings(data=tmp_path)) as ingot:
        route = Route(method="GET", path="/t", handler=ticks.ticks, needs=Granted("jobs.read"), tag="ticks")
        authenticator = RequestAuthenticator(ingot.authenticator, ingot.tenants, RateLimiter())
        app = App(RouteTable([route]), authenticator, Metrics(CollectorRegistry()), ingot.cursors)
        with listen("127.0.0.1", 0) as listening:
            server = Server(app, on_stop=app.stop)
            running = asyncio.create_task(server.serve(sockets=[listening]))
            opened = Site(ticks, ingot, server, url_of(listening))
            yield opened
            await opened.client.aclose()
            if not server.should_exit:
                server.stop()
            await running


async def follow_ticks(site: Site) -> tuple[list[str], asyncio.Task[None], str]:
    """Follow the stream: the lines as they arrive, the task that reads them, and the ID of its token."""
    created = await site.ingot.credentials.ensure_operator_token(None)
    assert created is not None
    lines: list[str] = []
    started = asyncio.Event()

    async def follow() -> None:
        headers = {"authorization": f"Bearer {created.text}"}
        async with site.client.stream("GET", "/t", headers=headers) as response:
            assert response.headers["content-type"] == "text/event-stream"
            started.set()
            async for line in response.aiter_lines():
                lines.append(line)

    following = asyncio.create_task(follow())
    async with asyncio.timeout(30):
        await started.wait()
    return lines, following, created.token.id


async def test_parts_are_sent_as_they_arrive_followed_by_an_end_event(site: Site) -> None:
    lines, following, _ = await follow_ticks(site)
    for part in (b"data: 1\n\n", b"data: 2\n\n", None):
        site.route.parts.put_nowait(part)
    async with asyncio.timeout(30):
        await following
    assert lines == ["data: 1", "", "data: 2", "", "event: end", 'data: {"reason": "complete"}', ""]


async def test_a_stream_ends_with_its_credential(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.05)
    lines, following, token_id = await follow_ticks(site)
    await site.ingot.credentials.revoke_token(None, token_id)
    async with asyncio.timeout(30):
        await following
        await site.route.closed.wait()
    assert lines == ["event: end", 'data: {"reason": "unauthorized"}', ""]


async def test_a_stream_ends_with_the_server(site: Site) -> None:
    lines, following, _ = await follow_ticks(site)
    site.server.stop()
    async with asyncio.timeout(30):
        await following
    assert lines == ["event: end", 'data: {"reason": "stopping"}', ""]


async def test_a_stream_whose_handler_fails_ends_with_a_reason(site: Site) -> None:
    lines, following, _ = await follow_ticks(site)
    site.route.parts.put_nowait(b"broken")
    async with asyncio.timeout(30):
        await following
    assert lines == ["event: end", 'data: {"reason": "failed"}', ""]


async def test_a_stream_whose_client_disconnects_is_closed(site: Site) -> None:
    _, following, _ = await follow_ticks(site)
    site.route.parts.put_nowait(b"data: 1\n\n")
    following.cancel()
    async with asyncio.timeout(30):
        await site.route.closed.wait()


async def test_a_client_that_reads_nothing_is_disconnected_from_the_stream(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "END_SECONDS_MAX", 0.1)
    monkeypatch.setattr(streams, "SEND_SECONDS_MAX", 0.2)
    monkeypatch.setattr(streams, "CHECK_SECONDS", 0.05)
    created = await site.ingot.credentials.ensure_operator_token(None)
    assert created is not None
    url = site.client.base_url
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (url.host, url.port))
        connection.send(f"GET /t HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {created.text}\r\n\r\n".encode())
        for _ in range(64):
            site.route.parts.put_nowait(b": %s\n\n" % (b"x" * 1024 * 1024))
        async with asyncio.timeout(30):
            await site.route.closed.wait()
            await eventually(lambda: not site.server.server_state.connections)  # The connection is gone too.
        assert not site.route.parts.empty()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
