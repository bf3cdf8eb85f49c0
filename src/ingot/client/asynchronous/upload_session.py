"""Upload sessions: the calls that plan, resume and complete an upload."""

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

COMPLETE_SECONDS: Final = 60.0  # Longer than other requests: the server reads the bytes back.


class AsyncPlannedUpload:
    """An upload that was planned together with something else, such as a job."""

    _proof: Mapping[str, str] = {}  # Shows the server that the caller may continue the upload.

    def __init__(self, http: AsyncHttp, plan: UploadPlan) -> None:
        self._http = http
        self._plan = plan

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """Return the plan of the upload, and the numbers of the parts that are stored already."""
        return self._plan, []

    async def renew_url(self, id: str) -> UploadResponse:
        """Return the upload with a new URL, because the earlier one has expired."""
        return await self._http.request("GET", url_path("blobs", "uploads", id), UploadResponse, query={**self._proof})

    async def sign_part(self, id: str, part: PartToSign) -> SignPartsResponse:
        """Return the signed URL of a part."""
        path, body = url_path("blobs", "uploads", id, "parts"), {**self._proof, "parts": [part]}
        return await self._http.request("POST", path, SignPartsResponse, body=body, idempotent=True)

    async def complete(self, id: str) -> UploadResponse:
        """Complete the upload, once all bytes are sent."""
        path, body = url_path("blobs", "uploads", id, "complete"), {**self._proof}
        return await self._http.request(
            "POST", path, UploadResponse, body=body, idempotent=True, wait_seconds=COMPLETE_SECONDS
        )

    async def abort(self, id: str) -> None:
        """Abort the upload."""
        with suppress(IngotError):  # Otherwise it expires.
            await self._http.request("DELETE", url_path("blobs", "uploads", id), bytes)


class AsyncSharedUpload(AsyncPlannedUpload):
    """An upload that another client began for the same job. A client that has the file too can continue it."""

    def __init__(self, http: AsyncHttp, plan: UploadPlan) -> None:
        super().__init__(http, plan)
        self._proof = {"blob_id": plan.upload.blob_id or ""}

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """Return the plan of the upload, and the numbers of the parts that are stored already."""
        if self._plan.part_bytes is None:
            return self._plan, []
        return self._plan, (await self.renew_url(self._plan.upload.id)).parts

    async def abort(self, id: str) -> None:
        """Do nothing, so that other clients can continue the upload."""


class AsyncNewUpload(AsyncPlannedUpload):
    """An upload that is not part of another request. With `unfinished`, that upload is resumed if possible.

    `on_begin` is called with what is needed to resume a new upload later.
    """

    def __init__(
        self,
        http: AsyncHttp,
        request: dict[str, Any],
        *,
        unfinished: UnfinishedUpload | None = None,
        on_begin: Callable[[UnfinishedUpload], None] | None = None,
    ) -> None:
        self._http = http
        self._request = request
        self._unfinished = unfinished
        self._on_begin = on_begin

    async def begin(self) -> tuple[UploadPlan, list[int]]:
        """Return the plan of the upload, and the numbers of the parts that are stored already."""
        if self._unfinished is not None and (resumed := await self._resume(self._unfinished)) is not None:
            return resumed
        # The request can be repeated: an upload whose response was lost expires.
        plan = await self._http.request("POST", "/blobs/uploads", UploadPlan, body=self._request, idempotent=True)
        if self._on_begin is not None and plan.upload.state is UploadState.OPEN:
            self._on_begin(UnfinishedUpload(id=plan.upload.id, part_bytes=plan.part_bytes))
        return plan, []

    async def _resume(self, unfinished: UnfinishedUpload) -> tuple[UploadPlan, list[int]] | None:
        """Return the plan of an earlier upload and its stored parts, or `None` if it cannot be resumed."""
        try:
            response = await self._http.request("GET", url_path("blobs", "uploads", unfinished.id), UploadResponse)
        except UploadNotFound:
            return None
        upload = response.upload
        if upload.state is not UploadState.OPEN:
            return None if upload.state is UploadState.FAILED else (UploadPlan(upload=upload), [])
        requested = [self._request.get(name) for name in ("size", "blob_id", "key")]
        is_resumable = response.resumable or unfinished.part_bytes is not None
        if not is_resumable or [upload.size, upload.blob_id, upload.key] != requested:
            await self.abort(upload.id)
            return None
        part_bytes = None if response.resumable else unfinished.part_bytes
        plan = UploadPlan(upload=upload, url=response.url, resumable=response.resumable, part_bytes=part_bytes)
        return plan, response.parts
