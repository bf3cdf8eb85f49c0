"""Requests and responses of job files, and the request that creates a job."""

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
    """An input to upload. A small file can be sent in `data`. The bytes must match the announced size and digests."""

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
    """A new job, with inputs to upload before it can run."""

    uploads: InputUploads = msgspec.field(default_factory=list)
    """Inputs to upload. The job is ready when the last upload is complete."""


class CreateJobResponse(Job, frozen=True, kw_only=True):
    """The job that was created or already existed."""

    created: bool = True
    """Whether this request created the job."""
    reused: bool = False
    """Whether an existing job that does the same work was returned."""
    uploads: list[UploadPlan] | msgspec.UnsetType = msgspec.UNSET
    """How to send the inputs that the job waits for, in the order of the request."""


class DownloadFileRequest(RequestStruct, frozen=True, kw_only=True):
    """A file that an attempt wants to read: an input, the payload, or a checkpoint."""

    fence: Fence
    """Fence of the attempt."""
    kind: Literal["input", "payload", "checkpoint"] = "input"
    """Kind of the file."""
    name: FileName = PAYLOAD
    """Name of the file. The name of a payload is `payload`."""


class FileUrl(SignedUrl, frozen=True, kw_only=True):
    """A URL from which a job file can be read. A small file is also included."""

    blob_id: str
    """ID of the blob."""
    size: int
    """Size in bytes."""
    data: bytes | None = None
    """The whole file in base64, if it is small."""


class BeginFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A file that an attempt wants to upload: an output, a checkpoint, or its log."""

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
    """Parts of an attempt's upload that need signed URLs."""

    fence: Fence
    """Fence of the attempt."""


class RenewFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """An attempt's upload that needs a new URL."""

    fence: Fence
    """Fence of the attempt."""


class CompleteFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """The end of an attempt's upload, with digests that were not announced when it began."""

    fence: Fence
    """Fence of the attempt."""
    blob_id: BlobId | None = None
    """BLAKE3 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
    sha256: str | None = None
    """SHA-256 of the bytes, as 64 hexadecimal digits. The upload fails if it differs."""
