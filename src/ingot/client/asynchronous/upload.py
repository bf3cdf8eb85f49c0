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
from ingot.client.asynchronous.http import AsyncHttp, seconds_told
from ingot.client.at_once import awaited_at_once
from ingot.client.errors import AddressRefused, ServerUnreachable, error_of, store_refusal, unreadable
from ingot.client.outgoing import READ_BYTES, Meter, Outgoing, Progress, part_digest
from ingot.client.patience import LATER, Trouble
from ingot.kernel.errors import IngotError
from ingot.wire.blobs import PartOrder, PartsAnswer, UploadAnswer, UploadPlan

PIECE_BYTES: Final = 16 * 1024 * 1024  # A server that is killed has lost no more than this of what was sent.
PARTS_AT_ONCE: Final = 3
LOOK_SECONDS: Final = 0.1
LOOK_SECONDS_MAX: Final = 2.0
THERE_ALREADY: Final = frozenset({409, 412})


class AsyncUploadDesk(Protocol):
    """Who plans an upload, and takes note of its end. Its bytes go to the addresses that it tells."""

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""

    async def renewed(self, id: str) -> UploadAnswer:
        """How it goes on at an address that is new, for one whose time is over."""

    async def signed(self, id: str, part: PartOrder) -> PartsAnswer:
        """Where a part is sent to."""

    async def complete(self, id: str) -> UploadAnswer:
        """All bytes are sent."""

    async def give_up(self, id: str) -> None:
        """Nothing comes of it."""


class AsyncUpload:
    """A blob on its way to a server, as a desk plans it. `http` moves the bytes, and needs no credential."""

    def __init__(
        self, http: AsyncHttp, outgoing: Outgoing, desk: AsyncUploadDesk, *, progress: Progress | None = None
    ) -> None:
        assert outgoing.size is not None, "an upload has a size"
        self._http = http
        self._outgoing = outgoing
        self._size = outgoing.size
        self._desk = desk
        self._meter = Meter(self._size, progress)

    async def run(self) -> UploadAnswer:
        """Send what is not there yet, and answer when the blob is there."""
        plan, parts = await self._desk.begin()
        try:
            if plan.upload.state is UploadState.OPEN:
                await self._send_or_find(plan, parts)
            return await self._complete(plan.upload.id)
        except IngotError as error:
            if error.status not in LATER and not isinstance(error, UploadTaken):
                await self._desk.give_up(plan.upload.id)
            raise

    async def _send_or_find(self, plan: UploadPlan, parts: list[int]) -> None:
        """Send it. When that fails because somebody else has sent it meanwhile, that is as good."""
        try:
            await self._send(plan, parts)
        except IngotError as error:
            if error.status in LATER or not await self._is_sent(plan.upload.id):
                raise

    async def _is_sent(self, id: str) -> bool:
        with suppress(IngotError):  # What went wrong first is told.
            return (await self._desk.renewed(id)).upload.state in (UploadState.VERIFYING, UploadState.DONE)
        return False

    async def _send(self, plan: UploadPlan, parts: list[int]) -> None:
        if plan.part_bytes is not None:
            await self._send_parts(plan.upload.id, plan.part_bytes, set(parts))
        elif plan.url is not None and plan.resumable:
            await self._send_pieces(plan.upload, plan.url)
        elif plan.url is not None:
            first = SignedPart(number=1, url=plan.url, headers=plan.headers)
            await self._put(plan.upload.id, first.number, 0, self._size, first=first)

    async def _complete(self, id: str) -> UploadAnswer:
        pause = LOOK_SECONDS
        while True:
            told = await self._desk.complete(id)
            if told.upload.state is not UploadState.VERIFYING:
                return told
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS_MAX)

    async def _bytes(self, part: int, offset: int, size: int, before: int) -> AsyncIterator[bytes]:
        """The bytes of a part; how many are sent is told, with so many that were sent before."""
        for place in range(offset, offset + size, READ_BYTES):
            data = await asyncio.to_thread(self._outgoing.read, place, min(READ_BYTES, offset + size - place))
            yield data
            self._meter.tell(part, before + place + len(data) - offset)

    # -- to the server --------------------------------------------------------------------------------------

    async def _send_pieces(self, upload: Upload, url: str) -> None:
        """Send it in pieces. Where one breaks off, the server says how far it is."""
        trouble = Trouble(self._http.patience)
        received = 0 if upload.received == 0 else None
        while received is None or received < self._size or self._size == 0:
            try:
                if received is None:
                    received = (await self._ask_upload("GET", url)).received
                    self._meter.tell(0, received)
                    continue
                size = min(PIECE_BYTES, self._size - received)
                received = (await self._ask_upload("PATCH", url, received, size)).received
                if self._size == 0:
                    return
                trouble.over()
            except IngotError as error:
                if not isinstance(error, UploadOffsetWrong | SignatureInvalid) and error.status not in LATER:
                    raise
                await self._rest(trouble, error)
                received = None
                if isinstance(error, SignatureInvalid):
                    url = (await self._renewed(upload.id)).url

    async def _ask_upload(self, method: str, url: str, offset: int = 0, size: int = 0) -> Upload:
        """Send a piece, or ask how far it is. Raises what the server tells."""
        headers: dict[str, str] = {}
        content: AsyncIterator[bytes] | None = None
        if method == "PATCH":
            headers = {"upload-offset": str(offset), "content-length": str(size)}
            content = self._bytes(0, offset, size, offset)
        answer = await self._http.send(method, url, headers=headers, content=content)
        if not answer.is_success:
            error = error_of(answer.status_code, answer.content)
            error.__dict__["told_seconds"] = seconds_told(answer)
            raise error
        try:
            return msgspec.json.decode(answer.content, type=Upload)
        except msgspec.DecodeError as error:
            raise unreadable(answer.content, error) from None

    # -- to a bucket ----------------------------------------------------------------------------------------

    async def _send_parts(self, id: str, part_bytes: int, there: set[int]) -> None:
        """Send the parts that are missing, a few at a time."""

        async def send(number: int) -> None:
            offset = (number - 1) * part_bytes
            size = min(part_bytes, self._size - offset)
            if number in there:
                self._meter.tell(number, size)
                return
            sha256 = await asyncio.to_thread(part_digest, self._outgoing, offset, size)
            await self._put(id, number, offset, size, sha256=sha256)

        numbers = range(1, -(-self._size // part_bytes) + 1)
        await awaited_at_once(send, numbers, limit=PARTS_AT_ONCE)

    async def _put(
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
        trouble, refused = Trouble(self._http.patience), False
        address = first
        while True:
            if address is None:
                address = await self._renewed(id) if sha256 is None else await self._signed(id, number, size, sha256)
            try:
                content = self._bytes(number, offset, size, 0)
                answer = await self._http.send("PUT", address.url, headers=address.headers, content=content)
            except ServerUnreachable as fault:
                error: IngotError = fault
                refused = False
            else:
                if answer.is_success or answer.status_code in THERE_ALREADY:
                    return  # Whether what is there is what was announced is seen when it is complete.
                error = store_refusal(answer.status_code, answer.content)
                error.__dict__["told_seconds"] = seconds_told(answer)
                if error.status not in LATER and (refused or not isinstance(error, AddressRefused)):
                    raise error
                refused = isinstance(error, AddressRefused)
            address = None
            await self._rest(trouble, error)

    async def _signed(self, id: str, number: int, size: int, sha256: str) -> SignedPart:
        (part,) = (await self._desk.signed(id, PartOrder(number=number, size=size, sha256=sha256))).parts
        return part

    async def _renewed(self, id: str) -> SignedPart:
        """Where all of it is sent from now on. Raises `UploadEnded`."""
        told = await self._desk.renewed(id)
        if told.url is None:
            raise UploadEnded
        return SignedPart(number=1, url=told.url, headers=told.headers)

    async def _rest(self, trouble: Trouble, error: IngotError) -> None:
        """Wait before the next try. Raises the error when patience is at an end."""
        pause = trouble.pause(told=getattr(error, "told_seconds", None))
        if pause is None:
            raise error
        await asyncio.sleep(pause)
