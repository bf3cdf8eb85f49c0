"""What is sent of blobs, and answered."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ingot.blobs.model import Key, Reference, Upload
from ingot.blobs.ports import SignedPart
from ingot.kernel.pages import PAGE_ROWS_DEFAULT
from ingot.wire.jobs import Limit, Request
from ingot.wire.values import JobType

Size = Annotated[int, msgspec.Meta(ge=0)]
PARTS_MAX = 100
URL_SECONDS_MAX = 3600


class KeyListQuery(Request, frozen=True, kw_only=True):
    """Which keys, and how many."""

    prefix: str = ""
    cursor: str | None = None
    limit: Limit = PAGE_ROWS_DEFAULT


class PutQuery(Request, frozen=True, kw_only=True):
    """What is known of the bytes that come: the name of their file, and their digests."""

    name: str | None = None
    blob_id: str | None = None
    sha256: str | None = None


class UsageQuery(Request, frozen=True, kw_only=True):
    """Whose usage."""

    of: Literal["tenant", "caller"] = "tenant"


class UrlQuery(Request, frozen=True, kw_only=True):
    """How long an address holds, and what a browser makes of what is there."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=URL_SECONDS_MAX)] = URL_SECONDS_MAX
    name: str | None = None
    content_type: str | None = None


class BytesQuery(Request, frozen=True, kw_only=True):
    """What was signed with an address to read at."""

    tenant: str
    name: str
    type: str


class UploadBytesQuery(Request, frozen=True, kw_only=True):
    """What was signed with an address to write at."""

    tenant: str


class UploadOrder(Request, frozen=True, kw_only=True):
    """A blob that will come. With digests it is checked against them; with a `key` that is set when it is here.

    With `payload_of` it is the payload of a job of this type, which names it by its `payload_blob`: who may make such
    jobs may send it.
    """

    size: Size
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


class PartOrder(Request, frozen=True, kw_only=True):
    """A part that will be sent, counted from 1."""

    number: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    size: Annotated[int, msgspec.Meta(ge=1)]
    sha256: str


class PartsOrder(Request, frozen=True, kw_only=True):
    """Parts whose addresses are asked for."""

    parts: Annotated[list[PartOrder], msgspec.Meta(min_length=1, max_length=PARTS_MAX)]


class UploadPartsOrder(PartsOrder, frozen=True, kw_only=True):
    """The same. Who did not begin the upload of an input names its `blob_id`."""

    blob_id: str | None = None


class UploadQuery(Request, frozen=True, kw_only=True):
    """Who did not begin the upload of an input names the blob that it announces."""

    blob_id: str | None = None


class PartsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where these parts are sent to, and how long these addresses hold."""

    parts: list[SignedPart]
    expires_in: int


class UploadAnswer(msgspec.Struct, frozen=True, kw_only=True):
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


class CompleteOrder(Request, frozen=True, kw_only=True):
    """All bytes are sent; these are their digests, for one who knows them only now, or did not begin the upload."""

    blob_id: str | None = None
    sha256: str | None = None


class SignedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An address that needs no credential, and holds for so many seconds."""

    url: str
    expires_in: int


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why a blob is kept: what refers to it, at most a hundred of it."""

    blob_id: str
    size: int
    sha256: str
    damaged: bool
    references: list[Reference]


class PurgeOrder(Request, frozen=True, kw_only=True):
    """Whose keys to delete: those that a token set, as `token:ID`, or all. A dry run tells how many they are."""

    owner: str | None = None
    all: bool = False
    dry_run: bool = True


class CollectOrder(Request, frozen=True, kw_only=True):
    """A round of the collector, or with a dry run what it would do."""

    dry_run: bool = True


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the bytes of a blob are what they were."""

    blob_id: str
    whole: bool
