"""The protocol below the application: what is no request, comes too slowly or is too much never gets to a handler."""

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

CONNECTIONS_MAX: Final = 10_000
HEAD_SECONDS_MAX: Final = 15.0  # A request's line and headers are there by then.
HEAD_BYTES_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 100
PIPELINED_REQUESTS_MAX: Final = 100  # Requests of a connection that wait for their turn.
PIPELINED_BYTES_MAX: Final = 64 * 1024  # So much is read while some wait; then no more until one is answered.
LINGER_SECONDS: Final = 1.0  # So long an answer can be read before the connection is gone.
BODY_LINGER_SECONDS: Final = 5.0  # Some callers look for an answer only when they have sent all,
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024  # and so much of that is read for them, and thrown away.
LINGERING_CONNECTIONS_MAX: Final = 100
UNREAD_BYTES_MAX: Final = 64 * 1024  # So much of a body that nobody wants is read, to keep the connection.
PARSER_BYPASS_BYTES_MIN: Final = 64 * 1024  # A body of which so much is left is not shown to the parser.
RETRY_SECONDS: Final = 5


class BadRequest(IngotError):
    """This is no request of HTTP/1.1."""

    code = "bad_request"
    status = 400
    hint = "Nothing was done; the connection is closed."


class HeadTooLarge(IngotError):
    """The line and headers of the request are too large."""

    code = "head_too_large"
    status = 431
    hint = f"Send up to {HEADERS_MAX} headers of together {HEAD_BYTES_MAX} bytes."


class SlowHead(IngotError):
    """The headers of the request took too long to arrive."""

    code = "head_timeout"
    status = 408
    hint = "Send the request again over a better line."


class TooManyConnections(IngotError):
    """The server has as many connections as it takes."""

    code = "too_many_connections"
    status = 503
    hint = "Try again in a moment; use a connection for more than one request."
    retry_after = RETRY_SECONDS


class Stopping(IngotError):
    """The server stops, and could not finish this request."""

    code = "stopping"
    status = 503
    hint = "It may have been done or not; look, and send it again in a moment."
    retry_after = RETRY_SECONDS


class ConnectionLimits(msgspec.Struct):
    """How many connections there may be, and how many were turned away and are not gone yet."""

    connections_max: int
    lingering: int = 0


class CoalescingTransport:
    """The transport of an answer whose head waits for what is behind it: to send both at once costs half as much."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = None
        self._has_seen_head = False
        self.is_closing = self._transport.is_closing
        self.close = self._transport.close

    def write(self, data: bytes) -> None:
        """Send these bytes, unless they are a head."""
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        elif self._has_seen_head or not self._cycle.response_started:  # What comes before an answer is waited for.
            self._transport.write(data)
        else:
            self._has_seen_head, self._head = True, data


class LingeringTransport:
    """The transport of an answer that ends the connection in the middle of its request."""

    def __init__(self, transport: asyncio.Transport, leave: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = leave


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    While we owe an answer, the application has its own clocks. While we owe none, what has begun must be whole soon.
    """

    def __init__(self, *given: Any, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limits = limits
        self._current_cycle: RequestResponseCycle | None = (
            None  # Whose answer is being made; later ones are in the pipeline.
        )
        self._head_timer: asyncio.TimerHandle | None = None
        self._slow_reader_guard: SlowReaderGuard | None = None
        self._in_head = False
        self._in_message = False
        self._has_progressed = (
            False  # Whether what came last held anything of a request that is kept outside the parser.
        )
        self._stalled_bytes = 0  # So much the parser was fed since then.
        self._head_bytes = 0  # No head that is being read can be larger.
        self._pipelined_bytes = 0  # So much came since requests wait for their turn.
        self.remaining_body_bytes: int | None = (
            None  # Behind the head of the last request, which asked for another protocol.
        )
        self._bypass_bytes = 0  # So much of the body that is being read comes past the parser.
        self._refusal: IngotError | None = None  # Nothing is read any more.
        self._is_lingering = False
        self._is_write_closed = False  # Nothing more is said.
        self._body_bytes = 0  # So much came of the body of the last request,
        self._discarded_bytes = 0  # and so much of it was thrown away.

    # -- a connection comes and goes --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or turn it away."""
        if len(self.connections) >= self._limits.connections_max:
            self.transport = transport
            self._refuse_now(TooManyConnections())
            return
        super().connection_made(transport)
        self._slow_reader_guard = SlowReaderGuard(transport, self.loop)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more: whoever makes an answer for them is told."""
        self._stop_head_timer()
        if self._slow_reader_guard is not None:
            self._slow_reader_guard.stop()
        if self._is_lingering:
            self._is_lingering = False
            self._limits.lingering -= 1
        self.pipeline.clear()
        if (serving := self._current_cycle) is not None and not serving.response_complete:
            serving.disconnected = True
            serving.message_event.set()
        super().connection_lost(exc)

    # -- what is sent to us -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Read on."""
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
        except httptools.HttpParserUpgrade as upgrade:  # The parser takes the body for another protocol.
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
        """How much of a body that is being read the parser need not see: it would only copy it, piece by piece."""
        if self._in_head or self._bypass_bytes or self._transfer_codings():
            return self._bypass_bytes
        left = self._content_length() - self._body_bytes
        return left if left >= PARSER_BYPASS_BYTES_MIN else 0

    def _read_bypassing_parser(self, data: bytes) -> bytes:
        """Read on in a body whose length is known. Answers what is behind it, for a parser that begins anew."""
        body, behind = data[: self._bypass_bytes], data[self._bypass_bytes :]
        self._bypass_bytes -= len(body)
        self.on_body(body)
        if self._bypass_bytes:
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As the one before was made.
        self.on_message_complete()
        return behind

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = self._in_message = self._has_progressed = True
        self._body_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what stands behind the body is none."""
        if self._in_head:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head of a request is whole: look at it before anybody acts on it."""
        if (refusal := self._check_head()) is not None:
            self._refusal = refusal
            raise refusal
        super().on_headers_complete()
        self._stop_head_timer()
        self._in_head = False
        if self.parser.should_upgrade():  # It is answered as if it did not ask for that, and is the last one.
            self.cycle.keep_alive = False
            self.remaining_body_bytes = self._content_length()
        if len(self.pipeline) > PIPELINED_REQUESTS_MAX:
            self._refusal = BadRequest(f"more than {PIPELINED_REQUESTS_MAX} requests wait on this connection")
            raise self._refusal
        if self.pipeline and self._pipelined_bytes <= PIPELINED_BYTES_MAX:  # Who does not read does not see them leave.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._has_progressed = True
        self._body_bytes += len(body)
        cycle: Any = self.cycle
        if not cycle.body and not cycle.response_complete:  # Who reads gets these very bytes, and no copy of them.
            cycle.body, body = body, b""
        elif isinstance(cycle.body, bytes):
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self.remaining_body_bytes:  # So the parser says, which does not read this body.
            return
        self._in_message = False
        super().on_message_complete()

    def _read_final_body(self, data: bytes) -> None:
        """Read on in the body of the last request. What comes behind it is not read."""
        if not self.remaining_body_bytes:
            return
        part = data[: self.remaining_body_bytes]
        self.remaining_body_bytes -= len(part)
        if part:
            self.on_body(part)
        if self.remaining_body_bytes == 0:
            self.on_message_complete()

    def _check_head(self) -> IngotError | None:
        """What is wrong with the head of a request, if anything is."""
        if len(self.headers) > HEADERS_MAX:
            return HeadTooLarge(f"the request has {len(self.headers)} headers; it goes up to {HEADERS_MAX}")
        if self._head_bytes > HEAD_BYTES_MAX and (size := self._head_size()) > HEAD_BYTES_MAX:
            return HeadTooLarge(f"line and headers have {size} bytes; it goes up to {HEAD_BYTES_MAX}")
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names and self._transfer_codings() != [b"chunked"]:
            return BadRequest("the body has a transfer coding that is not known here", hint="Send it chunked.")
        if b"transfer-encoding" in names and self.parser.should_upgrade():
            return BadRequest("the body is chunked, and behind it is another protocol", hint="Leave out Upgrade.")
        version, hosts = self.parser.get_http_version(), names.count(b"host")
        if version not in ("1.0", "1.1"):
            return BadRequest(f"this is HTTP/{version}", hint="Speak HTTP/1.1.")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            return BadRequest(f"the request has {hosts} Host headers; it has one")
        if self.parser.get_method() == b"CONNECT":
            return BadRequest("this is no proxy")
        return None

    def _transfer_codings(self) -> list[bytes]:
        return [value.lower() for name, value in self.headers if name == b"transfer-encoding"]

    def _content_length(self) -> int:
        return next((int(value) for name, value in self.headers if name == b"content-length"), 0)

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    # -- refusing ---------------------------------------------------------------------------------------------

    def _parse_error(self) -> IngotError:
        """Why the parser did not go on."""
        return self._refusal or BadRequest()

    def _refuse(self, error: IngotError) -> None:
        """Say no, behind the answers that are still owed. Nothing is read any more."""
        self._refusal = error
        self._stop_head_timer()
        if self._in_message and not self._in_head:  # It is the body that is wrong.
            if self.cycle.response_started:
                self.transport.close()
                return
            self._drop_last_request()
        if self._is_idle():
            self._refuse_now(error)

    def _drop_last_request(self) -> None:
        """The last request gets the refusal for an answer."""
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
        """Say no more, and close when what was said could be read: who is still sending would lose it otherwise."""
        self._is_write_closed = True
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.flow is not None:
            self.flow.resume_reading()  # Who does not read does not see them leave.
        if self._limits.lingering < LINGERING_CONNECTIONS_MAX:
            self._is_lingering = True
            self._limits.lingering += 1
            self._head_timer = self.loop.call_later(seconds, self.transport.close)
        else:
            self.transport.close()

    def _discard(self, data: bytes) -> None:
        """Read on in a body that nobody wants, but not far."""
        self._discarded_bytes += len(data)
        if self._discarded_bytes > DISCARDED_BYTES_MAX:
            self.flow.pause_reading()
        elif not self._transfer_codings() and self._discarded_bytes >= self._content_length() - self._body_bytes:
            self.transport.close()

    # -- what is taken from us --------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """More waits to be taken than should."""
        super().pause_writing()
        if self._slow_reader_guard is not None:
            self._slow_reader_guard.start()

    def resume_writing(self) -> None:
        """It was taken."""
        super().resume_writing()
        if self._slow_reader_guard is not None:
            self._slow_reader_guard.stop()

    # -- clocks -----------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    async def _run(self, cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Run the application. An answer that was begun and is not ended, ends with the connection."""
        if cycle.more_body:
            send = partial(self._send_before_body_end, cycle)
        if scope["method"] != "HEAD":  # Its answer is nothing but a head.
            cycle.transport = CoalescingTransport(cycle)  # type: ignore[assignment]
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # The server stops, and has waited for it long enough.
            if not cycle.response_started and not cycle.disconnected:
                cycle.disconnected = True
                self.transport.write(encode_error_response(Stopping()))
                self.transport.close()
        if cycle.response_started and not cycle.response_complete and not cycle.disconnected:
            cycle.disconnected = True
            self.transport.abort()

    async def _send_before_body_end(self, cycle: RequestResponseCycle, message: Any) -> None:
        """Send an answer to a request that was not whole when it began to be made.

        When much of it is still to come, or may never come, nothing is read any more behind the answer.
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
        """An answer is sent: the next request, or the end of this connection, is due."""
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
        """What is on its way, and the head of the next request, must be here soon."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or not self._is_idle():
            return
        if self._in_head:
            self._refuse(SlowHead(f"the headers did not arrive within {HEAD_SECONDS_MAX:g} seconds"))
        else:  # Nothing was asked, or it was answered already.
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def encode_error_response(error: IngotError) -> bytes:
    """An answer that ends the connection, as it goes over the wire."""
    status, headers, body = problem_of(error)
    whole = {**headers, "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in whole.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
