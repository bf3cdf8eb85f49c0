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

from ingot.client.orders import Seconds, seconds_of
from ingot.jobs import checks
from ingot.jobs.checks import LOG_CHARS_MAX, STAGE_CHARS_MAX
from ingot.jobs.files import CHECKPOINT
from ingot.jobs.model import Job, Progress
from ingot.kernel.errors import InvalidInput
from ingot.worker.asks import AttemptDesk
from ingot.worker.files import Files, Source, Uploaded
from ingot.worker.whole_log import WholeLog
from ingot.worker.workshop import Workshop, clear

if TYPE_CHECKING:
    from ingot.worker.over_http import HttpFileDesk

LOG_CHARS_KEPT: Final = 256 * 1024  # Between two heartbeats; of a flood the end is kept.
LOG_CHARS_CUT: Final = 32 * 1024


class NoRetry(Exception):
    """Raised by a handler: the job failed, and trying again would not help."""


class Snoozed(Exception):
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
        desk: HttpFileDesk | None = None,
        workshop: Workshop | None = None,
    ) -> None:
        self.data = data
        self._workshop = workshop
        self.desk = AttemptDesk(desk, data, self.stop)  # Where it asks for files.
        self._room: Path | None = None  # Made by the first file, as the rest is: most jobs have none.
        self._files: Files | None = None
        self.whole_log: WholeLog | None = None  # Made by the first word.
        self._tell = tell  # That there is news.
        self._lock = threading.Lock()
        self._stopped = False
        self.saw_stop = False  # The handler looked, and knows that it is to stop.
        self._stop: threading.Event | None = None  # Made for those who wait: few do, and there are many jobs.
        self._progress: Progress | None = None
        self._parts: deque[str] = deque()  # What was written and not sent yet.
        self._chars = 0
        self._sent = 0  # Characters of the log that the server has.
        self._left_out = 0

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

    def upload(self, source: Source, name: str, content_type: str | None = None) -> Uploaded:
        """Store a `Path`, bytes or a text as the output of this name; what it answers can be the result.

        It is seen when the attempt has succeeded, and never otherwise; of two with one name the later. Not for the
        event loop: an async handler awaits `asyncio.to_thread(job.upload, …)`. Raises `LeaseLost`, `QuotaExceeded`,
        `Stopped` when the job is to stop meanwhile, and `InvalidInput`.
        """
        return self.files.upload(source, name, content_type)

    def save(self, source: Source, name: str = CHECKPOINT) -> None:
        """Keep a `Path`, bytes or a text for later attempts of this job, in place of what was saved under this name.

        It is durable when this returns, and goes when an attempt has succeeded. Not for the event loop, and it raises,
        as `upload`.
        """
        self.files.save(source, name)

    def saved(self, name: str = CHECKPOINT) -> bytes | None:
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
            self.saw_stop = True
        return self._stopped

    def check(self) -> None:
        """Raises `Stopped` when the job is to stop: call it between the steps of long work."""
        if self.canceled:
            raise Stopped

    def wait(self, timeout: Seconds) -> bool:
        """Sleep, but no longer than until the job is to stop; whether it is."""
        seconds = seconds_of(timeout)
        with self._lock:
            stop = self._stop = self._stop or threading.Event()
            if self._stopped:
                stop.set()
        stop.wait(seconds)
        return self.canceled

    def progress(self, percent: float, stage: str = "") -> None:
        """Tell how far it is."""
        known = Progress(percent=min(100.0, max(0.0, float(percent))), stage=sendable(stage)[:STAGE_CHARS_MAX])
        with self._lock:
            self._progress = known
        self._tell()

    def log(self, text: object, *, end: str = "\n") -> None:
        """Write to the log of this attempt; what is printed goes there too."""
        written = sendable(f"{text}{end}")
        with self._lock:
            whole = self.whole_log = self.whole_log or WholeLog()
            whole.write(written)
            self._parts.append(written)
            self._chars += len(written)
            if (over := self._chars - LOG_CHARS_KEPT) > 0:
                self._leave_out(max(over, LOG_CHARS_CUT))
        self._tell()

    def _leave_out(self, chars: int) -> None:
        """Drop so much from the beginning: a good deal at once, so that a flood is not copied with every word."""
        while chars > 0 and self._parts:
            first = self._parts.popleft()
            if len(first) > chars:
                self._parts.appendleft(first[chars:])
            cut = min(chars, len(first))
            chars -= cut
            self._chars -= cut
            self._left_out += cut

    def snooze(self, delay: Seconds) -> NoReturn:
        """Not now: try again after the delay. Counts against nothing."""
        seconds = seconds_of(delay)
        checks.delay(seconds)
        raise Snoozed(seconds)

    # -- for those who run it -------------------------------------------------------------------------------

    @property
    def files(self) -> Files:
        """What moves its files."""
        with self._lock:
            if self._files is None:
                self._files = Files(self.data, self.desk.ask, self.room, self.check)
            return self._files

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs that are there."""
        return self.desk.outputs

    def room(self) -> Path:
        """A folder of its own, as long as the attempt lasts."""
        with self._lock:
            if self._room is None:
                self._workshop = self._workshop or Workshop()
                self._room = self._workshop.room()
            return self._room

    def fetch_payload(self) -> None:
        """Have the payload here, where it travels as a blob. Raises `NoRetry` for one that is none."""
        assert self.data.payload_blob is not None
        try:
            text = self.files.payload(self.data.payload_blob)
            msgspec.json.decode(text)
        except (InvalidInput, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoRetry(f"the payload cannot be read: {error}") from error
        self.data = msgspec.structs.replace(self.data, payload=msgspec.Raw(text))

    @property
    def has_long_log(self) -> bool:
        """Whether it wrote more than the server keeps otherwise."""
        return self.whole_log is not None and self.whole_log.is_long

    def send_log(self, seconds: float) -> None:
        """Send all that was written. Raises `Stopped` when that takes longer."""
        until = time.monotonic() + seconds

        def check() -> None:
            if time.monotonic() > until:
                raise Stopped

        if self.whole_log is not None and (log := self.whole_log.open()) is not None:
            with closing(Files(self.data, self.desk.ask, self.room, check)) as files:
                files.upload_log(log)

    @property
    def has_things(self) -> bool:
        """Whether there is something to forget."""
        return self.whole_log is not None or self._files is not None or self._room is not None

    def close(self) -> None:
        """Forget what was kept here for this attempt."""
        if self.whole_log is not None:
            self.whole_log.close()
        if self._files is not None:
            self._files.close()
        if self._room is not None:
            clear(self._room)

    def stop(self) -> None:
        """Tell the handler to stop."""
        with self._lock:
            self._stopped = True
            if self._stop is not None:
                self._stop.set()

    @property
    def has_news(self) -> bool:
        """Whether there is something to be told of it."""
        return bool(self._parts) or self._progress is not None

    def take_news(self, chars_max: int = LOG_CHARS_MAX) -> News:
        """What is to be told of it, with so much of its log; the same until it was."""
        with self._lock:
            if self._left_out:
                self._parts.appendleft(f"[{self._left_out} characters are left out]\n")
                self._left_out = 0
            return News(progress=self._progress, log=self._joined()[:chars_max], offset=self._sent)

    def told(self, news: News) -> None:
        """This was told, maybe by two at once: it counts once."""
        with self._lock:
            if news.progress is self._progress:
                self._progress = None
            if news.log and news.offset == self._sent:
                self._sent += len(news.log)
                left = self._joined()[len(news.log) :]
                self._parts, self._chars = deque([left] if left else []), len(left)

    def _joined(self) -> str:
        """What was written, as one text."""
        if len(self._parts) != 1:
            text = "".join(self._parts)
            self._parts, self._chars = deque([text] if text else []), len(text)
            return text
        return self._parts[0]


def sendable(text: object) -> str:
    """A text without what cannot be sent or kept, such as a part of a file name that is no UTF-8."""
    return str(text).replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


class News(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of a job: how far it is, and what it wrote behind the characters that the server has."""

    progress: Progress | None
    log: str
    offset: int

    def __bool__(self) -> bool:
        return self.progress is not None or bool(self.log)
