"""Uploads as the server plans them, and how one that was begun before goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from ingot.blobs.errors import UploadNotFound
from ingot.blobs.model import UploadState
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.upload_source import UnfinishedUpload
from ingot.client.url_path import url_path
from ingot.kernel.errors import IngotError
from ingot.wire.blobs import PartToSign, SignPartsResponse, UploadPlan, UploadResponse

COMPLETE_SECONDS: Final = 60.0  # Longer than usual: the bytes are read back.


class AsyncPlannedUpload:
    """An upload that was planned with something else, such as a job."""

    _proof: Mapping[str, str] = {}  # What shows that one may go on with it.

    def __init__(self, http: AsyncHttp, plan: UploadPlan) -> None:
        self._http = http
        self._plan = plan

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""
        return self._plan, []

    async def renew_url(self, id: str) -> UploadResponse:
        """How it goes on at an address that is new, for one whose time is over."""
        return await self._http.request("GET", url_path("blobs", "uploads", id), UploadResponse, query={**self._proof})

    async def sign_part(self, id: str, part: PartToSign) -> SignPartsResponse:
        """Where a part is sent to."""
        path, body = url_path("blobs", "uploads", id, "parts"), {**self._proof, "parts": [part]}
        return await self._http.request("POST", path, SignPartsResponse, body=body, idempotent=True)

    async def complete(self, id: str) -> UploadResponse:
        """All bytes are sent."""
        path, body = url_path("blobs", "uploads", id, "complete"), {**self._proof}
        return await self._http.request(
            "POST", path, UploadResponse, body=body, idempotent=True, wait_seconds=COMPLETE_SECONDS
        )

    async def abort(self, id: str) -> None:
        """Nothing comes of it."""
        with suppress(IngotError):  # It is swept otherwise.
            await self._http.request("DELETE", url_path("blobs", "uploads", id), bytes)


class AsyncSharedUpload(AsyncPlannedUpload):
    """An upload that was begun before by somebody who asked for the same: who has the file too goes on with it."""

    def __init__(self, http: AsyncHttp, plan: UploadPlan) -> None:
        super().__init__(http, plan)
        self._proof = {"blob_id": plan.upload.blob_id or ""}

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""
        if self._plan.part_bytes is None:
            return self._plan, []
        return self._plan, (await self.renew_url(self._plan.upload.id)).parts

    async def abort(self, id: str) -> None:
        """Leave it to others, who may go on with it."""


class AsyncNewUpload(AsyncPlannedUpload):
    """An upload that is ordered by itself, or with `unfinished` goes on.

    `begun` is told what to remember, to go on with it another time.
    """

    def __init__(
        self,
        http: AsyncHttp,
        order: dict[str, Any],
        *,
        unfinished: UnfinishedUpload | None = None,
        on_begin: Callable[[UnfinishedUpload], None] | None = None,
    ) -> None:
        self._http = http
        self._request = order
        self._unfinished = unfinished
        self._on_begin = on_begin

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """How the bytes are sent, and which parts are there already."""
        if self._unfinished is not None and (known := await self._resume(self._unfinished)) is not None:
            return known
        # A beginning that is asked for twice leaves one that is swept, as one whose answer was lost does.
        plan = await self._http.request("POST", "/blobs/uploads", UploadPlan, body=self._request, idempotent=True)
        if self._on_begin is not None and plan.upload.state is UploadState.OPEN:
            self._on_begin(UnfinishedUpload(id=plan.upload.id, part_bytes=plan.part_bytes))
        return plan, []

    async def _resume(self, unfinished: UnfinishedUpload) -> tuple[UploadPlan, list[int]] | None:
        """How to go on with one that was begun before, and the parts that are there; `None` when it is of no use."""
        try:
            found = await self._http.request("GET", url_path("blobs", "uploads", unfinished.id), UploadResponse)
        except UploadNotFound:
            return None
        upload = found.upload
        if upload.state is not UploadState.OPEN:
            return None if upload.state is UploadState.FAILED else (UploadPlan(upload=upload), [])
        asked = [self._request.get(name) for name in ("size", "blob_id", "key")]
        goes_on = found.resumable or unfinished.part_bytes is not None
        if not goes_on or [upload.size, upload.blob_id, upload.key] != asked:
            await self.abort(upload.id)
            return None
        part_bytes = None if found.resumable else unfinished.part_bytes
        plan = UploadPlan(upload=upload, url=found.url, resumable=found.resumable, part_bytes=part_bytes)
        return plan, found.parts
