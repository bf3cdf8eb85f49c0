"""Requests for the URLs with which an attempt downloads and uploads its files.

A URL is requested when it is needed, because it expires. The bytes are transferred separately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from ingot.blobs.errors import UploadNotFound
from ingot.blobs.model import UploadState
from ingot.jobs.errors import LeaseLost
from ingot.jobs.model import Job
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import is_id
from ingot.wire.blobs import PartToSign, UploadPlan, UploadResponse

if TYPE_CHECKING:
    from ingot.worker.http_job_source import HttpFileClient

NO_FILES_HINT: Final = (
    "A worker that is connected to PostgreSQL transfers files through a server: set INGOT_SERVER_URL, and set "
    "INGOT_TOKEN to a token with the grant workers.run."
)


UploadKind = Literal["output", "log", "checkpoint"]


class DownloadUrlRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag="download"):
    """Request the URL of an input, the payload or a checkpoint. The response is a `FileUrl`."""

    kind: Literal["input", "payload", "checkpoint"]
    name: str


class UploadPlanRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag="upload", omit_defaults=True
):
    """Begin the upload of an output, the log or a checkpoint. The response is an `UploadPlan`.

    If the request contains the data, the upload is complete.
    """

    kind: UploadKind
    size: int
    blob_id: str
    sha256: str
    name: str | None = None
    content_type: str | None = None
    data: bytes | None = None


class PartUrlsRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag="parts"):
    """Request the URLs of parts. The response is a `SignPartsResponse`."""

    upload_id: str
    parts: list[PartToSign]


class UploadRenewalRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag="renew"):
    """Request a new URL for an upload whose URL has expired. The response is an `UploadResponse`."""

    upload_id: str


class UploadCompletionRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="request", tag="complete"):
    """Complete an upload after all bytes were sent. The response is an `UploadResponse`."""

    upload_id: str


FileRequest = DownloadUrlRequest | UploadPlanRequest | PartUrlsRequest | UploadRenewalRequest | UploadCompletionRequest
FileRequestSender = Callable[[FileRequest], bytes]


class NoFiles(IngotError):
    """This worker cannot transfer files without INGOT_SERVER_URL and INGOT_TOKEN."""

    code = "no_files"
    status = 422
    hint = NO_FILES_HINT


class AttemptFileClient:
    """Sends file requests to the server for one attempt, with its fence, and records its outputs. Thread-safe.

    Without a `file_client` the worker has no server, and every request raises `NoFiles`.
    """

    def __init__(self, file_client: HttpFileClient | None, job: Job, on_lease_lost: Callable[[], None]) -> None:
        self._file_client = file_client
        self._job_id, self._fence = job.id, job.fence
        self._notify_lease_lost = on_lease_lost
        self._output_names: dict[str, str] = {}  # By upload ID.
        self._outputs: dict[str, None] = {}

    @property
    def outputs(self) -> list[str]:
        """The names of the stored outputs."""
        return list(self._outputs)

    def send(self, request: FileRequest) -> bytes:
        """Send a request and return the JSON of the response. Raises `LeaseLost` if the attempt has lost its job."""
        if self._file_client is None:
            raise NoFiles
        try:
            response = self._file_client.post(
                self._job_id, _request_path(request), {"fence": self._fence, **_request_body(request)}
            )
        except LeaseLost:
            self._notify_lease_lost()
            raise
        self._record_output(request, response)
        return response

    def _record_output(self, request: FileRequest, response: bytes) -> None:
        if isinstance(request, UploadPlanRequest) and request.kind == "output" and request.name is not None:
            upload = msgspec.json.decode(response, type=UploadPlan).upload
            self._output_names[upload.id] = request.name
        elif isinstance(request, UploadCompletionRequest) and request.upload_id in self._output_names:
            upload = msgspec.json.decode(response, type=UploadResponse).upload
        else:
            return
        if upload.state is UploadState.DONE:
            self._outputs[self._output_names[upload.id]] = None


def _request_path(request: FileRequest) -> str:
    match request:
        case DownloadUrlRequest():
            return "downloads"
        case UploadPlanRequest():
            return "uploads"
        case PartUrlsRequest():
            return f"uploads/{_checked_upload_id(request.upload_id)}/parts"
        case UploadRenewalRequest():
            return f"uploads/{_checked_upload_id(request.upload_id)}/renew"
        case UploadCompletionRequest():
            return f"uploads/{_checked_upload_id(request.upload_id)}/complete"


def _checked_upload_id(upload_id: str) -> str:
    """Return the upload ID if it is valid. An isolated handler is not trusted and could send another path."""
    if not is_id(upload_id):
        raise UploadNotFound(f"{upload_id[:64]!r} is not an upload ID")
    return upload_id


def _request_body(request: FileRequest) -> dict[str, object]:
    fields = msgspec.to_builtins(request)
    return {name: value for name, value in fields.items() if name not in ("request", "upload_id")}
