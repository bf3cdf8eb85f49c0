"""Downloads that resume after a lost connection."""

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

KEY_CHANGED_CODE: Final = "precondition_failed"  # The key holds another blob now.
_ETAG = re.compile(r'"([0-9a-f]{64})"')
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")


class AsyncDownload:
    """A download of a blob, from `offset` on. `blob_id` and `size` are known after the first response at the latest.

    It does not verify the digest.
    """

    def __init__(self, http: AsyncHttp, path: str, *, blob_id: str | None = None) -> None:
        self._http = http
        self._path = path
        self.blob_id = blob_id
        self.size = 0
        self.offset = 0

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `offset` on, reconnecting when the connection is lost.

        Raises `KeyChanged` if the key is set to another blob meanwhile.
        """
        retry_state, was_url_refused = RetryState(self._http.retry_policy), False
        while True:
            try:
                async with self._open(self._request_headers()) as (etag, response):
                    bytes_to_skip = self._check_response(etag, response)
                    async for chunk in response.aiter_raw():
                        retry_state.reset()
                        was_url_refused = False
                        new_bytes, bytes_to_skip = chunk[bytes_to_skip:], max(0, bytes_to_skip - len(chunk))
                        self.offset += len(new_bytes)
                        if new_bytes:
                            yield new_bytes
                if self.offset >= self.size:
                    return
                error: IngotError = ServerUnreachable("the response is incomplete")
            except IngotError as fault:
                if fault.code == KEY_CHANGED_CODE:
                    raise KeyChanged from None
                if fault.status not in RETRYABLE_STATUSES and (
                    was_url_refused or not isinstance(fault, AddressRefused)
                ):
                    raise
                was_url_refused = isinstance(fault, AddressRefused)  # It may have expired. The next try gets a new one.
                error = fault
            delay = retry_state.next_delay()
            if delay is None:
                raise error
            await asyncio.sleep(delay)

    def _open(self, headers: dict[str, str]) -> AbstractAsyncContextManager[tuple[str, httpx.Response]]:
        return self._http.fetch_blob(self._path, headers=headers)

    def _request_headers(self) -> dict[str, str]:
        headers = {} if self.offset == 0 else {"range": f"bytes={self.offset}-"}
        return headers if self.blob_id is None else {**headers, "if-match": f'"{self.blob_id}"'}

    def _check_response(self, etag: str, response: httpx.Response) -> int:
        """Check that a response has the requested bytes. Return how many of them have been received before."""
        etag_match = _ETAG.fullmatch(etag)
        if etag_match is None:
            raise NotIngot("the response has no ETag of a blob")
        if self.blob_id not in (None, etag_match[1]):
            raise KeyChanged
        self.blob_id = etag_match[1]
        is_partial = response.status_code == 206
        content_range = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", "")) if is_partial else None
        content_length = response.headers.get("content-length", "")
        if content_range is not None:
            if int(content_range[1]) != self.offset:
                raise NotIngot("the response does not begin at the requested offset")
            self.size = int(content_range[2])
        elif content_length.isascii() and content_length.isdecimal() and not is_partial:
            self.size = int(content_length)
        else:
            raise NotIngot("the response does not state the size of the blob")
        return 0 if is_partial else self.offset


class AsyncSignedDownload(AsyncDownload):
    """A download from signed URLs. `next_url` is called for each connection."""

    def __init__(self, http: AsyncHttp, next_url: Callable[[], Awaitable[str]], *, blob_id: str) -> None:
        super().__init__(http, "", blob_id=blob_id)
        self._next_url = next_url

    @asynccontextmanager
    async def _open(self, headers: dict[str, str]) -> AsyncIterator[tuple[str, httpx.Response]]:
        range_header = {name: value for name, value in headers.items() if name == "range"}
        async with self._http.fetch_signed_url(await self._next_url(), headers=range_header) as response:
            yield f'"{self.blob_id}"', response
