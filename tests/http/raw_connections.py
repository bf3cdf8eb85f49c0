"""Raw connections to a server, seen from both sides."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ingot.http import protocol
from tests.http.serving import Served

BODY = b'{"type": "noop"}'


def request_head(served: Served, *lines: bytes, path: bytes = b"/api/v1/jobs", version: bytes = b"1.1") -> bytes:
    """The head of a request that would create a job."""
    headers = [b"authorization: Bearer " + served.operator.encode(), b"content-type: application/json", *lines]
    return b"\r\n".join([b"POST " + path + b" HTTP/" + version, *headers, b"", b""])


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection; the block fails if it takes too long."""
    host, port = served.url.removeprefix("http://").split(":")
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.close()


async def send_and_read(served: Served, *parts: bytes) -> bytes:
    """Send these bytes, and return everything that the server sends until it closes the connection."""
    async with connected(served) as (reader, writer):
        for part in parts:
            writer.write(part)
        return await reader.read()


def statuses(responses: bytes) -> list[int]:
    """The status of every response in these bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", responses)]


def open_connections(served: Served) -> list[protocol.HttpProtocol]:
    """The connections that the server has open."""
    return [each for each in served.server.server_state.connections if isinstance(each, protocol.HttpProtocol)]
