"""The ASGI application: finds the route, authenticates the caller, decodes the request and sends the response."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import structlog

from ingot.http.authentication import RequestAuthenticator
from ingot.http.buffers import UNCOUNTED_BYTES_MAX, Buffers, BuffersFull, Reservation, TooManyBytes
from ingot.http.csrf import SAFE_METHODS
from ingot.http.json_body import receive_body, receive_counted_body
from ingot.http.json_response import encode_list, list_field_of
from ingot.http.metrics import Metrics
from ingot.http.page_cursors import open_cursor, seal_cursor, takes_cursor
from ingot.http.problems import (
    BodyTooLarge,
    InternalError,
    MalformedBody,
    MethodNotAllowed,
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
from ingot.http.routes import ENCODED_NUL, HTML, PREFIX, Route, RouteTable
from ingot.http.streaming_body import close_chunks, drain, send_bytes
from ingot.http.streams import Scope, Send, Streams, wait_for_disconnect
from ingot.http.tracing import Tracer, parse_traceparent
from ingot.http.validation_errors import invalid_body, invalid_query, reject_numeric_timestamps
from ingot.http.visible_errors import visible_error
from ingot.kernel.cursor_cipher import CursorCipher
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.failures import failures
from ingot.kernel.ids import new_id
from ingot.kernel.logs import MESSAGE_CHARS_MAX, context_fields, is_debug_enabled
from ingot.kernel.redaction import contains_secret

UNREPEATABLE_HEADERS: Final = ("ingot-tenant", "idempotency-key", "last-event-id")
# Share of all connections that the callers of one tenant can hold open with streams, uploads and waiting requests.
HELD_CONNECTIONS_SHARE_MAX: Final = 0.5
WAITING_RETRY_SECONDS: Final = 5.0
QUERY_CHARS_MAX: Final = 8192
ID_CHARS_MAX: Final = 64
WORKER_CHARS_MAX: Final = 200
JOB_PATH: Final = f"{PREFIX}/jobs/{{id}}"
NOT_MODIFIED: Final = int(HTTPStatus.NOT_MODIFIED)
JSON: Final = "application/json"
# Renders an error as a page. The second argument is the path to return to after a sign-in, or `None`.
ErrorPage = Callable[[IngotError, str | None], Response[bytes]]
STREAM_HEADERS: Final = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
log = structlog.get_logger("ingot.http")
_encode = msgspec.json.Encoder().encode
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class App:
    """The ASGI application that serves the routes of a table."""

    def __init__(
        self,
        table: RouteTable,
        authenticator: RequestAuthenticator,
        metrics: Metrics,
        cursors: CursorCipher,
        *,
        tracer: Tracer | None = None,
        connections_max: int = CONNECTIONS_MAX,
        buffers: Buffers | None = None,
        error_page: ErrorPage | None = None,
    ) -> None:
        self._routes = table
        self._authenticator = authenticator
        self._metrics = metrics
        self._cursors = cursors
        self._tracer = tracer
        self._buffers = buffers or Buffers()
        metrics.server.buffers = self._buffers
        self._error_page = error_page
        self._streams = Streams(authenticator)
        self._held_connections: Counter[str] = Counter()  # By tenant, or by caller without one.
        self._held_connections_max = max(1, round(connections_max * HELD_CONNECTIONS_SHARE_MAX))
        metrics.register_streams(lambda: len(self._streams))
        self._decoders = {id(route): _decoders_of(route) for route in table.routes}
        self._paged_routes = {id(route) for route in table.routes if takes_cursor(route)}
        self._list_fields = {id(route): name for route in table.routes if (name := list_field_of(route)) is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"unsupported ASGI scope type: {scope['type']}")
        began = time.perf_counter()
        headers = Headers(scope["headers"])
        request_id = _request_id(headers)
        trace = parse_traceparent(headers.get("traceparent"))
        span = None if self._tracer is None else self._tracer.start_span(trace)
        trace_id = span.trace_id if span is not None else None if trace is None else trace.trace_id
        log_context = _set_log_context(request_id, trace_id)
        route: Route | None = None
        request: Request | None = None
        try:
            headers.require_unique(UNREPEATABLE_HEADERS)
            target = scope["method"], scope["raw_path"].decode("latin-1"), scope["query_string"]
            route, path_params = self._routes.find(target[0], target[1])
            client = scope.get("client")
            request = await self._authenticator.authenticate(
                route, headers, path_params, request_id=request_id, client=client, target=target
            )
            request.method = scope["method"]
            request.trace_id = trace_id
            _extend_log_context(log_context, route, request)
            status = await self._handle(route, request, scope, receive, send)
        except ClientDisconnected:
            status = 499
        except IngotError as raised:
            error = raised if request is None else visible_error(raised, request.caller)
            status = await self._send_error(error, route, scope, send, request_id)
            if status >= 500:
                identity = {"code": error.code, **_log_fields(scope, route, status)}
                detail = error.detail.split("\n", 1)[0][:MESSAGE_CHARS_MAX]
                failures.log(
                    "request_refused",
                    level="warning",
                    identity=identity,
                    detail=detail,
                    hint=error.hint,
                    duration_ms=_millis_since(began),
                )
        except Exception as error:
            identity = _log_fields(scope, route, 500)
            failures.log("request_failed", error, identity=identity, duration_ms=_millis_since(began))
            status = await self._send_error(InternalError(), route, scope, send, request_id)
        finally:
            if request is not None and request.reservation is not None:
                request.reservation.release()
        self._metrics.record_request(route, status, time.perf_counter() - began)
        if span is not None:
            route_path = None if route is None else route.path
            tenant = "" if request is None else request.tenant
            span.end(method=scope["method"], route=route_path, status=status, request_id=request_id, tenant=tenant)
        if is_debug_enabled():
            log.debug("request", **_log_fields(scope, route, status), duration_ms=_millis_since(began))

    def stop(self) -> None:
        """End all streams."""
        self._streams.stop()

    async def _send_error(
        self, error: IngotError, route: Route | None, scope: Scope, send: Send, request_id: str
    ) -> int:
        """Send an error: as an HTML page if the route is a page, otherwise as a problem. Return the status."""
        if route is None or route.response_content_type != HTML or self._error_page is None:
            return await _send_problem(error, send, request_id)
        response = self._error_page(error, scope["path"] if scope["method"] in SAFE_METHODS else None)
        status = response.status or error.status
        await _send_response(send, status, response.headers, response.content, request_id, response.cookies)
        return status

    async def _handle(self, route: Route, request: Request, scope: Scope, receive: Receive, send: Send) -> int:
        body, query = self._decoders[id(route)]
        arguments: dict[str, Any] = dict(request.path_params)
        if isinstance(body, msgspec.json.Decoder):
            arguments["body"] = _decode(await self._read_json(route, request, receive), body)
        elif body is not None:
            stream = arguments["body"] = RequestBody(request.headers, receive, bytes_max=route.body_bytes_max)
            self._reserve_upload(request, stream.length)
        if query is not None:
            params = _parse_query(scope["query_string"]) if request.signed_params is None else request.signed_params
            arguments["query"] = _decode_query(params, query)
        elif scope["query_string"] and request.signed_params is None:
            raise InvalidInput("this route has no query parameters", hint="Remove the question mark and all after it.")
        is_paged = id(route) in self._paged_routes
        if is_paged:
            open_cursor(self._cursors, route, request, arguments)
        if route.waits:
            with self._hold_connection(request):
                response = await cancel_on_disconnect(route.handler(request, **arguments), request, receive)
            await self._reauthenticate(route, request)
        elif body is RequestBody:
            with self._hold_connection(request):
                response = await route.handler(request, **arguments)
        else:
            response = await route.handler(request, **arguments)
        if isinstance(response, BytesResponse):
            return await self._send_bytes(response, route, request, receive, send)
        if isinstance(response, StreamResponse):
            return await self._serve_stream(response, route, request, receive, send)
        if is_paged:
            response = seal_cursor(self._cursors, route, request, response)
        return await self._send_content(response, route, request, receive, send)

    async def _send_content(self, response: Any, route: Route, request: Request, receive: Receive, send: Send) -> int:
        """Send what a handler returned: nothing, bytes, an object, or a `Response` with one of these."""
        status, content = route.status, response
        headers: dict[str, str] = {}
        cookies: tuple[str, ...] = ()
        if isinstance(response, Response):
            status, content = response.status or route.status, response.content
            headers, cookies = response.headers, response.cookies
        if content is None:
            content = b""
        elif not isinstance(content, bytes):
            headers = {"content-type": JSON, **headers}
            list_field = self._list_fields.get(id(route))
            content = _encode(content) if list_field is None else await encode_list(content, list_field)
        if len(content) > UNCOUNTED_BYTES_MAX:
            self._reserve_response(request, len(content))
        await _send_response(send, status, headers, content, request.request_id, cookies)
        if len(content) > UNCOUNTED_BYTES_MAX:
            await drain(receive)
        return status

    async def _read_json(self, route: Route, request: Request, receive: Receive) -> bytes | bytearray:
        """Return the body of a request. Raises `BodyTooLarge`, `UnsupportedMedia` and errors of `json_body`."""
        assert route.body_bytes_max is not None
        length, bytes_max = int(request.headers.get("content-length") or 0), route.body_bytes_max
        if length > bytes_max:
            raise BodyTooLarge(f"the body has {length} bytes; this route accepts at most {bytes_max}")
        body: bytes | bytearray
        if length <= UNCOUNTED_BYTES_MAX and is_body_complete(receive):
            body = await receive_body(bytes_max, receive)
        else:
            with self._hold_connection(request):
                body = await receive_counted_body(bytes_max, length or None, receive, self._reservation(request))
        if body and not (request.headers.get("content-type") or "").lower().startswith(JSON):
            raise UnsupportedMedia
        return body or b"{}"

    def _reservation(self, request: Request) -> Reservation:
        """Return the reservation of a request, which is released after the response."""
        if request.reservation is None:
            caller = self._holder(request)
            tenant = request.caller.tenant or (request.signed_params or {}).get("tenant") or request.caller.principal
            request.reservation = Reservation(self._buffers, caller, tenant)
        return request.reservation

    def _reserve_upload(self, request: Request, length: int | None) -> None:
        """Count the part of a streamed body that is in memory. Raises the errors of `Reservation.add`."""
        if length is None or length > UNCOUNTED_BYTES_MAX:
            self._reservation(request).add_transfer(self._buffers.upload_bytes(length))

    def _reserve_response(self, request: Request, size: int) -> None:
        """Count a response until the client has received it. The response to a change is never refused."""
        reservation = self._reservation(request)
        if request.method in SAFE_METHODS and request.undo is None:
            reservation.add(size)
        else:
            reservation.add_anyway(size)

    async def _serve_stream(
        self, response: StreamResponse, route: Route, request: Request, receive: Receive, send: Send
    ) -> int:
        if request.method == "HEAD":
            await response.chunks.aclose()
            raise MethodNotAllowed(["GET"])
        headers = _encode_headers(STREAM_HEADERS, request.request_id)
        with self._hold_connection(request):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            # The transport holds the headers back until the first body message; an empty one sends them now.
            await send({"type": "http.response.body", "more_body": True})
            await self._streams.serve(response, route, request, receive, send, self._reservation(request))
        return 200

    async def _send_bytes(
        self, response: BytesResponse, route: Route, request: Request, receive: Receive, send: Send
    ) -> int:
        status = response.status or route.status
        headers = _encode_headers({"content-length": str(response.length), **response.headers}, request.request_id)
        start = {"type": "http.response.start", "status": status, "headers": headers}
        if request.method == "HEAD":
            await send(start)
            await send({"type": "http.response.body"})
            return status
        try:
            if response.length > UNCOUNTED_BYTES_MAX:
                self._reservation(request).add_transfer(self._buffers.download_bytes(response.length))
        except (TooManyBytes, BuffersFull):
            await close_chunks(response)
            raise
        with self._hold_connection(request):
            await send_bytes(response, start, receive, send)
        return status

    def _holder(self, request: Request) -> str:
        """Return the name of a caller, which is the address of a client without a credential."""
        return request.caller.principal if request.caller.id else self._authenticator.rate_limit_key_of(request)

    @contextmanager
    def _hold_connection(self, request: Request) -> Iterator[None]:
        """Limit how many connections one tenant holds open with slow requests. Raises `TooManyWaiting`."""
        holder = request.caller.tenant or self._holder(request)
        if self._held_connections[holder] >= self._held_connections_max:
            raise TooManyWaiting(WAITING_RETRY_SECONDS)
        self._held_connections[holder] += 1
        try:
            yield
        finally:
            self._held_connections[holder] -= 1
            if not self._held_connections[holder]:
                del self._held_connections[holder]

    async def _reauthenticate(self, route: Route, request: Request) -> None:
        """Check the credential again after a wait. If it is no longer valid, undo what the handler did, and raise."""
        try:
            await self._authenticator.reauthenticate(route, request)
        except IngotError:
            if request.undo is not None:
                await request.undo()
            raise


def _decoders_of(route: Route) -> tuple[msgspec.json.Decoder[Any] | type[RequestBody] | None, Any]:
    types = route.handler_types()
    body = types.get("body")
    return body if body in (None, RequestBody) else msgspec.json.Decoder(body), types.get("query")


async def cancel_on_disconnect(handler: Awaitable[Any], request: Request, receive: Receive) -> Any:
    """Return the result of a handler. If the client disconnects first, cancel the handler and undo what it did.

    Raises `ClientDisconnected`.
    """
    handling = asyncio.ensure_future(handler)
    disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait([handling, disconnect], return_when=asyncio.FIRST_COMPLETED)
        if not disconnect.done():
            return handling.result()
        raise ClientDisconnected
    except (ClientDisconnected, asyncio.CancelledError):
        handling.cancel()
        await asyncio.gather(handling, return_exceptions=True)
        if request.undo is not None:
            await request.undo()
        raise
    finally:
        disconnect.cancel()
        handling.cancel()


def _decode(body: bytes | bytearray, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_body(error, decoder.type) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody(f"the body is not valid JSON: {str(error)[:200]}") from None


def _parse_query(query: bytes) -> dict[str, str]:
    if len(query) > QUERY_CHARS_MAX:
        raise InvalidInput(f"the query must have at most {QUERY_CHARS_MAX} characters, got {len(query)}")
    if ENCODED_NUL.encode() in query:
        raise InvalidInput("the query contains NUL", hint="Remove %00. No value contains NUL.")
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise InvalidInput("the query is malformed", hint="Use `name=value&name=value`, percent-encoded.") from None
    params = dict(pairs)
    if len(params) != len(pairs):
        raise InvalidInput("duplicate query parameter", hint="Send each query parameter once.")
    return params


def _decode_query(params: dict[str, str], query_type: Any) -> Any:
    reject_numeric_timestamps(params, query_type)
    try:
        return msgspec.convert(params, query_type, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_query(error, query_type) from None


async def _send_problem(error: IngotError, send: Send, request_id: str) -> int:
    status, headers, body = problem_of(error)
    await _send_response(send, status, headers, body, request_id)
    return status


async def _send_response(
    send: Send, status: int, headers: dict[str, str], body: bytes, request_id: str, cookies: tuple[str, ...] = ()
) -> None:
    if status != NOT_MODIFIED:  # In a 304, Content-Length would be the size of the resource.
        headers = {"content-length": str(len(body)), **headers}
    encoded = _encode_headers(headers, request_id)
    encoded += [(b"set-cookie", cookie.encode()) for cookie in cookies]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _encode_headers(headers: dict[str, str], request_id: str) -> list[tuple[bytes, bytes]]:
    # Only routes whose responses contain nothing private, or whose clients have to revalidate, allow storing them.
    headers = {
        "x-request-id": request_id,
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        **headers,
    }
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _set_log_context(request_id: str, trace_id: str | None) -> dict[str, object]:
    """Set the fields of all later log entries of this request. Fields added to the returned dict are logged too."""
    log_context: dict[str, object] = {"request_id": request_id}
    if trace_id is not None:
        log_context["trace_id"] = trace_id
    context_fields.set(log_context)
    return log_context


def _extend_log_context(log_context: dict[str, object], route: Route, request: Request) -> None:
    if request.tenant:
        log_context["tenant_id"] = request.tenant
    if request.caller.kind == "worker":
        log_context["worker_id"] = (request.headers.get("x-worker-id") or request.caller.id)[:WORKER_CHARS_MAX]
    if "id" in request.path_params and route.path.startswith(JOB_PATH):
        log_context["job_id"] = request.path_params["id"][:ID_CHARS_MAX]


def _log_fields(scope: Scope, route: Route | None, status: int) -> dict[str, Hashable]:
    """Return the fields of a request for the log, without its path, which may contain secrets."""
    return {"method": scope["method"], "route": None if route is None else route.path, "status": status}


def _millis_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)


def _request_id(headers: Headers) -> str:
    """Return the ID that the client chose, or a new one. IDs are logged and stored, so none may contain a secret."""
    client_id = headers.get("x-request-id")
    usable = client_id is not None and _REQUEST_ID.fullmatch(client_id) and not contains_secret(client_id)
    return client_id if client_id is not None and usable else new_id()
