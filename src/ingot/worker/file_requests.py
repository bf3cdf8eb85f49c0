"""What an attempt asks for when it moves files: addresses, at the moment of use. The bytes take their own way."""

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
    "A worker straight on PostgreSQL moves files by way of a server: set INGOT_SERVER_URL, and INGOT_TOKEN to a token "
    "that may workers.run."
)


UploadKind = Literal["output", "log", "checkpoint"]


class DownloadUrlRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="download"):
    """Where an input, the payload or a checkpoint can be read. Answered by a `FileUrl`."""

    kind: Literal["input", "payload", "checkpoint"]
    name: str


class UploadPlanRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="upload", omit_defaults=True):
    """How an output, the log or a checkpoint is sent; with its data it is done. Answered by an `UploadPlan`."""

    kind: UploadKind
    size: int
    blob_id: str
    sha256: str
    name: str | None = None
    content_type: str | None = None
    data: bytes | None = None


class PartUrlsRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="parts"):
    """Where parts are sent to. Answered by a `PartsAnswer`."""

    upload_id: str
    parts: list[PartToSign]


class UploadRenewalRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="renew"):
    """How an upload goes on whose address has expired. Answered by an `UploadAnswer`."""

    upload_id: str


class UploadCompletionRequest(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="complete"):
    """All bytes are sent. Answered by an `UploadAnswer`."""

    upload_id: str


FileRequest = DownloadUrlRequest | UploadPlanRequest | PartUrlsRequest | UploadRenewalRequest | UploadCompletionRequest
FileRequestSender = Callable[[FileRequest], bytes]


class NoFiles(IngotError):
    """This worker cannot move files: it needs INGOT_SERVER_URL and INGOT_TOKEN beside INGOT_DATABASE_URL."""

    code = "no_files"
    status = 422
    hint = NO_FILES_HINT


class AttemptFileClient:
    """Asks for one attempt and no other, with its fence; and knows which outputs came of it. From any thread.

    Without a `desk` the worker knows no server: every question raises `NoFiles`.
    """

    def __init__(self, desk: HttpFileClient | None, job: Job, lost: Callable[[], None]) -> None:
        self._file_client = desk
        self._job_id, self._fence = job.id, job.fence
        self._notify_lease_lost = lost
        self._output_names: dict[str, str] = {}  # Names of outputs that are under way, by the id of their upload.
        self._outputs: dict[str, None] = {}

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs that are there."""
        return list(self._outputs)

    def send(self, ask: FileRequest) -> bytes:
        """Ask for something; answers it as JSON. Raises `LeaseLost` when the job is somebody else's by now."""
        if self._file_client is None:
            raise NoFiles
        try:
            answer = self._file_client.post(
                self._job_id, _request_path(ask), {"fence": self._fence, **_request_body(ask)}
            )
        except LeaseLost:
            self._notify_lease_lost()
            raise
        self._record_output(ask, answer)
        return answer

    def _record_output(self, ask: FileRequest, answer: bytes) -> None:
        if isinstance(ask, UploadPlanRequest) and ask.kind == "output" and ask.name is not None:
            upload = msgspec.json.decode(answer, type=UploadPlan).upload
            self._output_names[upload.id] = ask.name
        elif isinstance(ask, UploadCompletionRequest) and ask.upload_id in self._output_names:
            upload = msgspec.json.decode(answer, type=UploadResponse).upload
        else:
            return
        if upload.state is UploadState.DONE:
            self._outputs[self._output_names[upload.id]] = None


def _request_path(ask: FileRequest) -> str:
    match ask:
        case DownloadUrlRequest():
            return "downloads"
        case UploadPlanRequest():
            return "uploads"
        case PartUrlsRequest():
            return f"uploads/{_checked_upload_id(ask.upload_id)}/parts"
        case UploadRenewalRequest():
            return f"uploads/{_checked_upload_id(ask.upload_id)}/renew"
        case UploadCompletionRequest():
            return f"uploads/{_checked_upload_id(ask.upload_id)}/complete"


def _checked_upload_id(upload_id: str) -> str:
    """The id of an upload, and nothing that would lead elsewhere: an isolated handler may say anything."""
    if not is_id(upload_id):
        raise UploadNotFound(f"{upload_id[:64]!r} is not the id of an upload")
    return upload_id


def _request_body(ask: FileRequest) -> dict[str, object]:
    said = msgspec.to_builtins(ask)
    return {name: value for name, value in said.items() if name not in ("ask", "upload_id")}
