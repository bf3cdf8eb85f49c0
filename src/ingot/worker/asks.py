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
from ingot.wire.blobs import PartOrder, UploadAnswer, UploadPlan

if TYPE_CHECKING:
    from ingot.worker.over_http import HttpFileDesk

NO_FILES_HINT: Final = (
    "A worker straight on PostgreSQL moves files by way of a server: set INGOT_SERVER_URL, and INGOT_TOKEN to a token "
    "that may workers.run."
)


Sent = Literal["output", "log", "checkpoint"]


class AskDownload(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="download"):
    """Where an input, the payload or a checkpoint can be read. Answered by a `FileUrl`."""

    kind: Literal["input", "payload", "checkpoint"]
    name: str


class AskUpload(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="upload", omit_defaults=True):
    """How an output, the log or a checkpoint is sent; with its data it is done. Answered by an `UploadPlan`."""

    kind: Sent
    size: int
    blob_id: str
    sha256: str
    name: str | None = None
    content_type: str | None = None
    data: bytes | None = None


class AskParts(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="parts"):
    """Where parts are sent to. Answered by a `PartsAnswer`."""

    upload_id: str
    parts: list[PartOrder]


class AskRenewed(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="renew"):
    """How an upload goes on whose address has expired. Answered by an `UploadAnswer`."""

    upload_id: str


class AskComplete(msgspec.Struct, frozen=True, kw_only=True, tag_field="ask", tag="complete"):
    """All bytes are sent. Answered by an `UploadAnswer`."""

    upload_id: str


Ask = AskDownload | AskUpload | AskParts | AskRenewed | AskComplete
Asker = Callable[[Ask], bytes]


class NoFiles(IngotError):
    """This worker cannot move files: it needs INGOT_SERVER_URL and INGOT_TOKEN beside INGOT_DATABASE_URL."""

    code = "no_files"
    status = 422
    hint = NO_FILES_HINT


class AttemptDesk:
    """Asks for one attempt and no other, with its fence; and knows which outputs came of it. From any thread.

    Without a `desk` the worker knows no server: every question raises `NoFiles`.
    """

    def __init__(self, desk: HttpFileDesk | None, job: Job, lost: Callable[[], None]) -> None:
        self._desk = desk
        self._job_id, self._fence = job.id, job.fence
        self._lost = lost
        self._begun: dict[str, str] = {}  # Names of outputs that are under way, by the id of their upload.
        self._outputs: dict[str, None] = {}

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs that are there."""
        return list(self._outputs)

    def ask(self, ask: Ask) -> bytes:
        """Ask for something; answers it as JSON. Raises `LeaseLost` when the job is somebody else's by now."""
        if self._desk is None:
            raise NoFiles
        try:
            answer = self._desk.ask(self._job_id, _path(ask), {"fence": self._fence, **_body(ask)})
        except LeaseLost:
            self._lost()
            raise
        self._note(ask, answer)
        return answer

    def _note(self, ask: Ask, answer: bytes) -> None:
        if isinstance(ask, AskUpload) and ask.kind == "output" and ask.name is not None:
            upload = msgspec.json.decode(answer, type=UploadPlan).upload
            self._begun[upload.id] = ask.name
        elif isinstance(ask, AskComplete) and ask.upload_id in self._begun:
            upload = msgspec.json.decode(answer, type=UploadAnswer).upload
        else:
            return
        if upload.state is UploadState.DONE:
            self._outputs[self._begun[upload.id]] = None


def _path(ask: Ask) -> str:
    match ask:
        case AskDownload():
            return "downloads"
        case AskUpload():
            return "uploads"
        case AskParts():
            return f"uploads/{_known(ask.upload_id)}/parts"
        case AskRenewed():
            return f"uploads/{_known(ask.upload_id)}/renew"
        case AskComplete():
            return f"uploads/{_known(ask.upload_id)}/complete"


def _known(upload_id: str) -> str:
    """The id of an upload, and nothing that would lead elsewhere: an isolated handler may say anything."""
    if not is_id(upload_id):
        raise UploadNotFound(f"{upload_id[:64]!r} is not the id of an upload")
    return upload_id


def _body(ask: Ask) -> dict[str, object]:
    said = msgspec.to_builtins(ask)
    return {name: value for name, value in said.items() if name not in ("ask", "upload_id")}
