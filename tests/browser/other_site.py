"""Another site on this machine, whose page a test defines."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from html import escape
from typing import Final

SAME_SITE: Final = "localhost"  # The host name of the server: another port is another origin on the same site.
CROSS_SITE: Final = "127.0.0.1"


class OtherSite:
    """A page with another origin than the server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.body = ""

    def url(self, host: str) -> str:
        """The URL of the page with one of the names of this machine."""
        return f"http://{host}:{self.port}/"

    def post(self, url: str, text: str) -> None:
        """Show a form that submits itself with this text as its body."""
        name, _, value = text.partition("=")
        self.body = (
            f'<form method="post" enctype="text/plain" action="{escape(url)}">'
            f'<input name="{escape(name)}" value="{escape(value)}"></form><script>document.forms[0].submit()</script>'
        )

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Handle one connection with one request."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            text = f'<!doctype html><html lang="en"><title>Elsewhere</title>{self.body}</html>'.encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(text)}\r\n"
            writer.write(head.encode() + b"connection: close\r\n\r\n" + text)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def open_other_site() -> AsyncIterator[OtherSite]:
    """Run another site."""
    site = OtherSite(0)
    async with await asyncio.start_server(site.serve, "127.0.0.1", 0) as server:
        site.port = server.sockets[0].getsockname()[1]
        yield site
