"""Sending a blob: to the server piece by piece, or straight to its bucket, and on from where it broke off."""

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

PATCH_BYTES_MAX: Final = 16 * 1024 * 1024  # A server that is killed has lost no more than this of what was sent.
CONCURRENT_PARTS_MAX: Final = 3
POLL_SECONDS: Final = 0.1
POLL_SECONDS_MAX: Final = 2.0
ALREADY_STORED_STATUSES: Final = frozenset({409, 412})


class AsyncUploadSession(Protocol):
    """Who plans an upload, and takes note of its end. Its bytes go to the addresses that it tells."""

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""

    async def renew_url(self, id: str) -> UploadResponse:
        """How it goes on at an address that is new, for one whose time is over."""

    async def sign_part(self, id: str, part: PartToSign) -> SignPartsResponse:
        """Where a part is sent to."""

    async def complete(self, id: str) -> UploadResponse:
        """All bytes are sent."""

    async def abort(self, id: str) -> None:
        """Nothing comes of it."""


class AsyncUploader:
    """A blob on its way to a server, as a desk plans it. `http` moves the bytes, and needs no credential."""

    def __init__(
        self,
        http: AsyncHttp,
        outgoing: UploadSource,
        desk: AsyncUploadSession,
        *,
        progress: ProgressCallback | None = None,
    ) -> None:
        assert outgoing.size is not None, "an upload has a size"
        self._http = http
        self._source = outgoing
        self._size = outgoing.size
        self._session = desk
        self._progress = CombinedProgress(self._size, progress)

    async def run(self) -> UploadResponse:
        """Send what is not there yet, and answer when the blob is there."""
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
        """Send it. When that fails because somebody else has sent it meanwhile, that is as good."""
        try:
            await self._send(plan, parts)
        except IngotError as error:
            if error.status in RETRYABLE_STATUSES or not await self._is_sent(plan.upload.id):
                raise

    async def _is_sent(self, id: str) -> bool:
        with suppress(IngotError):  # What went wrong first is told.
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
        pause = POLL_SECONDS
        while True:
            told = await self._session.complete(id)
            if told.upload.state is not UploadState.VERIFYING:
                return told
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS_MAX)

    async def _stream_part(self, part: int, offset: int, size: int, before: int) -> AsyncIterator[bytes]:
        """The bytes of a part; how many are sent is told, with so many that were sent before."""
        for place in range(offset, offset + size, READ_BYTES):
            data = await asyncio.to_thread(self._source.read, place, min(READ_BYTES, offset + size - place))
            yield data
            self._progress.report(part, before + place + len(data) - offset)

    # -- to the server --------------------------------------------------------------------------------------

    async def _send_to_server(self, upload: Upload, url: str) -> None:
        """Send it in pieces. Where one breaks off, the server says how far it is."""
        trouble = RetryState(self._http.retry_policy)
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
                trouble.reset()
            except IngotError as error:
                if (
                    not isinstance(error, UploadOffsetWrong | SignatureInvalid)
                    and error.status not in RETRYABLE_STATUSES
                ):
                    raise
                await self._wait_before_retry(trouble, error)
                received = None
                if isinstance(error, SignatureInvalid):
                    url = (await self._renew_url(upload.id)).url

    async def _request_upload(self, method: str, url: str, offset: int = 0, size: int = 0) -> Upload:
        """Send a piece, or ask how far it is. Raises what the server tells."""
        headers: dict[str, str] = {}
        content: AsyncIterator[bytes] | None = None
        if method == "PATCH":
            headers = {"upload-offset": str(offset), "content-length": str(size)}
            content = self._stream_part(0, offset, size, offset)
        answer = await self._http.request_signed_url(method, url, headers=headers, content=content)
        if not answer.is_success:
            error = error_from_response(answer.status_code, answer.content)
            error.__dict__["told_seconds"] = retry_after_seconds(answer)
            raise error
        try:
            return msgspec.json.decode(answer.content, type=Upload)
        except msgspec.DecodeError as error:
            raise invalid_response_error(answer.content, error) from None

    # -- to a bucket ----------------------------------------------------------------------------------------

    async def _send_to_bucket(self, id: str, part_bytes: int, there: set[int]) -> None:
        """Send the parts that are missing, a few at a time."""

        async def send(number: int) -> None:
            offset = (number - 1) * part_bytes
            size = min(part_bytes, self._size - offset)
            if number in there:
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
        """Put bytes where a bucket takes them: a part with this digest, or all of them.

        The address is asked for anew after each failure. One that is new and refused too is given up.
        """
        trouble, refused = RetryState(self._http.retry_policy), False
        address = first
        while True:
            if address is None:
                address = (
                    await self._renew_url(id) if sha256 is None else await self._sign_part(id, number, size, sha256)
                )
            try:
                content = self._stream_part(number, offset, size, 0)
                answer = await self._http.request_signed_url(
                    "PUT", address.url, headers=address.headers, content=content
                )
            except ServerUnreachable as fault:
                error: IngotError = fault
                refused = False
            else:
                if answer.is_success or answer.status_code in ALREADY_STORED_STATUSES:
                    return  # Whether what is there is what was announced is seen when it is complete.
                error = store_error_from_response(answer.status_code, answer.content)
                error.__dict__["told_seconds"] = retry_after_seconds(answer)
                if error.status not in RETRYABLE_STATUSES and (refused or not isinstance(error, AddressRefused)):
                    raise error
                refused = isinstance(error, AddressRefused)
            address = None
            await self._wait_before_retry(trouble, error)

    async def _sign_part(self, id: str, number: int, size: int, sha256: str) -> SignedPart:
        (part,) = (await self._session.sign_part(id, PartToSign(number=number, size=size, sha256=sha256))).parts
        return part

    async def _renew_url(self, id: str) -> SignedPart:
        """Where all of it is sent from now on. Raises `UploadEnded`."""
        told = await self._session.renew_url(id)
        if told.url is None:
            raise UploadEnded
        return SignedPart(number=1, url=told.url, headers=told.headers)

    async def _wait_before_retry(self, trouble: RetryState, error: IngotError) -> None:
        """Wait before the next try. Raises the error when patience is at an end."""
        pause = trouble.next_delay(retry_after_seconds=getattr(error, "told_seconds", None))
        if pause is None:
            raise error
        await asyncio.sleep(pause)
