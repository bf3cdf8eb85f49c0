"""A proxy in front of a server whose connections can go dead: they stay open, and nothing arrives any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

CHUNK_BYTES = 65_536


class DeadConnections:
    """Forwards connections to a server until they go dead. Later connections are forwarded as usual."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._live: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""

    def go_dead(self) -> None:
        """Let nothing arrive any more over the connections that exist now."""
        self._live.clear()

    def close(self) -> None:
        """Close all connections, so that both sides notice it."""
        for writer in self._writers:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        server_reader, server_writer = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._live |= {writer, server_writer}
        self._writers |= {writer, server_writer}
        await asyncio.gather(self._forward(reader, server_writer), self._forward(server_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if writer in self._live:
                    writer.write(data)
            if writer in self._live:
                writer.close()


@asynccontextmanager
async def connections_that_go_dead(server_url: str) -> AsyncIterator[DeadConnections]:
    """Run a proxy in front of a server until the end of the block."""
    proxy = DeadConnections(server_url)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as listening:
        proxy.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        try:
            yield proxy
        finally:
            proxy.close()
