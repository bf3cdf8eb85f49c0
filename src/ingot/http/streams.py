"""Streams that are open: each ends with its caller, with its credential, with its tenant, or with the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from ingot.http.call import Call, Gone, Receive, Stream
from ingot.http.gate import Gate
from ingot.http.table import Route
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import for_all, report

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CHECKS_AT_ONCE: Final = 32  # People are looked up one by one: thousands of them are to be done within the time.
REST_SECONDS_MIN: Final = 0.2
CHECK_SECONDS: Final = 2.0  # With what the gate remembers, a stream outlives its credential by less than five.
SEND_SECONDS_MAX: Final = 30.0  # Who takes nothing for so long is gone.
END_SECONDS_MAX: Final = 1.0


class Sending:
    """Since when a part is under way; `None` between two. Asked now and then: a timer for each part costs more."""

    def __init__(self) -> None:
        self.since: float | None = None

    async def send(self, parts: AsyncGenerator[bytes, None], send: Send) -> None:
        """Send parts as they come."""
        now = asyncio.get_running_loop().time
        async with aclosing(parts):
            async for part in parts:
                self.since = now()
                await send(_part(part, more=True))
                self.since = None


class Streams:
    """Sends streams, and ends them."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._open: dict[asyncio.Future[str], tuple[Route, Call, Sending]] = {}
        self._checking: asyncio.Task[None] | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._open)

    def stop(self) -> None:
        """End all streams; those that come later end at once."""
        self._stopped = True
        for end in self._open:
            _end(end, "stopping")

    async def serve(self, stream: Stream, route: Route, call: Call, receive: Receive, send: Send) -> None:
        """Send parts as they come, until there are no more, the caller goes away, or the stream is ended."""
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        under_way = Sending()
        self._open[end] = route, call, under_way
        if self._stopped:
            _end(end, "stopping")
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check(), name="http.streams", context=for_all())
        sending = asyncio.create_task(under_way.send(stream.parts, send))
        leaving = asyncio.create_task(gone(receive))
        over: list[asyncio.Future[Any]] = [sending, leaving, end]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._open[end]
            await _cancel(sending, leaving)
        if not leaving.cancelled():
            raise Gone
        reason = end.result() if end.done() else _reason(sending)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS_MAX):
                await send(_part(b'event: end\ndata: {"reason": "%s"}\n\n' % reason.encode(), more=True))
                await send(_part(b"", more=False))

    async def _check(self) -> None:
        """Look again and again whether the credentials of open streams hold, and what is sent is taken."""
        now = asyncio.get_running_loop().time
        while self._open:
            began = now()
            for some in batched(list(self._open), CHECKS_AT_ONCE):
                await asyncio.gather(*(self._check_one(end) for end in some))
            await asyncio.sleep(max(REST_SECONDS_MIN, CHECK_SECONDS - (now() - began)))

    async def _check_one(self, end: asyncio.Future[str]) -> None:
        if end not in self._open:
            return
        route, call, under_way = self._open[end]
        longest = asyncio.get_running_loop().time() - SEND_SECONDS_MAX
        if under_way.since is not None and under_way.since < longest:
            _end(end, "slow")
        try:
            await self._gate.check(route, call)
        except Exception as error:
            if isinstance(error, IngotError) and error.status in (401, 403, 404):
                _end(end, error.code)
            else:  # The store does not answer: nobody can tell whether the credential holds.
                report("stream_check_failed", error)
                _end(end, "unavailable")


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in groups of so many."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _reason(sending: asyncio.Task[None]) -> str:
    """Why there are no more parts."""
    match sending.exception():
        case None:
            return "complete"
        case error:
            report("stream_failed", error)
            return "failed"


def _end(end: asyncio.Future[str], reason: str) -> None:
    if not end.done():
        end.set_result(reason)


async def gone(receive: Receive) -> None:
    """Return when the caller has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _part(body: bytes, *, more: bool) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
