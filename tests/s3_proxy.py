"""A proxy in front of the S3 server that ignores conditions, fails, or changes requests and responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote, urlsplit

import msgspec

from tests.s3 import bucket, client_of, server_url


class ForwardedRequest(msgspec.Struct, frozen=True):
    """A request that the proxy received."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.target).path).removeprefix(f"/{bucket()}/")


class Proxy:
    """Forwards one request per connection.

    `instead` may return a response without forwarding; an empty response cuts the connection. `afterwards` may replace
    the response of the server.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[ForwardedRequest] = []
        self.ignores_conditions = False
        self.changes: Callable[[bytes], bytes] = lambda body: body
        self.replies: Callable[[ForwardedRequest, bytes], bytes] = lambda _, response: response
        self.instead: Callable[[ForwardedRequest], bytes | None] = lambda _: None
        self.afterwards: Callable[[ForwardedRequest], bytes | None] = lambda _: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one request."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").strip().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
            asked = ForwardedRequest(method, target, headers)
            self.asked.append(asked)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if (answer := self.instead(asked)) is None:
                if self.ignores_conditions and "if-none-match" in headers:
                    client = client_of(server_url())
                    await asyncio.to_thread(client.delete_object, Bucket=bucket(), Key=asked.key)
                answer = await self._forward(head, self.changes(body) if body else body)
                other = self.afterwards(asked)
                answer = self.replies(asked, answer) if other is None else other
            writer.write(answer)
            await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        server = urlsplit(server_url())
        reader, writer = await asyncio.open_connection(server.hostname, server.port)
        writer.write(head.removesuffix(b"\r\n") + b"Connection: close\r\n\r\n" + body)
        await writer.drain()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer


def answer(status: str, code: str = "", *, body: str | None = None) -> bytes:
    """Return an error response."""
    body = f"<Error><Code>{code}</Code></Error>" if body is None else body
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


def fail_times(times: int, failure: bytes, *, method: str = "") -> Callable[[ForwardedRequest], bytes | None]:
    """Return a function that fails the first requests, and forwards all others."""
    left = [failure] * times
    return lambda asked: left.pop() if left and method in ("", asked.method) else None


@asynccontextmanager
async def proxied() -> AsyncIterator[Proxy]:
    """Run a proxy."""
    proxy = Proxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy
