"""The job object that a handler receives."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from ingot.client.job_request import Duration, to_seconds
from ingot.jobs import checks
from ingot.jobs.checks import LOG_CHARS_MAX, STAGE_CHARS_MAX
from ingot.jobs.files import CHECKPOINT_NAME_DEFAULT
from ingot.jobs.model import Job, Progress
from ingot.kernel.errors import InvalidInput
from ingot.worker.attempt_files import AttemptFiles, FileContent, UploadedOutput
from ingot.worker.file_requests import AttemptFileClient
from ingot.worker.log_spool import LogSpool
from ingot.worker.output_lines import OutputLines
from ingot.worker.workdir import WorkdirRoot, remove_workdir

if TYPE_CHECKING:
    from ingot.worker.http_job_source import HttpFileClient

UNSENT_LOG_CHARS_MAX: Final = 256 * 1024  # Per heartbeat. When a handler writes more, the oldest text is dropped.
LOG_DROP_CHARS_MIN: Final = 32 * 1024


class NoRetry(Exception):
    """Raised by a handler to fail the job without a retry."""


class SnoozeSignal(Exception):
    """Raised by `WorkerJob.snooze` to end the attempt and run the job again after a delay."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"for {seconds:g} seconds")
        self.seconds = seconds


class Stopped(Exception):
    """Raised by `WorkerJob.check` when the job has to stop."""


class WorkerJob:
    """The job that a handler works on: its data, files, progress and log. Thread-safe."""

    def __init__(
        self,
        data: Job,
        notify: Callable[[], None] = lambda: None,
        *,
        file_client: HttpFileClient | None = None,
        workdir_root: WorkdirRoot | None = None,
        output_lines: OutputLines | None = None,
    ) -> None:
        self.data = data
        self.output_lines = output_lines  # Shows what the handler writes to its log.
        self._workdir_root = workdir_root
        self._http_file_client = file_client
        self._notify = notify  # Called when there is an update to send.
        self._lock = threading.Lock()
        self._stopped = False
        self.has_seen_stop = False  # The handler has checked, and knows that it has to stop.
        self._progress: Progress | None = None
        self._unsent_parts: deque[str] = deque()  # Log text that was not sent yet.
        self._unsent_chars = 0
        self._sent_chars = 0  # Length of the log that the server has.
        self._dropped_chars = 0
        # Created on first use, because most jobs need none of them.
        self._workdir: Path | None = None
        self._file_client: AttemptFileClient | None = None
        self._files: AttemptFiles | None = None
        self.log_spool: LogSpool | None = None
        self._stop_event: threading.Event | None = None

    @property
    def id(self) -> str:
        """The ID of the job."""
        return self.data.id

    @property
    def type(self) -> str:
        """The type of the job."""
        return self.data.type

    @property
    def payload(self) -> Any:
        """The payload. A large one, which is stored as a blob, was downloaded before the handler started."""
        return self.data.read("payload")

    @property
    def inputs(self) -> list[str]:
        """The names of the input files, sorted."""
        return sorted(self.data.inputs)

    def download(self, name: str | None = None) -> Path:
        """Download an input file and return its path. The name can be omitted if there is only one input.

        The file is removed when the attempt ends. This method blocks: in an async handler, use
        `await asyncio.to_thread(job.download)`. Raises `FileNotFound`, `LeaseLost`, `DownloadDamaged`, and `Stopped`
        if the job has to stop meanwhile.
        """
        return self.files.download(name)

    def upload(self, source: FileContent, name: str, content_type: str | None = None) -> UploadedOutput:
        """Store a `Path`, bytes, a string or an open binary file as an output. A handler can return the value.

        Clients see the output when the attempt has succeeded; a later output with the same name replaces it. This
        method blocks: in an async handler, use `await asyncio.to_thread(job.upload, …)`. Raises `LeaseLost`,
        `QuotaExceeded`, `InvalidInput`, and `Stopped` if the job has to stop meanwhile.
        """
        return self.files.upload(source, name, content_type)

    def save(self, source: FileContent, name: str = CHECKPOINT_NAME_DEFAULT) -> None:
        """Save a checkpoint for later attempts of this job, replacing an earlier one with this name.

        The checkpoint is durable when this method returns, and is deleted when an attempt succeeds. This method blocks
        and raises like `upload`.
        """
        self.files.save(source, name)

    def saved(self, name: str = CHECKPOINT_NAME_DEFAULT) -> bytes | None:
        """Return the checkpoint that this or an earlier attempt saved last under this name, or `None`.

        This method blocks and raises like `download`.
        """
        return self.files.saved(name)

    @property
    def metadata(self) -> Any:
        """The metadata of the job."""
        return self.data.read("metadata")

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.data.attempts

    @property
    def canceled(self) -> bool:
        """Whether the handler has to stop: the job was canceled, timed out or lost, or the worker shuts down."""
        if self._stopped:
            self.has_seen_stop = True
        return self._stopped

    def check(self) -> None:
        """Raise `Stopped` if the job has to stop. Call this between the steps of long work."""
        if self.canceled:
            raise Stopped

    def wait(self, timeout: Duration) -> bool:
        """Sleep until the timeout, or until the job has to stop. Return whether it has to stop."""
        seconds = to_seconds(timeout)
        with self._lock:
            stop_event = self._stop_event = self._stop_event or threading.Event()
            if self._stopped:
                stop_event.set()
        stop_event.wait(seconds)
        return self.canceled

    def progress(self, percent: float, stage: str = "") -> None:
        """Report the progress in percent and the current stage."""
        progress = Progress(percent=min(100.0, max(0.0, float(percent))), stage=sanitize_text(stage)[:STAGE_CHARS_MAX])
        with self._lock:
            self._progress = progress
        self._notify()

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt. Printed text goes there too."""
        output = sanitize_text(f"{text}{end}")
        self._append(output)
        if self.output_lines is not None:
            self.output_lines.write(output)

    def _drop_oldest(self, chars: int) -> None:
        """Drop this many characters of the oldest unsent log text."""
        while chars > 0 and self._unsent_parts:
            first = self._unsent_parts.popleft()
            if len(first) > chars:
                self._unsent_parts.appendleft(first[chars:])
            cut = min(chars, len(first))
            chars -= cut
            self._unsent_chars -= cut
            self._dropped_chars += cut

    def snooze(self, delay: Duration) -> NoReturn:
        """End this attempt and run the job again after the delay. This counts neither as a failure nor as a crash."""
        seconds = to_seconds(delay)
        checks.delay(seconds)
        raise SnoozeSignal(seconds)

    # -- for the worker, not for handlers -------------------------------------------------------------------

    def append_log(self, text: str) -> None:
        """Append text to the log of this attempt, without showing it in the terminal of `ingot dev`."""
        self._append(sanitize_text(text))

    def _append(self, output: str) -> None:
        with self._lock:
            spool = self.log_spool = self.log_spool or LogSpool()
            spool.write(output)
            self._unsent_parts.append(output)
            self._unsent_chars += len(output)
            if (excess := self._unsent_chars - UNSENT_LOG_CHARS_MAX) > 0:
                # Drop a large piece, so that a handler that writes a lot does not cause a copy for every write.
                self._drop_oldest(max(excess, LOG_DROP_CHARS_MIN))
        self._notify()

    @property
    def files(self) -> AttemptFiles:
        """Transfers the files of this attempt."""
        send_request = self.file_client.send
        with self._lock:
            if self._files is None:
                self._files = AttemptFiles(self.data, send_request, self.workdir, self.check)
            return self._files

    @property
    def file_client(self) -> AttemptFileClient:
        """Sends the file requests of this attempt."""
        with self._lock:
            if self._file_client is None:  # It refers back to this job, and a cycle for each job is slow to collect.
                self._file_client = AttemptFileClient(self._http_file_client, self.data, self.stop)
            return self._file_client

    @property
    def outputs(self) -> list[str]:
        """The names of the stored outputs."""
        return [] if self._file_client is None else self._file_client.outputs

    def workdir(self) -> Path:
        """Return the working folder, which exists until the attempt ends."""
        with self._lock:
            if self._workdir is None:
                self._workdir_root = self._workdir_root or WorkdirRoot()
                self._workdir = self._workdir_root.create_workdir()
            return self._workdir

    def fetch_payload(self) -> None:
        """Download a payload that is stored as a blob. Raises `NoRetry` if it is not valid JSON."""
        assert self.data.payload_blob is not None
        try:
            text = self.files.read_payload(self.data.payload_blob)
            msgspec.json.decode(text)
        except (InvalidInput, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoRetry(f"the payload cannot be read: {error}") from error
        self.data = msgspec.structs.replace(self.data, payload=msgspec.Raw(text))

    @property
    def has_long_log(self) -> bool:
        """Whether the log is longer than what the server keeps, so that it has to be uploaded."""
        return self.log_spool is not None and self.log_spool.is_long

    def upload_log(self, seconds: float) -> None:
        """Upload the whole log. Raises `Stopped` if that takes longer than this."""
        deadline = time.monotonic() + seconds

        def check() -> None:
            if time.monotonic() > deadline:
                raise Stopped

        if self.log_spool is not None and (log := self.log_spool.open()) is not None:
            with closing(AttemptFiles(self.data, self.file_client.send, self.workdir, check)) as files:
                files.upload_log(log)

    @property
    def needs_cleanup(self) -> bool:
        """Whether `close` has something to remove."""
        return self.log_spool is not None or self._files is not None or self._workdir is not None

    def close(self) -> None:
        """Remove the log, the connections and the working folder of this attempt."""
        if self.log_spool is not None:
            self.log_spool.close()
        if self._files is not None:
            self._files.close()
        if self._workdir is not None:
            remove_workdir(self._workdir)

    def stop(self) -> None:
        """Ask the handler to stop."""
        with self._lock:
            self._stopped = True
            if self._stop_event is not None:
                self._stop_event.set()

    @property
    def has_update(self) -> bool:
        """Whether there is progress or log text to send."""
        return bool(self._unsent_parts) or self._progress is not None

    def pending_update(self, chars_max: int = LOG_CHARS_MAX) -> AttemptUpdate:
        """Return unsent progress and at most `chars_max` of the unsent log. Call `mark_sent` after sending it."""
        with self._lock:
            if self._dropped_chars:
                self._unsent_parts.appendleft(f"[{self._dropped_chars} characters omitted]\n")
                self._dropped_chars = 0
            return AttemptUpdate(progress=self._progress, log=self._unsent_log()[:chars_max], offset=self._sent_chars)

    def mark_sent(self, update: AttemptUpdate) -> None:
        """Record that an update was sent. If two threads sent the same update, the second call has no effect."""
        with self._lock:
            if update.progress is self._progress:
                self._progress = None
            if update.log and update.offset == self._sent_chars:
                self._sent_chars += len(update.log)
                unsent = self._unsent_log()[len(update.log) :]
                self._unsent_parts, self._unsent_chars = deque([unsent] if unsent else []), len(unsent)

    def _unsent_log(self) -> str:
        """Join the unsent log text."""
        if len(self._unsent_parts) != 1:
            text = "".join(self._unsent_parts)
            self._unsent_parts, self._unsent_chars = deque([text] if text else []), len(text)
            return text
        return self._unsent_parts[0]


def sanitize_text(text: object) -> str:
    """Replace characters that cannot be sent or stored: NUL and surrogates, as from file names that are not UTF-8."""
    return str(text).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


class AttemptUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Unsent progress and log text of an attempt. `offset` is the length of the log that was sent before."""

    progress: Progress | None
    log: str
    offset: int

    def __bool__(self) -> bool:
        return self.progress is not None or bool(self.log)
