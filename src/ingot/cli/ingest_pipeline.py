"""Submit documents concurrently, wait for their jobs, and fetch their outputs."""

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
    """The error of a document."""

    code: str
    detail: str
    hint: str


class IngestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a document. `reused` is true if an existing job was reused."""

    path: str
    type: str
    job_id: str | None = None
    status: JobStatus | None = None
    reused: bool = False
    outputs: list[str] = []
    error: IngestFailure | None = None


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options for processing each document.

    `job_options` are passed to `Client.submit`. Outputs are fetched into the folder `output`. `deadline` limits waiting
    and is a value of `time.monotonic()`.
    """

    payload: object = None
    job_options: dict[str, Any] = {}
    wait: bool = False
    output: Path | None = None
    replace: bool = False
    deadline: float | None = None


class IngestBars(msgspec.Struct, frozen=True):
    """Progress bars for hashed bytes, sent bytes, and finished documents."""

    hashing: StepBar
    sending: StepBar
    documents: StepBar


class IngestPipeline:
    """A pipeline that processes many documents with the same options.

    `report` is called with the outcome of each document, in the order of the documents.

    The pipeline ends early with an error that would affect all documents: the server is unreachable, or it rejects the
    credentials.
    """

    def __init__(
        self,
        client: Client,
        options: IngestOptions,
        bars: IngestBars,
        *,
        report: Callable[[IngestOutcome, IngotError | None], None],
        print_message: Callable[[str], None],
    ) -> None:
        self._client = client
        self._options = options
        self._bars = bars
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
        """Process all documents. Raises the error that ends the pipeline early."""
        output_folders = OutputFolders(self._options.output)

        def submit_all() -> None:
            sync_for_each(self._submit, enumerate(map(output_folders.assign, documents)), limit=CONCURRENT_SUBMITS_MAX)
            for _ in range(CONCURRENT_WAITS_MAX):
                self._submitted.put(None)

        def wait_and_fetch_submitted() -> None:
            while (submitted := self._submitted.get()) is not None:
                self._wait_and_fetch(*submitted)

        tasks = [submit_all, *[wait_and_fetch_submitted] * (CONCURRENT_WAITS_MAX if self._options.wait else 0)]
        try:
            sync_for_each(lambda task: task(), tasks, limit=len(tasks))
        finally:
            self._flush_reports()

    def _flush_reports(self) -> None:
        """Report outcomes that still wait for earlier documents, and ignore later outcomes."""
        with self._lock:
            self._stopped = True
            for number in sorted(self._pending_reports):
                self._pending_reports[number]()

    # -- submit -----------------------------------------------------------------------------------------------

    def _submit(self, numbered: tuple[int, tuple[DocumentFile, IngotError | None]]) -> None:
        """Submit the job of a document and upload its file."""
        if self._stopped:
            return
        number, (document, conflict) = numbered
        hashing, sending = self._bars.hashing.item(document.size), self._bars.sending.item(document.size)
        try:
            if conflict is not None:
                raise conflict
            name = _utf8_name(document.path)
            source = read_document(document)
            with translate_os_errors(f"{document.path} cannot be read"):
                job = self._client.submit(
                    document.type,
                    self._options.payload,
                    file={name: source},
                    hashing=hashing,
                    progress=sending,
                    idempotency_key=f"{self._run_id}:{number}",  # Lets the client retry after a lost response.
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
        """Print a warning, once per job type, if no worker is online for it."""
        with self._lock:
            if job.type in self._warned_types or job.status is not JobStatus.QUEUED:
                return
            self._warned_types.add(job.type)
        with suppress(IngotError):  # The token may be allowed to create jobs but not to read them.
            reasons = {reason.code for reason in job.explain().reasons}
            if NO_WORKER_CODE in reasons:
                handlers = f"--handlers {job.type}" if job.type in BUILT_IN_HANDLERS else "--app app:worker"
                self._print_message(f"No worker for {job.type} is online. Start one with: ingot worker {handlers}")

    # -- wait and fetch ---------------------------------------------------------------------------------------

    def _wait_and_fetch(self, number: int, document: DocumentFile, job: SyncJob) -> None:
        """Wait for a job and fetch its outputs."""
        outputs: list[str] = []
        try:
            while not job.finished:
                self._bars.documents.describe(f"{document.relative_path}{progress_suffix(job.data)}")
                job.data = self._client.read(job.id, wait_seconds=self._next_wait_seconds(job))
            raise_unless_succeeded([job.data], self._client)
            if self._options.output is not None:
                outputs = self._download_outputs(job.files(), output_folder(self._options.output, document))
        except IngotError as error:
            self._finish(number, document, job, error=error)
        else:
            self._finish(number, document, job, outputs=outputs)

    def _next_wait_seconds(self, job: SyncJob) -> float:
        remaining = POLL_SECONDS if self._options.deadline is None else self._options.deadline - time.monotonic()
        if remaining <= 0:
            raise NotInTime(
                f"job {job.id} was still {job.status} when --timeout expired",
                hint="The job continues. Run the same command again to wait for it.",
            )
        return min(POLL_SECONDS, remaining)

    def _download_outputs(self, files: Sequence[JobFile], folder: Path) -> list[str]:
        """Fetch missing outputs and return the paths of all. Raises `Conflict` before anything is fetched."""
        targets = {file: folder / file_name(file.name, name="name") for file in files if file.kind == "output"}
        with translate_os_errors(f"{folder} cannot be written to"):
            for file in self._missing_files(targets, folder):
                self._download_output(file, targets[file])
        return [printable_path(target) for target in targets.values()]

    def _download_output(self, file: JobFile, target: Path) -> None:
        """Fetch an output. If another process is fetching it to the same path, wait for that process."""
        deadline = time.monotonic() + OTHER_DOWNLOAD_SECONDS_MAX
        while True:
            try:
                self._client.blobs.save(file.blob_id, file.size, target)
                return
            except DownloadUnderWay:
                if time.monotonic() > deadline:
                    raise
                time.sleep(OTHER_DOWNLOAD_POLL_SECONDS)
                if is_downloaded(target, file.blob_id, file.size, replace=self._options.replace):
                    return

    def _missing_files(self, targets: dict[JobFile, Path], folder: Path) -> list[JobFile]:
        """Return the files whose targets do not exist yet, and create the folder."""
        replace = self._options.replace
        missing = [
            file
            for file, target in targets.items()
            if not is_downloaded(target, file.blob_id, file.size, replace=replace)
        ]
        folder.mkdir(parents=True, exist_ok=True)
        return missing

    # -- outcomes ---------------------------------------------------------------------------------------------

    def _finish(
        self,
        number: int,
        document: DocumentFile,
        job: SyncJob | None = None,
        *,
        outputs: Sequence[str] = (),
        error: IngotError | None = None,
    ) -> None:
        """Report the outcome of a document after those before it. Raises an error that affects all documents."""
        outcome = IngestOutcome(
            path=printable_path(document.path),
            type=document.type,
            job_id=None if job is None else job.id,
            status=None if job is None else job.status,
            reused=bool(getattr(job, "reused", False)),
            outputs=list(outputs),
            error=None if error is None else IngestFailure(code=error.code, detail=error.detail, hint=error.hint),
        )
        self._bars.documents.advance(1)
        self._report_in_order(number, lambda: self._report(outcome, error))
        if isinstance(error, ServerUnreachable) or (error is not None and error.status == UNAUTHORIZED):
            raise error

    def _report_in_order(self, number: int, report: Callable[[], None]) -> None:
        with self._lock:
            if self._stopped:
                return
            self._pending_reports[number] = report
            while (next_report := self._pending_reports.pop(self._reported, None)) is not None:
                self._reported += 1
                next_report()


class OutputFolders:
    """The output folders of the documents, each used by one document only."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._documents_by_folder: dict[Path, Path] = {}

    def assign(self, document: DocumentFile) -> tuple[DocumentFile, IngotError | None]:
        """Return the document, with an error if another document has the same output folder."""
        if self._output is None:
            return document, None
        folder = output_folder(self._output, document)
        other = self._documents_by_folder.setdefault(folder, document.path)
        if other is document.path:
            return document, None
        return document, Conflict(
            f"{printable_path(document.path)} and {printable_path(other)} would both be written to "
            f"{printable_path(folder)}",
            hint="Ingest them in separate commands, each with its own --output, or skip one with --exclude.",
        )


def output_folder(output: Path, document: DocumentFile) -> Path:
    """Return the folder for the outputs of a document: its relative path without the suffix."""
    without_suffix = document.relative_path.with_suffix("")
    return output / (document.relative_path if without_suffix.name.strip(".") == "" else without_suffix)


def printable_path(path: Path) -> str:
    """Return a path as text on one line. Bytes that are not UTF-8 and unprintable characters are replaced."""
    text = str(path).encode(errors="surrogateescape").decode(errors="replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _utf8_name(path: Path) -> str:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the name of {printable_path(path)} is not valid UTF-8",
            hint="Rename the file. The names of input files must be UTF-8.",
        ) from None
    return path.name
