"""Bytes to and from signed addresses: most of what a process of a job does first, and httpx would take longest for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx

from ingot.client.errors import store_error_from_response
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import ServerAddress
from ingot.client.synchronous.http import IDENTITY_ENCODING, REQUEST_TIMEOUT_SECONDS, SyncHttp
from ingot.worker.sync_http_transport import DEFAULT_PORTS, TIMEOUT_NAMES, SyncKeepAliveTransport

PLACEHOLDER_ADDRESS: Final = ServerAddress(
    url="http://localhost", headers={}, has_credentials=False
)  # Signed addresses are their own credential.
_SIMPLE_URL: Final = re.compile(r"(https?)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(/[!\"$-~]*)")


class SignedUrlClient(SyncHttp):
    """A connection to whoever has the bytes. Of an address that is not plain, httpx makes what can be sent."""

    def __init__(self, patience: RetryPolicy) -> None:
        self._keep_alive_transport = SyncKeepAliveTransport()
        super().__init__(PLACEHOLDER_ADDRESS, patience, transport=self._keep_alive_transport)

    def request_signed_url(
        self, method: str, url: str, *, headers: dict[str, str], content: Iterator[bytes] | None = None
    ) -> httpx.Response:
        """See `SyncHttp`."""
        is_sized = content is None or "content-length" in map(str.lower, headers)
        if (plain := _SIMPLE_URL.fullmatch(url)) is None or not is_sized:
            return super().request_signed_url(method, url, headers=headers, content=content)
        try:
            answer = self._send_simple(method, plain, headers, content)
            answer.read()
        except httpx.TransportError as fault:
            raise self._unreachable_error(url, fault) from fault
        return answer

    @contextmanager
    def fetch_signed_url(self, url: str, *, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """See `SyncHttp`."""
        if (plain := _SIMPLE_URL.fullmatch(url)) is None:
            with super().fetch_signed_url(url, headers=headers) as answer:
                yield answer
            return
        try:
            answer = self._send_simple("GET", plain, {**IDENTITY_ENCODING, **headers}, None)
            try:
                if not answer.is_success:
                    raise store_error_from_response(answer.status_code, answer.read())
                yield answer
            finally:
                answer.close()
        except httpx.TransportError as fault:
            raise self._unreachable_error(url, fault) from fault

    def _send_simple(
        self, method: str, plain: re.Match[str], headers: dict[str, str], content: Iterator[bytes] | None
    ) -> httpx.Response:
        scheme, host, port, target = plain.groups()
        number = int(port or DEFAULT_PORTS[scheme])
        named = host if number == DEFAULT_PORTS[scheme] else f"{host}:{number}"
        lines = [
            f"{method} {target} HTTP/1.1",
            f"host: {named}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        seconds = dict.fromkeys(TIMEOUT_NAMES, REQUEST_TIMEOUT_SECONDS)
        return self._keep_alive_transport.send((scheme, host.strip("[]"), number), head, content or (), **seconds)
