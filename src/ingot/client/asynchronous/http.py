"""Asking the server: one way to send, to try again, and to read what comes back."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
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
from ingot.kernel.errors import IngotError
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.kernel.pages import Page
from ingot.wire.field_types import PREFIX

REQUEST_TIMEOUT_SECONDS: Final = 30.0
ITEMS_PER_PAGE: Final = 200
CLIENT_VERSION: Final = version("ingot")
JSON_HEADERS: Final = {"content-type": "application/json"}
IDENTITY_ENCODING: Final = {"accept-encoding": "identity"}
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class _HealthResponse(msgspec.Struct, frozen=True):
    version: str


class AsyncHttp:
    """A connection to one server, over `transport` when one is given."""

    def __init__(
        self, place: ServerAddress, patience: RetryPolicy, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        prepare_structs()
        self.address = place
        self.retry_policy = patience
        self._transport = transport
        self._client = httpx.AsyncClient(
            base_url=place.url,
            headers=place.headers,
            timeout=REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
            transport=transport,
            verify=transport is None and _tls_verification(place.url),
        )
        nobody = transport is not None and not place.headers  # Who comes without a credential is a stranger already.
        self._anonymous_clients = dict.fromkeys(("http", "https"), self._client) if nobody else {}

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.aclose()
        for stranger in self._anonymous_clients.values():
            await stranger.aclose()

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
    ) -> T:
        """Ask for something, and answer it as this type. What is sent is a `body` as JSON, or `content` as it is.

        `safe` says that asking twice is as asking once; it is so for GET. `wait_seconds` is how much longer than
        usual the answer may take. Raises the error that the server tells of, or `ServerUnreachable`; its cause is the
        fault by which an earlier answer was lost, if one was.
        """
        sent: dict[str, Any] = {"content": content, "headers": headers}
        if body is not None:
            sent = {"content": _encode(body), "headers": {**JSON_HEADERS, **(headers or {})}}
        idempotent = method == "GET" if idempotent is None else idempotent
        said = await self._request_with_retries(
            method, path, query=query, options=sent, idempotent=idempotent, wait_seconds=wait_seconds
        )
        if type is bytes:
            return said  # type: ignore[return-value]
        try:
            return msgspec.json.decode(said or b"null", type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise await self._add_versions(invalid_response_error(said, error)) from None

    async def _request_with_retries(
        self, method: str, path: str, *, query: Any, options: dict[str, Any], idempotent: bool, wait_seconds: float
    ) -> bytes:
        self._require_credentials()
        began, tries = time.monotonic(), 0
        whole = isinstance(options["content"], bytes | None)  # What is sent as it comes cannot be sent again.
        lost: httpx.TransportError | None = None
        while True:
            told: float | None = None
            try:
                answer = await self._client.request(
                    method,
                    PREFIX + path,
                    params=_query_parameters(query),
                    timeout=REQUEST_TIMEOUT_SECONDS + wait_seconds,
                    **options,
                )
            except httpx.TransportError as fault:
                error: IngotError = server_unreachable_error(self.address.url, _fault_text(fault))
                unsent = isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout)
                again, lost = idempotent or unsent, lost if unsent else fault
            else:
                if answer.is_success:
                    return answer.content
                error = error_from_response(answer.status_code, answer.content)
                again = may_retry(answer.status_code, error.code, idempotent=idempotent)
                told = retry_after_seconds(answer)
            pause = (
                self.retry_policy.next_delay(tries, time.monotonic() - began, retry_after_seconds=told)
                if again and whole
                else None
            )
            if pause is None:
                raise await self._add_versions(error) from lost
            tries += 1
            await asyncio.sleep(pause)

    def _require_credentials(self) -> None:
        if not self.address.has_credentials:
            raise NoToken

    async def _add_versions(self, error: IngotError) -> IngotError:
        """An error that may come of different versions tells which they are."""
        if not isinstance(error, ServerTooOld):
            return error
        try:
            health = msgspec.json.decode((await self._client.get("/healthz")).content, type=_HealthResponse)
        except (httpx.TransportError, msgspec.DecodeError, UnicodeDecodeError):
            return error
        return ServerTooOld(f"{error.detail} (it is version {health.version}, and this client {CLIENT_VERSION})")

    async def iterate_items(
        self, path: str, type: type[Page[T]], *, query: dict[str, Any], limit: int | None = None
    ) -> AsyncIterator[T]:
        """What a list has, page by page: all of it, or so many."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            asked = {**query, "cursor": cursor, "limit": min(ITEMS_PER_PAGE, left or ITEMS_PER_PAGE)}
            page = await self.request("GET", path, type, query=asked)
            for item in page.items:
                yield item
            left = None if left is None else left - len(page.items)
            if (cursor := page.next_cursor) is None:
                return

    @asynccontextmanager
    async def stream_lines(
        self, path: str, *, query: dict[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an answer that does not end."""
        self._require_credentials()
        timeout = httpx.Timeout(REQUEST_TIMEOUT_SECONDS, read=2 * REQUEST_TIMEOUT_SECONDS)
        try:
            async with self._client.stream(
                "GET", PREFIX + path, params=_query_parameters(query), headers=headers, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    raise error_from_response(answer.status_code, await answer.aread())
                yield answer.aiter_lines()
        except httpx.TransportError as fault:
            raise server_unreachable_error(self.address.url, _fault_text(fault)) from fault

    # -- bytes, also to and from other hosts ----------------------------------------------------------------

    async def request_signed_url(
        self, method: str, url: str, *, headers: dict[str, str], content: AsyncIterator[bytes] | None = None
    ) -> httpx.Response:
        """Call an address that is its own credential: nothing that says who we are goes with it.

        Raises `ServerUnreachable` or, of its kind, `StoreUnreachable`.
        """
        try:
            return await self._anonymous_client(url).request(method, url, headers=headers, content=content)
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise self._unreachable_error(url, fault) from fault

    @asynccontextmanager
    async def fetch_blob(self, path: str, *, headers: dict[str, str]) -> AsyncIterator[tuple[str, httpx.Response]]:
        """The entity tag and the bytes of an answer, from where the server says that they are.

        Raises the error that the server tells of, `ServerUnreachable` or `StoreRefused`.
        """
        self._require_credentials()
        asked = {**IDENTITY_ENCODING, **headers}
        try:
            async with self._client.stream("GET", PREFIX + path, headers=asked) as answer:
                etag, elsewhere = answer.headers.get("etag", ""), answer.headers.get("location")
                if answer.is_success:
                    yield etag, answer
                    return
                if answer.status_code != 307 or elsewhere is None:
                    raise await self._add_versions(error_from_response(answer.status_code, await answer.aread()))
            asked = {name: value for name, value in asked.items() if name in ("accept-encoding", "range")}
            async with self.fetch_signed_url(elsewhere, headers=asked) as answer:
                yield etag, answer
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise server_unreachable_error(self.address.url, _fault_text(fault)) from fault

    @asynccontextmanager
    async def fetch_signed_url(self, url: str, *, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """The bytes at an address that is its own credential. Raises `ServerUnreachable` or `StoreRefused`."""
        try:
            async with self._anonymous_client(url).stream(
                "GET", url, headers={**IDENTITY_ENCODING, **headers}
            ) as answer:
                if not answer.is_success:
                    raise store_error_from_response(answer.status_code, await answer.aread())
                yield answer
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise self._unreachable_error(url, fault) from fault

    def _unreachable_error(self, url: str, fault: httpx.TransportError | httpx.InvalidURL) -> ServerUnreachable:
        """The error of an address that does not answer: one of the server itself, or of its store."""
        host = _origin(url)
        return (server_unreachable_error if host == _origin(self.address.url) else store_unreachable_error)(
            host, _fault_text(fault)
        )

    def _anonymous_client(self, url: str) -> httpx.AsyncClient:
        """A client that nobody knows us by."""
        scheme = url.partition(":")[0].lower()
        if scheme not in ("http", "https"):
            raise NotIngot(f"the server sends us to {url[:64]!r}, which is no address")
        if (known := self._anonymous_clients.get(scheme)) is not None:
            return known
        made = httpx.AsyncClient(
            timeout=REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
            transport=self._transport,
            verify=self._transport is None and _tls_verification(url),
        )
        return self._anonymous_clients.setdefault(scheme, made)


def _origin(url: str) -> str:
    """The address of a host alone: what is behind it is a credential."""
    return "/".join(url.split("/")[:3])


def _tls_verification(url: str) -> ssl.SSLContext | bool:
    """Whom to trust: those that everybody does, or that SSL_CERT_FILE names. Reading them takes 18 ms."""
    return httpx.create_ssl_context() if url.lower().startswith("https:") else False


def _query_parameters(query: dict[str, Any] | None) -> dict[str, Any]:
    """What is not `None`, as it stands in a query."""
    return {name: msgspec.to_builtins(value) for name, value in (query or {}).items() if value is not None}


def retry_after_seconds(answer: httpx.Response) -> float | None:
    """How long the server says to wait."""
    header = answer.headers.get("retry-after")
    return float(header) if header is not None and header.isascii() and header.isdecimal() else None


def _fault_text(fault: httpx.TransportError | httpx.InvalidURL) -> str:
    return str(fault) or type(fault).__name__
