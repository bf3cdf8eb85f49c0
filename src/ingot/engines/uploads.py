"""Upload rows, which both engines read."""

from __future__ import annotations

import msgspec

from ingot.blobs.model import FileKind, FinishedUpload, Key, StoredUpload, Upload, UploadState
from ingot.kernel.clock import to_datetime


class UploadFields(msgspec.Struct):
    """The columns of the table `uploads`, in the order of the SQLite statements. Times are in microseconds."""

    tenant: str
    id: str
    state: UploadState
    epoch: int
    owner: str
    reserved: int
    received: int
    size: int | None
    blob_id: str | None
    sha256: str | None
    content_type: str
    original_name: str | None
    key: str | None
    if_match: str | None
    job_id: str | None
    fence: int | None
    file: FileKind | None
    name: str | None
    storage_key: str | None
    multipart: str | None
    error: str | None
    created_at: int
    expires_at: int
    verifying_at: int | None = None
    done_at: int | None = None
    server: str | None = None
    url_lifetime: int = 0

    def upload(self) -> Upload:
        """Return the upload as clients see it."""
        return Upload(
            id=self.id,
            state=self.state,
            size=self.size,
            received=self.received,
            blob_id=self.blob_id,
            sha256=self.sha256,
            content_type=self.content_type,
            original_name=self.original_name,
            key=self.key,
            job_id=self.job_id,
            file=self.file,
            name=self.name,
            error=self.error,
            owner=self.owner,
            created_at=to_datetime(self.created_at),
            expires_at=to_datetime(self.expires_at),
        )

    def stored_upload(self) -> StoredUpload:
        """Return the upload with its internal fields."""
        return StoredUpload(
            upload=self.upload(),
            tenant=self.tenant,
            epoch=self.epoch,
            reserved=self.reserved,
            storage_key=self.storage_key,
            multipart=self.multipart,
            if_match=self.if_match,
            fence=self.fence,
        )

    def finished_upload(self) -> FinishedUpload:
        """Return an upload that is done, with its key as it was set then. The key may have changed since."""
        if self.key is None:
            return FinishedUpload(upload=self.upload())
        key = Key(
            key=self.key,
            blob_id=self.blob_id or "",
            sha256=self.sha256 or "",
            size=self.size or 0,
            content_type=self.content_type,
            original_name=self.original_name,
            uploaded_at=to_datetime(self.done_at or 0),
            owner=self.owner,
        )
        return FinishedUpload(upload=self.upload(), key=key)
