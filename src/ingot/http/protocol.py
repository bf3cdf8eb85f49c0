"""The HTTP protocol below the application. Rejects requests that are malformed, too large or too slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ingot.http.problems import problem_of
from ingot.http.slow_readers import SlowReaderGuard
from ingot.kernel.errors import IngotError
from ingot.kernel.failures import failures

CONNECTIONS_MAX: Final = 10_000
HEAD_SECONDS_MAX: Final = 15.0  # For the request line and headers to arrive.
HEAD_BYTES_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 100
PIPELINED_REQUESTS_MAX: Final = 100  # Requests of one connection that wait for the responses to earlier ones.
PIPELINED_BYTES_MAX: Final = 64 * 1024  # Above it, reading pauses until the next response is sent.
LINGER_SECONDS: Final = 1.0  # How long a connection stays open after its last response, so that it can be read.
# Some clients read the response only after they have sent the whole body. An unwanted body is read and discarded for
# this long, and up to this size.
BODY_LINGER_SECONDS: Final = 5.0
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024
LINGERING_CONNECTIONS_MAX: Final = 100
UNREAD_BYTES_MAX: Final = 64 * 1024  # An unwanted remainder of a body up to this size is read to keep the connection.
PARSER_BYPASS_BYTES_MIN: Final = 64 * 1024  # A remainder of a body of at least this size bypasses the parser.
RETRY_SECONDS: Final = 5


class BadRequest(IngotError):
    """The request is not valid HTTP/1.1."""

    code = "bad_request"
    status = 400
    hint = "Correct the request. Nothing was changed, and the connection was closed."


class HeadTooLarge(IngotError):
    """The request line and headers are too large."""

    code = "head_too_large"
    status = 431
    hint = f"Send at most {HEADERS_MAX} headers, with {HEAD_BYTES_MAX} bytes in total."


class SlowHead(IngotError):
    """The headers of the request took too long to arrive."""

    code = "head_timeout"
    status = 408
    hint = "Send the request again, over a faster connection."


class TooManyConnections(IngotError):
    """The server has reached its maximum number of connections."""

    code = "too_many_connections"
    status = 503
    hint = "Try again in a moment, and reuse connections."
    retry_after = RETRY_SECONDS


class Stopping(IngotError):
    """The server stopped before it finished this request."""

    code = "stopping"
    status = 503
    hint = "The request may have taken effect. Check, and send it again in a moment if it did not."
    retry_after = RETRY_SECONDS


class ConnectionLimits(msgspec.Struct):
    """The maximum of connections of a server, and the number of those that linger before they close."""

    connections_max: int
    lingering: int = 0


class CoalescingTransport:
    """A transport that sends the headers of a response together with its first bytes, which halves the cost."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = None
        self._has_seen_head = False
        self.is_closing = self._transport.is_closing
        self.close = self._transport.close

    def write(self, data: bytes) -> None:
        """Send bytes, or hold them back if they are the headers."""
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        elif self._has_seen_head or not self._cycle.response_started:
            self._transport.write(data)  # `100 Continue` precedes the response and must not wait.
        else:
            self._has_seen_head, self._head = True, data


class LingeringTransport:
    """A transport for the response to an unfinished request. Closing it lets the connection linger."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    The application limits the time of a request that it handles. Between requests, a timer limits how long the next
    request line and headers may take.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._current_cycle: RequestResponseCycle | None = None  # The request being handled; later ones are pipelined.
        self._head_timer: asyncio.TimerHandle | None = None
        self._slow_reader_guard: SlowReaderGuard | None = None
        self._in_head = False
        self._in_message = False
        # The parser accepts headers, chunk extensions and trailers of any size. These two limit how much it consumes
        # without yielding a request or a piece of a body: whether the last data yielded one, and the bytes since then.
        self._has_progressed = False
        self._stalled_bytes = 0
        self._head_bytes = 0  # Upper bound for the size of the request line and headers that are being read.
        self._pipelined_bytes = 0  # Received while requests wait in the pipeline.
        # Remaining body of a request that asked for a protocol upgrade, which the parser does not read. Such a
        # request is the last one of its connection.
        self.remaining_body_bytes: int | None = None
        self._bypass_bytes = 0  # Remaining body that bypasses the parser.
        self._refusal: IngotError | None = None  # Once it is set, incoming data is ignored.
        self._is_lingering = False
        self._is_write_closed = False
        self._body_bytes = 0  # Received of the body of the last request.
        self._discarded_bytes = 0  # Received of that body after the last response.

    # -- opening and closing the connection -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or reject it if there are too many."""
        if len(self.connections) >= self._limits.connections_max:
            self.transport = transport
            failures.log("connection_refused", level="warning", connections_max=self._limits.connections_max)
            self._refuse_now(TooManyConnections())
            return
        super().connection_made(transport)
        self._slow_reader_guard = SlowReaderGuard(transport, self.loop)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up, and notify the handler of the current request."""
        self._stop_head_timer()
        if self._slow_reader_guard is not None:
            self._slow_reader_guard.stop()
        if self._is_lingering:
            self._is_lingering = False
            self._limits.lingering -= 1
        self.pipeline.clear()
        if (cycle := self._current_cycle) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    # -- receiving --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        if self._is_write_closed:
            self._discard(data)
            return
        if self.remaining_body_bytes is not None:
            self._read_final_body(data)
            return
        self._has_progressed = False
        self._head_bytes = self._head_bytes + len(data) if self._in_head else len(data)
        self._pipelined_bytes = self._pipelined_bytes + len(data) if self.pipeline else 0
        if self._bypass_bytes:
            data = self._read_bypassing_parser(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # The parser stops before the body.
            self._read_final_body(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(self._parse_error())
            return
        if self._in_message:
            self._bypass_bytes = self._bypassable_bytes()
            self._stalled_bytes = 0 if self._has_progressed else self._stalled_bytes + len(data)
            if self._stalled_bytes > HEAD_BYTES_MAX:
                self._refuse(HeadTooLarge())
                return
        if self._is_idle():
            self._start_head_timer()

    def _bypassable_bytes(self) -> int:
        """Return how much of the current body can skip the parser, which would copy it piece by piece."""
        if self._in_head or self._bypass_bytes or self._transfer_codings():
            return self._bypass_bytes
        remaining = self._content_length() - self._body_bytes
        return remaining if remaining >= PARSER_BYPASS_BYTES_MIN else 0

    def _read_bypassing_parser(self, data: bytes) -> bytes:
        """Read a body of known length. Return the bytes after it, for which a new parser is created."""
        body, next_data = data[: self._bypass_bytes], data[self._bypass_bytes :]
        self._bypass_bytes -= len(body)
        self.on_body(body)
        if self._bypass_bytes:
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn configures it.
        self.on_message_complete()
        return next_data

    def on_message_begin(self) -> None:
        """Handle the beginning of a request."""
        super().on_message_begin()
        self._in_head = self._in_message = self._has_progressed = True
        self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Trailers, which follow the body, are ignored."""
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Check the complete request line and headers before the request is handled."""
        if (refusal := self._check_head()) is not None:
            self._refusal = refusal
            raise refusal
        super().on_headers_complete()
        self._stop_head_timer()
        self._in_head = False
        if self.parser.should_upgrade():  # The Upgrade header is ignored, but the connection closes afterwards.
            self.cycle.keep_alive = False
            self.remaining_body_bytes = self._content_length()
        if len(self.pipeline) > PIPELINED_REQUESTS_MAX:
            self._refusal = BadRequest(f"more than {PIPELINED_REQUESTS_MAX} requests are waiting on this connection")
            raise self._refusal
        if self.pipeline and self._pipelined_bytes <= PIPELINED_BYTES_MAX:
            self.flow.resume_reading()  # asyncio reports a disconnect only while it is reading.

    def on_body(self, body: bytes) -> None:
        """Pass a chunk of the body to the handler."""
        self._has_progressed = True
        self._body_bytes += len(body)
        cycle: Any = self.cycle
        if not cycle.body and not cycle.response_complete:  # A single chunk is passed on without a copy.
            cycle.body, body = body, b""
        elif isinstance(cycle.body, bytes):
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        if self.remaining_body_bytes:  # The parser reports the end too early, because it does not read this body.
            return
        self._in_message = False
        super().on_message_complete()

    def _read_final_body(self, data: bytes) -> None:
        """Read the body of the last request of this connection. Later data is ignored."""
        if not self.remaining_body_bytes:
            return
        body = data[: self.remaining_body_bytes]
        self.remaining_body_bytes -= len(body)
        if body:
            self.on_body(body)
        if self.remaining_body_bytes == 0:
            self.on_message_complete()

    def _check_head(self) -> IngotError | None:
        """Return the reason to reject the request by its line and headers, or `None`."""
        if len(self.headers) > HEADERS_MAX:
            return HeadTooLarge(f"the request must have at most {HEADERS_MAX} headers, got {len(self.headers)}")
        if self._head_bytes > HEAD_BYTES_MAX and (size := self._head_size()) > HEAD_BYTES_MAX:
            return HeadTooLarge(f"request line and headers must have at most {HEAD_BYTES_MAX} bytes, got {size}")
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names and self._transfer_codings() != [b"chunked"]:
            return BadRequest("the transfer coding is not supported", hint="Use `Transfer-Encoding: chunked`.")
        if b"transfer-encoding" in names and self.parser.should_upgrade():
            return BadRequest("a protocol upgrade cannot have a chunked body", hint="Remove the Upgrade header.")
        version, hosts = self.parser.get_http_version(), names.count(b"host")
        if version not in ("1.0", "1.1"):
            return BadRequest(f"HTTP/{version} is not supported", hint="Use HTTP/1.1.")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            return BadRequest(f"the request must have one Host header, got {hosts}")
        if self.parser.get_method() == b"CONNECT":
            return BadRequest("this server is not a proxy")
        return None

    def _transfer_codings(self) -> list[bytes]:
        return [value.lower() for name, value in self.headers if name == b"transfer-encoding"]

    def _content_length(self) -> int:
        return next((int(value) for name, value in self.headers if name == b"content-length"), 0)

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    # -- rejecting requests -----------------------------------------------------------------------------------

    def _parse_error(self) -> IngotError:
        """Return the reason why the parser stopped."""
        return self._refusal or BadRequest()

    def _refuse(self, error: IngotError) -> None:
        """Stop reading, and send an error after the responses to earlier requests."""
        self._refusal = error
        self._stop_head_timer()
        if self._in_message and not self._in_head:  # The error is in the body.
            if self.cycle.response_started:
                self.transport.close()
                return
            self._drop_last_request()
        if self._is_idle():
            self._refuse_now(error)

    def _drop_last_request(self) -> None:
        """Stop handling the last request, so that the error becomes its response."""
        if self.pipeline:
            self.pipeline.popleft()
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._current_cycle = None

    def _refuse_now(self, error: IngotError) -> None:
        if self.transport.is_closing():
            return
        self._refusal = error
        self.transport.write(encode_error_response(error))
        self._close_after_linger(LINGER_SECONDS)

    def _close_after_linger(self, seconds: float) -> None:
        """Stop writing, and close after a delay. Closing at once could cost a sending client the response."""
        self._is_write_closed = True
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.flow is not None:
            self.flow.resume_reading()  # asyncio reports a disconnect only while it is reading.
        if self._limits.lingering < LINGERING_CONNECTIONS_MAX:
            self._is_lingering = True
            self._limits.lingering += 1
            self._head_timer = self.loop.call_later(seconds, self.transport.close)
        else:
            self.transport.close()

    def _discard(self, data: bytes) -> None:
        """Discard a part of an unwanted body, up to a limit."""
        self._discarded_bytes += len(data)
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self.flow.pause_reading()
        elif not self._transfer_codings() and self._discarded_bytes >= self._content_length() - self._body_bytes:
            self.transport.close()

    # -- flow control -----------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Handle a full write buffer: start to check how fast the client reads."""
        super().pause_writing()
        if self._slow_reader_guard is not None:
            self._slow_reader_guard.start()

    def resume_writing(self) -> None:
        """Handle a write buffer that has room again."""
        super().resume_writing()
        if self._slow_reader_guard is not None:
            self._slow_reader_guard.stop()

    # -- running the application, and timeouts ----------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    async def _run(self, cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Run the application. If it leaves a response incomplete, abort the connection."""
        if cycle.more_body:
            send = partial(self._send_before_body_end, cycle)
        if scope["method"] != "HEAD":  # A response without a body must not hold its headers back.
            cycle.transport = CoalescingTransport(cycle)  # type: ignore[assignment]
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # The server is stopping, and the grace period is over.
            if not cycle.response_started and not cycle.disconnected:
                cycle.disconnected = True
                self.transport.write(encode_error_response(Stopping()))
                self.transport.close()
        if cycle.response_started and not cycle.response_complete and not cycle.disconnected:
            cycle.disconnected = True
            self.transport.abort()

    async def _send_before_body_end(self, cycle: RequestResponseCycle, message: Any) -> None:
        """Send a part of a response whose request body had not arrived completely when the handler started.

        If much of the body is still missing, or might never come, the connection closes after the response.
        """
        if not cycle.response_started and cycle.more_body and self._has_large_unread_body(cycle):
            cycle.keep_alive = False
            cycle.transport = LingeringTransport(self.transport, partial(self._close_after_linger, BODY_LINGER_SECONDS))  # type: ignore[assignment]
        await cycle.send(message)

    def _has_large_unread_body(self, cycle: RequestResponseCycle) -> bool:
        if cycle.waiting_for_100_continue or self._transfer_codings():
            return True
        return self._content_length() - self._body_bytes > UNREAD_BYTES_MAX

    def on_response_complete(self) -> None:
        """Continue after a response: with the next request, with a pending error, or by closing the connection."""
        if self._is_write_closed:
            return
        super().on_response_complete()
        if self.transport.is_closing() or not self._is_idle():
            return
        if self._refusal is not None:
            self._unset_keepalive_if_required()
            self._refuse_now(self._refusal)
        elif self._in_message:
            self._unset_keepalive_if_required()
            self._start_head_timer()

    def _is_idle(self) -> bool:
        return (self._current_cycle is None or self._current_cycle.response_complete) and not self.pipeline

    def _start_head_timer(self) -> None:
        """Limit the time until the next request line and headers are complete."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or not self._is_idle():
            return
        if self._in_head:
            self._refuse(SlowHead(f"the headers did not arrive within {HEAD_SECONDS_MAX:g} seconds"))
        else:  # No request has begun, or its response was already sent.
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def encode_error_response(error: IngotError) -> bytes:
    """Return the bytes of an error response that closes the connection."""
    status, headers, body = problem_of(error)
    headers = {**headers, "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
