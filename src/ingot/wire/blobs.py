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
    cursor: str | None = None
    limit: PageLimit = PAGE_ROWS_DEFAULT


class PutKeyQuery(RequestStruct, frozen=True, kw_only=True):
    """What is known of the bytes that come: the name of their file, and their digests."""

    name: str | None = None
    blob_id: str | None = None
    sha256: str | None = None


class UsageQuery(RequestStruct, frozen=True, kw_only=True):
    """Whose usage."""

    of: Literal["tenant", "caller"] = "tenant"


class BlobUrlQuery(RequestStruct, frozen=True, kw_only=True):
    """How long an address holds, and what a browser makes of what is there."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=URL_SECONDS_MAX)] = URL_SECONDS_MAX
    name: str | None = None
    content_type: str | None = None


class SignedDownloadQuery(RequestStruct, frozen=True, kw_only=True):
    """What was signed with an address to read at."""

    tenant: str
    name: str
    type: str


class SignedUploadQuery(RequestStruct, frozen=True, kw_only=True):
    """What was signed with an address to write at."""

    tenant: str


class BeginUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A blob that will come. With digests it is checked against them; with a `key` that is set when it is here.

    With `payload_of` it is the payload of a job of this type, which names it by its `payload_blob`: who may make such
    jobs may send it.
    """

    size: SizeBytes
    blob_id: str | None = None
    sha256: str | None = None
    content_type: str | None = None
    original_name: str | None = None
    key: str | None = None
    if_match: str | None = None
    payload_of: JobType | None = None


class UploadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An upload, and how its bytes are sent.

    With a `url` they go there, with these `headers`: by PUT all of them, and where it is `resumable` by PATCH from
    `Upload-Offset` on. With `part_bytes` they go in parts of this size, whose addresses are asked for. With neither
    the upload is done already.
    """

    upload: Upload
    url: str | None = None
    method: str = "PUT"
    headers: dict[str, str] = {}
    resumable: bool = False
    part_bytes: int | None = None
    expires_in: int = 0


class PartToSign(RequestStruct, frozen=True, kw_only=True):
    """A part that will be sent, counted from 1."""

    number: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    size: Annotated[int, msgspec.Meta(ge=1)]
    sha256: str


class SignPartsRequest(RequestStruct, frozen=True, kw_only=True):
    """Parts whose addresses are asked for."""

    parts: Annotated[list[PartToSign], msgspec.Meta(min_length=1, max_length=PARTS_MAX)]


class SignUploadPartsRequest(SignPartsRequest, frozen=True, kw_only=True):
    """The same. Who did not begin the upload of an input names its `blob_id`."""

    blob_id: str | None = None


class UploadQuery(RequestStruct, frozen=True, kw_only=True):
    """Who did not begin the upload of an input names the blob that it announces."""

    blob_id: str | None = None


class SignPartsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Where these parts are sent to, and how long these addresses hold."""

    parts: list[SignedPart]
    expires_in: int


class UploadResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An upload; the numbers of its parts that are there, where it has any; the key that was set when it was done.

    The rest is as in `UploadPlan`: how one that is open goes on, at an address that is new.
    """

    upload: Upload
    parts: list[int] = []
    key: Key | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    resumable: bool = False
    part_bytes: int | None = None
    expires_in: int = 0


class CompleteUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """All bytes are sent; these are their digests, for one who knows them only now, or did not begin the upload."""

    blob_id: str | None = None
    sha256: str | None = None


class SignedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An address that needs no credential, and holds for so many seconds."""

    url: str
    expires_in: int


class BlobReferences(msgspec.Struct, frozen=True, kw_only=True):
    """Why a blob is kept: what refers to it, at most a hundred of it."""

    blob_id: str
    size: int
    sha256: str
    damaged: bool
    references: list[Reference]


class PurgeKeysRequest(RequestStruct, frozen=True, kw_only=True):
    """Whose keys to delete: those that a token set, as `token:ID`, or all. A dry run tells how many they are."""

    owner: str | None = None
    all: bool = False
    dry_run: bool = True


class CollectBlobsRequest(RequestStruct, frozen=True, kw_only=True):
    """A round of the collector, or with a dry run what it would do."""

    dry_run: bool = True


class VerifyBlobResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the bytes of a blob are what they were."""

    blob_id: str
    whole: bool
