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
from ingot.http.taking import Taking
from ingot.kernel.errors import IngotError

CONNECTIONS_MAX: Final = 10_000
HEAD_SECONDS_MAX: Final = 15.0  # A request's line and headers are there by then.
HEAD_BYTES_MAX: Final = 64 * 1024
HEADERS_MAX: Final = 100
PIPELINE_MAX: Final = 100  # Requests of a connection that wait for their turn.
AHEAD_BYTES_MAX: Final = 64 * 1024  # So much is read while some wait; then no more until one is answered.
LINGER_SECONDS: Final = 1.0  # So long an answer can be read before the connection is gone.
BODY_LINGER_SECONDS: Final = 5.0  # Some callers look for an answer only when they have sent all,
WASTE_BYTES_MAX: Final = 64 * 1024 * 1024  # and so much of that is read for them, and thrown away.
LINGERING_MAX: Final = 100
UNREAD_BYTES_MAX: Final = 64 * 1024  # So much of a body that nobody wants is read, to keep the connection.
STRAIGHT_BYTES_MIN: Final = 64 * 1024  # A body of which so much is left is not shown to the parser.
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


class Doors(msgspec.Struct):
    """How many connections there may be, and how many were turned away and are not gone yet."""

    connections_max: int
    lingering: int = 0


class Together:
    """The transport of an answer whose head waits for what is behind it: to send both at once costs half as much."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = None
        self._begun = False
        self.is_closing = self._transport.is_closing
        self.close = self._transport.close

    def write(self, data: bytes) -> None:
        """Send these bytes, unless they are a head."""
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        elif self._begun or not self._cycle.response_started:  # What comes before an answer is waited for.
            self._transport.write(data)
        else:
            self._begun, self._head = True, data


class Leaving:
    """The transport of an answer that ends the connection in the middle of its request."""

    def __init__(self, transport: asyncio.Transport, leave: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = leave


class Protocol(HttpToolsProtocol):
    """One connection.

    While we owe an answer, the application has its own clocks. While we owe none, what has begun must be whole soon.
    """

    def __init__(self, *given: Any, doors: Doors, **named: Any) -> None:
        super().__init__(*given, **named)
        self._doors = doors
        self._serving: RequestResponseCycle | None = None  # Whose answer is being made; later ones are in the pipeline.
        self._head_timer: asyncio.TimerHandle | None = None
        self._taking: Taking | None = None
        self._in_head = False
        self._in_message = False
        self._got_on = False  # Whether what came last held anything of a request that is kept outside the parser.
        self._pending_bytes = 0  # So much the parser was fed since then.
        self._head_bytes = 0  # No head that is being read can be larger.
        self._ahead_bytes = 0  # So much came since requests wait for their turn.
        self.body_left: int | None = None  # Behind the head of the last request, which asked for another protocol.
        self._straight_left = 0  # So much of the body that is being read comes past the parser.
        self._refusal: IngotError | None = None  # Nothing is read any more.
        self._lingers = False
        self._leaves = False  # Nothing more is said.
        self._body_bytes = 0  # So much came of the body of the last request,
        self._wasted_bytes = 0  # and so much of it was thrown away.

    # -- a connection comes and goes --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or turn it away."""
        if len(self.connections) >= self._doors.connections_max:
            self.transport = transport
            self._refuse_now(TooManyConnections())
            return
        super().connection_made(transport)
        self._taking = Taking(transport, self.loop)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more: whoever makes an answer for them is told."""
        self._stop_timer()
        if self._taking is not None:
            self._taking.end()
        if self._lingers:
            self._lingers = False
            self._doors.lingering -= 1
        self.pipeline.clear()
        if (serving := self._serving) is not None and not serving.response_complete:
            serving.disconnected = True
            serving.message_event.set()
        super().connection_lost(exc)

    # -- what is sent to us -----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Read on."""
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        if self._leaves:
            self._waste(data)
            return
        if self.body_left is not None:
            self._read_last_body(data)
            return
        self._got_on = False
        self._head_bytes = self._head_bytes + len(data) if self._in_head else len(data)
        self._ahead_bytes = self._ahead_bytes + len(data) if self.pipeline else 0
        if self._straight_left:
            data = self._read_straight(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # The parser takes the body for another protocol.
            self._read_last_body(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError:
            self._refuse(self._reason())
            return
        if self._in_message:
            self._straight_left = self._large_rest()
            self._pending_bytes = 0 if self._got_on else self._pending_bytes + len(data)
            if self._pending_bytes > HEAD_BYTES_MAX:
                self._refuse(HeadTooLarge())
                return
        if self._owes_nothing():
            self._expect_head()

    def _large_rest(self) -> int:
        """How much of a body that is being read the parser need not see: it would only copy it, piece by piece."""
        if self._in_head or self._straight_left or self._codings():
            return self._straight_left
        left = self._length() - self._body_bytes
        return left if left >= STRAIGHT_BYTES_MIN else 0

    def _read_straight(self, data: bytes) -> bytes:
        """Read on in a body whose length is known. Answers what is behind it, for a parser that begins anew."""
        body, behind = data[: self._straight_left], data[self._straight_left :]
        self._straight_left -= len(body)
        self.on_body(body)
        if self._straight_left:
            return b""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As the one before was made.
        self.on_message_complete()
        return behind

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head = self._in_message = self._got_on = True
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
        if (refusal := self._looked_at()) is not None:
            self._refusal = refusal
            raise refusal
        super().on_headers_complete()
        self._stop_timer()
        self._in_head = False
        if self.parser.should_upgrade():  # It is answered as if it did not ask for that, and is the last one.
            self.cycle.keep_alive = False
            self.body_left = self._length()
        if len(self.pipeline) > PIPELINE_MAX:
            self._refusal = BadRequest(f"more than {PIPELINE_MAX} requests wait on this connection")
            raise self._refusal
        if self.pipeline and self._ahead_bytes <= AHEAD_BYTES_MAX:  # Who does not read does not see them leave.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._got_on = True
        self._body_bytes += len(body)
        cycle: Any = self.cycle
        if not cycle.body and not cycle.response_complete:  # Who reads gets these very bytes, and no copy of them.
            cycle.body, body = body, b""
        elif isinstance(cycle.body, bytes):
            cycle.body = bytearray(cycle.body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self.body_left:  # So the parser says, which does not read this body.
            return
        self._in_message = False
        super().on_message_complete()

    def _read_last_body(self, data: bytes) -> None:
        """Read on in the body of the last request. What comes behind it is not read."""
        if not self.body_left:
            return
        part = data[: self.body_left]
        self.body_left -= len(part)
        if part:
            self.on_body(part)
        if self.body_left == 0:
            self.on_message_complete()

    def _looked_at(self) -> IngotError | None:
        """What is wrong with the head of a request, if anything is."""
        if len(self.headers) > HEADERS_MAX:
            return HeadTooLarge(f"the request has {len(self.headers)} headers; it goes up to {HEADERS_MAX}")
        if self._head_bytes > HEAD_BYTES_MAX and (size := self._head_size()) > HEAD_BYTES_MAX:
            return HeadTooLarge(f"line and headers have {size} bytes; it goes up to {HEAD_BYTES_MAX}")
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names and self._codings() != [b"chunked"]:
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

    def _codings(self) -> list[bytes]:
        return [value.lower() for name, value in self.headers if name == b"transfer-encoding"]

    def _length(self) -> int:
        return next((int(value) for name, value in self.headers if name == b"content-length"), 0)

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    # -- refusing ---------------------------------------------------------------------------------------------

    def _reason(self) -> IngotError:
        """Why the parser did not go on."""
        return self._refusal or BadRequest()

    def _refuse(self, error: IngotError) -> None:
        """Say no, behind the answers that are still owed. Nothing is read any more."""
        self._refusal = error
        self._stop_timer()
        if self._in_message and not self._in_head:  # It is the body that is wrong.
            if self.cycle.response_started:
                self.transport.close()
                return
            self._drop_last()
        if self._owes_nothing():
            self._refuse_now(error)

    def _drop_last(self) -> None:
        """The last request gets the refusal for an answer."""
        if self.pipeline:
            self.pipeline.popleft()
        else:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._serving = None

    def _refuse_now(self, error: IngotError) -> None:
        if self.transport.is_closing():
            return
        self._refusal = error
        self.transport.write(written(error))
        self._leave(LINGER_SECONDS)

    def _leave(self, seconds: float) -> None:
        """Say no more, and close when what was said could be read: who is still sending would lose it otherwise."""
        self._leaves = True
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self.flow is not None:
            self.flow.resume_reading()  # Who does not read does not see them leave.
        if self._doors.lingering < LINGERING_MAX:
            self._lingers = True
            self._doors.lingering += 1
            self._head_timer = self.loop.call_later(seconds, self.transport.close)
        else:
            self.transport.close()

    def _waste(self, data: bytes) -> None:
        """Read on in a body that nobody wants, but not far."""
        self._wasted_bytes += len(data)
        if self._wasted_bytes > WASTE_BYTES_MAX:
            self.flow.pause_reading()
        elif not self._codings() and self._wasted_bytes >= self._length() - self._body_bytes:
            self.transport.close()

    # -- what is taken from us --------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """More waits to be taken than should."""
        super().pause_writing()
        if self._taking is not None:
            self._taking.begin()

    def resume_writing(self) -> None:
        """It was taken."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.end()

    # -- clocks -----------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._serving = cycle
        super()._start_asgi_task(cycle, partial(self._run, cycle, app))

    async def _run(self, cycle: RequestResponseCycle, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Run the application. An answer that was begun and is not ended, ends with the connection."""
        if cycle.more_body:
            send = partial(self._send_early, cycle)
        if scope["method"] != "HEAD":  # Its answer is nothing but a head.
            cycle.transport = Together(cycle)  # type: ignore[assignment]
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # The server stops, and has waited for it long enough.
            if not cycle.response_started and not cycle.disconnected:
                cycle.disconnected = True
                self.transport.write(written(Stopping()))
                self.transport.close()
        if cycle.response_started and not cycle.response_complete and not cycle.disconnected:
            cycle.disconnected = True
            self.transport.abort()

    async def _send_early(self, cycle: RequestResponseCycle, message: Any) -> None:
        """Send an answer to a request that was not whole when it began to be made.

        When much of it is still to come, or may never come, nothing is read any more behind the answer.
        """
        if not cycle.response_started and cycle.more_body and self._much_is_left(cycle):
            cycle.keep_alive = False
            cycle.transport = Leaving(self.transport, partial(self._leave, BODY_LINGER_SECONDS))  # type: ignore[assignment]
        await cycle.send(message)

    def _much_is_left(self, cycle: RequestResponseCycle) -> bool:
        if cycle.waiting_for_100_continue or self._codings():
            return True
        return self._length() - self._body_bytes > UNREAD_BYTES_MAX

    def on_response_complete(self) -> None:
        """An answer is sent: the next request, or the end of this connection, is due."""
        if self._leaves:
            return
        super().on_response_complete()
        if self.transport.is_closing() or not self._owes_nothing():
            return
        if self._refusal is not None:
            self._unset_keepalive_if_required()
            self._refuse_now(self._refusal)
        elif self._in_message:
            self._unset_keepalive_if_required()
            self._expect_head()

    def _owes_nothing(self) -> bool:
        return (self._serving is None or self._serving.response_complete) and not self.pipeline

    def _expect_head(self) -> None:
        """What is on its way, and the head of the next request, must be here soon."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS_MAX, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or not self._owes_nothing():
            return
        if self._in_head:
            self._refuse(SlowHead(f"the headers did not arrive within {HEAD_SECONDS_MAX:g} seconds"))
        else:  # Nothing was asked, or it was answered already.
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def written(error: IngotError) -> bytes:
    """An answer that ends the connection, as it goes over the wire."""
    status, headers, body = problem_of(error)
    whole = {**headers, "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in whole.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body
