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
from ingot.client.outgoing import Digests, Outgoing
from ingot.client.patience import Patience
from ingot.client.synchronous.download import SyncSignedDownload
from ingot.client.synchronous.upload import SyncUpload
from ingot.jobs.checks import PAYLOAD_BLOB_BYTES_MAX
from ingot.jobs.files import CHECKPOINT_BYTES_MAX, CHECKPOINT_HINT, PAYLOAD, FileNotFound
from ingot.jobs.model import Job
from ingot.kernel.errors import InvalidInput
from ingot.wire.blobs import PartOrder, PartsAnswer, UploadAnswer, UploadPlan
from ingot.wire.files import FileUrl
from ingot.worker.asks import AskComplete, AskDownload, Asker, AskParts, AskRenewed, AskUpload, Sent
from ingot.worker.lean_bytes import BytesHttp

PATIENCE: Final = Patience(seconds=30.0)  # With an address that does not answer; whatever gets on begins it anew.
FILE_NAME_BYTES_MAX: Final = 255  # What file systems take; a name may have as many characters.
LOG_TYPE: Final = "text/plain; charset=utf-8"
LOOP_HINT: Final = "In an async handler: `await asyncio.to_thread(job.{})`, with what it is given behind it."

Source = str | bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """An output that is there, and a file of the job once that has succeeded. It can be the result."""

    name: str
    blob_id: str
    size: int


class Files:
    """Moves the files of one attempt, in the thread that asks for it. `check` raises when the attempt is to stop.

    The bytes go over `http`, or over one that it makes.
    """

    def __init__(
        self,
        data: Job,
        asker: Asker,
        room: Callable[[], Path],
        check: Callable[[], None],
        *,
        http: BytesHttp | None = None,
    ) -> None:
        self._data = data
        self._ask = asker
        self._room = room
        self._check = check
        self._numbers = count(1)
        self._saving = threading.Lock()
        self._saved: set[str] = set()  # What this attempt has saved.
        self._http = http

    def close(self) -> None:
        """Let go of connections."""
        if self._http is not None:
            self._http.close()

    def _bytes_http(self) -> BytesHttp:
        if self._http is None:
            self._http = BytesHttp(PATIENCE)
        return self._http

    # -- what it was given ----------------------------------------------------------------------------------

    def download(self, name: str | None = None) -> Path:
        """See `WorkerJob.download`."""
        _expect_no_loop("download")
        known = self._only_input() if name is None else name
        if known not in self._data.inputs:
            raise FileNotFound(f"the job has no input {known[:64]!r}", hint=self._inputs_hint())
        room = self._room()
        part = room / f"part-{next(self._numbers)}"
        folder = room / "inputs"
        folder.mkdir(exist_ok=True)
        with part.open("wb") as file:
            self._fetch(AskDownload(kind="input", name=known), self._data.inputs[known], file.write)
        path = folder / _file_name(known)
        part.replace(path)
        return path

    def payload(self, blob_id: str) -> bytes:
        """The JSON text of a payload that travels as a blob. Raises `InvalidInput` when it is larger than any is."""
        found = _Bounded(PAYLOAD_BLOB_BYTES_MAX, what="the payload", hint="Send it as an input.")
        self._fetch(AskDownload(kind="payload", name=PAYLOAD), blob_id, found.take)
        return bytes(found)

    def _fetch(
        self, ask: AskDownload, blob_id: str, take: Callable[[bytes], object], *, first: FileUrl | None = None
    ) -> None:
        told = first or self._where(ask)
        hasher = blake3.blake3()
        with closing(self._parts(ask, blob_id, told)) as parts:
            for part in parts:
                self._check()
                hasher.update(part)
                take(part)
        if hasher.hexdigest() != blob_id:
            raise DownloadDamaged(f"the bytes that came are not those of {ask.name[:64]!r}")

    def _parts(self, ask: AskDownload, blob_id: str, told: FileUrl) -> Generator[bytes, None, None]:
        """The bytes of a file: those that were told, or else from there, and from where it is told anew."""
        if told.data is not None:
            yield told.data
            return
        addresses = [told.url]

        def address() -> str:
            self._check()
            return addresses.pop() if addresses else self._where(ask).url

        with closing(SyncSignedDownload(self._bytes_http(), address, blob_id=blob_id).parts()) as parts:
            yield from parts

    def _where(self, ask: AskDownload) -> FileUrl:
        """Where the bytes are, and those of a small file themselves."""
        self._check()
        return msgspec.json.decode(self._ask(ask), type=FileUrl)

    def _only_input(self) -> str:
        if len(self._data.inputs) != 1:
            raise FileNotFound(f"the job has {len(self._data.inputs)} inputs, not one", hint=self._inputs_hint())
        return next(iter(self._data.inputs))

    def _inputs_hint(self) -> str:
        names = ", ".join(sorted(self._data.inputs)[:20])
        return f"Its inputs are {names}." if names else "Name files with `client.submit(…, file=…)` or `inputs=…`."

    # -- what it saves --------------------------------------------------------------------------------------

    def save(self, source: Source, name: str) -> None:
        """See `WorkerJob.save`."""
        _expect_no_loop("save")
        known = checks.file_name(name, what="name")
        # One after the other: what is saved under a name forgets the upload of what was saved under it before.
        with self._saving, Outgoing(_sendable(source)) as outgoing:
            if outgoing.size is not None and outgoing.size > CHECKPOINT_BYTES_MAX:
                raise InvalidInput(f"a checkpoint has up to {CHECKPOINT_BYTES_MAX} bytes", hint=CHECKPOINT_HINT)
            self._send(outgoing, kind="checkpoint", name=known)
            self._saved.add(known)

    def saved(self, name: str) -> bytes | None:
        """See `WorkerJob.saved`."""
        _expect_no_loop("saved")
        ask = AskDownload(kind="checkpoint", name=checks.file_name(name, what="name"))
        self._check()
        if self._data.attempts <= 1 and ask.name not in self._saved:
            return None  # Nobody was there before to save it.
        try:
            told = self._where(ask)
        except FileNotFound:
            return None
        found = _Bounded(CHECKPOINT_BYTES_MAX, what="the checkpoint", hint=CHECKPOINT_HINT)
        self._fetch(ask, told.blob_id, found.take, first=told)
        return bytes(found)

    # -- what it makes --------------------------------------------------------------------------------------

    def upload(self, source: Source, name: str, content_type: str | None = None) -> Uploaded:
        """See `WorkerJob.upload`."""
        _expect_no_loop("upload")
        known = checks.file_name(name, what="name")
        with Outgoing(_sendable(source)) as outgoing:
            digests = self._send(outgoing, kind="output", name=known, content_type=content_type)
        return Uploaded(name=known, blob_id=digests.blob_id, size=digests.done)

    def upload_log(self, log: IO[bytes]) -> None:
        """Send what the attempt wrote."""
        with Outgoing(log) as outgoing:
            self._send(outgoing, kind="log", content_type=LOG_TYPE)

    def _send(
        self, outgoing: Outgoing, *, kind: Sent, name: str | None = None, content_type: str | None = None
    ) -> Digests:
        if outgoing.size is None:
            raise InvalidInput("what can be read only once cannot be sent", hint="Store it in a file first.")
        digests = Digests()
        while digests.done < outgoing.size:
            self._check()
            digests.take(outgoing)
        desk = _UploadDesk(
            self._ask,
            AskUpload(
                kind=kind,
                name=name,
                size=outgoing.size,
                blob_id=digests.blob_id,
                sha256=digests.sha256,
                content_type=content_type or (None if name is None else checks.guess_type(name)),
                data=outgoing.read(0, outgoing.size) if outgoing.size <= INLINE_BYTES_MAX else None,
            ),
            self._check,
        )
        SyncUpload(self._bytes_http(), outgoing, desk, progress=lambda _done, _total: self._check()).run()
        return digests


class _Bounded(bytearray):
    """Bytes that come, up to so many. Raises `InvalidInput` for more."""

    def __init__(self, most: int, *, what: str, hint: str) -> None:
        super().__init__()
        self._most, self._what, self._hint = most, what, hint

    def take(self, data: bytes) -> None:
        """Some more of them."""
        if len(self) + len(data) > self._most:
            raise InvalidInput(f"{self._what} has more than {self._most} bytes", hint=self._hint)
        self.extend(data)


class _UploadDesk:
    """Plans one upload of an attempt. One that is left behind is swept when the attempt ends."""

    def __init__(self, asker: Asker, order: AskUpload, check: Callable[[], None]) -> None:
        self._ask = asker
        self._order = order
        self._check = check
        self._done: Upload | None = None

    def begin(self) -> tuple[UploadPlan, list[int]]:
        """Begin the upload. What came with all of its data, or is there already, is done."""
        plan = msgspec.json.decode(self._ask(self._order), type=UploadPlan)
        self._done = plan.upload if plan.upload.state is UploadState.DONE else None
        return plan, []

    def renewed(self, id: str) -> UploadAnswer:
        """How it goes on at an address that is new."""
        self._check()
        return msgspec.json.decode(self._ask(AskRenewed(upload_id=id)), type=UploadAnswer)

    def signed(self, id: str, part: PartOrder) -> PartsAnswer:
        """Where a part is sent to."""
        return msgspec.json.decode(self._ask(AskParts(upload_id=id, parts=[part])), type=PartsAnswer)

    def complete(self, id: str) -> UploadAnswer:
        """All bytes are sent. What is large is read back for a while, and asked for until it was."""
        self._check()
        if self._done is not None:
            return UploadAnswer(upload=self._done)
        return msgspec.json.decode(self._ask(AskComplete(upload_id=id)), type=UploadAnswer)

    def give_up(self, id: str) -> None:
        """Nothing comes of it."""


def _sendable(source: Source) -> bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]:
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


def _file_name(name: str) -> str:
    """What a file is called here: as the input, unless that is too long for a file system."""
    known = checks.file_name(name, what="name")
    if len(os.fsencode(known)) <= FILE_NAME_BYTES_MAX:
        return known
    suffix = Path(known).suffix[:16]
    return blake3.blake3(known.encode()).hexdigest() + (suffix if suffix.isascii() else "")


def _expect_no_loop(method: str) -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InvalidInput(f"job.{method} waits, and would hold up the event loop", hint=LOOP_HINT.format(method))
