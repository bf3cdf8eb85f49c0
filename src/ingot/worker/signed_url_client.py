"""A client for signed URLs that starts fast.

For the process of an isolated job, the first request through httpx would be the slowest step.
"""

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

# Never contacted: signed URLs are absolute and need no other credential.
PLACEHOLDER_ADDRESS: Final = ServerAddress(url="http://localhost", headers={}, has_credentials=False)
_SIMPLE_URL: Final = re.compile(r"(https?)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(/[!\"$-~]*)")


class SignedUrlClient(SyncHttp):
    """Sends requests to signed URLs. Simple URLs bypass httpx; all others are encoded by it."""

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self._keep_alive_transport = SyncKeepAliveTransport()
        super().__init__(PLACEHOLDER_ADDRESS, retry_policy, transport=self._keep_alive_transport)

    def request_signed_url(
        self, method: str, url: str, *, headers: dict[str, str], content: Iterator[bytes] | None = None
    ) -> httpx.Response:
        """See `SyncHttp`."""
        try:
            if (response := self._send(method, url, headers, content)) is not None:
                response.read()
                return response
        except httpx.TransportError as error:
            raise self._unreachable_error(url, error) from error
        return super().request_signed_url(method, url, headers=headers, content=content)

    @contextmanager
    def fetch_signed_url(self, url: str, *, headers: dict[str, str]) -> Iterator[httpx.Response]:
        """See `SyncHttp`."""
        try:
            response = self._send("GET", url, {**IDENTITY_ENCODING, **headers}, None)
            if response is not None:
                try:
                    if not response.is_success:
                        raise store_error_from_response(response.status_code, response.read())
                    yield response
                finally:
                    response.close()
                return
        except httpx.TransportError as error:
            raise self._unreachable_error(url, error) from error
        with super().fetch_signed_url(url, headers=headers) as response:
            yield response

    def open_signed_url(
        self, method: str, url: str, headers: dict[str, str], content: Iterator[bytes] | None
    ) -> httpx.Response:
        """Send a request and return the response, whose body has not been read. Raises `httpx.TransportError`."""
        if (response := self._send(method, url, headers, content)) is not None:
            return response
        client = self._anonymous_client(url)
        return client.send(client.build_request(method, url, headers=headers, content=content), stream=True)

    def _send(
        self, method: str, url: str, headers: dict[str, str], content: Iterator[bytes] | None
    ) -> httpx.Response | None:
        """Send a request and return the response, or `None` if httpx has to encode the request."""
        is_sized = content is None or "content-length" in map(str.lower, headers)
        if (simple_url := _SIMPLE_URL.fullmatch(url)) is None or not is_sized:
            return None
        return self._send_simple(method, simple_url, headers, content)

    def _send_simple(
        self, method: str, simple_url: re.Match[str], headers: dict[str, str], content: Iterator[bytes] | None
    ) -> httpx.Response:
        scheme, host, port, target = simple_url.groups()
        port_number = int(port or DEFAULT_PORTS[scheme])
        host_header = host if port_number == DEFAULT_PORTS[scheme] else f"{host}:{port_number}"
        lines = [
            f"{method} {target} HTTP/1.1",
            f"host: {host_header}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        seconds = dict.fromkeys(TIMEOUT_NAMES, REQUEST_TIMEOUT_SECONDS)
        return self._keep_alive_transport.send((scheme, host.strip("[]"), port_number), head, content or (), **seconds)
