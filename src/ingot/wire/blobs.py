"""What is sent of blobs, and answered."""

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
    """Which keys, and how many."""

    prefix: str = ""
    """Only keys that begin with this text."""
    cursor: str | None = None
    """The `next_cursor` of the previous response, to continue the list."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of keys."""


class PutKeyQuery(RequestStruct, frozen=True, kw_only=True):
    """What is known of the bytes that come: the name of their file, and their digests."""

    name: str | None = None
    """Original name of the file."""
    blob_id: str | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The request fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The request fails if it differs."""


class UsageQuery(RequestStruct, frozen=True, kw_only=True):
    """Whose usage."""

    of: Literal["tenant", "caller"] = "tenant"
    """Whose usage to return: that of the tenant, or that of the caller in it."""


class BlobUrlQuery(RequestStruct, frozen=True, kw_only=True):
    """How long an address holds, and what a browser makes of what is there."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=URL_SECONDS_MAX)] = URL_SECONDS_MAX
    """Seconds for which the URL is valid."""
    name: str | None = None
    """File name under which a browser saves the blob."""
    content_type: str | None = None
    """Content type of the download. The default is guessed from the name."""


class SignedDownloadQuery(RequestStruct, frozen=True, kw_only=True):
    """What was signed with an address to read at."""

    tenant: str
    """ID of the tenant."""
    name: str
    """File name under which a browser saves the blob."""
    type: str
    """Content type of the response."""


class SignedUploadQuery(RequestStruct, frozen=True, kw_only=True):
    """What was signed with an address to write at."""

    tenant: str
    """ID of the tenant."""


class BeginUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A blob that will come. With digests it is checked against them; with a `key` that is set when it is here.

    With `payload_of` it is the payload of a job of this type, which names it by its `payload_blob`: who may make such
    jobs may send it.
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
    """What the key must hold: the ID of a blob, or `*` for anything. Without it, the key must not exist."""
    payload_of: JobType | None = None
    """Job type, if the blob will be the payload of a job. Needs a grant to create such jobs."""


class UploadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An upload, and how its bytes are sent.

    With a `url` they go there, with these `headers`: by PUT all of them, and where it is `resumable` by PATCH from
    `Upload-Offset` on. With `part_bytes` they go in parts of this size, whose addresses are asked for. With neither
    the upload is done already.
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
    """A part that will be sent, counted from 1."""

    number: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    """Number of the part, starting at 1."""
    size: Annotated[int, msgspec.Meta(ge=1)]
    """Size of the part in bytes."""
    sha256: str
    """SHA-256 of the part, as 64 hexadecimal digits."""


class SignPartsRequest(RequestStruct, frozen=True, kw_only=True):
    """Parts whose addresses are asked for."""

    parts: Annotated[list[PartToSign], msgspec.Meta(min_length=1, max_length=PARTS_MAX)]
    """Parts to send."""


class SignUploadPartsRequest(SignPartsRequest, frozen=True, kw_only=True):
    """The same. Who did not begin the upload of an input names its `blob_id`."""

    blob_id: str | None = None
    """Announced BLAKE3. Required if another caller began the upload of an input."""


class UploadQuery(RequestStruct, frozen=True, kw_only=True):
    """Who did not begin the upload of an input names the blob that it announces."""

    blob_id: str | None = None
    """Announced BLAKE3. Required if another caller began the upload of an input."""


class SignPartsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Where these parts are sent to, and how long these addresses hold."""

    parts: list[SignedPart]
    """Signed URLs of the parts."""
    expires_in: int
    """Seconds for which the URLs are valid."""


class UploadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An upload; the numbers of its parts that are there, where it has any; the key that was set when it was done.

    The rest is as in `UploadPlan`: how one that is open goes on, at an address that is new.
    """

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
    """All bytes are sent; these are their digests, for one who knows them only now, or did not begin the upload."""

    blob_id: str | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""


class SignedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An address that needs no credential, and holds for so many seconds."""

    url: str
    """Signed URL. It needs no credential."""
    expires_in: int
    """Seconds for which the URL is valid."""


class BlobReferences(msgspec.Struct, frozen=True, kw_only=True):
    """Why a blob is kept: what refers to it, at most a hundred of it."""

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
    """Whose keys to delete: those that a token set, as `token:ID`, or all. A dry run tells how many they are."""

    owner: str | None = None
    """Caller whose keys are deleted, such as `token:` and the ID of a token. The token may have been revoked."""
    all: bool = False
    """Whether to delete the keys of all callers in the tenant."""
    dry_run: bool = True
    """Whether to return a preview and change nothing."""


class CollectBlobsRequest(RequestStruct, frozen=True, kw_only=True):
    """A round of the collector, or with a dry run what it would do."""

    dry_run: bool = True
    """Whether to return a preview and change nothing."""


class VerifyBlobResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the bytes of a blob are what they were."""

    blob_id: str
    """ID of the blob."""
    whole: bool
    """Whether the stored bytes match the digests."""
