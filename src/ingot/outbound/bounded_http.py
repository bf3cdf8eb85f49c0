"""Asking a provider: one request, one answer within bounds of time and size, or none."""

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
    """What came back."""

    status: int
    body: bytes

    def decode(self, kind: type[T], *, name: str) -> T:
        """The body, read as JSON. Raises `ProviderUnavailable`."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ProviderUnavailable(f"the {name} of the provider cannot be read") from None


class BoundedHttpClient:
    """Asks over HTTP. It follows no redirect and goes through no proxy: what is sent is for nobody else.

    Who may answer for a name is decided by `trust`, or by the certificates that this machine trusts.
    """

    def __init__(self, *, timeout_seconds: float, ssl_context: ssl.SSLContext | None) -> None:
        self._timeout_seconds = timeout_seconds
        self._client = httpx.AsyncClient(
            verify=ssl_context or ssl.create_default_context(),
            timeout=timeout_seconds,
            follow_redirects=False,
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # One person's would be sent for the next.
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
        """The answer to a GET, or to a POST of a form, if it is a success or says what was wrong with the request.

        Raises `ProviderUnavailable`.
        """
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await self._fetch(url, headers=headers, form=form)
        except TimeoutError:
            raise ProviderUnavailable(f"the {name} of the provider took too long") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise ProviderUnavailable(f"the {name} of the provider was not reached") from error
        if answer is None:
            raise ProviderUnavailable(f"the {name} of the provider is too large, or packed")
        if not (answer.status == 200 or 400 <= answer.status < 500):
            raise ProviderUnavailable(f"the {name} of the provider is a {answer.status}")
        return answer

    async def _fetch(
        self, url: str, *, headers: Mapping[str, str] | None, form: Mapping[str, str] | None
    ) -> ProviderResponse | None:
        method = "GET" if form is None else "POST"
        async with self._client.stream(method, url, headers=headers, data=form) as response:
            if response.headers.get("content-encoding", "identity") != "identity":  # A small one can unpack to much.
                return None
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > RESPONSE_BYTES_MAX:
                    return None
            return ProviderResponse(status=response.status_code, body=bytes(body))

    async def close(self) -> None:
        """Let go of connections."""
        await self._client.aclose()
