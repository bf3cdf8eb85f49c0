"""Sending responses whose bytes are not in memory, at the speed of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from ingot.http.request import BytesResponse, ClientDisconnected, Receive
from ingot.kernel.errors import IngotError

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
log = structlog.get_logger("ingot.http")


class BodyLengthMismatch(Exception):
    """A response has more or fewer bytes than its Content-Length."""


async def send_bytes(response: BytesResponse, start: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Send the chunks of a response, each after the previous one has left the write buffer, and close them.

    An error before the first chunk is raised. A later one is logged and leaves the response incomplete, which makes
    the protocol abort the connection. Raises `ClientDisconnected`.
    """
    sender = BodySender(response.length)
    try:
        await sender.send(response.chunks, start, receive, send)
    except ClientDisconnected:
        raise
    except Exception as error:
        if not sender.has_started:
            raise
        cause = {"code": error.code, "detail": error.detail} if isinstance(error, IngotError) else {"exc_info": error}
        log.error("response_aborted", bytes_left=sender.remaining_bytes, **cause)
    finally:
        await close_chunks(response)


async def close_chunks(response: BytesResponse) -> None:
    """Close the source of a response."""
    if (close := getattr(response.chunks, "aclose", None)) is not None:
        await close()


async def drain(receive: Receive) -> None:
    """Wait until the client has received most of what was sent."""
    flow = getattr(getattr(receive, "__self__", None), "flow", None)
    if flow is not None and flow.write_paused:
        await flow.drain()


class BodySender:
    """Sends one response and keeps track of its remaining bytes."""

    def __init__(self, length: int) -> None:
        self.remaining_bytes = length
        self.has_started = False

    async def send(
        self, chunks: AsyncIterator[bytes | memoryview], start: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Send all chunks. Raises `BodyLengthMismatch` or `ClientDisconnected`."""
        if not self.remaining_bytes:
            await send(start)
            await send({"type": "http.response.body"})
            return
        cycle = getattr(receive, "__self__", None)
        async for chunk in chunks:
            if len(chunk) > self.remaining_bytes:
                raise BodyLengthMismatch(f"{len(chunk) - self.remaining_bytes} bytes more than announced")
            if not self.has_started:
                await send(start)
                self.has_started = True
            self.remaining_bytes -= len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": self.remaining_bytes > 0})
            if not self.remaining_bytes:
                return
            await drain(receive)  # Reading the next chunk earlier would only queue it in memory.
            if _is_disconnected(cycle):
                raise ClientDisconnected
        raise BodyLengthMismatch(f"{self.remaining_bytes} bytes fewer than announced")


def _is_disconnected(cycle: object) -> bool:
    """Return whether the client has disconnected.

    A failed write closes the transport at once, but the cycle learns of it only in the next turn of the event loop.
    Until then, writes do nothing and never pause, so a source that never awaits would be read to its end.
    """
    transport = getattr(cycle, "transport", None)
    return getattr(cycle, "disconnected", False) or (transport is not None and transport.is_closing())
