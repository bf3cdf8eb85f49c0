"""An HTTP client for the identity provider, with limits on the time and size of responses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, TypeVar

import httpx
import msgspec

from ingot.kernel.redaction import NoRepr
from ingot.outbound.errors import ProviderUnavailable

RESPONSE_BYTES_MAX: Final = 1024 * 1024
CONNECTIONS_MAX: Final = 20

T = TypeVar("T")


class ProviderResponse(NoRepr, frozen=True, kw_only=True):
    """The status and body of a response."""

    status: int
    body: bytes

    def decode(self, body_type: type[T], *, name: str) -> T:
        """Decode the JSON body. `name` describes the response in errors. Raises `ProviderUnavailable`."""
        try:
            return msgspec.json.decode(self.body, type=body_type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ProviderUnavailable(f"the provider's {name} is not the expected JSON") from None


class BoundedHttpClient:
    """An HTTP client that follows no redirects and uses no proxy, since requests contain secrets.

    Without an `ssl_context`, it trusts the certificates that this machine trusts.
    """

    def __init__(self, *, timeout_seconds: float, ssl_context: ssl.SSLContext | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._client = httpx.AsyncClient(
            verify=ssl_context or ssl.create_default_context(),
            timeout=timeout_seconds,
            follow_redirects=False,
            trust_env=False,
            # Cookies are not stored: those of one person would be sent with the requests for the next.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            headers={"accept": "application/json", "accept-encoding": "identity", "user-agent": "ingot"},
        )

    async def request(
        self,
        url: str,
        *,
        name: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> ProviderResponse:
        """Send a GET, or a POST with a form, and return the response if its status is 200 or 4xx.

        `name` describes the response in errors. Raises `ProviderUnavailable` for any other status, for a response that
        is too large, compressed or late, and if the provider cannot be reached.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                response = await self._fetch(url, headers=headers, form=form)
        except TimeoutError:
            raise ProviderUnavailable(
                f"the provider did not send its {name} within {self._timeout_seconds:g} seconds"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise ProviderUnavailable(f"the provider's {name} could not be fetched") from error
        if response is None:
            raise ProviderUnavailable(f"the provider's {name} is compressed, or larger than {RESPONSE_BYTES_MAX} bytes")
        if not (response.status == 200 or 400 <= response.status < 500):
            raise ProviderUnavailable(f"the provider answered with status {response.status} instead of its {name}")
        return response

    async def _fetch(
        self, url: str, *, headers: Mapping[str, str] | None, form: Mapping[str, str] | None
    ) -> ProviderResponse | None:
        method = "GET" if form is None else "POST"
        async with self._client.stream(method, url, headers=headers, data=form) as response:
            # A small compressed body can expand to a large one.
            if response.headers.get("content-encoding", "identity") != "identity":
                return None
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > RESPONSE_BYTES_MAX:
                    return None
            return ProviderResponse(status=response.status_code, body=bytes(body))

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
