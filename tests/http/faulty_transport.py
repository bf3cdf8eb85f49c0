"""A line to a server that somebody looks at, and cuts: everything else is real."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

import httpx

from ingot.client.asynchronous.blobs import AsyncBlobs
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import resolve_server_address


class Line(httpx.AsyncHTTPTransport):
    """Keeps what was asked. A plan is asked before each request, and may answer how to harm it."""

    made: ClassVar[list[Line]] = []

    def __init__(self, plan: Callable[[httpx.Request], Harm | None] = lambda _: None) -> None:
        super().__init__()
        self.made.append(self)
        self.asked: list[httpx.Request] = []
        self._plan = plan

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        harm = self._plan(request) or Harm()
        if harm.cut_sent is not None:
            request.stream = Cut(request.stream, harm.cut_sent, httpx.WriteError("the line was cut"))
        answer = await super().handle_async_request(request)
        if harm.lose_answer:
            await answer.aclose()
            raise httpx.ReadError("the line was cut")
        if harm.cut_answer is not None or harm.flip:
            answer.stream = Cut(answer.stream, harm.cut_answer, httpx.ReadError("the line was cut"), flip=harm.flip)
        return answer

    def said(self, method: str, part: str) -> list[httpx.Request]:
        """The requests of this kind, to an address with this part."""
        return [one for one in self.asked if one.method == method and part in str(one.url)]


class Harm:
    """What happens to a request: its bytes or those of its answer are cut, changed or lost."""

    def __init__(
        self,
        *,
        cut_sent: int | None = None,
        cut_answer: int | None = None,
        flip: bool = False,
        lose_answer: bool = False,
    ) -> None:
        self.cut_sent = cut_sent
        self.cut_answer = cut_answer
        self.flip = flip
        self.lose_answer = lose_answer


class Cut(httpx.AsyncByteStream):
    """Bytes that end with an error after so many, or whose first one is another."""

    def __init__(self, whole: Any, after: int | None, error: Exception, *, flip: bool = False) -> None:
        self._whole = whole
        self._left = after
        self._error = error
        self._flip = flip

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for whole in self._whole:
            part = bytes([whole[0] ^ 1]) + whole[1:] if self._flip and whole else whole
            self._flip = self._flip and not whole
            if self._left is not None and len(part) >= self._left:
                yield part[: self._left]
                raise self._error
            self._left = None if self._left is None else self._left - len(part)
            yield part

    async def aclose(self) -> None:
        if hasattr(self._whole, "aclose"):
            await self._whole.aclose()


def blobs_over(line: Line, url: str, token: str, *, patience: float = 20.0) -> AsyncBlobs:
    """Blobs of a server, over this line."""
    return AsyncBlobs(
        AsyncHttp(resolve_server_address(url, token=token), RetryPolicy(retry_seconds=patience), transport=line)
    )


def once(method: str, part: str, harm: Harm, *, skip: int = 0) -> Callable[[httpx.Request], Harm | None]:
    """A plan that harms the first request of this kind, or the one behind so many."""
    seen = 0

    def plan(request: httpx.Request) -> Harm | None:
        nonlocal seen
        if request.method != method or part not in str(request.url):
            return None
        seen += 1
        return harm if seen == skip + 1 else None

    return plan
