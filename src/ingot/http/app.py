"""The ASGI application: finds the route, knows the caller, reads what it takes, and answers."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import structlog

from ingot.http.call import Answer, Body, Bytes, Call, Gone, Headers, Receive, Stream, is_whole
from ingot.http.gate import Gate
from ingot.http.invalid import expect_moments, invalid_body, invalid_query
from ingot.http.metrics import Metrics
from ingot.http.origin import SAFE
from ingot.http.problems import (
    BodyTooLarge,
    InternalError,
    MalformedBody,
    MethodNotAllowed,
    SlowSender,
    UnsupportedMedia,
    problem_of,
)
from ingot.http.protocol import CONNECTIONS_MAX
from ingot.http.rates import TooManyWaiting
from ingot.http.sending import send_bytes
from ingot.http.streams import Scope, Send, Streams, gone
from ingot.http.table import PAGE, PREFIX, Route, Table
from ingot.http.traces import Spans, read_traceparent
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.hidden import is_secret
from ingot.kernel.ids import new_id
from ingot.kernel.logs import about, debugging

ONCE: Final = ("ingot-tenant", "idempotency-key", "last-event-id")
HELD_SHARE_MAX: Final = 0.5  # Of all connections, for what the callers of one tenant hold open.
WAITING_RETRY_SECONDS: Final = 5.0
BODY_SECONDS_MAX: Final = 30.0
QUERY_CHARS_MAX: Final = 8192
ID_CHARS_MAX: Final = 64
WORKER_CHARS_MAX: Final = 200
JOB: Final = f"{PREFIX}/jobs/{{id}}"
NOT_MODIFIED: Final = int(HTTPStatus.NOT_MODIFIED)
JSON: Final = "application/json"
PageOf = Callable[[IngotError, str | None], Answer[bytes]]  # What people see of an error; a path they can come back to.
STREAM: Final = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
log = structlog.get_logger("ingot.http")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_encode = msgspec.json.Encoder().encode


class App:
    """Serves the routes of a table."""

    def __init__(
        self,
        table: Table,
        gate: Gate,
        metrics: Metrics,
        *,
        spans: Spans | None = None,
        connections_max: int = CONNECTIONS_MAX,
        page_of: PageOf | None = None,
    ) -> None:
        self._table = table
        self._gate = gate
        self._metrics = metrics
        self._spans = spans
        self._page_of = page_of
        self._streams = Streams(gate)
        self._held: Counter[str] = Counter()  # Streams, and requests that wait, by tenant.
        self._held_max = max(1, round(connections_max * HELD_SHARE_MAX))
        metrics.count_streams(lambda: len(self._streams))
        self._readers = {id(route): _reader(route) for route in table.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise RuntimeError(f"there is nothing that speaks {scope['type']} here")
        began = time.perf_counter()
        headers = Headers(scope["headers"])
        request_id = _request_id(headers)
        trace = read_traceparent(headers.get("traceparent"))
        span = None if self._spans is None else self._spans.begin(trace)
        trace_id = span.trace_id if span is not None else None if trace is None else trace.id
        known = _know(request_id, trace_id)
        route: Route | None = None
        call: Call | None = None
        try:
            headers.expect_once(ONCE)
            target = scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"]
            route, path = self._table.find(target[0], target[1])
            client = scope.get("client")
            call = await self._gate.admit(route, headers, path, request_id=request_id, client=client, target=target)
            call.method = scope["method"]
            call.trace_id = trace_id
            _know_more(known, route, call)
            status = await self._serve(route, call, scope, receive, send)
        except Gone:
            status = 499
        except IngotError as error:
            status = await self._refuse(error, route, scope, send, request_id)
            if status >= 500:
                log.warning("request_refused", code=error.code, **_said(scope, route, status, began))
        except Exception:
            log.exception("request_failed", **_said(scope, route, 500, began))
            status = await self._refuse(InternalError(), route, scope, send, request_id)
        self._metrics.note_request(route, status, time.perf_counter() - began)
        if span is not None:
            path_of = None if route is None else route.path
            tenant = "" if call is None else call.tenant
            span.end(method=scope["method"], route=path_of, status=status, request_id=request_id, tenant=tenant)
        if debugging():
            log.debug("request", **_said(scope, route, status, began))

    def stop(self) -> None:
        """End the streams."""
        self._streams.stop()

    async def _refuse(self, error: IngotError, route: Route | None, scope: Scope, send: Send, request_id: str) -> int:
        """Tell of an error: on a page for people, and to programs as a problem."""
        if route is None or route.media != PAGE or self._page_of is None:
            return await _tell(error, send, request_id)
        answer = self._page_of(error, scope["path"] if scope["method"] in SAFE else None)
        status = answer.status or error.status
        await _send(send, status, answer.headers, answer.content, request_id, answer.cookies)
        return status

    async def _serve(self, route: Route, call: Call, scope: Scope, receive: Receive, send: Send) -> int:
        body, query = self._readers[id(route)]
        given: dict[str, Any] = dict(call.path)
        if isinstance(body, msgspec.json.Decoder):
            given["body"] = _decode(await _read_body(route, call.headers, receive), body)
        elif body is not None:
            given["body"] = Body(call.headers, receive, bytes_max=route.body_bytes_max)
        if query is not None:
            sent = _parse_query(scope["query_string"]) if call.signed is None else call.signed
            given["query"] = _read_query(sent, query)
        elif scope["query_string"] and call.signed is None:
            raise InvalidInput("this route takes no query", hint="Leave out what stands behind the question mark.")
        if route.waits:
            with self._holding(call):
                answer = await unless_gone(route.handler(call, **given), call, receive)
            await self._check_again(route, call)
        elif body is Body:
            with self._holding(call):
                answer = await route.handler(call, **given)
        else:
            answer = await route.handler(call, **given)
        if isinstance(answer, Bytes):
            return await self._send_bytes(answer, route, call, receive, send)
        if isinstance(answer, Stream):
            if scope["method"] == "HEAD":
                await answer.parts.aclose()
                raise MethodNotAllowed(["GET"])
            with self._holding(call):
                await send({"type": "http.response.start", "status": 200, "headers": _headers(STREAM, call.request_id)})
                await send({"type": "http.response.body", "more_body": True})  # The head is sent with the first part.
                await self._streams.serve(answer, route, call, receive, send)
            return 200
        status, content = route.status, answer
        headers: dict[str, str] = {}
        cookies: tuple[str, ...] = ()
        if isinstance(answer, Answer):
            status, content = answer.status or route.status, answer.content
            headers, cookies = answer.headers, answer.cookies
        if content is None:
            content = b""
        elif not isinstance(content, bytes):
            headers, content = {"content-type": JSON, **headers}, _encode(content)
        await _send(send, status, headers, content, call.request_id, cookies)
        return status

    async def _send_bytes(self, answer: Bytes, route: Route, call: Call, receive: Receive, send: Send) -> int:
        status = answer.status or route.status
        headers = _headers({"content-length": str(answer.length), **answer.headers}, call.request_id)
        start = {"type": "http.response.start", "status": status, "headers": headers}
        if call.method == "HEAD":
            await send(start)
            await send({"type": "http.response.body"})
            return status
        with self._holding(call):
            await send_bytes(answer, start, receive, send)
        return status

    @contextmanager
    def _holding(self, call: Call) -> Iterator[None]:
        """Nobody takes all connections for what waits, or takes long. Raises `TooManyWaiting`."""
        name = call.caller.tenant or (call.caller.name if call.caller.id else self._gate.address_of(call))
        if self._held[name] >= self._held_max:
            raise TooManyWaiting(WAITING_RETRY_SECONDS)
        self._held[name] += 1
        try:
            yield
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]

    async def _check_again(self, route: Route, call: Call) -> None:
        """A credential that ended while its caller waited gets nothing: what was taken for it is given back."""
        try:
            await self._gate.check(route, call)
        except IngotError:
            if call.undo is not None:
                await call.undo()
            raise


def _reader(route: Route) -> tuple[msgspec.json.Decoder[Any] | type[Body] | None, Any]:
    types = route.types()
    body = types.get("body")
    return body if body in (None, Body) else msgspec.json.Decoder(body), types.get("query")


async def unless_gone(work: Awaitable[Any], call: Call, receive: Receive) -> Any:
    """Wait for an answer as long as there is somebody to give it to. What was taken for them is given back."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return working.result()
        raise Gone
    except (Gone, asyncio.CancelledError):
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        if call.undo is not None:
            await call.undo()
        raise
    finally:
        leaving.cancel()
        working.cancel()


async def _read_body(route: Route, headers: Headers, receive: Receive) -> bytes:
    assert route.body_bytes_max is not None
    length, bytes_max = headers.get("content-length"), route.body_bytes_max
    if length is not None and length.isdecimal() and int(length) > bytes_max:
        raise BodyTooLarge(f"the body has {length} bytes; this route takes {bytes_max}")
    if is_whole(receive):
        body = await _take_body(bytes_max, receive)
    else:
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await _take_body(bytes_max, receive)
        except TimeoutError:
            raise SlowSender(f"the body did not arrive within {BODY_SECONDS_MAX:g} seconds") from None
    if body and not (headers.get("content-type") or "").lower().startswith(JSON):
        raise UnsupportedMedia
    return body or b"{}"


async def _take_body(bytes_max: int, receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        part = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise BodyTooLarge(f"the body has more than {bytes_max} bytes")
        parts.append(part)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decode(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_body(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody(f"the body is not JSON: {str(error)[:200]}") from None


def _parse_query(query: bytes) -> dict[str, str]:
    if len(query) > QUERY_CHARS_MAX:
        raise InvalidInput(f"the query has {len(query)} characters; it goes up to {QUERY_CHARS_MAX}")
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise InvalidInput("the query cannot be read") from None
    given = dict(pairs)
    if len(given) != len(pairs):
        raise InvalidInput("the query says something twice")
    return given


def _read_query(given: dict[str, str], kind: Any) -> Any:
    expect_moments(given, kind)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_query(error, kind) from None


async def _tell(error: IngotError, send: Send, request_id: str) -> int:
    status, headers, body = problem_of(error)
    await _send(send, status, headers, body, request_id)
    return status


async def _send(
    send: Send, status: int, headers: dict[str, str], body: bytes, request_id: str, cookies: tuple[str, ...] = ()
) -> None:
    if status != NOT_MODIFIED:  # That has the length of what it stands for, or none.
        headers = {"content-length": str(len(body)), **headers}
    whole = _headers(headers, request_id)
    whole += [(b"set-cookie", one.encode()) for one in cookies]
    await send({"type": "http.response.start", "status": status, "headers": whole})
    await send({"type": "http.response.body", "body": body})


def _headers(headers: dict[str, str], request_id: str) -> list[tuple[bytes, bytes]]:
    whole = {"x-request-id": request_id, "x-content-type-options": "nosniff", **headers}
    return [(name.encode(), value.encode()) for name, value in whole.items()]


def _know(request_id: str, trace_id: str | None) -> dict[str, object]:
    """What stands in every line that is logged from now on; more can be added to it."""
    known: dict[str, object] = {"request_id": request_id}
    if trace_id is not None:
        known["trace_id"] = trace_id
    about.set(known)
    return known


def _know_more(known: dict[str, object], route: Route, call: Call) -> None:
    if call.tenant:
        known["tenant_id"] = call.tenant
    if call.caller.kind == "worker":
        known["worker_id"] = (call.headers.get("x-worker-id") or call.caller.id)[:WORKER_CHARS_MAX]
    if "id" in call.path and route.path.startswith(JOB):
        known["job_id"] = call.path["id"][:ID_CHARS_MAX]


def _said(scope: Scope, route: Route | None, status: int, began: float) -> dict[str, object]:
    """The request as it stands in the log: not its path, in which people put what they should not."""
    return {
        "method": scope["method"],
        "route": None if route is None else route.path,
        "status": status,
        "duration_ms": round((time.perf_counter() - began) * 1000, 3),
    }


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id")
    usable = given is not None and _REQUEST_ID.fullmatch(given) and not is_secret(given)  # It is logged, and kept.
    return given if given is not None and usable else new_id()
