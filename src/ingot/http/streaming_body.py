"""Answers whose bytes are not in memory: sent as fast as they are taken, and cut when they cannot be whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from ingot.http.request import BytesResponse, ClientDisconnected, Receive
from ingot.kernel.errors import IngotError

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
log = structlog.get_logger("ingot.http")


class BodyLengthMismatch(Exception):
    """There are other bytes than were announced."""


async def send_bytes(answer: BytesResponse, start: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Send the parts of an answer, each when the one before is taken, and close them.

    What they raise before the first of them is raised. Later ones end the answer before its time: below us the
    connection is cut then. Raises `Gone` when the caller has left.
    """
    sent = BodySender(answer.length)
    try:
        await sent.send(answer.chunks, start, receive, send)
    except ClientDisconnected:
        raise
    except Exception as error:
        if not sent.has_started:
            raise
        told = {"code": error.code, "detail": error.detail} if isinstance(error, IngotError) else {"exc_info": error}
        log.error("answer_cut", bytes_left=sent.remaining_bytes, **told)
    finally:
        if (close := getattr(answer.chunks, "aclose", None)) is not None:
            await close()


class BodySender:
    """How far an answer has come."""

    def __init__(self, length: int) -> None:
        self.remaining_bytes = length
        self.has_started = False

    async def send(
        self, parts: AsyncIterator[bytes | memoryview], start: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Send parts until there are as many bytes as announced. Raises `Cut` when there are others."""
        if not self.remaining_bytes:
            await send(start)
            await send({"type": "http.response.body"})
            return
        cycle = getattr(receive, "__self__", None)
        async for part in parts:
            if len(part) > self.remaining_bytes:
                raise BodyLengthMismatch(f"there are {len(part) - self.remaining_bytes} bytes too many")
            if not self.has_started:
                await send(start)
                self.has_started = True
            self.remaining_bytes -= len(part)
            await send({"type": "http.response.body", "body": part, "more_body": self.remaining_bytes > 0})
            if not self.remaining_bytes:
                return
            if (flow := getattr(cycle, "flow", None)) is not None and flow.write_paused:
                await flow.drain()  # The next part is not read before: it would wait in memory behind this one.
            if _is_disconnected(cycle):
                raise ClientDisconnected
        raise BodyLengthMismatch(f"there are {self.remaining_bytes} bytes too few")


def _is_disconnected(cycle: object) -> bool:
    """Whether the client has gone.

    A write that fails closes the transport at once, and the cycle hears of it only in the next turn of the loop. Until
    then writes do nothing and never pause: a source that does not wait would be read to its end.
    """
    transport = getattr(cycle, "transport", None)
    return getattr(cycle, "disconnected", False) or (transport is not None and transport.is_closing())
