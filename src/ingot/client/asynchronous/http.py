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
    error_of,
    store_refusal,
    store_unreachable,
    unreachable,
    unreadable,
)
from ingot.client.patience import Patience, may_repeat
from ingot.client.place import NoToken, Place
from ingot.kernel.errors import IngotError
from ingot.kernel.pages import Page
from ingot.kernel.structs import prepare_structs
from ingot.wire.values import PREFIX

ANSWER_SECONDS: Final = 30.0
PAGE_ROWS: Final = 200
VERSION: Final = version("ingot")
JSON: Final = {"content-type": "application/json"}
AS_IT_IS: Final = {"accept-encoding": "identity"}
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class _Health(msgspec.Struct, frozen=True):
    version: str


class AsyncHttp:
    """A connection to one server, over `transport` when one is given."""

    def __init__(self, place: Place, patience: Patience, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        prepare_structs()
        self.place = place
        self.patience = patience
        self._transport = transport
        self._client = httpx.AsyncClient(
            base_url=place.url,
            headers=place.headers,
            timeout=ANSWER_SECONDS,
            trust_env=False,
            transport=transport,
            verify=transport is None and _trusted(place.url),
        )
        nobody = transport is not None and not place.headers  # Who comes without a credential is a stranger already.
        self._strangers = dict.fromkeys(("http", "https"), self._client) if nobody else {}

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.aclose()
        for stranger in self._strangers.values():
            await stranger.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        type: type[T],
        *,
        query: dict[str, Any] | None = None,
        body: object = None,
        content: bytes | AsyncIterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
        safe: bool | None = None,
        wait_seconds: float = 0.0,
    ) -> T:
        """Ask for something, and answer it as this type. What is sent is a `body` as JSON, or `content` as it is.

        `safe` says that asking twice is as asking once; it is so for GET. `wait_seconds` is how much longer than
        usual the answer may take. Raises the error that the server tells of, or `ServerUnreachable`; its cause is the
        fault by which an earlier answer was lost, if one was.
        """
        sent: dict[str, Any] = {"content": content, "headers": headers}
        if body is not None:
            sent = {"content": _encode(body), "headers": {**JSON, **(headers or {})}}
        safe = method == "GET" if safe is None else safe
        said = await self._try(method, path, query=query, sent=sent, safe=safe, wait=wait_seconds)
        if type is bytes:
            return said  # type: ignore[return-value]
        try:
            return msgspec.json.decode(said or b"null", type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise await self._with_versions(unreadable(said, error)) from None

    async def _try(self, method: str, path: str, *, query: Any, sent: dict[str, Any], safe: bool, wait: float) -> bytes:
        self._expect_token()
        began, tries = time.monotonic(), 0
        whole = isinstance(sent["content"], bytes | None)  # What is sent as it comes cannot be sent again.
        lost: httpx.TransportError | None = None
        while True:
            told: float | None = None
            try:
                answer = await self._client.request(
                    method,
                    PREFIX + path,
                    params=_said(query),
                    timeout=ANSWER_SECONDS + wait,
                    **sent,
                )
            except httpx.TransportError as fault:
                error: IngotError = unreachable(self.place.url, _why(fault))
                unsent = isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout)
                again, lost = safe or unsent, lost if unsent else fault
            else:
                if answer.is_success:
                    return answer.content
                error = error_of(answer.status_code, answer.content)
                again = may_repeat(answer.status_code, error.code, safe=safe)
                told = seconds_told(answer)
            pause = self.patience.pause(tries, time.monotonic() - began, told=told) if again and whole else None
            if pause is None:
                raise await self._with_versions(error) from lost
            tries += 1
            await asyncio.sleep(pause)

    def _expect_token(self) -> None:
        if not self.place.is_known:
            raise NoToken

    async def _with_versions(self, error: IngotError) -> IngotError:
        """An error that may come of different versions tells which they are."""
        if not isinstance(error, ServerTooOld):
            return error
        try:
            health = msgspec.json.decode((await self._client.get("/healthz")).content, type=_Health)
        except (httpx.TransportError, msgspec.DecodeError, UnicodeDecodeError):
            return error
        return ServerTooOld(f"{error.detail} (it is version {health.version}, and this client {VERSION})")

    async def pages(
        self, path: str, type: type[Page[T]], *, query: dict[str, Any], limit: int | None = None
    ) -> AsyncIterator[T]:
        """What a list has, page by page: all of it, or so many."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            asked = {**query, "cursor": cursor, "limit": min(PAGE_ROWS, left or PAGE_ROWS)}
            page = await self.ask("GET", path, type, query=asked)
            for item in page.items:
                yield item
            left = None if left is None else left - len(page.items)
            if (cursor := page.next_cursor) is None:
                return

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: dict[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an answer that does not end."""
        self._expect_token()
        timeout = httpx.Timeout(ANSWER_SECONDS, read=2 * ANSWER_SECONDS)
        try:
            async with self._client.stream(
                "GET", PREFIX + path, params=_said(query), headers=headers, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    raise error_of(answer.status_code, await answer.aread())
                yield answer.aiter_lines()
        except httpx.TransportError as fault:
            raise unreachable(self.place.url, _why(fault)) from fault

    # -- bytes, also to and from other hosts ----------------------------------------------------------------

    async def send(
        self, method: str, url: str, *, headers: dict[str, str], content: AsyncIterator[bytes] | None = None
    ) -> httpx.Response:
        """Call an address that is its own credential: nothing that says who we are goes with it.

        Raises `ServerUnreachable` or, of its kind, `StoreUnreachable`.
        """
        try:
            return await self._stranger(url).request(method, url, headers=headers, content=content)
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise self._away(url, fault) from fault

    @asynccontextmanager
    async def fetch(self, path: str, *, headers: dict[str, str]) -> AsyncIterator[tuple[str, httpx.Response]]:
        """The entity tag and the bytes of an answer, from where the server says that they are.

        Raises the error that the server tells of, `ServerUnreachable` or `StoreRefused`.
        """
        self._expect_token()
        asked = {**AS_IT_IS, **headers}
        try:
            async with self._client.stream("GET", PREFIX + path, headers=asked) as answer:
                etag, elsewhere = answer.headers.get("etag", ""), answer.headers.get("location")
                if answer.is_success:
                    yield etag, answer
                    return
                if answer.status_code != 307 or elsewhere is None:
                    raise await self._with_versions(error_of(answer.status_code, await answer.aread()))
            asked = {name: value for name, value in asked.items() if name in ("accept-encoding", "range")}
            async with self.fetch_at(elsewhere, headers=asked) as answer:
                yield etag, answer
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise unreachable(self.place.url, _why(fault)) from fault

    @asynccontextmanager
    async def fetch_at(self, url: str, *, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """The bytes at an address that is its own credential. Raises `ServerUnreachable` or `StoreRefused`."""
        try:
            async with self._stranger(url).stream("GET", url, headers={**AS_IT_IS, **headers}) as answer:
                if not answer.is_success:
                    raise store_refusal(answer.status_code, await answer.aread())
                yield answer
        except (httpx.TransportError, httpx.InvalidURL) as fault:
            raise self._away(url, fault) from fault

    def _away(self, url: str, fault: httpx.TransportError | httpx.InvalidURL) -> ServerUnreachable:
        """The error of an address that does not answer: one of the server itself, or of its store."""
        host = _host(url)
        return (unreachable if host == _host(self.place.url) else store_unreachable)(host, _why(fault))

    def _stranger(self, url: str) -> httpx.AsyncClient:
        """A client that nobody knows us by."""
        scheme = url.partition(":")[0].lower()
        if scheme not in ("http", "https"):
            raise NotIngot(f"the server sends us to {url[:64]!r}, which is no address")
        if (known := self._strangers.get(scheme)) is not None:
            return known
        made = httpx.AsyncClient(
            timeout=ANSWER_SECONDS,
            trust_env=False,
            transport=self._transport,
            verify=self._transport is None and _trusted(url),
        )
        return self._strangers.setdefault(scheme, made)


def _host(url: str) -> str:
    """The address of a host alone: what is behind it is a credential."""
    return "/".join(url.split("/")[:3])


def _trusted(url: str) -> ssl.SSLContext | bool:
    """Whom to trust: those that everybody does, or that SSL_CERT_FILE names. Reading them takes 18 ms."""
    return httpx.create_ssl_context() if url.lower().startswith("https:") else False


def _said(query: dict[str, Any] | None) -> dict[str, Any]:
    """What is not `None`, as it stands in a query."""
    return {name: msgspec.to_builtins(value) for name, value in (query or {}).items() if value is not None}


def seconds_told(answer: httpx.Response) -> float | None:
    """How long the server says to wait."""
    header = answer.headers.get("retry-after")
    return float(header) if header is not None and header.isascii() and header.isdecimal() else None


def _why(fault: httpx.TransportError | httpx.InvalidURL) -> str:
    return str(fault) or type(fault).__name__
