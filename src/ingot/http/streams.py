"""Streams that are open: each ends with its caller, with its credential, with its tenant, or with the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from ingot.http.authentication import RequestAuthenticator
from ingot.http.request import ClientDisconnected, Receive, Request, StreamResponse
from ingot.http.routes import Route
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import detached_context, report

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CHECKS_AT_ONCE: Final = 32  # People are looked up one by one: thousands of them are to be done within the time.
CHECK_PAUSE_SECONDS_MIN: Final = 0.2
CHECK_SECONDS: Final = 2.0  # With what the gate remembers, a stream outlives its credential by less than five.
SEND_SECONDS_MAX: Final = 30.0  # Who takes nothing for so long is gone.
END_SECONDS_MAX: Final = 1.0


class StreamSender:
    """Since when a part is under way; `None` between two. Asked now and then: a timer for each part costs more."""

    def __init__(self) -> None:
        self.write_started_at: float | None = None

    async def send(self, parts: AsyncGenerator[bytes, None], send: Send) -> None:
        """Send parts as they come."""
        now = asyncio.get_running_loop().time
        async with aclosing(parts):
            async for part in parts:
                self.write_started_at = now()
                await send(_body_message(part, more=True))
                self.write_started_at = None


class Streams:
    """Sends streams, and ends them."""

    def __init__(self, gate: RequestAuthenticator) -> None:
        self._authenticator = gate
        self._open_streams: dict[asyncio.Future[str], tuple[Route, Request, StreamSender]] = {}
        self._check_task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._open_streams)

    def stop(self) -> None:
        """End all streams; those that come later end at once."""
        self._is_stopped = True
        for end in self._open_streams:
            _end_stream(end, "stopping")

    async def serve(self, stream: StreamResponse, route: Route, call: Request, receive: Receive, send: Send) -> None:
        """Send parts as they come, until there are no more, the caller goes away, or the stream is ended."""
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        under_way = StreamSender()
        self._open_streams[end] = route, call, under_way
        if self._is_stopped:
            _end_stream(end, "stopping")
        if self._check_task is None or self._check_task.done():
            self._check_task = asyncio.create_task(
                self._check_repeatedly(), name="http.streams", context=detached_context()
            )
        sending = asyncio.create_task(under_way.send(stream.chunks, send))
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        over: list[asyncio.Future[Any]] = [sending, leaving, end]
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._open_streams[end]
            await _cancel_tasks(sending, leaving)
        if not leaving.cancelled():
            raise ClientDisconnected
        reason = end.result() if end.done() else _end_reason(sending)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS_MAX):
                await send(_body_message(b'event: end\ndata: {"reason": "%s"}\n\n' % reason.encode(), more=True))
                await send(_body_message(b"", more=False))

    async def _check_repeatedly(self) -> None:
        """Look again and again whether the credentials of open streams hold, and what is sent is taken."""
        now = asyncio.get_running_loop().time
        while self._open_streams:
            began = now()
            for some in batched(list(self._open_streams), CHECKS_AT_ONCE):
                await asyncio.gather(*(self._check_stream(end) for end in some))
            await asyncio.sleep(max(CHECK_PAUSE_SECONDS_MIN, CHECK_SECONDS - (now() - began)))

    async def _check_stream(self, end: asyncio.Future[str]) -> None:
        if end not in self._open_streams:
            return
        route, call, under_way = self._open_streams[end]
        longest = asyncio.get_running_loop().time() - SEND_SECONDS_MAX
        if under_way.write_started_at is not None and under_way.write_started_at < longest:
            _end_stream(end, "slow")
        try:
            await self._authenticator.reauthenticate(route, call)
        except Exception as error:
            if isinstance(error, IngotError) and error.status in (401, 403, 404):
                _end_stream(end, error.code)
            else:  # The store does not answer: nobody can tell whether the credential holds.
                report("stream_check_failed", error)
                _end_stream(end, "unavailable")


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in groups of so many."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _end_reason(sending: asyncio.Task[None]) -> str:
    """Why there are no more parts."""
    match sending.exception():
        case None:
            return "complete"
        case error:
            report("stream_failed", error)
            return "failed"


def _end_stream(end: asyncio.Future[str], reason: str) -> None:
    if not end.done():
        end.set_result(reason)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the caller has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _body_message(body: bytes, *, more: bool) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
