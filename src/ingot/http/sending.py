"""Answers whose bytes are not in memory: sent as fast as they are taken, and cut when they cannot be whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import structlog

from ingot.http.call import Bytes, Gone, Receive
from ingot.kernel.errors import IngotError

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
log = structlog.get_logger("ingot.http")


class Cut(Exception):
    """There are other bytes than were announced."""


async def send_bytes(answer: Bytes, start: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Send the parts of an answer, each when the one before is taken, and close them.

    What they raise before the first of them is raised. Later ones end the answer before its time: below us the
    connection is cut then. Raises `Gone` when the caller has left.
    """
    sent = Sent(answer.length)
    try:
        await sent.send(answer.parts, start, receive, send)
    except Gone:
        raise
    except Exception as error:
        if not sent.begun:
            raise
        told = {"code": error.code, "detail": error.detail} if isinstance(error, IngotError) else {"exc_info": error}
        log.error("answer_cut", bytes_left=sent.left, **told)
    finally:
        if (close := getattr(answer.parts, "aclose", None)) is not None:
            await close()


class Sent:
    """How far an answer has come."""

    def __init__(self, length: int) -> None:
        self.left = length
        self.begun = False

    async def send(
        self, parts: AsyncIterator[bytes | memoryview], start: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        """Send parts until there are as many bytes as announced. Raises `Cut` when there are others."""
        if not self.left:
            await send(start)
            await send({"type": "http.response.body"})
            return
        cycle = getattr(receive, "__self__", None)
        async for part in parts:
            if len(part) > self.left:
                raise Cut(f"there are {len(part) - self.left} bytes too many")
            if not self.begun:
                await send(start)
                self.begun = True
            self.left -= len(part)
            await send({"type": "http.response.body", "body": part, "more_body": self.left > 0})
            if not self.left:
                return
            if (flow := getattr(cycle, "flow", None)) is not None and flow.write_paused:
                await flow.drain()  # The next part is not read before: it would wait in memory behind this one.
            if _is_gone(cycle):
                raise Gone
        raise Cut(f"there are {self.left} bytes too few")


def _is_gone(cycle: object) -> bool:
    """Whether the client has gone.

    A write that fails closes the transport at once, and the cycle hears of it only in the next turn of the loop. Until
    then writes do nothing and never pause: a source that does not wait would be read to its end.
    """
    transport = getattr(cycle, "transport", None)
    return getattr(cycle, "disconnected", False) or (transport is not None and transport.is_closing())
