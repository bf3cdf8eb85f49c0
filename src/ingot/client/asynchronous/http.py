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

from ingot.client.errors import ServerTooOld, error_of, unreachable, unreadable
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
T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class _Health(msgspec.Struct, frozen=True):
    version: str


class AsyncHttp:
    """A connection to one server, over `transport` when one is given."""

    def __init__(self, place: Place, patience: Patience, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        prepare_structs()
        self.place = place
        self._patience = patience
        self._client = httpx.AsyncClient(
            base_url=place.url,
            headers=place.headers,
            timeout=ANSWER_SECONDS,
            trust_env=False,
            transport=transport,
            verify=_trusted(place.url),
        )

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.aclose()

    async def ask(
        self,
        method: str,
        path: str,
        type: type[T],
        *,
        query: dict[str, Any] | None = None,
        body: object = None,
        safe: bool | None = None,
        wait_seconds: float = 0.0,
    ) -> T:
        """Ask for something, and answer it as this type.

        `safe` says that asking twice is as asking once; it is so for GET. `wait_seconds` is how much longer than
        usual the answer may take. Raises the error that the server tells of, or `ServerUnreachable`.
        """
        content = await self._try(
            method, path, query=query, body=body, safe=method == "GET" if safe is None else safe, wait=wait_seconds
        )
        if type is bytes:
            return content  # type: ignore[return-value]
        try:
            return msgspec.json.decode(content or b"null", type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise await self._with_versions(unreadable(content, error)) from None

    async def _try(self, method: str, path: str, *, query: Any, body: object, safe: bool, wait: float) -> bytes:
        self._expect_token()
        began, tries = time.monotonic(), 0
        while True:
            told: float | None = None
            try:
                answer = await self._client.request(
                    method,
                    PREFIX + path,
                    params=_said(query),
                    content=None if body is None else _encode(body),
                    headers=None if body is None else JSON,
                    timeout=ANSWER_SECONDS + wait,
                )
            except httpx.TransportError as fault:
                error: IngotError = unreachable(self.place.url, _why(fault))
                again = safe or isinstance(fault, httpx.ConnectError | httpx.ConnectTimeout)
            else:
                if answer.is_success:
                    return answer.content
                error = error_of(answer.status_code, answer.content)
                again = may_repeat(answer.status_code, error.code, safe=safe)
                told = _seconds(answer.headers.get("retry-after"))
            pause = self._patience.pause(tries, time.monotonic() - began, told=told) if again else None
            if pause is None:
                raise await self._with_versions(error)
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


def _trusted(url: str) -> ssl.SSLContext | bool:
    """Whom to trust: those that everybody does, or that SSL_CERT_FILE names. Reading them takes 18 ms."""
    return httpx.create_ssl_context() if url.lower().startswith("https:") else False


def _said(query: dict[str, Any] | None) -> dict[str, Any]:
    """What is not `None`, as it stands in a query."""
    return {name: msgspec.to_builtins(value) for name, value in (query or {}).items() if value is not None}


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdecimal() else None


def _why(fault: httpx.TransportError) -> str:
    return str(fault) or type(fault).__name__
