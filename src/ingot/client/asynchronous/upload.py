"""Uploads to the server or directly to its bucket, which resume after a lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from ingot.blobs.errors import SignatureInvalid, UploadEnded, UploadOffsetWrong, UploadTaken
from ingot.blobs.model import Upload, UploadState
from ingot.blobs.ports import SignedPart
from ingot.client.asynchronous.http import AsyncHttp, retry_after_seconds
from ingot.client.concurrency import async_for_each
from ingot.client.errors import (
    AddressRefused,
    ServerUnreachable,
    error_from_response,
    invalid_response_error,
    store_error_from_response,
)
from ingot.client.retry_policy import RETRYABLE_STATUSES, RetryState
from ingot.client.upload_source import READ_BYTES, CombinedProgress, ProgressCallback, UploadSource, part_digest
from ingot.kernel.errors import IngotError
from ingot.wire.blobs import PartToSign, SignPartsResponse, UploadPlan, UploadResponse

PATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # A server that crashes loses at most this much.
CONCURRENT_PARTS_MAX: Final = 3
POLL_SECONDS: Final = 0.1
POLL_SECONDS_MAX: Final = 2.0
ALREADY_STORED_STATUSES: Final = frozenset({409, 412})


class AsyncUploadSession(Protocol):
    """The calls that plan and complete an upload. Its bytes are sent to the URLs that they return."""

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """Return the plan of the upload, and the numbers of the parts that are stored already."""

    async def renew_url(self, id: str) -> UploadResponse:
        """Return the upload with a new URL, because the earlier one has expired."""

    async def sign_part(self, id: str, part: PartToSign) -> SignPartsResponse:
        """Return the signed URL of a part."""

    async def complete(self, id: str) -> UploadResponse:
        """Complete the upload, once all bytes are sent."""

    async def abort(self, id: str) -> None:
        """Abort the upload."""


class AsyncUploader:
    """Sends the bytes of an upload as its session plans it. `http` needs no credentials."""

    def __init__(
        self,
        http: AsyncHttp,
        source: UploadSource,
        session: AsyncUploadSession,
        *,
        progress: ProgressCallback | None = None,
    ) -> None:
        assert source.size is not None, "the size of an upload must be known"
        self._http = http
        self._source = source
        self._size = source.size
        self._session = session
        self._progress = CombinedProgress(self._size, progress)

    async def run(self) -> UploadResponse:
        """Send the bytes that are not stored yet, and return when the blob is stored."""
        plan, parts = await self._session.begin()
        try:
            if plan.upload.state is UploadState.OPEN:
                await self._ensure_sent(plan, parts)
            return await self._complete(plan.upload.id)
        except IngotError as error:
            if error.status not in RETRYABLE_STATUSES and not isinstance(error, UploadTaken):
                await self._session.abort(plan.upload.id)
            raise

    async def _ensure_sent(self, plan: UploadPlan, parts: list[int]) -> None:
        """Send the bytes. A failure is ignored if another client has sent all of them meanwhile."""
        try:
            await self._send(plan, parts)
        except IngotError as error:
            if error.status in RETRYABLE_STATUSES or not await self._is_sent(plan.upload.id):
                raise

    async def _is_sent(self, id: str) -> bool:
        with suppress(IngotError):  # The caller raises the error of the upload instead.
            return (await self._session.renew_url(id)).upload.state in (UploadState.VERIFYING, UploadState.DONE)
        return False

    async def _send(self, plan: UploadPlan, parts: list[int]) -> None:
        if plan.part_bytes is not None:
            await self._send_to_bucket(plan.upload.id, plan.part_bytes, set(parts))
        elif plan.url is not None and plan.resumable:
            await self._send_to_server(plan.upload, plan.url)
        elif plan.url is not None:
            first = SignedPart(number=1, url=plan.url, headers=plan.headers)
            await self._put_to_bucket(plan.upload.id, first.number, 0, self._size, first=first)

    async def _complete(self, id: str) -> UploadResponse:
        delay = POLL_SECONDS
        while True:
            response = await self._session.complete(id)
            if response.upload.state is not UploadState.VERIFYING:
                return response
            await asyncio.sleep(delay)
            delay = min(2 * delay, POLL_SECONDS_MAX)

    async def _stream_part(self, part: int, offset: int, size: int, sent_before: int) -> AsyncIterator[bytes]:
        """Yield the bytes of a part and report its progress, to which `sent_before` is added."""
        for position in range(offset, offset + size, READ_BYTES):
            data = await asyncio.to_thread(self._source.read, position, min(READ_BYTES, offset + size - position))
            yield data
            self._progress.report(part, sent_before + position + len(data) - offset)

    # -- to the server --------------------------------------------------------------------------------------

    async def _send_to_server(self, upload: Upload, url: str) -> None:
        """Send the bytes in pieces. After a failure, continue from the offset that the server reports."""
        retry_state = RetryState(self._http.retry_policy)
        received = 0 if upload.received == 0 else None
        while received is None or received < self._size or self._size == 0:
            try:
                if received is None:
                    received = (await self._request_upload("GET", url)).received
                    self._progress.report(0, received)
                    continue
                size = min(PATCH_BYTES_MAX, self._size - received)
                received = (await self._request_upload("PATCH", url, received, size)).received
                if self._size == 0:
                    return
                retry_state.reset()
            except IngotError as error:
                if (
                    not isinstance(error, UploadOffsetWrong | SignatureInvalid)
                    and error.status not in RETRYABLE_STATUSES
                ):
                    raise
                await self._wait_before_retry(retry_state, error)
                received = None
                if isinstance(error, SignatureInvalid):
                    url = (await self._renew_url(upload.id)).url

    async def _request_upload(self, method: str, url: str, offset: int = 0, size: int = 0) -> Upload:
        """Send a piece, or with GET read the state of the upload. Raises the error that the server returned."""
        headers: dict[str, str] = {}
        content: AsyncIterator[bytes] | None = None
        if method == "PATCH":
            headers = {"upload-offset": str(offset), "content-length": str(size)}
            content = self._stream_part(0, offset, size, offset)
        response = await self._http.request_signed_url(method, url, headers=headers, content=content)
        if not response.is_success:
            error = error_from_response(response.status_code, response.content)
            error.__dict__["requested_delay_seconds"] = retry_after_seconds(response)
            raise error
        try:
            return msgspec.json.decode(response.content, type=Upload)
        except msgspec.DecodeError as error:
            raise invalid_response_error(response.content, error) from None

    # -- to a bucket ----------------------------------------------------------------------------------------

    async def _send_to_bucket(self, id: str, part_bytes: int, stored_parts: set[int]) -> None:
        """Send the parts that are not stored yet, a few at a time."""

        async def send(number: int) -> None:
            offset = (number - 1) * part_bytes
            size = min(part_bytes, self._size - offset)
            if number in stored_parts:
                self._progress.report(number, size)
                return
            sha256 = await asyncio.to_thread(part_digest, self._source, offset, size)
            await self._put_to_bucket(id, number, offset, size, sha256=sha256)

        numbers = range(1, -(-self._size // part_bytes) + 1)
        await async_for_each(send, numbers, limit=CONCURRENT_PARTS_MAX)

    async def _put_to_bucket(
        self,
        id: str,
        number: int,
        offset: int,
        size: int,
        *,
        first: SignedPart | None = None,
        sha256: str | None = None,
    ) -> None:
        """Send a part with this digest to the bucket, or without a digest the whole blob.

        After each failure, a new URL is requested. If the bucket rejects that one too, its error is raised.
        """
        retry_state, was_url_refused = RetryState(self._http.retry_policy), False
        signed_part = first
        while True:
            if signed_part is None:
                signed_part = (
                    await self._renew_url(id) if sha256 is None else await self._sign_part(id, number, size, sha256)
                )
            try:
                content = self._stream_part(number, offset, size, 0)
                response = await self._http.request_signed_url(
                    "PUT", signed_part.url, headers=signed_part.headers, content=content
                )
            except ServerUnreachable as fault:
                error: IngotError = fault
                was_url_refused = False
            else:
                if response.is_success or response.status_code in ALREADY_STORED_STATUSES:
                    return  # The server compares the stored bytes with the digests when the upload is completed.
                error = store_error_from_response(response.status_code, response.content)
                error.__dict__["requested_delay_seconds"] = retry_after_seconds(response)
                if error.status not in RETRYABLE_STATUSES and (
                    was_url_refused or not isinstance(error, AddressRefused)
                ):
                    raise error
                was_url_refused = isinstance(error, AddressRefused)
            signed_part = None
            await self._wait_before_retry(retry_state, error)

    async def _sign_part(self, id: str, number: int, size: int, sha256: str) -> SignedPart:
        (part,) = (await self._session.sign_part(id, PartToSign(number=number, size=size, sha256=sha256))).parts
        return part

    async def _renew_url(self, id: str) -> SignedPart:
        """Return a new URL for the whole blob. Raises `UploadEnded`."""
        response = await self._session.renew_url(id)
        if response.url is None:
            raise UploadEnded
        return SignedPart(number=1, url=response.url, headers=response.headers)

    async def _wait_before_retry(self, retry_state: RetryState, error: IngotError) -> None:
        """Wait before the next try, or raise the error if the time for retries is over."""
        delay = retry_state.next_delay(retry_after_seconds=getattr(error, "requested_delay_seconds", None))
        if delay is None:
            raise error
        await asyncio.sleep(delay)
