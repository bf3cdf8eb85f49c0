"""The files of an attempt: what its job was given, what it makes and saves, and what it wrote."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import IO, Final

import blake3
import msgspec

from ingot.blobs import checks
from ingot.blobs.model import INLINE_BYTES_MAX, Upload, UploadState
from ingot.client.errors import DownloadDamaged
from ingot.client.retry_policy import RetryPolicy
from ingot.client.synchronous.download import SyncSignedDownload
from ingot.client.synchronous.upload import SyncUploader
from ingot.client.upload_source import Digests, UploadSource
from ingot.jobs.checks import PAYLOAD_BLOB_BYTES_MAX
from ingot.jobs.files import CHECKPOINT_BYTES_MAX, CHECKPOINT_HINT, PAYLOAD, FileNotFound
from ingot.jobs.model import Job
from ingot.kernel.errors import InvalidInput
from ingot.wire.blobs import PartToSign, SignPartsResponse, UploadPlan, UploadResponse
from ingot.wire.files import FileUrl
from ingot.worker.file_requests import (
    DownloadUrlRequest,
    FileRequestSender,
    PartUrlsRequest,
    UploadCompletionRequest,
    UploadKind,
    UploadPlanRequest,
    UploadRenewalRequest,
)
from ingot.worker.signed_url_client import SignedUrlClient

RETRY_POLICY: Final = RetryPolicy(
    retry_seconds=30.0
)  # With an address that does not answer; whatever gets on begins it anew.
FILE_NAME_BYTES_MAX: Final = 255  # What file systems take; a name may have as many characters.
LOG_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
EVENT_LOOP_HINT: Final = "In an async handler: `await asyncio.to_thread(job.{})`, with what it is given behind it."

FileContent = str | bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]


class UploadedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An output that is there, and a file of the job once that has succeeded. It can be the result."""

    name: str
    blob_id: str
    size: int


class AttemptFiles:
    """Moves the files of one attempt, in the thread that asks for it. `check` raises when the attempt is to stop.

    The bytes go over `http`, or over one that it makes.
    """

    def __init__(
        self,
        data: Job,
        asker: FileRequestSender,
        room: Callable[[], Path],
        check: Callable[[], None],
        *,
        http: SignedUrlClient | None = None,
    ) -> None:
        self._job = data
        self._send_request = asker
        self._create_workdir = room
        self._check = check
        self._part_numbers = count(1)
        self._save_lock = threading.Lock()
        self._saved_names: set[str] = set()  # What this attempt has saved.
        self._http = http

    def close(self) -> None:
        """Let go of connections."""
        if self._http is not None:
            self._http.close()

    def _signed_url_client(self) -> SignedUrlClient:
        if self._http is None:
            self._http = SignedUrlClient(RETRY_POLICY)
        return self._http

    # -- what it was given ----------------------------------------------------------------------------------

    def download(self, name: str | None = None) -> Path:
        """See `WorkerJob.download`."""
        _require_no_event_loop("download")
        known = self._only_input_name() if name is None else name
        if known not in self._job.inputs:
            raise FileNotFound(f"the job has no input {known[:64]!r}", hint=self._inputs_hint())
        room = self._create_workdir()
        part = room / f"part-{next(self._part_numbers)}"
        folder = room / "inputs"
        folder.mkdir(exist_ok=True)
        with part.open("wb") as file:
            self._fetch(DownloadUrlRequest(kind="input", name=known), self._job.inputs[known], file.write)
        path = folder / _local_file_name(known)
        part.replace(path)
        return path

    def read_payload(self, blob_id: str) -> bytes:
        """The JSON text of a payload that travels as a blob. Raises `InvalidInput` when it is larger than any is."""
        found = _BoundedBuffer(PAYLOAD_BLOB_BYTES_MAX, what="the payload", hint="Send it as an input.")
        self._fetch(DownloadUrlRequest(kind="payload", name=PAYLOAD), blob_id, found.write)
        return bytes(found)

    def _fetch(
        self, ask: DownloadUrlRequest, blob_id: str, take: Callable[[bytes], object], *, file_url: FileUrl | None = None
    ) -> None:
        told = file_url or self._request_file_url(ask)
        hasher = blake3.blake3()
        with closing(self._read_parts(ask, blob_id, told)) as parts:
            for part in parts:
                self._check()
                hasher.update(part)
                take(part)
        if hasher.hexdigest() != blob_id:
            raise DownloadDamaged(f"the bytes that came are not those of {ask.name[:64]!r}")

    def _read_parts(self, ask: DownloadUrlRequest, blob_id: str, told: FileUrl) -> Generator[bytes, None, None]:
        """The bytes of a file: those that were told, or else from there, and from where it is told anew."""
        if told.data is not None:
            yield told.data
            return
        addresses = [told.url]

        def address() -> str:
            self._check()
            return addresses.pop() if addresses else self._request_file_url(ask).url

        with closing(SyncSignedDownload(self._signed_url_client(), address, blob_id=blob_id).chunks()) as chunks:
            yield from chunks

    def _request_file_url(self, ask: DownloadUrlRequest) -> FileUrl:
        """Where the bytes are, and those of a small file themselves."""
        self._check()
        return msgspec.json.decode(self._send_request(ask), type=FileUrl)

    def _only_input_name(self) -> str:
        if len(self._job.inputs) != 1:
            raise FileNotFound(f"the job has {len(self._job.inputs)} inputs, not one", hint=self._inputs_hint())
        return next(iter(self._job.inputs))

    def _inputs_hint(self) -> str:
        names = ", ".join(sorted(self._job.inputs)[:20])
        return f"Its inputs are {names}." if names else "Name files with `client.submit(…, file=…)` or `inputs=…`."

    # -- what it saves --------------------------------------------------------------------------------------

    def save(self, source: FileContent, name: str) -> None:
        """See `WorkerJob.save`."""
        _require_no_event_loop("save")
        known = checks.file_name(name, name="name")
        # One after the other: what is saved under a name forgets the upload of what was saved under it before.
        with self._save_lock, UploadSource(_content_to_send(source)) as outgoing:
            if outgoing.size is not None and outgoing.size > CHECKPOINT_BYTES_MAX:
                raise InvalidInput(f"a checkpoint has up to {CHECKPOINT_BYTES_MAX} bytes", hint=CHECKPOINT_HINT)
            self._upload(outgoing, kind="checkpoint", name=known)
            self._saved_names.add(known)

    def saved(self, name: str) -> bytes | None:
        """See `WorkerJob.saved`."""
        _require_no_event_loop("saved")
        ask = DownloadUrlRequest(kind="checkpoint", name=checks.file_name(name, name="name"))
        self._check()
        if self._job.attempts <= 1 and ask.name not in self._saved_names:
            return None  # Nobody was there before to save it.
        try:
            told = self._request_file_url(ask)
        except FileNotFound:
            return None
        found = _BoundedBuffer(CHECKPOINT_BYTES_MAX, what="the checkpoint", hint=CHECKPOINT_HINT)
        self._fetch(ask, told.blob_id, found.write, file_url=told)
        return bytes(found)

    # -- what it makes --------------------------------------------------------------------------------------

    def upload(self, source: FileContent, name: str, content_type: str | None = None) -> UploadedOutput:
        """See `WorkerJob.upload`."""
        _require_no_event_loop("upload")
        known = checks.file_name(name, name="name")
        with UploadSource(_content_to_send(source)) as outgoing:
            digests = self._upload(outgoing, kind="output", name=known, content_type=content_type)
        return UploadedOutput(name=known, blob_id=digests.blob_id, size=digests.hashed_bytes)

    def upload_log(self, log: IO[bytes]) -> None:
        """Send what the attempt wrote."""
        with UploadSource(log) as outgoing:
            self._upload(outgoing, kind="log", content_type=LOG_CONTENT_TYPE)

    def _upload(
        self, outgoing: UploadSource, *, kind: UploadKind, name: str | None = None, content_type: str | None = None
    ) -> Digests:
        if outgoing.size is None:
            raise InvalidInput("what can be read only once cannot be sent", hint="Store it in a file first.")
        digests = Digests()
        while digests.hashed_bytes < outgoing.size:
            self._check()
            digests.hash_more(outgoing)
        desk = _AttemptUploadSession(
            self._send_request,
            UploadPlanRequest(
                kind=kind,
                name=name,
                size=outgoing.size,
                blob_id=digests.blob_id,
                sha256=digests.sha256,
                content_type=content_type or (None if name is None else checks.guess_content_type(name)),
                data=outgoing.read(0, outgoing.size) if outgoing.size <= INLINE_BYTES_MAX else None,
            ),
            self._check,
        )
        SyncUploader(self._signed_url_client(), outgoing, desk, progress=lambda _done, _total: self._check()).run()
        return digests


class _BoundedBuffer(bytearray):
    """Bytes that come, up to so many. Raises `InvalidInput` for more."""

    def __init__(self, most: int, *, what: str, hint: str) -> None:
        super().__init__()
        self._bytes_max, self._what, self._hint = most, what, hint

    def write(self, data: bytes) -> None:
        """Some more of them."""
        if len(self) + len(data) > self._bytes_max:
            raise InvalidInput(f"{self._what} has more than {self._bytes_max} bytes", hint=self._hint)
        self.extend(data)


class _AttemptUploadSession:
    """Plans one upload of an attempt. One that is left behind is swept when the attempt ends."""

    def __init__(self, asker: FileRequestSender, order: UploadPlanRequest, check: Callable[[], None]) -> None:
        self._send_request = asker
        self._upload_request = order
        self._check = check
        self._completed_upload: Upload | None = None

    def begin(self) -> tuple[UploadPlan, list[int]]:
        """Begin the upload. What came with all of its data, or is there already, is done."""
        plan = msgspec.json.decode(self._send_request(self._upload_request), type=UploadPlan)
        self._completed_upload = plan.upload if plan.upload.state is UploadState.DONE else None
        return plan, []

    def renew_url(self, id: str) -> UploadResponse:
        """How it goes on at an address that is new."""
        self._check()
        return msgspec.json.decode(self._send_request(UploadRenewalRequest(upload_id=id)), type=UploadResponse)

    def sign_part(self, id: str, part: PartToSign) -> SignPartsResponse:
        """Where a part is sent to."""
        return msgspec.json.decode(
            self._send_request(PartUrlsRequest(upload_id=id, parts=[part])), type=SignPartsResponse
        )

    def complete(self, id: str) -> UploadResponse:
        """All bytes are sent. What is large is read back for a while, and asked for until it was."""
        self._check()
        if self._completed_upload is not None:
            return UploadResponse(upload=self._completed_upload)
        return msgspec.json.decode(self._send_request(UploadCompletionRequest(upload_id=id)), type=UploadResponse)

    def abort(self, id: str) -> None:
        """Nothing comes of it."""


def _content_to_send(source: FileContent) -> bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]:
    """What is sent. A text is sent as it is, and never taken for the name of a file."""
    if not isinstance(source, str):
        return source
    with suppress(OSError, ValueError):
        if source and "\n" not in source and Path(source).is_file():
            raise InvalidInput(
                f"{source[:64]!r} is a text, and the name of a file too",
                hint="For the file write Path(…), and for the text itself text.encode().",
            )
    return source.encode()


def _local_file_name(name: str) -> str:
    """What a file is called here: as the input, unless that is too long for a file system."""
    known = checks.file_name(name, name="name")
    if len(os.fsencode(known)) <= FILE_NAME_BYTES_MAX:
        return known
    suffix = Path(known).suffix[:16]
    return blake3.blake3(known.encode()).hexdigest() + (suffix if suffix.isascii() else "")


def _require_no_event_loop(method: str) -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput(f"job.{method} waits, and would hold up the event loop", hint=EVENT_LOOP_HINT.format(method))
