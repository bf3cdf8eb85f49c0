"""What can go wrong with blobs."""

from __future__ import annotations

from typing import Literal

from ingot.kernel.errors import Conflict, IngotError, InvalidInput, NotFound, StoreMisconfigured


class BlobNotFound(NotFound):
    """There is no such blob here."""

    code = "blob_not_found"
    hint = "Check the id; a blob is read through a key, a job or an upload of this tenant."


class KeyNotFound(NotFound):
    """There is no such key."""

    code = "key_not_found"
    hint = "Check its spelling; GET /api/v1/keys?prefix= lists those that are there."


class UploadNotFound(NotFound):
    """There is no such upload."""

    code = "upload_not_found"
    hint = "Uploads that nobody goes on with are swept; begin a new one."


class KeyExists(Conflict):
    """There is a blob under this key already."""

    code = "key_exists"
    hint = "Nothing was changed. To replace it, send If-Match with its ETag, or * for whatever is there."

    @classmethod
    def for_key(cls, key: str) -> KeyExists:
        """The same, and which key it is."""
        return cls(f"there is a blob under the key {key!r} already")


class KeyChanged(IngotError):
    """Under this key is another blob than the one that was named."""

    code = "key_changed"
    status = 412
    hint = "Nothing was changed. Read the key again, and decide again."


class UploadEnded(Conflict):
    """The upload has ended: it is complete, it failed, or it was given up."""

    code = "upload_ended"
    hint = "GET the upload to see how; begin a new one for other bytes."


class UploadTaken(Conflict):
    """Somebody else goes on with this upload."""

    code = "upload_taken"
    hint = "Who came last writes. Ask for the offset again to take it over."


class UploadOffsetWrong(Conflict):
    """The upload does not go on at this offset."""

    code = "upload_offset_wrong"
    hint = "Go on at the offset that Upload-Offset tells."

    def __init__(self, detail: str | None = None, *, offset: int = 0) -> None:
        super().__init__(detail)
        self.offset = offset
        self.members = {"offset": offset}
        self.headers = {"upload-offset": str(offset)}


class UploadIncomplete(Conflict):
    """The upload does not have all of its bytes yet."""

    code = "upload_incomplete"
    hint = "Send the rest, and complete it then."


class WrongDigest(InvalidInput):
    """The bytes are not those that were announced."""

    code = "wrong_digest"
    hint = "Nothing was kept. Send the file again; it may have changed, or come to harm on its way."


class WrongLength(InvalidInput):
    """There are more bytes, or fewer, than were announced."""

    code = "wrong_length"
    hint = "Nothing was kept. Send as many bytes as were announced."


class BlobTooLarge(IngotError):
    """The blob is larger than this server takes."""

    code = "blob_too_large"
    status = 413
    hint = "INGOT_MAX_BLOB_BYTES of the server says how large a blob may be."


class BlobDamaged(IngotError):
    """The bytes that are stored are not those of this blob any more."""

    code = "blob_damaged"
    status = 500
    hint = "Nothing wrong was sent. Upload the same file again, and it is whole; restore it from a backup otherwise."


class QuotaExceeded(IngotError):
    """There is no room for so many bytes.

    `scope` says whose quota it is, `usage` what is taken and reserved, `limit` how much there may be.
    """

    code = "quota_exceeded"
    status = 507
    hint = "Nothing was kept. Delete what is not needed, or have the quota raised."

    def __init__(self, *, scope: Literal["tenant", "token"], usage: int, limit: int, requested: int = 0) -> None:
        super().__init__(f"{requested} bytes do not fit: the {scope} uses {usage} of {limit} bytes")
        self.scope: Literal["tenant", "token"] = scope
        self.usage = usage
        self.limit = limit
        self.requested = requested
        self.members = {"scope": scope, "usage_bytes": usage, "quota_bytes": limit}
        self.headers = {"ingot-usage-bytes": str(usage), "ingot-quota-bytes": str(limit)}


class SignatureInvalid(IngotError):
    """The signature of this address does not hold, or it has expired."""

    code = "signature_invalid"
    status = 403
    hint = "Ask for a new address; one is good for a while, and only as it was given."


class ObjectsElsewhere(StoreMisconfigured):
    """The blobs of this database are not in this folder or bucket."""

    code = "objects_elsewhere"
    hint = "Use the data folder that the first server has, one server at a time; several need INGOT_S3_BUCKET."
