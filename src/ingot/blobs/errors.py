"""Errors of blobs, keys and uploads."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from ingot.kernel.errors import Conflict, IngotError, InvalidInput, NotFound, StoreMisconfigured, TooMany


class BlobNotFound(NotFound):
    """The blob does not exist in this tenant."""

    code = "blob_not_found"
    hint = "Check the ID. A blob can be read only if a key, a job or an upload of this tenant refers to it."


class KeyNotFound(NotFound):
    """The key does not exist."""

    code = "key_not_found"
    hint = "Check the spelling. GET /api/v1/keys?prefix= lists the keys that exist."


class UploadNotFound(NotFound):
    """The upload does not exist."""

    code = "upload_not_found"
    hint = "Check the ID. Uploads without activity expire; begin a new one."


class KeyExists(Conflict):
    """The key already exists."""

    code = "key_exists"
    hint = "Nothing was changed. To replace the blob, send If-Match with its ETag, or * to replace any version."

    @classmethod
    def for_key(cls, key: str) -> KeyExists:
        """Create the error with the key in its message."""
        return cls(f"the key {key!r} already exists")


class KeyChanged(IngotError):
    """The key refers to another blob than If-Match says."""

    code = "key_changed"
    status = 412
    hint = "Nothing was changed. Read the key again and decide whether to replace or delete it."


class TooManyUploads(TooMany):
    """The tenant has as many unfinished uploads as it can have."""

    code = "too_many_uploads"
    hint = "Nothing was changed. Complete or cancel uploads. Those without progress end after a day."


class UploadEnded(Conflict):
    """The upload has ended: it was completed, it failed, or it was canceled."""

    code = "upload_ended"
    hint = "GET the upload to see its state. Begin a new upload to send other bytes."


class UploadTaken(Conflict):
    """Another client has continued this upload."""

    code = "upload_taken"
    hint = "Only the client that last requested the offset can write. Request the offset again to continue the upload."


class UploadOffsetWrong(Conflict):
    """The upload does not continue at this offset."""

    code = "upload_offset_wrong"
    hint = "Continue at the offset in the Upload-Offset header of this response."

    def __init__(self, detail: str | None = None, *, offset: int = 0) -> None:
        super().__init__(detail)
        self.offset = offset
        self.members = {"offset": offset}
        self.headers = {"upload-offset": str(offset)}


class UploadIncomplete(Conflict):
    """The upload does not have all of its bytes yet."""

    code = "upload_incomplete"
    hint = "Send the missing bytes, then complete the upload."


class WrongDigest(InvalidInput):
    """The bytes do not have the announced digest."""

    code = "wrong_digest"
    hint = "Nothing was kept. The file may have changed or been damaged on its way; send it again."


class WrongLength(InvalidInput):
    """The number of bytes differs from the announced size."""

    code = "wrong_length"
    hint = "Nothing was kept. Send exactly as many bytes as announced."


class BlobTooLarge(IngotError):
    """The blob is larger than this server accepts."""

    code = "blob_too_large"
    status = 413
    hint = "Send a smaller file, or ask an operator to raise INGOT_MAX_BLOB_BYTES of the server."


class BlobDamaged(IngotError):
    """The stored bytes of this blob are damaged."""

    code = "blob_damaged"
    status = 500
    hint = "Repair the blob: upload the same file again, or restore it from a backup."


class QuotaExceeded(IngotError):
    """The bytes would exceed the quota.

    `scope` names whose quota it is. `usage` is the number of bytes used, reserved and deleted but not free yet, and
    `limit` the quota. `deleted` is the last part of the usage, with the times when the first and all of these bytes of
    the tenant become free.
    """

    code = "quota_exceeded"
    status = 507
    hint = "Nothing was kept. Delete files that are not needed, or ask an operator to raise the quota."
    deleted_hint = (
        "Nothing was kept. Try again when deleted bytes are free. An operator can free some of them earlier with "
        "`ingot blobs collect --now`, or raise the quota."
    )

    def __init__(
        self,
        *,
        scope: Literal["tenant", "token"],
        usage: int,
        limit: int,
        requested: int = 0,
        deleted: int = 0,
        freed: tuple[datetime, datetime] | None = None,
    ) -> None:
        detail = (
            f"{requested} bytes would exceed the quota: {usage} of {limit} bytes of the {scope} are used or reserved"
        )
        if deleted and freed is not None:
            first, last = (time.strftime("%Y-%m-%d %H:%M:%S") for time in freed)
            when = f"by {last} UTC" if first == last else f"between {first} and {last} UTC"
            detail += f"; {deleted} of them belong to deleted files and become free {when}"
        super().__init__(detail)
        if usage - deleted + requested <= limit:
            self.hint = self.deleted_hint
        self.scope: Literal["tenant", "token"] = scope
        self.usage = usage
        self.limit = limit
        self.requested = requested
        self.deleted = deleted
        self.freed = freed
        self.members: dict[str, object] = {"scope": scope, "usage_bytes": usage, "quota_bytes": limit}
        if deleted and freed is not None:
            first_time, last_time = (time.isoformat().replace("+00:00", "Z") for time in freed)
            self.members |= {"deleted_bytes": deleted, "freed_from": first_time, "freed_by": last_time}
        self.headers = {"ingot-usage-bytes": str(usage), "ingot-quota-bytes": str(limit)}

    def without_usage(self) -> QuotaExceeded:
        """Return the error for a caller that may not see the usage."""
        error = QuotaExceeded(scope=self.scope, usage=0, limit=0)
        error.detail = f"{self.requested} bytes would exceed the quota of the {self.scope}"
        error.members, error.headers = {"scope": self.scope}, {}
        return error


class SignatureInvalid(IngotError):
    """The signature of this URL is invalid or has expired."""

    code = "signature_invalid"
    status = 403
    hint = "Request a new URL. A signed URL is valid for a limited time, and only if it is not changed."


class ObjectsElsewhere(StoreMisconfigured):
    """The blobs of this database are in another folder or bucket."""

    code = "objects_elsewhere"
    hint = (
        "Use the same data folder (INGOT_DATA) or bucket (INGOT_S3_BUCKET, INGOT_S3_PREFIX) as the other servers of "
        "this database. Only one server at a time can use a data folder, so several servers need a bucket."
    )
