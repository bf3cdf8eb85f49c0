"""URLs to which the bytes of an upload are sent: signed by this server, or by a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ingot.api.downloads import URL_SECONDS
from ingot.blobs.model import UploadState
from ingot.blobs.ports import ObjectPart
from ingot.blobs.uploads import UploadWithPlan
from ingot.http.request import Request
from ingot.http.routes import PREFIX
from ingot.http.signing import Signer
from ingot.wire.blobs import UploadPlan, UploadResponse

UPLOAD_PURPOSE: Final = "upload"  # The purpose for which URLs of uploads are signed.


class UploadUrls:
    """Describes to clients where and how to send the bytes of an upload."""

    def __init__(self, signer: Signer, *, public_url: str | None) -> None:
        self._signer = signer
        self._public_url = public_url

    def plan_upload(self, request: Request, tenant: str, upload_with_plan: UploadWithPlan) -> UploadPlan:
        """Describe how to send the bytes of an upload. Signs a URL if the upload is open."""
        upload, plan = upload_with_plan.upload, upload_with_plan.plan
        if upload.state is not UploadState.OPEN:
            return UploadPlan(upload=upload)
        if plan is not None:
            return UploadPlan(
                upload=upload, url=plan.url, headers=plan.headers, part_bytes=plan.part_bytes, expires_in=URL_SECONDS
            )
        path = f"{PREFIX}/blobs/uploads/{upload.id}/bytes"
        url = (self._public_url or request.base_url) + self._signer.sign(
            UPLOAD_PURPOSE, path, {"tenant": tenant}, URL_SECONDS
        )
        return UploadPlan(upload=upload, url=url, resumable=True, expires_in=URL_SECONDS)

    def describe_upload(
        self, request: Request, tenant: str, upload_with_plan: UploadWithPlan, parts: Sequence[ObjectPart]
    ) -> UploadResponse:
        """Describe the state of an upload, and how to continue it if it is open."""
        plan = self.plan_upload(request, tenant, upload_with_plan)
        return UploadResponse(
            upload=plan.upload,
            parts=[part.number for part in parts],
            url=plan.url,
            headers=plan.headers,
            resumable=plan.resumable,
            part_bytes=plan.part_bytes,
            expires_in=plan.expires_in,
        )
