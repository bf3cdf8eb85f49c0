"""A transport that records requests and injects faults. Everything else is real."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import httpx

from ingot.client.asynchronous.blobs import AsyncBlobs
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import resolve_server_address


class FaultyTransport(httpx.AsyncHTTPTransport):
    """Records requests. A plan is called before each one, and may return a fault to inject."""

    instances: ClassVar[list[FaultyTransport]] = []

    def __init__(self, plan: Callable[[httpx.Request], Fault | None] = lambda _: None) -> None:
        super().__init__()
        self.instances.append(self)
        self.requests: list[httpx.Request] = []
        self._plan = plan

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        fault = self._plan(request) or Fault()
        if fault.cut_request_after is not None:
            request.stream = CutStream(
                request.stream, fault.cut_request_after, httpx.WriteError("the connection was cut")
            )
        response = await super().handle_async_request(request)
        if fault.lose_response:
            await response.aclose()
            raise httpx.ReadError("the connection was cut")
        if fault.cut_response_after is not None or fault.flip_first_byte:
            response.stream = CutStream(
                response.stream,
                fault.cut_response_after,
                httpx.ReadError("the connection was cut"),
                flip_first_byte=fault.flip_first_byte,
            )
        return response

    def requests_to(self, method: str, part: str) -> list[httpx.Request]:
        """The requests with this method whose URL contains this part."""
        return [request for request in self.requests if request.method == method and part in str(request.url)]


class Fault:
    """A fault of a request: its bytes or those of its response are cut, changed or lost."""

    def __init__(
        self,
        *,
        cut_request_after: int | None = None,
        cut_response_after: int | None = None,
        flip_first_byte: bool = False,
        lose_response: bool = False,
    ) -> None:
        self.cut_request_after = cut_request_after
        self.cut_response_after = cut_response_after
        self.flip_first_byte = flip_first_byte
        self.lose_response = lose_response


class CutStream(httpx.AsyncByteStream):
    """A stream that raises an error after some bytes, or whose first byte is changed."""

    def __init__(self, whole: Any, after: int | None, error: Exception, *, flip_first_byte: bool = False) -> None:
        self._whole = whole
        self._left = after
        self._error = error
        self._flip_first_byte = flip_first_byte

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for whole in self._whole:
            part = bytes([whole[0] ^ 1]) + whole[1:] if self._flip_first_byte and whole else whole
            self._flip_first_byte = self._flip_first_byte and not whole
            if self._left is not None and len(part) >= self._left:
                yield part[: self._left]
                raise self._error
            self._left = None if self._left is None else self._left - len(part)
            yield part

    async def aclose(self) -> None:
        if hasattr(self._whole, "aclose"):
            await self._whole.aclose()


def blobs_client(transport: FaultyTransport, url: str, token: str, *, retry_seconds: float = 20.0) -> AsyncBlobs:
    """The blob calls of a client with this transport."""
    return AsyncBlobs(
        AsyncHttp(
            resolve_server_address(url, token=token), RetryPolicy(retry_seconds=retry_seconds), transport=transport
        )
    )


def fault_once(method: str, part: str, fault: Fault, *, skip: int = 0) -> Callable[[httpx.Request], Fault | None]:
    """A plan that injects a fault into the first matching request, or after skipping some."""
    matching = 0

    def plan(request: httpx.Request) -> Fault | None:
        nonlocal matching
        if request.method != method or part not in str(request.url):
            return None
        matching += 1
        return fault if matching == skip + 1 else None

    return plan
