"""The files of an attempt: inputs, outputs, checkpoints and the log."""

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

RETRY_POLICY: Final = RetryPolicy(retry_seconds=30.0)  # Time without progress; every transferred part resets it.
FILE_NAME_BYTES_MAX: Final = 255  # The limit of file systems. Names of job files may have 255 characters.
LOG_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
EVENT_LOOP_HINT: Final = "In an async handler, use `await asyncio.to_thread(job.{}, …)`."

FileContent = str | bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]


class UploadedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A stored output, which becomes a file of the job when the attempt succeeds. It can be the job's result."""

    name: str
    blob_id: str
    size: int


class AttemptFiles:
    """Transfers the files of one attempt in the calling thread.

    `check` raises when the attempt has to stop. Without `http`, a client is created when it is first needed.
    """

    def __init__(
        self,
        data: Job,
        send_request: FileRequestSender,
        create_workdir: Callable[[], Path],
        check: Callable[[], None],
        *,
        http: SignedUrlClient | None = None,
    ) -> None:
        self._job = data
        self._send_request = send_request
        self._create_workdir = create_workdir
        self._check = check
        self._part_numbers = count(1)
        self._save_lock = threading.Lock()
        self._saved_names: set[str] = set()  # Names of the checkpoints that this attempt has saved.
        self._http = http

    def close(self) -> None:
        """Close connections."""
        if self._http is not None:
            self._http.close()

    def _signed_url_client(self) -> SignedUrlClient:
        if self._http is None:
            self._http = SignedUrlClient(RETRY_POLICY)
        return self._http

    # -- inputs ---------------------------------------------------------------------------------------------

    def download(self, name: str | None = None) -> Path:
        """See `WorkerJob.download`."""
        _require_no_event_loop("download")
        file_name = self._only_input_name() if name is None else name
        if file_name not in self._job.inputs:
            raise FileNotFound(f"the job has no input {file_name[:64]!r}", hint=self._inputs_hint())
        workdir = self._create_workdir()
        part = workdir / f"part-{next(self._part_numbers)}"
        folder = workdir / "inputs"
        folder.mkdir(exist_ok=True)
        with part.open("wb") as file:
            self._fetch(DownloadUrlRequest(kind="input", name=file_name), self._job.inputs[file_name], file.write)
        path = folder / _local_file_name(file_name)
        part.replace(path)
        return path

    def read_payload(self, blob_id: str) -> bytes:
        """Download the JSON text of a payload that is stored as a blob. Raises `InvalidInput` if it is too large."""
        buffer = _BoundedBuffer(PAYLOAD_BLOB_BYTES_MAX, what="the payload", hint="Send it as an input.")
        self._fetch(DownloadUrlRequest(kind="payload", name=PAYLOAD), blob_id, buffer.write)
        return bytes(buffer)

    def _fetch(
        self,
        request: DownloadUrlRequest,
        blob_id: str,
        write: Callable[[bytes], object],
        *,
        file_url: FileUrl | None = None,
    ) -> None:
        file_url = file_url or self._request_file_url(request)
        hasher = blake3.blake3()
        with closing(self._read_parts(request, blob_id, file_url)) as parts:
            for part in parts:
                self._check()
                hasher.update(part)
                write(part)
        if hasher.hexdigest() != blob_id:
            raise DownloadDamaged(f"the downloaded bytes of {request.name[:64]!r} do not match its BLAKE3")

    def _read_parts(self, request: DownloadUrlRequest, blob_id: str, file_url: FileUrl) -> Generator[bytes, None, None]:
        """Yield the bytes of a file: inline data, or parts from the URL. An expired URL is replaced by a new one."""
        if file_url.data is not None:
            yield file_url.data
            return
        urls = [file_url.url]

        def next_url() -> str:
            self._check()
            return urls.pop() if urls else self._request_file_url(request).url

        with closing(SyncSignedDownload(self._signed_url_client(), next_url, blob_id=blob_id).chunks()) as chunks:
            yield from chunks

    def _request_file_url(self, request: DownloadUrlRequest) -> FileUrl:
        """Request the URL of a file, which includes the data of a small one."""
        self._check()
        return msgspec.json.decode(self._send_request(request), type=FileUrl)

    def _only_input_name(self) -> str:
        if len(self._job.inputs) != 1:
            raise FileNotFound(
                f"download() needs a name, because the job has {len(self._job.inputs)} inputs", hint=self._inputs_hint()
            )
        return next(iter(self._job.inputs))

    def _inputs_hint(self) -> str:
        names = ", ".join(sorted(self._job.inputs)[:20])
        return f"Its inputs are {names}." if names else "Submit files with `client.submit(…, file=…)` or `inputs=…`."

    # -- checkpoints ----------------------------------------------------------------------------------------

    def save(self, source: FileContent, name: str) -> None:
        """See `WorkerJob.save`."""
        _require_no_event_loop("save")
        file_name = checks.file_name(name, name="name")
        # Save one at a time: a save makes the server forget earlier uploads of the same checkpoint.
        with self._save_lock, UploadSource(_content_to_send(source)) as upload_source:
            if upload_source.size is not None and upload_source.size > CHECKPOINT_BYTES_MAX:
                raise InvalidInput(
                    f"a checkpoint can have at most {CHECKPOINT_BYTES_MAX} bytes, got {upload_source.size}",
                    hint=CHECKPOINT_HINT,
                )
            self._upload(upload_source, kind="checkpoint", name=file_name)
            self._saved_names.add(file_name)

    def saved(self, name: str) -> bytes | None:
        """See `WorkerJob.saved`."""
        _require_no_event_loop("saved")
        request = DownloadUrlRequest(kind="checkpoint", name=checks.file_name(name, name="name"))
        self._check()
        if self._job.attempts <= 1 and request.name not in self._saved_names:
            return None  # No earlier attempt can have saved it.
        try:
            file_url = self._request_file_url(request)
        except FileNotFound:
            return None
        buffer = _BoundedBuffer(CHECKPOINT_BYTES_MAX, what="the checkpoint", hint=CHECKPOINT_HINT)
        self._fetch(request, file_url.blob_id, buffer.write, file_url=file_url)
        return bytes(buffer)

    # -- outputs and the log --------------------------------------------------------------------------------

    def upload(self, source: FileContent, name: str, content_type: str | None = None) -> UploadedOutput:
        """See `WorkerJob.upload`."""
        _require_no_event_loop("upload")
        file_name = checks.file_name(name, name="name")
        with UploadSource(_content_to_send(source)) as upload_source:
            digests = self._upload(upload_source, kind="output", name=file_name, content_type=content_type)
        return UploadedOutput(name=file_name, blob_id=digests.blob_id, size=digests.hashed_bytes)

    def upload_log(self, log: IO[bytes]) -> None:
        """Upload the log of the attempt."""
        with UploadSource(log) as upload_source:
            self._upload(upload_source, kind="log", content_type=LOG_CONTENT_TYPE)

    def _upload(
        self, upload_source: UploadSource, *, kind: UploadKind, name: str | None = None, content_type: str | None = None
    ) -> Digests:
        if upload_source.size is None:
            raise InvalidInput(
                "the source cannot be sent because it is not seekable", hint="Write its data to a file first."
            )
        digests = Digests()
        while digests.hashed_bytes < upload_source.size:
            self._check()
            digests.hash_more(upload_source)
        upload_session = _AttemptUploadSession(
            self._send_request,
            UploadPlanRequest(
                kind=kind,
                name=name,
                size=upload_source.size,
                blob_id=digests.blob_id,
                sha256=digests.sha256,
                content_type=content_type or (None if name is None else checks.guess_content_type(name)),
                data=upload_source.read(0, upload_source.size) if upload_source.size <= INLINE_BYTES_MAX else None,
            ),
            self._check,
        )
        SyncUploader(
            self._signed_url_client(), upload_source, upload_session, progress=lambda _done, _total: self._check()
        ).run()
        return digests


class _BoundedBuffer(bytearray):
    """A buffer of limited size. `write` raises `InvalidInput` when the limit is exceeded."""

    def __init__(self, bytes_max: int, *, what: str, hint: str) -> None:
        super().__init__()
        self._bytes_max, self._what, self._hint = bytes_max, what, hint

    def write(self, data: bytes) -> None:
        """Append data."""
        if len(self) + len(data) > self._bytes_max:
            raise InvalidInput(f"{self._what} has more than {self._bytes_max} bytes", hint=self._hint)
        self.extend(data)


class _AttemptUploadSession:
    """One upload of an attempt. The server removes unfinished uploads when the attempt ends."""

    def __init__(
        self, send_request: FileRequestSender, upload_request: UploadPlanRequest, check: Callable[[], None]
    ) -> None:
        self._send_request = send_request
        self._upload_request = upload_request
        self._check = check
        self._completed_upload: Upload | None = None

    def begin(self) -> tuple[UploadPlan, list[int]]:
        """Begin the upload. It is complete if the request contains the data or the server has the blob already."""
        plan = msgspec.json.decode(self._send_request(self._upload_request), type=UploadPlan)
        self._completed_upload = plan.upload if plan.upload.state is UploadState.DONE else None
        return plan, []

    def renew_url(self, id: str) -> UploadResponse:
        """Request a new URL for the upload."""
        self._check()
        return msgspec.json.decode(self._send_request(UploadRenewalRequest(upload_id=id)), type=UploadResponse)

    def sign_part(self, id: str, part: PartToSign) -> SignPartsResponse:
        """Request the URL of a part."""
        return msgspec.json.decode(
            self._send_request(PartUrlsRequest(upload_id=id, parts=[part])), type=SignPartsResponse
        )

    def complete(self, id: str) -> UploadResponse:
        """Complete the upload after all bytes were sent. The server may take a while to verify a large file."""
        self._check()
        if self._completed_upload is not None:
            return UploadResponse(upload=self._completed_upload)
        return msgspec.json.decode(self._send_request(UploadCompletionRequest(upload_id=id)), type=UploadResponse)

    def abort(self, id: str) -> None:
        """Do nothing: the server removes the upload when the attempt ends."""


def _content_to_send(source: FileContent) -> bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]:
    """Return the content to send. A string is content, never a path: a string that names a file is rejected."""
    if not isinstance(source, str):
        return source
    with suppress(OSError, ValueError):
        if source and "\n" not in source and Path(source).is_file():
            raise InvalidInput(
                f"{source[:64]!r} is ambiguous: it is a string and the name of an existing file",
                hint="Pass Path(…) to send the file, or text.encode() to send the string.",
            )
    return source.encode()


def _local_file_name(name: str) -> str:
    """Return the local name of an input: its own name, or a hash if that is too long for file systems."""
    file_name = checks.file_name(name, name="name")
    if len(os.fsencode(file_name)) <= FILE_NAME_BYTES_MAX:
        return file_name
    suffix = Path(file_name).suffix[:16]
    return blake3.blake3(file_name.encode()).hexdigest() + (suffix if suffix.isascii() else "")


def _require_no_event_loop(method: str) -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput(f"job.{method} would block the event loop", hint=EVENT_LOOP_HINT.format(method))
