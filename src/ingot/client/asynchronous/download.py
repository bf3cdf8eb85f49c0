"""Fetching a blob: on from where the line broke, and compared with its name at the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import httpx

from ingot.blobs.errors import KeyChanged
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.errors import AddressRefused, NotIngot, ServerUnreachable
from ingot.client.retry_policy import RETRYABLE_STATUSES, RetryState
from ingot.kernel.errors import IngotError

KEY_CHANGED_CODE: Final = "precondition_failed"  # What the server says when the key holds another blob now.
_ETAG = re.compile(r'"([0-9a-f]{64})"')
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")


class AsyncDownload:
    """The bytes of a blob as they come. `blob_id` and `size` are known once some of them are here, or before.

    They are fetched from `offset` on.
    """

    def __init__(self, http: AsyncHttp, path: str, *, blob_id: str | None = None) -> None:
        self._http = http
        self._path = path
        self.blob_id = blob_id
        self.size = 0
        self.offset = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """All bytes from `offset` on, over any number of connections. Raises `KeyChanged` when they become others'."""
        trouble, refused = RetryState(self._http.retry_policy), False
        while True:
            try:
                async with self._open(self._request_headers()) as (etag, answer):
                    known = self._check_response(etag, answer)
                    async for part in answer.aiter_raw():
                        trouble.reset()
                        refused = False
                        new, known = part[known:], max(0, known - len(part))
                        self.offset += len(new)
                        if new:
                            yield new
                if self.offset >= self.size:
                    return
                error: IngotError = ServerUnreachable("the answer ended before its end")
            except IngotError as fault:
                if fault.code == KEY_CHANGED_CODE:
                    raise KeyChanged from None
                if fault.status not in RETRYABLE_STATUSES and (refused or not isinstance(fault, AddressRefused)):
                    raise
                refused = isinstance(fault, AddressRefused)  # It may have expired; the next one is new.
                error = fault
            pause = trouble.next_delay()
            if pause is None:
                raise error
            await asyncio.sleep(pause)

    def _open(self, headers: dict[str, str]) -> AbstractAsyncContextManager[tuple[str, httpx.Response]]:
        return self._http.fetch_blob(self._path, headers=headers)

    def _request_headers(self) -> dict[str, str]:
        headers = {} if self.offset == 0 else {"range": f"bytes={self.offset}-"}
        return headers if self.blob_id is None else {**headers, "if-match": f'"{self.blob_id}"'}

    def _check_response(self, etag: str, answer: httpx.Response) -> int:
        """These are the bytes that were asked for; answers how many of them are here already."""
        found = _ETAG.fullmatch(etag)
        if found is None:
            raise NotIngot("the answer does not say which blob it is")
        if self.blob_id not in (None, found[1]):
            raise KeyChanged
        self.blob_id = found[1]
        ranged = answer.status_code == 206
        total = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "")) if ranged else None
        whole = answer.headers.get("content-length", "")
        if total is not None:
            if int(total[1]) != self.offset:
                raise NotIngot("the answer does not go on where it was asked to")
            self.size = int(total[2])
        elif whole.isascii() and whole.isdecimal() and not ranged:
            self.size = int(whole)
        else:
            raise NotIngot("the answer does not say how many bytes there are")
        return 0 if ranged else self.offset


class AsyncSignedDownload(AsyncDownload):
    """The same from an address that needs no credential, which is asked for anew whenever the line broke."""

    def __init__(self, http: AsyncHttp, address: Callable[[], Awaitable[str]], *, blob_id: str) -> None:
        super().__init__(http, "", blob_id=blob_id)
        self._next_url = address

    @asynccontextmanager
    async def _open(self, headers: dict[str, str]) -> AsyncIterator[tuple[str, httpx.Response]]:
        ranged = {name: value for name, value in headers.items() if name == "range"}
        async with self._http.fetch_signed_url(await self._next_url(), headers=ranged) as answer:
            yield f'"{self.blob_id}"', answer
