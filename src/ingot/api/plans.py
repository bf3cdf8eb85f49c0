"""How the bytes of an upload are sent: to us, at an address that we have signed, or to a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ingot.api.downloads import URL_SECONDS
from ingot.blobs.model import UploadState
from ingot.blobs.ports import Part
from ingot.blobs.uploads import Begun
from ingot.http.call import Call
from ingot.http.signing import Signer
from ingot.http.table import PREFIX
from ingot.wire.blobs import UploadAnswer, UploadPlan

SENDING: Final = "upload"  # What the address of an upload is for.


class Plans:
    """Tells clients where bytes go."""

    def __init__(self, signer: Signer, *, public_url: str | None) -> None:
        self._signer = signer
        self._public_url = public_url

    def of(self, call: Call, tenant: str, begun: Begun) -> UploadPlan:
        """How the bytes of an upload are sent."""
        upload, plan = begun.upload, begun.plan
        if upload.state is not UploadState.OPEN:
            return UploadPlan(upload=upload)
        if plan is not None:
            return UploadPlan(
                upload=upload, url=plan.url, headers=plan.headers, part_bytes=plan.part_bytes, expires_in=URL_SECONDS
            )
        path = f"{PREFIX}/blobs/uploads/{upload.id}/bytes"
        url = (self._public_url or call.here) + self._signer.sign(SENDING, path, {"tenant": tenant}, URL_SECONDS)
        return UploadPlan(upload=upload, url=url, resumable=True, expires_in=URL_SECONDS)

    def again(self, call: Call, tenant: str, begun: Begun, parts: Sequence[Part]) -> UploadAnswer:
        """How an upload stands, and how it goes on when it is open."""
        plan = self.of(call, tenant, begun)
        return UploadAnswer(
            upload=plan.upload,
            parts=[part.number for part in parts],
            url=plan.url,
            headers=plan.headers,
            resumable=plan.resumable,
            part_bytes=plan.part_bytes,
            expires_in=plan.expires_in,
        )
