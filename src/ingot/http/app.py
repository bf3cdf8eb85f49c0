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

from ingot.http.authentication import RequestAuthenticator
from ingot.http.csrf import SAFE_METHODS
from ingot.http.metrics import Metrics
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
from ingot.http.rate_limits import TooManyWaiting
from ingot.http.request import (
    BytesResponse,
    ClientDisconnected,
    Headers,
    Receive,
    Request,
    RequestBody,
    Response,
    StreamResponse,
    is_body_complete,
)
from ingot.http.routes import HTML, PREFIX, Route, RouteTable
from ingot.http.streaming_body import send_bytes
from ingot.http.streams import Scope, Send, Streams, wait_for_disconnect
from ingot.http.tracing import Tracer, parse_traceparent
from ingot.http.validation_errors import invalid_body, invalid_query, reject_numeric_timestamps
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from ingot.kernel.logs import is_debug_enabled, request_fields
from ingot.kernel.redaction import contains_secret

UNREPEATABLE_HEADERS: Final = ("ingot-tenant", "idempotency-key", "last-event-id")
HELD_CONNECTIONS_SHARE_MAX: Final = 0.5  # Of all connections, for what the callers of one tenant hold open.
WAITING_RETRY_SECONDS: Final = 5.0
BODY_SECONDS_MAX: Final = 30.0
QUERY_CHARS_MAX: Final = 8192
ID_CHARS_MAX: Final = 64
WORKER_CHARS_MAX: Final = 200
JOB_PATH: Final = f"{PREFIX}/jobs/{{id}}"
NOT_MODIFIED: Final = int(HTTPStatus.NOT_MODIFIED)
JSON: Final = "application/json"
ErrorPage = Callable[
    [IngotError, str | None], Response[bytes]
]  # What people see of an error; a path they can come back to.
STREAM_HEADERS: Final = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
log = structlog.get_logger("ingot.http")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_encode = msgspec.json.Encoder().encode


class App:
    """Serves the routes of a table."""

    def __init__(
        self,
        table: RouteTable,
        gate: RequestAuthenticator,
        metrics: Metrics,
        *,
        tracer: Tracer | None = None,
        connections_max: int = CONNECTIONS_MAX,
        error_page: ErrorPage | None = None,
    ) -> None:
        self._routes = table
        self._authenticator = gate
        self._metrics = metrics
        self._tracer = tracer
        self._error_page = error_page
        self._streams = Streams(gate)
        self._held_connections: Counter[str] = Counter()  # Streams, and requests that wait, by tenant.
        self._held_connections_max = max(1, round(connections_max * HELD_CONNECTIONS_SHARE_MAX))
        metrics.register_streams(lambda: len(self._streams))
        self._decoders = {id(route): _decoders_of(route) for route in table.routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise RuntimeError(f"there is nothing that speaks {scope['type']} here")
        began = time.perf_counter()
        headers = Headers(scope["headers"])
        request_id = _request_id(headers)
        trace = parse_traceparent(headers.get("traceparent"))
        span = None if self._tracer is None else self._tracer.start_span(trace)
        trace_id = span.trace_id if span is not None else None if trace is None else trace.trace_id
        known = _set_log_context(request_id, trace_id)
        route: Route | None = None
        call: Request | None = None
        try:
            headers.require_unique(UNREPEATABLE_HEADERS)
            target = scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"]
            route, path = self._routes.find(target[0], target[1])
            client = scope.get("client")
            call = await self._authenticator.authenticate(
                route, headers, path, request_id=request_id, client=client, target=target
            )
            call.method = scope["method"]
            call.trace_id = trace_id
            _extend_log_context(known, route, call)
            status = await self._handle(route, call, scope, receive, send)
        except ClientDisconnected:
            status = 499
        except IngotError as error:
            status = await self._send_error(error, route, scope, send, request_id)
            if status >= 500:
                log.warning("request_refused", code=error.code, **_log_fields(scope, route, status, began))
        except Exception:
            log.exception("request_failed", **_log_fields(scope, route, 500, began))
            status = await self._send_error(InternalError(), route, scope, send, request_id)
        self._metrics.record_request(route, status, time.perf_counter() - began)
        if span is not None:
            path_of = None if route is None else route.path
            tenant = "" if call is None else call.tenant
            span.end(method=scope["method"], route=path_of, status=status, request_id=request_id, tenant=tenant)
        if is_debug_enabled():
            log.debug("request", **_log_fields(scope, route, status, began))

    def stop(self) -> None:
        """End the streams."""
        self._streams.stop()

    async def _send_error(
        self, error: IngotError, route: Route | None, scope: Scope, send: Send, request_id: str
    ) -> int:
        """Tell of an error: on a page for people, and to programs as a problem."""
        if route is None or route.response_content_type != HTML or self._error_page is None:
            return await _send_problem(error, send, request_id)
        answer = self._error_page(error, scope["path"] if scope["method"] in SAFE_METHODS else None)
        status = answer.status or error.status
        await _send_response(send, status, answer.headers, answer.content, request_id, answer.cookies)
        return status

    async def _handle(self, route: Route, call: Request, scope: Scope, receive: Receive, send: Send) -> int:
        body, query = self._decoders[id(route)]
        given: dict[str, Any] = dict(call.path_params)
        if isinstance(body, msgspec.json.Decoder):
            given["body"] = _decode(await _read_body(route, call.headers, receive), body)
        elif body is not None:
            given["body"] = RequestBody(call.headers, receive, bytes_max=route.body_bytes_max)
        if query is not None:
            sent = _parse_query(scope["query_string"]) if call.signed_params is None else call.signed_params
            given["query"] = _decode_query(sent, query)
        elif scope["query_string"] and call.signed_params is None:
            raise InvalidInput("this route takes no query", hint="Leave out what stands behind the question mark.")
        if route.waits:
            with self._hold_connection(call):
                answer = await cancel_on_disconnect(route.handler(call, **given), call, receive)
            await self._reauthenticate(route, call)
        elif body is RequestBody:
            with self._hold_connection(call):
                answer = await route.handler(call, **given)
        else:
            answer = await route.handler(call, **given)
        if isinstance(answer, BytesResponse):
            return await self._send_bytes(answer, route, call, receive, send)
        if isinstance(answer, StreamResponse):
            if scope["method"] == "HEAD":
                await answer.chunks.aclose()
                raise MethodNotAllowed(["GET"])
            with self._hold_connection(call):
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": _encode_headers(STREAM_HEADERS, call.request_id),
                    }
                )
                await send({"type": "http.response.body", "more_body": True})  # The head is sent with the first part.
                await self._streams.serve(answer, route, call, receive, send)
            return 200
        status, content = route.status, answer
        headers: dict[str, str] = {}
        cookies: tuple[str, ...] = ()
        if isinstance(answer, Response):
            status, content = answer.status or route.status, answer.content
            headers, cookies = answer.headers, answer.cookies
        if content is None:
            content = b""
        elif not isinstance(content, bytes):
            headers, content = {"content-type": JSON, **headers}, _encode(content)
        await _send_response(send, status, headers, content, call.request_id, cookies)
        return status

    async def _send_bytes(
        self, answer: BytesResponse, route: Route, call: Request, receive: Receive, send: Send
    ) -> int:
        status = answer.status or route.status
        headers = _encode_headers({"content-length": str(answer.length), **answer.headers}, call.request_id)
        start = {"type": "http.response.start", "status": status, "headers": headers}
        if call.method == "HEAD":
            await send(start)
            await send({"type": "http.response.body"})
            return status
        with self._hold_connection(call):
            await send_bytes(answer, start, receive, send)
        return status

    @contextmanager
    def _hold_connection(self, call: Request) -> Iterator[None]:
        """Nobody takes all connections for what waits, or takes long. Raises `TooManyWaiting`."""
        name = call.caller.tenant or (
            call.caller.principal if call.caller.id else self._authenticator.rate_limit_key_of(call)
        )
        if self._held_connections[name] >= self._held_connections_max:
            raise TooManyWaiting(WAITING_RETRY_SECONDS)
        self._held_connections[name] += 1
        try:
            yield
        finally:
            self._held_connections[name] -= 1
            if not self._held_connections[name]:
                del self._held_connections[name]

    async def _reauthenticate(self, route: Route, call: Request) -> None:
        """A credential that ended while its caller waited gets nothing: what was taken for it is given back."""
        try:
            await self._authenticator.reauthenticate(route, call)
        except IngotError:
            if call.undo is not None:
                await call.undo()
            raise


def _decoders_of(route: Route) -> tuple[msgspec.json.Decoder[Any] | type[RequestBody] | None, Any]:
    types = route.handler_types()
    body = types.get("body")
    return body if body in (None, RequestBody) else msgspec.json.Decoder(body), types.get("query")


async def cancel_on_disconnect(work: Awaitable[Any], call: Request, receive: Receive) -> Any:
    """Wait for an answer as long as there is somebody to give it to. What was taken for them is given back."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            return working.result()
        raise ClientDisconnected
    except (ClientDisconnected, asyncio.CancelledError):
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
    if is_body_complete(receive):
        body = await _receive_body(bytes_max, receive)
    else:
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                body = await _receive_body(bytes_max, receive)
        except TimeoutError:
            raise SlowSender(f"the body did not arrive within {BODY_SECONDS_MAX:g} seconds") from None
    if body and not (headers.get("content-type") or "").lower().startswith(JSON):
        raise UnsupportedMedia
    return body or b"{}"


async def _receive_body(bytes_max: int, receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
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


def _decode_query(given: dict[str, str], kind: Any) -> Any:
    reject_numeric_timestamps(given, kind)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_query(error, kind) from None


async def _send_problem(error: IngotError, send: Send, request_id: str) -> int:
    status, headers, body = problem_of(error)
    await _send_response(send, status, headers, body, request_id)
    return status


async def _send_response(
    send: Send, status: int, headers: dict[str, str], body: bytes, request_id: str, cookies: tuple[str, ...] = ()
) -> None:
    if status != NOT_MODIFIED:  # That has the length of what it stands for, or none.
        headers = {"content-length": str(len(body)), **headers}
    whole = _encode_headers(headers, request_id)
    whole += [(b"set-cookie", one.encode()) for one in cookies]
    await send({"type": "http.response.start", "status": status, "headers": whole})
    await send({"type": "http.response.body", "body": body})


def _encode_headers(headers: dict[str, str], request_id: str) -> list[tuple[bytes, bytes]]:
    whole = {"x-request-id": request_id, "x-content-type-options": "nosniff", **headers}
    return [(name.encode(), value.encode()) for name, value in whole.items()]


def _set_log_context(request_id: str, trace_id: str | None) -> dict[str, object]:
    """What stands in every line that is logged from now on; more can be added to it."""
    known: dict[str, object] = {"request_id": request_id}
    if trace_id is not None:
        known["trace_id"] = trace_id
    request_fields.set(known)
    return known


def _extend_log_context(known: dict[str, object], route: Route, call: Request) -> None:
    if call.tenant:
        known["tenant_id"] = call.tenant
    if call.caller.kind == "worker":
        known["worker_id"] = (call.headers.get("x-worker-id") or call.caller.id)[:WORKER_CHARS_MAX]
    if "id" in call.path_params and route.path.startswith(JOB_PATH):
        known["job_id"] = call.path_params["id"][:ID_CHARS_MAX]


def _log_fields(scope: Scope, route: Route | None, status: int, began: float) -> dict[str, object]:
    """The request as it stands in the log: not its path, in which people put what they should not."""
    return {
        "method": scope["method"],
        "route": None if route is None else route.path,
        "status": status,
        "duration_ms": round((time.perf_counter() - began) * 1000, 3),
    }


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id")
    usable = (
        given is not None and _REQUEST_ID.fullmatch(given) and not contains_secret(given)
    )  # It is logged, and kept.
    return given if given is not None and usable else new_id()
