"""A job in the hands of its handler."""

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
from ingot.worker.workdir import WorkdirRoot, remove_workdir

if TYPE_CHECKING:
    from ingot.worker.http_job_source import HttpFileClient

UNSENT_LOG_CHARS_MAX: Final = 256 * 1024  # Between two heartbeats; of a flood the end is kept.
LOG_DROP_CHARS_MIN: Final = 32 * 1024


class NoRetry(Exception):
    """Raised by a handler: the job failed, and trying again would not help."""


class SnoozeSignal(Exception):
    """Raised by `WorkerJob.snooze`: not now."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"for {seconds:g} seconds")
        self.seconds = seconds


class Stopped(Exception):
    """Raised by `WorkerJob.check`: the job is to stop."""


class WorkerJob:
    """What a handler sees of its job, and what it says of it. Its methods may be called from any thread."""

    def __init__(
        self,
        data: Job,
        tell: Callable[[], None] = lambda: None,
        *,
        file_client: HttpFileClient | None = None,
        workdir_root: WorkdirRoot | None = None,
    ) -> None:
        self.data = data
        self._workdir_root = workdir_root
        self.file_client = AttemptFileClient(file_client, data, self.stop)  # Where it asks for files.
        self._workdir: Path | None = None  # Made by the first file, as the rest is: most jobs have none.
        self._files: AttemptFiles | None = None
        self.log_spool: LogSpool | None = None  # Made by the first word.
        self._notify = tell  # That there is news.
        self._lock = threading.Lock()
        self._stopped = False
        self.has_seen_stop = False  # The handler looked, and knows that it is to stop.
        self._stop_event: threading.Event | None = None  # Made for those who wait: few do, and there are many jobs.
        self._progress: Progress | None = None
        self._unsent_parts: deque[str] = deque()  # What was written and not sent yet.
        self._unsent_chars = 0
        self._sent_chars = 0  # Characters of the log that the server has.
        self._dropped_chars = 0

    @property
    def id(self) -> str:
        """Its id."""
        return self.data.id

    @property
    def type(self) -> str:
        """Its type."""
        return self.data.type

    @property
    def payload(self) -> Any:
        """What it was given. One over 64 KiB, which travels as a blob, was fetched before the handler began."""
        return self.data.read("payload")

    @property
    def inputs(self) -> list[str]:
        """The names of its input files."""
        return sorted(self.data.inputs)

    def download(self, name: str | None = None) -> Path:
        """Fetch an input file, the only one unless told, and answer where it is. It is removed when the attempt ends.

        Not for the event loop: an async handler awaits `asyncio.to_thread(job.download)`. Raises `FileNotFound`,
        `LeaseLost`, `Stopped` when the job is to stop meanwhile, and `DownloadDamaged`.
        """
        return self.files.download(name)

    def upload(self, source: FileContent, name: str, content_type: str | None = None) -> UploadedOutput:
        """Store a `Path`, bytes or a text as the output of this name; what it answers can be the result.

        It is seen when the attempt has succeeded, and never otherwise; of two with one name the later. Not for the
        event loop: an async handler awaits `asyncio.to_thread(job.upload, …)`. Raises `LeaseLost`, `QuotaExceeded`,
        `Stopped` when the job is to stop meanwhile, and `InvalidInput`.
        """
        return self.files.upload(source, name, content_type)

    def save(self, source: FileContent, name: str = CHECKPOINT_NAME_DEFAULT) -> None:
        """Keep a `Path`, bytes or a text for later attempts of this job, in place of what was saved under this name.

        It is durable when this returns, and goes when an attempt has succeeded. Not for the event loop, and it raises,
        as `upload`.
        """
        self.files.save(source, name)

    def saved(self, name: str = CHECKPOINT_NAME_DEFAULT) -> bytes | None:
        """What this attempt or an earlier one of the job saved last under this name; `None` when nothing was.

        Not for the event loop, and it raises, as `download`.
        """
        return self.files.saved(name)

    @property
    def metadata(self) -> Any:
        """What else was said of it."""
        return self.data.read("metadata")

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.data.attempts

    @property
    def canceled(self) -> bool:
        """Whether it is to stop: somebody canceled it, it took too long, or it is somebody else's by now."""
        if self._stopped:
            self.has_seen_stop = True
        return self._stopped

    def check(self) -> None:
        """Raises `Stopped` when the job is to stop: call it between the steps of long work."""
        if self.canceled:
            raise Stopped

    def wait(self, timeout: Duration) -> bool:
        """Sleep, but no longer than until the job is to stop; whether it is."""
        seconds = to_seconds(timeout)
        with self._lock:
            stop = self._stop_event = self._stop_event or threading.Event()
            if self._stopped:
                stop.set()
        stop.wait(seconds)
        return self.canceled

    def progress(self, percent: float, stage: str = "") -> None:
        """Tell how far it is."""
        known = Progress(percent=min(100.0, max(0.0, float(percent))), stage=sanitize_text(stage)[:STAGE_CHARS_MAX])
        with self._lock:
            self._progress = known
        self._notify()

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt; what is printed goes there too."""
        written = sanitize_text(f"{text}{end}")
        with self._lock:
            whole = self.log_spool = self.log_spool or LogSpool()
            whole.write(written)
            self._unsent_parts.append(written)
            self._unsent_chars += len(written)
            if (over := self._unsent_chars - UNSENT_LOG_CHARS_MAX) > 0:
                self._drop_oldest(max(over, LOG_DROP_CHARS_MIN))
        self._notify()

    def _drop_oldest(self, chars: int) -> None:
        """Drop so much from the beginning: a good deal at once, so that a flood is not copied with every word."""
        while chars > 0 and self._unsent_parts:
            first = self._unsent_parts.popleft()
            if len(first) > chars:
                self._unsent_parts.appendleft(first[chars:])
            cut = min(chars, len(first))
            chars -= cut
            self._unsent_chars -= cut
            self._dropped_chars += cut

    def snooze(self, delay: Duration) -> NoReturn:
        """Not now: try again after the delay. Counts against nothing."""
        seconds = to_seconds(delay)
        checks.delay(seconds)
        raise SnoozeSignal(seconds)

    # -- for those who run it -------------------------------------------------------------------------------

    @property
    def files(self) -> AttemptFiles:
        """What moves its files."""
        with self._lock:
            if self._files is None:
                self._files = AttemptFiles(self.data, self.file_client.send, self.workdir, self.check)
            return self._files

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs that are there."""
        return self.file_client.outputs

    def workdir(self) -> Path:
        """A folder of its own, as long as the attempt lasts."""
        with self._lock:
            if self._workdir is None:
                self._workdir_root = self._workdir_root or WorkdirRoot()
                self._workdir = self._workdir_root.create_workdir()
            return self._workdir

    def fetch_payload(self) -> None:
        """Have the payload here, where it travels as a blob. Raises `NoRetry` for one that is none."""
        assert self.data.payload_blob is not None
        try:
            text = self.files.read_payload(self.data.payload_blob)
            msgspec.json.decode(text)
        except (InvalidInput, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoRetry(f"the payload cannot be read: {error}") from error
        self.data = msgspec.structs.replace(self.data, payload=msgspec.Raw(text))

    @property
    def has_long_log(self) -> bool:
        """Whether it wrote more than the server keeps otherwise."""
        return self.log_spool is not None and self.log_spool.is_long

    def upload_log(self, seconds: float) -> None:
        """Send all that was written. Raises `Stopped` when that takes longer."""
        until = time.monotonic() + seconds

        def check() -> None:
            if time.monotonic() > until:
                raise Stopped

        if self.log_spool is not None and (log := self.log_spool.open()) is not None:
            with closing(AttemptFiles(self.data, self.file_client.send, self.workdir, check)) as files:
                files.upload_log(log)

    @property
    def needs_cleanup(self) -> bool:
        """Whether there is something to forget."""
        return self.log_spool is not None or self._files is not None or self._workdir is not None

    def close(self) -> None:
        """Forget what was kept here for this attempt."""
        if self.log_spool is not None:
            self.log_spool.close()
        if self._files is not None:
            self._files.close()
        if self._workdir is not None:
            remove_workdir(self._workdir)

    def stop(self) -> None:
        """Tell the handler to stop."""
        with self._lock:
            self._stopped = True
            if self._stop_event is not None:
                self._stop_event.set()

    @property
    def has_update(self) -> bool:
        """Whether there is something to be told of it."""
        return bool(self._unsent_parts) or self._progress is not None

    def pending_update(self, chars_max: int = LOG_CHARS_MAX) -> AttemptUpdate:
        """What is to be told of it, with so much of its log; the same until it was."""
        with self._lock:
            if self._dropped_chars:
                self._unsent_parts.appendleft(f"[{self._dropped_chars} characters are left out]\n")
                self._dropped_chars = 0
            return AttemptUpdate(progress=self._progress, log=self._unsent_log()[:chars_max], offset=self._sent_chars)

    def mark_sent(self, news: AttemptUpdate) -> None:
        """This was told, maybe by two at once: it counts once."""
        with self._lock:
            if news.progress is self._progress:
                self._progress = None
            if news.log and news.offset == self._sent_chars:
                self._sent_chars += len(news.log)
                left = self._unsent_log()[len(news.log) :]
                self._unsent_parts, self._unsent_chars = deque([left] if left else []), len(left)

    def _unsent_log(self) -> str:
        """What was written, as one text."""
        if len(self._unsent_parts) != 1:
            text = "".join(self._unsent_parts)
            self._unsent_parts, self._unsent_chars = deque([text] if text else []), len(text)
            return text
        return self._unsent_parts[0]


def sanitize_text(text: object) -> str:
    """A text without what cannot be sent or kept, such as a part of a file name that is no UTF-8."""
    return str(text).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


class AttemptUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a job: how far it is, and what it wrote behind the characters that the server has."""

    progress: Progress | None
    log: str
    offset: int

    def __bool__(self) -> bool:
        return self.progress is not None or bool(self.log)
