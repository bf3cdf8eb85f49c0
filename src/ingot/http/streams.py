"""Open streams. Each ends with its client, its credential, its tenant or the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

from ingot.http.authentication import RequestAuthenticator
from ingot.http.buffers import UNCOUNTED_BYTES_MAX, BuffersFull, Reservation, TooManyBytes
from ingot.http.request import ClientDisconnected, Receive, Request, StreamResponse
from ingot.http.routes import Route
from ingot.http.streaming_body import drain
from ingot.kernel.errors import IngotError
from ingot.kernel.failures import failures
from ingot.kernel.logs import detached_context

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CHECKS_AT_ONCE: Final = 32  # Concurrent checks, so that thousands of streams are checked in time.
CHECK_PAUSE_SECONDS_MIN: Final = 0.2
CHECK_SECONDS: Final = 2.0  # Together with the credential cache, a revoked credential ends its streams within 5 s.
SEND_SECONDS_MAX: Final = 30.0  # A client that accepts nothing for this long is disconnected.
END_SECONDS_MAX: Final = 1.0  # For sending the last event of a stream.


class StreamSender:
    """Sends one stream. `write_started_at` is the start of a pending write, or `None`.

    `Streams` checks it periodically, which costs less than a timer for each chunk.
    """

    def __init__(self) -> None:
        self.write_started_at: float | None = None

    async def send(
        self, chunks: AsyncGenerator[bytes, None], send: Send, receive: Receive, reservation: Reservation
    ) -> None:
        """Send chunks as they arrive. Large ones are counted until the client has received them."""
        now = asyncio.get_running_loop().time
        async with aclosing(chunks):
            async for chunk in chunks:
                self.write_started_at = now()
                if len(chunk) <= UNCOUNTED_BYTES_MAX:
                    await send(_body_message(chunk, more=True))
                else:
                    reservation.add(len(chunk))
                    await send(_body_message(chunk, more=True))
                    await drain(receive)
                    reservation.release(len(chunk))
                self.write_started_at = None


class Streams:
    """Sends all streams of a server, and ends them."""

    def __init__(self, authenticator: RequestAuthenticator) -> None:
        self._authenticator = authenticator
        self._open_streams: dict[asyncio.Future[str], tuple[Route, Request, StreamSender]] = {}
        self._check_task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._open_streams)

    def stop(self) -> None:
        """End all streams. Streams that start later end at once."""
        self._is_stopped = True
        for end in self._open_streams:
            _end_stream(end, "stopping")

    async def serve(
        self,
        stream: StreamResponse,
        route: Route,
        request: Request,
        receive: Receive,
        send: Send,
        reservation: Reservation,
    ) -> None:
        """Send a stream until it is complete, is ended by the server, or its client disconnects.

        Raises `ClientDisconnected`.
        """
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        sender = StreamSender()
        self._open_streams[end] = route, request, sender
        if self._is_stopped:
            _end_stream(end, "stopping")
        if self._check_task is None or self._check_task.done():
            self._check_task = asyncio.create_task(
                self._check_repeatedly(), name="http.streams", context=detached_context()
            )
        sending = asyncio.create_task(sender.send(stream.chunks, send, receive, reservation))
        disconnect = asyncio.create_task(wait_for_disconnect(receive))
        endings: list[asyncio.Future[Any]] = [sending, disconnect, end]
        try:
            await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._open_streams[end]
            await _cancel_tasks(sending, disconnect)
        if not disconnect.cancelled():
            raise ClientDisconnected
        reason = end.result() if end.done() else _end_reason(sending)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS_MAX):
                await send(_body_message(b'event: end\ndata: {"reason": "%s"}\n\n' % reason.encode(), more=True))
                await send(_body_message(b"", more=False))

    async def _check_repeatedly(self) -> None:
        """Check all open streams periodically, and end those without a valid credential or without a reader."""
        now = asyncio.get_running_loop().time
        while self._open_streams:
            started_at = now()
            for batch in batched(list(self._open_streams), CHECKS_AT_ONCE):
                await asyncio.gather(*(self._check_stream(end) for end in batch))
            await asyncio.sleep(max(CHECK_PAUSE_SECONDS_MIN, CHECK_SECONDS - (now() - started_at)))

    async def _check_stream(self, end: asyncio.Future[str]) -> None:
        if end not in self._open_streams:
            return
        route, request, sender = self._open_streams[end]
        slow_before = asyncio.get_running_loop().time() - SEND_SECONDS_MAX
        if sender.write_started_at is not None and sender.write_started_at < slow_before:
            _end_stream(end, "slow")
        try:
            await self._authenticator.reauthenticate(route, request)
        except Exception as error:
            if isinstance(error, IngotError) and error.status in (401, 403, 404):
                _end_stream(end, error.code)
            else:  # The store is unavailable, so the credential cannot be checked.
                failures.log("stream_check_failed", error)
                _end_stream(end, "unavailable")


def batched(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Split items into batches of this size."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _end_reason(sending: asyncio.Task[None]) -> str:
    """Return why a stream has no more chunks, and report an error if there was one."""
    match sending.exception():
        case None:
            return "complete"
        case TooManyBytes() | BuffersFull():
            return "slow"
        case error:
            failures.log("stream_failed", error)
            return "failed"


def _end_stream(end: asyncio.Future[str], reason: str) -> None:
    if not end.done():
        end.set_result(reason)


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _body_message(body: bytes, *, more: bool) -> MutableMapping[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _cancel_tasks(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
