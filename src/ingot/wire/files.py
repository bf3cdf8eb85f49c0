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
    size: SizeBytes
    blob_id: BlobId | None = None
    sha256: str | None = None
    content_type: str | None = None
    data: SmallFile | None = None


InputUploads = Annotated[list[InputUpload], entries_up_to(INPUTS_MAX)]


class CreateJobRequest(JobSpec, frozen=True, kw_only=True):
    """A job to be made, and inputs of it that are uploaded first: it is ready when the last of them is here."""

    uploads: InputUploads = msgspec.field(default_factory=list)


class CreateJobResponse(Job, frozen=True, kw_only=True):
    """The job that answers an order: whether it was made for it, or does the same and is `reused`.

    `uploads` is how the inputs that it waits for are sent, in the order in which they were named first.
    """

    created: bool = True
    reused: bool = False
    uploads: list[UploadPlan] | msgspec.UnsetType = msgspec.UNSET


class DownloadFileRequest(RequestStruct, frozen=True, kw_only=True):
    """What an attempt wants to read: an input, its payload, or what it or an earlier one saved."""

    fence: Fence
    kind: Literal["input", "payload", "checkpoint"] = "input"
    name: FileName = PAYLOAD


class FileUrl(SignedUrl, frozen=True, kw_only=True):
    """Where a file of a job is read, and which bytes are there; of a small one these are told at once."""

    blob_id: str
    size: int
    data: bytes | None = None


class BeginFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A file that an attempt will send: an output or a checkpoint, by its name, or what it wrote.

    What it wrote is named after the attempt. A small one may come with it: then it is done.
    """

    fence: Fence
    size: SizeBytes
    kind: Literal["output", "log", "checkpoint"] = "output"
    name: FileName | None = None
    blob_id: BlobId | None = None
    sha256: str | None = None
    content_type: str | None = None
    data: SmallFile | None = None


class SignFilePartsRequest(SignPartsRequest, frozen=True, kw_only=True):
    """Parts of a file of an attempt whose addresses are asked for."""

    fence: Fence


class RenewFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """A file of an attempt that goes on, and needs a new address for it."""

    fence: Fence


class CompleteFileUploadRequest(RequestStruct, frozen=True, kw_only=True):
    """All bytes of a file of an attempt are sent; these are their digests, for one who knows them only now."""

    fence: Fence
    blob_id: BlobId | None = None
    sha256: str | None = None
