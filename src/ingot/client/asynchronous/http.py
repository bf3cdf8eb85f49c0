"""HTTP requests to a server: retries, decoding, lists, streams and signed URLs."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import httpx
import msgspec

from ingot.client.errors import (
    NotIngot,
    ServerTooOld,
    ServerUnreachable,
    error_from_response,
    invalid_response_error,
    server_unreachable_error,
    store_error_from_response,
    store_unreachable_error,
)
from ingot.client.retry_policy import RetryPolicy, may_retry
from ingot.client.server_address import NoToken, ServerAddress
from ingot.kernel.build import read_build
from ingot.kernel.errors import IngotError, TooMany
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.kernel.pages import Page
from ingot.wire.field_types import PREFIX

REQUEST_TIMEOUT_SECONDS: Final = 30.0
ITEMS_PER_PAGE: Final = 200
CLIENT_VERSION: Final = read_build().version
JSON_HEADERS: Final = {"content-type": "application/json"}
IDENTITY_ENCODING: Final = {"accept-encoding": "identity"}
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class _HealthResponse(msgspec.Struct, frozen=True):
    version: str


class AsyncHttp:
    """The HTTP client of one server. A `transport` replaces that of httpx."""

    def __init__(
        self, address: ServerAddress, retry_policy: RetryPolicy, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        prepare_structs()
        self.address = address
        self.retry_policy = retry_policy
        self._transport = transport
        self._client = httpx.AsyncClient(
            base_url=address.url,
            headers=address.headers,
            timeout=REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
            transport=transport,
            verify=transport is None and _tls_verification(address.url),
        )
        # A client that sends no credentials can be used for signed URLs too.
        is_anonymous = transport is not None and not address.headers
        self._anonymous_clients = dict.fromkeys(("http", "https"), self._client) if is_anonymous else {}

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
        for client in self._anonymous_clients.values():
            await client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        type: type[T],
        *,
        query: dict[str, Any] | None = None,
        body: object = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
        idempotent: bool | None = None,
        wait_seconds: float = 0.0,
        timeout: httpx.Timeout | None = None,
    ) -> T:
        """Send a request and return the response, decoded as `type`. It sends `body` as JSON, or `content` unchanged.

        `idempotent` states that the request is safe to repeat. By default, this is true of GET. Without a `timeout`,
        `wait_seconds` is added to that of all requests. Raises the error that the server returned, or
        `ServerUnreachable`. The cause of the error is the transport error by which an earlier response was lost, if
        there was one.
        """
        options: dict[str, Any] = {"content": content, "headers": headers}
        if body is not None:
            options = {"content": _encode(body), "headers": {**JSON_HEADERS, **(headers or {})}}
        idempotent = method == "GET" if idempotent is None else idempotent
        timeout = timeout or httpx.Timeout(REQUEST_TIMEOUT_SECONDS + wait_seconds)
        response_body = await self._request_with_retries(
            method, path, query=query, options=options, idempotent=idempotent, timeout=timeout
        )
        if type is bytes:
            return response_body  # type: ignore[return-value]
        try:
            return msgspec.json.decode(response_body or b"null", type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise await self._add_versions(invalid_response_error(response_body, error)) from None

    async def _request_with_retries(
        self, method: str, path: str, *, query: Any, options: dict[str, Any], idempotent: bool, timeout: httpx.Timeout
    ) -> bytes:
        self._require_credentials()
        started_at, retries = time.monotonic(), 0
        is_repeatable = isinstance(options["content"], bytes | None)  # An iterator cannot be sent again.
        response_lost: httpx.TransportError | None = None
        while True:
            requested_delay: float | None = None
            try:
                response = await self._client.request(
                    method,
                    PREFIX + path,
                    params=_query_parameters(query),
                    timeout=timeout,
                    **options,
                )
            except httpx.TransportError as fault:
                error: IngotError = server_unreachable_error(self.address.url, _fault_text(fault))
                is_unsent = isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout)
                may_repeat, response_lost = idempotent or is_unsent, response_lost if is_unsent else fault
            else:
                if response.is_success:
                    return response.content
                error = error_from_response(response.status_code, response.content)
                if isinstance(error, ServerUnreachable):  # From a proxy, which may have sent the request.
                    may_repeat = idempotent
                else:
                    may_repeat = may_retry(response.status_code, error.code, idempotent=idempotent)
                requested_delay = retry_after_seconds(response)
            delay = (
                self.retry_policy.next_delay(
                    retries,
                    time.monotonic() - started_at,
                    retry_after_seconds=requested_delay,
                    is_limited=error.status == TooMany.status,
                )
                if may_repeat and is_repeatable
                else None
            )
            if delay is None:
                raise await self._add_versions(error) from response_lost
            retries += 1
            await asyncio.sleep(delay)

    def _require_credentials(self) -> None:
        if not self.address.has_credentials:
            raise NoToken

    async def _add_versions(self, error: IngotError) -> IngotError:
        """Add the versions of server and client to an error that may be caused by their difference."""
        if not isinstance(error, ServerTooOld):
            return error
        try:
            health = msgspec.json.decode((await self._client.get("/healthz")).content, type=_HealthResponse)
        except (httpx.TransportError, msgspec.DecodeError, UnicodeDecodeError):
            return error
        return ServerTooOld(f"{error.detail} (server version {health.version}, client version {CLIENT_VERSION})")

    async def iterate_items(
        self, path: str, type: type[Page[T]], *, query: dict[str, Any], limit: int | None = None
    ) -> AsyncIterator[T]:
        """Yield the items of a list, all of them or up to `limit`, requesting one page at a time."""
        cursor: str | None = None
        remaining = limit
        while remaining is None or remaining > 0:
            page_query = {**query, "cursor": cursor, "limit": min(ITEMS_PER_PAGE, remaining or ITEMS_PER_PAGE)}
            page = await self.request("GET", path, type, query=page_query)
            for item in page.items:
                yield item
            remaining = None if remaining is None else remaining - len(page.items)
            if (cursor := page.next_cursor) is None:
                return

    @asynccontextmanager
    async def stream_lines(
        self, path: str, *, query: dict[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Open a stream and yield an iterator over its lines."""
        self._require_credentials()
        timeout = httpx.Timeout(REQUEST_TIMEOUT_SECONDS, read=2 * REQUEST_TIMEOUT_SECONDS)
        try:
            async with self._client.stream(
                "GET", PREFIX + path, params=_query_parameters(query), headers=headers, timeout=timeout
            ) as response:
                if not response.is_success:
                    raise error_from_response(response.status_code, await response.aread())
                yield response.aiter_lines()
        except httpx.TransportError as fault:
            raise server_unreachable_error(self.address.url, _fault_text(fault)) from fault

    # -- blobs and signed URLs, also of other hosts ---------------------------------------------------------

    async def request_signed_url(
        self, method: str, url: str, *, headers: dict[str, str], content: AsyncIterator[bytes] | None = None
    ) -> httpx.Response:
        """Send a request to a signed URL, without credentials.

        Raises `ServerUnreachable`, or its subclass `StoreUnreachable` if the URL is that of an object store.
        """
        try:
            return await self._anonymous_client(url).request(method, url, headers=headers, content=content)
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise self._unreachable_error(url, fault) from fault

    @asynccontextmanager
    async def fetch_blob(self, path: str, *, headers: dict[str, str]) -> AsyncIterator[tuple[str, httpx.Response]]:
        """Open a blob and yield its ETag and the response. A redirect to the object store is followed.

        Raises the error that the server returned, `ServerUnreachable` or `StoreRefused`.
        """
        self._require_credentials()
        headers = {**IDENTITY_ENCODING, **headers}
        try:
            async with self._client.stream("GET", PREFIX + path, headers=headers) as response:
                etag, location = response.headers.get("etag", ""), response.headers.get("location")
                if response.is_success:
                    yield etag, response
                    return
                if response.status_code != 307 or location is None:
                    raise await self._add_versions(error_from_response(response.status_code, await response.aread()))
            headers = {name: value for name, value in headers.items() if name in ("accept-encoding", "range")}
            async with self.fetch_signed_url(location, headers=headers) as response:
                yield etag, response
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise server_unreachable_error(self.address.url, _fault_text(fault)) from fault

    @asynccontextmanager
    async def fetch_signed_url(self, url: str, *, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """Open a signed URL and yield the response. Raises `ServerUnreachable` or `StoreRefused`."""
        try:
            async with self._anonymous_client(url).stream(
                "GET", url, headers={**IDENTITY_ENCODING, **headers}
            ) as response:
                if not response.is_success:
                    raise store_error_from_response(response.status_code, await response.aread())
                yield response
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise self._unreachable_error(url, fault) from fault

    def _unreachable_error(self, url: str, fault: httpx.TransportError | httpx.InvalidURL) -> ServerUnreachable:
        """Return the error for a URL that cannot be reached, of the server itself or of its object store."""
        origin = _origin(url)
        is_of_server = origin == _origin(self.address.url)
        return (server_unreachable_error if is_of_server else store_unreachable_error)(origin, _fault_text(fault))

    def _anonymous_client(self, url: str) -> httpx.AsyncClient:
        """Return a client that sends no credentials."""
        scheme = url.partition(":")[0].lower()
        if scheme not in ("http", "https"):
            raise NotIngot(f"the server returned {url[:64]!r} instead of an http or https URL")
        if (client := self._anonymous_clients.get(scheme)) is not None:
            return client
        client = httpx.AsyncClient(
            timeout=REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
            transport=self._transport,
            verify=self._transport is None and _tls_verification(url),
        )
        return self._anonymous_clients.setdefault(scheme, client)


def _origin(url: str) -> str:
    """Return the scheme and host of a URL. The rest of a signed URL is secret."""
    return "/".join(url.split("/")[:3])


def _tls_verification(url: str) -> ssl.SSLContext | bool:
    """Load the default certificates, or those of SSL_CERT_FILE. It takes 18 ms, so only https URLs do it."""
    return httpx.create_ssl_context() if url.lower().startswith("https:") else False


def _query_parameters(query: dict[str, Any] | None) -> dict[str, Any]:
    """Return the parameters that are not `None`, in the form that a query string needs."""
    return {name: msgspec.to_builtins(value) for name, value in (query or {}).items() if value is not None}


def retry_after_seconds(response: httpx.Response) -> float | None:
    """Return the delay that the response requests, if any."""
    header = response.headers.get("retry-after")
    return float(header) if header is not None and header.isascii() and header.isdecimal() else None


def _fault_text(fault: httpx.TransportError | httpx.InvalidURL) -> str:
    return str(fault) or type(fault).__name__
