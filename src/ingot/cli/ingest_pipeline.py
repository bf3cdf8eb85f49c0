"""Documents on their way through a server: sent several at a time, waited for, and what came of them fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final

import msgspec

from ingot.blobs.checks import file_name
from ingot.cli.document_files import DocumentFile, read_document
from ingot.cli.job_submission import raise_unless_succeeded
from ingot.cli.local_files import is_downloaded, translate_os_errors
from ingot.cli.progress import POLL_SECONDS, StepBar, progress_suffix
from ingot.client import Client, SyncJob
from ingot.client.concurrency import sync_for_each
from ingot.client.errors import DownloadUnderWay, NotInTime, ServerUnreachable
from ingot.jobs.files import JobFile
from ingot.jobs.model import JobStatus
from ingot.jobs.worker_model import WorkerStatus
from ingot.kernel.errors import Conflict, IngotError, InvalidInput
from ingot.kernel.ids import new_id
from ingot.worker.handlers import BUILT_IN_HANDLERS

CONCURRENT_SUBMITS_MAX: Final = 8
CONCURRENT_WAITS_MAX: Final = 8
OTHER_DOWNLOAD_SECONDS_MAX: Final = 60.0
OTHER_DOWNLOAD_POLL_SECONDS: Final = 0.2
UNAUTHORIZED: Final = 401
NO_WORKER_CODE: Final = "no_worker"


class IngestFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with a document."""

    code: str
    detail: str
    hint: str


class IngestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a document. `reused` says that its job was there before."""

    path: str
    type: str
    job_id: str | None = None
    status: JobStatus | None = None
    reused: bool = False
    outputs: list[str] = []
    error: IngestFailure | None = None


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with every document.

    `order` says how jobs are to be, `output` where to what they made is fetched, `until` for how long to wait.
    """

    payload: object = None
    job_options: dict[str, Any] = {}
    wait: bool = False
    output: Path | None = None
    replace: bool = False
    deadline: float | None = None


class IngestBars(msgspec.Struct, frozen=True):
    """The bars: bytes that are hashed, bytes that are sent, and documents that are done."""

    hashing: StepBar
    sending: StepBar
    working: StepBar


class IngestPipeline:
    """Many documents on the same course. `tell` is called with what became of each, in their order.

    An error that would be that of all ends it: the server is not there any more, or does not know us.
    """

    def __init__(
        self,
        client: Client,
        course: IngestOptions,
        steps: IngestBars,
        *,
        report: Callable[[IngestOutcome, IngotError | None], None],
        print_message: Callable[[str], None],
    ) -> None:
        self._client = client
        self._options = course
        self._bars = steps
        self._report = report
        self._print_message = print_message
        self._run_id = new_id()
        self._submitted: SimpleQueue[tuple[int, DocumentFile, SyncJob] | None] = SimpleQueue()
        self._pending_reports: dict[int, Callable[[], None]] = {}
        self._reported = 0
        self._stopped = False
        self._lock = Lock()
        self._warned_types: set[str] = set()

    def run(self, documents: Sequence[DocumentFile]) -> None:
        """Bring all of them to their end. Raises what ends them all."""
        places = OutputFolders(self._options.output)

        def send_all() -> None:
            sync_for_each(self._submit, enumerate(map(places.assign, documents)), limit=CONCURRENT_SUBMITS_MAX)
            for _ in range(CONCURRENT_WAITS_MAX):
                self._submitted.put(None)

        def follow_some() -> None:
            while (made := self._submitted.get()) is not None:
                self._wait_and_fetch(*made)

        works = [send_all, *[follow_some] * (CONCURRENT_WAITS_MAX if self._options.wait else 0)]
        try:
            sync_for_each(lambda work: work(), works, limit=len(works))
        finally:
            self._flush_reports()

    def _flush_reports(self) -> None:
        """Tell what waits for others that are not done any more; and nothing after that."""
        with self._lock:
            self._stopped = True
            for number in sorted(self._pending_reports):
                self._pending_reports[number]()

    # -- there ------------------------------------------------------------------------------------------------

    def _submit(self, numbered: tuple[int, tuple[DocumentFile, IngotError | None]]) -> None:
        """Ask for the job of a document, and send what is needed for it."""
        if self._stopped:
            return
        number, (document, wrong) = numbered
        hashing, sending = self._bars.hashing.item(document.size), self._bars.sending.item(document.size)
        try:
            if wrong is not None:
                raise wrong
            name = _utf8_name(document.path)
            source = read_document(document)
            with translate_os_errors(f"{document.path} cannot be read"):
                job = self._client.submit(
                    document.type,
                    self._options.payload,
                    file={name: source},
                    hashing=hashing,
                    progress=sending,
                    idempotency_key=f"{self._run_id}:{number}",  # An answer that is lost is asked for again.
                    metadata={"path": document.relative_path.as_posix()},
                    **self._options.job_options,
                )
        except IngotError as error:
            self._finish(number, document, error=error)
        else:
            self._warn_if_no_worker(job)
            if self._options.wait:
                self._submitted.put((number, document, job))
            else:
                self._finish(number, document, job)
        finally:
            hashing.finish()
            sending.finish()

    def _warn_if_no_worker(self, job: SyncJob) -> None:
        """Say that nobody works on this type, once."""
        with self._lock:
            if job.type in self._warned_types or job.status is not JobStatus.QUEUED:
                return
            self._warned_types.add(job.type)
        with suppress(IngotError):  # Who may make jobs need not be one who may look at them.
            reasons = {reason.code for reason in job.explain().reasons}
            if NO_WORKER_CODE in reasons and not self._has_worker(job.type):
                handlers = f"--handlers {job.type}" if job.type in BUILT_IN_HANDLERS else "--app app:worker"
                self._print_message(f"No worker for {job.type} is online; start one: ingot worker {handlers}")

    def _has_worker(self, type: str) -> bool:
        """Whether one is there that may be too busy to ask."""
        for shared in (False, True):
            with suppress(IngotError):
                for worker in self._client.workers(shared=shared):
                    if worker.status is WorkerStatus.ONLINE and type in worker.types:
                        return True
        return False

    # -- and back ---------------------------------------------------------------------------------------------

    def _wait_and_fetch(self, number: int, document: DocumentFile, job: SyncJob) -> None:
        """Wait for a job, and fetch what it has made."""
        outputs: list[str] = []
        try:
            while not job.finished:
                self._bars.working.describe(f"{document.relative_path}{progress_suffix(job.data)}")
                job.data = self._client.read(job.id, wait_seconds=self._next_wait_seconds(job))
            raise_unless_succeeded([job.data])
            if self._options.output is not None:
                outputs = self._download_outputs(job.files(), output_folder(self._options.output, document))
        except IngotError as error:
            self._finish(number, document, job, error=error)
        else:
            self._finish(number, document, job, outputs=outputs)

    def _next_wait_seconds(self, job: SyncJob) -> float:
        left = POLL_SECONDS if self._options.deadline is None else self._options.deadline - time.monotonic()
        if left <= 0:
            raise NotInTime(
                f"the job {job.id} is {job.status} when the time is over",
                hint="It goes on; the same command waits again.",
            )
        return min(POLL_SECONDS, left)

    def _download_outputs(self, files: Sequence[JobFile], folder: Path) -> list[str]:
        """Fetch outputs unless they are there, and answer where they are. Raises `Conflict` before any is fetched."""
        targets = {file: folder / file_name(file.name, name="name") for file in files if file.kind == "output"}
        with translate_os_errors(f"{folder} cannot be written to"):
            for file in self._missing_files(targets, folder):
                self._download_output(file, targets[file])
        return [printable_path(target) for target in targets.values()]

    def _download_output(self, file: JobFile, target: Path) -> None:
        """Fetch an output. One that somebody else fetches to the same place is waited for."""
        until = time.monotonic() + OTHER_DOWNLOAD_SECONDS_MAX
        while True:
            try:
                self._client.blobs.save(file.blob_id, file.size, target)
                return
            except DownloadUnderWay:
                if time.monotonic() > until:
                    raise
                time.sleep(OTHER_DOWNLOAD_POLL_SECONDS)
                if is_downloaded(target, file.blob_id, file.size, replace=self._options.replace):
                    return

    def _missing_files(self, targets: dict[JobFile, Path], folder: Path) -> list[JobFile]:
        """Those that are not there yet; the folder for them is."""
        replace = self._options.replace
        missing = [
            file for file, to in targets.items() if not is_downloaded(to, file.blob_id, file.size, replace=replace)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        return missing

    # -- what became of them ----------------------------------------------------------------------------------

    def _finish(
        self,
        number: int,
        document: DocumentFile,
        job: SyncJob | None = None,
        *,
        outputs: Sequence[str] = (),
        error: IngotError | None = None,
    ) -> None:
        """Tell what became of a document, once those before it are told. Raises an error that is that of all."""
        outcome = IngestOutcome(
            path=printable_path(document.path),
            type=document.type,
            job_id=None if job is None else job.id,
            status=None if job is None else job.status,
            reused=bool(getattr(job, "reused", False)),
            outputs=list(outputs),
            error=None if error is None else IngestFailure(code=error.code, detail=error.detail, hint=error.hint),
        )
        self._bars.working.advance(1)
        self._report_in_order(number, lambda: self._report(outcome, error))
        if isinstance(error, ServerUnreachable) or (error is not None and error.status == UNAUTHORIZED):
            raise error

    def _report_in_order(self, number: int, do: Callable[[], None]) -> None:
        with self._lock:
            if self._stopped:
                return
            self._pending_reports[number] = do
            while (first := self._pending_reports.pop(self._reported, None)) is not None:
                self._reported += 1
                first()


class OutputFolders:
    """Where what comes of documents goes to: each has a folder of its own."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._documents_by_folder: dict[Path, Path] = {}

    def assign(self, document: DocumentFile) -> tuple[DocumentFile, IngotError | None]:
        """A document, and what is wrong when another one has its folder."""
        if self._output is None:
            return document, None
        folder = output_folder(self._output, document)
        other = self._documents_by_folder.setdefault(folder, document.path)
        if other is document.path:
            return document, None
        return document, Conflict(
            f"{printable_path(document.path)} and {printable_path(other)} would both be written to "
            f"{printable_path(folder)}",
            hint="Ingest them with another --output each, or leave one out with --exclude.",
        )


def output_folder(output: Path, document: DocumentFile) -> Path:
    """The folder for what comes of a document: its path from what was named on, without the end of its name."""
    bare = document.relative_path.with_suffix("")
    return output / (document.relative_path if bare.name.strip(".") == "" else bare)


def printable_path(path: Path) -> str:
    """A path as it can be written, in one line; of a name that is no UTF-8 what can be."""
    text = str(path).encode(errors="surrogateescape").decode(errors="replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _utf8_name(path: Path) -> str:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the name of {printable_path(path)} is no UTF-8",
            hint="Rename it; what a job is given has a name in UTF-8.",
        ) from None
    return path.name
