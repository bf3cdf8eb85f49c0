"""Requests and answers about files of jobs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ingot.blobs.model import INLINE_BYTES_MAX
from ingot.jobs.files import INPUTS_MAX, PAYLOAD
from ingot.jobs.model import Job
from ingot.wire.blobs import SignedUrl, SignPartsRequest, SizeBytes, UploadPlan
from ingot.wire.field_types import BlobId, FileName, entries_up_to
from ingot.wire.jobs import Fence, JobSpec, RequestStruct

SmallFile = Annotated[bytes, msgspec.Meta(max_length=INLINE_BYTES_MAX)]


class InputUpload(RequestStruct, frozen=True, kw_only=True):
    """An input that will come. A small one may come with it, and is done then. What is said of it is checked."""

    name: FileName
    """Name of the input without folders, up to 255 characters."""
    size: SizeBytes
    """Size in bytes."""
    blob_id: BlobId | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    content_type: str | None = None
    """Content type, such as `application/pdf`. The default is guessed from the name."""
    data: SmallFile | None = None
    """The whole file in base64, if it has at most 16 KiB. The upload is then done at once."""


InputUploads = Annotated[list[InputUpload], entries_up_to(INPUTS_MAX)]


class CreateJobRequest(JobSpec, frozen=True, kw_only=True):
    """A job to be made, and inputs of it that are uploaded first: it is ready when the last of them is here."""

    uploads: InputUploads = msgspec.field(default_factory=list)
    """Inputs to upload. The job is ready when the last upload is complete."""


class CreateJobResponse(Job, frozen=True, kw_only=True):
    """The job that answers an order: whether it was made for it, or does the same and is `reused`.

    `uploads` is how the inputs that it waits for are sent, in the order in which they were named first.
    """

    created: bool = True
    """Whether this request created the job."""
    reused: bool = False
    """Whether an existing job that does the same work was returned."""
    uploads: list[UploadPlan] | msgspec.UnsetType = msgspec.UNSET
    """How to send the inputs that the job waits for, in the order of the request."""


class DownloadFileRequest(RequestStruct, frozen=True, kw_only=True):
    """What an attempt wants to read: an input, its payload, or what it or an earlier one saved."""

    fence: Fence
    """Fence of the attempt."""
    kind: Literal["input", "payload", "checkpoint"] = "input"
    """Kind of the file."""
    name: FileName = PAYLOAD
    """Name of the file. The name of a payload is `payload`."""


class FileUrl(SignedUrl, frozen=True, kw_only=True):
    """Where a file of a job is read, and which bytes are there; of a small one these are told at once."""

    blob_id: str
    """ID of the blob."""
    size: int
    """Size in bytes."""
    data: bytes | None = None
    """The whole file in base64, if it is small."""


class BeginFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A file that an attempt will send: an output or a checkpoint, by its name, or what it wrote.

    What it wrote is named after the attempt. A small one may come with it: then it is done.
    """

    fence: Fence
    """Fence of the attempt."""
    size: SizeBytes
    """Size in bytes."""
    kind: Literal["output", "log", "checkpoint"] = "output"
    """Kind of the file."""
    name: FileName | None = None
    """Name of the file without folders, up to 255 characters. A log needs none."""
    blob_id: BlobId | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    content_type: str | None = None
    """Content type, such as `application/pdf`. The default is guessed from the name."""
    data: SmallFile | None = None
    """The whole file in base64, if it has at most 16 KiB. The upload is then done at once."""


class SignFilePartsRequest(SignPartsRequest, frozen=True, kw_only=True):
    """Parts of a file of an attempt whose addresses are asked for."""

    fence: Fence
    """Fence of the attempt."""


class RenewFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A file of an attempt that goes on, and needs a new address for it."""

    fence: Fence
    """Fence of the attempt."""


class CompleteFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """All bytes of a file of an attempt are sent; these are their digests, for one who knows them only now."""

    fence: Fence
    """Fence of the attempt."""
    blob_id: BlobId | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
