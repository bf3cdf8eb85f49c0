"""Requests and responses of blobs, keys and uploads."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ingot.blobs.model import Key, Reference, Upload
from ingot.blobs.ports import SignedPart
from ingot.kernel.pages import PAGE_ROWS_DEFAULT
from ingot.wire.field_types import JobType
from ingot.wire.jobs import PageLimit, RequestStruct

SizeBytes = Annotated[int, msgspec.Meta(ge=0)]
PARTS_MAX = 100
URL_SECONDS_MAX = 3600


class KeyListQuery(RequestStruct, frozen=True, kw_only=True):
    """The keys to list."""

    prefix: str = ""
    """Only keys that begin with this text."""
    cursor: str | None = None
    """The `next_cursor` of the previous response, to continue the list."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of keys."""


class PutKeyQuery(RequestStruct, frozen=True, kw_only=True):
    """Optional name and digests of the uploaded file."""

    name: str | None = None
    """Original name of the file."""
    blob_id: str | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The request fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The request fails if it differs."""


class UsageQuery(RequestStruct, frozen=True, kw_only=True):
    """The usage to return."""

    of: Literal["tenant", "caller"] = "tenant"
    """Whose usage to return: that of the tenant, or that of the caller in it."""


class BlobUrlQuery(RequestStruct, frozen=True, kw_only=True):
    """The validity of a signed URL, and how browsers treat the download."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=URL_SECONDS_MAX)] = URL_SECONDS_MAX
    """Seconds for which the URL is valid."""
    name: str | None = None
    """File name under which a browser saves the blob."""
    content_type: str | None = None
    """Content type of the download. The default is guessed from the name."""


class SignedDownloadQuery(RequestStruct, frozen=True, kw_only=True):
    """Signed parameters of a download URL."""

    tenant: str
    """ID of the tenant."""
    name: str
    """File name under which a browser saves the blob."""
    type: str
    """Content type of the response."""


class SignedUploadQuery(RequestStruct, frozen=True, kw_only=True):
    """Signed parameters of an upload URL."""

    tenant: str
    """ID of the tenant."""


class BeginUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A new upload.

    With `payload_of` the blob is meant as the payload of a job, which refers to it by `payload_blob`. A grant to create
    such jobs is then sufficient.
    """

    size: SizeBytes
    """Size in bytes."""
    blob_id: str | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    content_type: str | None = None
    """Content type, such as `application/pdf`. The default is guessed from the name."""
    original_name: str | None = None
    """Original name of the file."""
    key: str | None = None
    """Key to set when the upload is done."""
    if_match: str | None = None
    """ID of the blob that the key must hold, or `*` to replace any blob. Without it, the key must not exist."""
    payload_of: JobType | None = None
    """Job type, if the blob will be the payload of a job. Needs a grant to create such jobs."""


class UploadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An upload, and how to send its bytes.

    With a `url`, send the bytes there: all of them with PUT, or, if it is `resumable`, in several PATCH requests.
    With `part_bytes`, request a URL for each part. With neither, the upload is already done.
    """

    upload: Upload
    """The upload."""
    url: str | None = None
    """Signed URL to send the bytes to. It needs no credential."""
    method: str = "PUT"
    """HTTP method for sending all bytes at once."""
    headers: dict[str, str] = {}
    """Headers to send with the bytes."""
    resumable: bool = False
    """Whether the bytes can also be sent in several PATCH requests with `Upload-Offset`."""
    part_bytes: int | None = None
    """Size of each part except the last, if the bytes have to be sent in parts."""
    expires_in: int = 0
    """Seconds for which the URL is valid."""


class PartToSign(RequestStruct, frozen=True, kw_only=True):
    """A part of an upload that needs a signed URL."""

    number: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    """Number of the part, starting at 1."""
    size: Annotated[int, msgspec.Meta(ge=1)]
    """Size of the part in bytes."""
    sha256: str
    """SHA-256 of the part, as 64 hexadecimal digits."""


class SignPartsRequest(RequestStruct, frozen=True, kw_only=True):
    """Parts of an upload that need signed URLs."""

    parts: Annotated[list[PartToSign], msgspec.Meta(min_length=1, max_length=PARTS_MAX)]
    """Parts to send."""


class SignUploadPartsRequest(SignPartsRequest, frozen=True, kw_only=True):
    """Parts of an upload that need signed URLs, and the blob that was announced."""

    blob_id: str | None = None
    """Announced BLAKE3. Required if another caller began the upload of an input."""


class UploadQuery(RequestStruct, frozen=True, kw_only=True):
    """The blob that an upload announced."""

    blob_id: str | None = None
    """Announced BLAKE3. Required if another caller began the upload of an input."""


class SignPartsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Signed URLs for parts of an upload."""

    parts: list[SignedPart]
    """Signed URLs of the parts."""
    expires_in: int
    """Seconds for which the URLs are valid."""


class UploadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an upload. If it is open, how to continue it with a new URL, as in `UploadPlan`."""

    upload: Upload
    """The upload."""
    parts: list[int] = []
    """Numbers of the parts that have arrived."""
    key: Key | None = None
    """Key that was set when the upload was done."""
    url: str | None = None
    """Signed URL to send the bytes to, if the upload is open. It needs no credential."""
    headers: dict[str, str] = {}
    """Headers to send with the bytes."""
    resumable: bool = False
    """Whether the bytes can also be sent in several PATCH requests with `Upload-Offset`."""
    part_bytes: int | None = None
    """Size of each part except the last, if the bytes have to be sent in parts."""
    expires_in: int = 0
    """Seconds for which the URL is valid."""


class CompleteUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """The end of an upload, with digests that were not announced when it began.

    To complete the upload of an input that another caller began, `blob_id` is required.
    """

    blob_id: str | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""


class SignedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A URL that needs no credential and expires."""

    url: str
    """Signed URL. It needs no credential."""
    expires_in: int
    """Seconds for which the URL is valid."""


class BlobReferences(msgspec.Struct, frozen=True, kw_only=True):
    """A blob with its references."""

    blob_id: str
    """ID of the blob."""
    size: int
    """Size in bytes."""
    sha256: str
    """SHA-256 of the blob, as 64 hexadecimal digits."""
    damaged: bool
    """Whether the stored bytes differ from the digests. A damaged blob is not served."""
    references: list[Reference]
    """References to the blob, at most 100."""


class PurgeKeysRequest(RequestStruct, frozen=True, kw_only=True):
    """The keys to delete: those of one owner, or those of all."""

    owner: str | None = None
    """Caller whose keys are deleted, such as `token:` and the ID of a token. The token may have been revoked."""
    all: bool = False
    """Whether to delete the keys of all callers in the tenant."""
    dry_run: bool = True
    """Whether to return a preview and change nothing."""


class CollectBlobsRequest(RequestStruct, frozen=True, kw_only=True):
    """One round of the garbage collector, or a preview of it."""

    dry_run: bool = True
    """Whether to return a preview and change nothing."""
    now: bool = False
    """Whether to include deleted blobs in their grace period that no reader can still need."""


class VerifyBlobResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying a blob."""

    blob_id: str
    """ID of the blob."""
    whole: bool
    """Whether the stored bytes match the digests."""
