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
from ingot.cli.documents import Document, read
from ingot.cli.local import is_there, told
from ingot.cli.progress import LOOK_SECONDS, Step, how_far
from ingot.cli.submit import expect_succeeded
from ingot.client import Client, SyncJob
from ingot.client.at_once import plain_at_once
from ingot.client.errors import DownloadUnderWay, NotInTime, ServerUnreachable
from ingot.jobs.crew import WorkerStatus
from ingot.jobs.files import JobFile
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import Conflict, IngotError, InvalidInput
from ingot.kernel.ids import new_id
from ingot.worker.handlers import BUILT_IN

SENT_AT_ONCE: Final = 8
FOLLOWED_AT_ONCE: Final = 8
OTHERS_SECONDS_MAX: Final = 60.0
OTHERS_LOOK_SECONDS: Final = 0.2
UNAUTHORIZED: Final = 401
NO_WORKER: Final = "no_worker"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with a document."""

    code: str
    detail: str
    hint: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a document. `reused` says that its job was there before."""

    path: str
    type: str
    job_id: str | None = None
    status: JobStatus | None = None
    reused: bool = False
    outputs: list[str] = []
    error: Problem | None = None


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with every document.

    `order` says how jobs are to be, `output` where to what they made is fetched, `until` for how long to wait.
    """

    payload: object = None
    order: dict[str, Any] = {}
    wait: bool = False
    output: Path | None = None
    replace: bool = False
    until: float | None = None


class Steps(msgspec.Struct, frozen=True):
    """The bars: bytes that are hashed, bytes that are sent, and documents that are done."""

    hashing: Step
    sending: Step
    working: Step


class Ingest:
    """Many documents on the same course. `tell` is called with what became of each, in their order.

    An error that would be that of all ends it: the server is not there any more, or does not know us.
    """

    def __init__(
        self,
        client: Client,
        course: Course,
        steps: Steps,
        *,
        tell: Callable[[Outcome, IngotError | None], None],
        say: Callable[[str], None],
    ) -> None:
        self._client = client
        self._course = course
        self._steps = steps
        self._tell = tell
        self._say = say
        self._run = new_id()
        self._made: SimpleQueue[tuple[int, Document, SyncJob] | None] = SimpleQueue()
        self._ended: dict[int, Callable[[], None]] = {}
        self._told = 0
        self._over = False
        self._door = Lock()
        self._types: set[str] = set()

    def run(self, documents: Sequence[Document]) -> None:
        """Bring all of them to their end. Raises what ends them all."""
        places = Places(self._course.output)

        def send_all() -> None:
            plain_at_once(self._send, enumerate(map(places.take, documents)), limit=SENT_AT_ONCE)
            for _ in range(FOLLOWED_AT_ONCE):
                self._made.put(None)

        def follow_some() -> None:
            while (made := self._made.get()) is not None:
                self._follow(*made)

        works = [send_all, *[follow_some] * (FOLLOWED_AT_ONCE if self._course.wait else 0)]
        try:
            plain_at_once(lambda work: work(), works, limit=len(works))
        finally:
            self._stop()

    def _stop(self) -> None:
        """Tell what waits for others that are not done any more; and nothing after that."""
        with self._door:
            self._over = True
            for number in sorted(self._ended):
                self._ended[number]()

    # -- there ------------------------------------------------------------------------------------------------

    def _send(self, numbered: tuple[int, tuple[Document, IngotError | None]]) -> None:
        """Ask for the job of a document, and send what is needed for it."""
        if self._over:
            return
        number, (document, wrong) = numbered
        hashing, sending = self._steps.hashing.part(document.size), self._steps.sending.part(document.size)
        try:
            if wrong is not None:
                raise wrong
            name = _name(document.path)
            source = read(document)
            with told(f"{document.path} cannot be read"):
                job = self._client.submit(
                    document.type,
                    self._course.payload,
                    file={name: source},
                    hashing=hashing,
                    progress=sending,
                    idempotency_key=f"{self._run}:{number}",  # An answer that is lost is asked for again.
                    metadata={"path": document.place.as_posix()},
                    **self._course.order,
                )
        except IngotError as error:
            self._end(number, document, error=error)
        else:
            self._warn(job)
            if self._course.wait:
                self._made.put((number, document, job))
            else:
                self._end(number, document, job)
        finally:
            hashing.end()
            sending.end()

    def _warn(self, job: SyncJob) -> None:
        """Say that nobody works on this type, once."""
        with self._door:
            if job.type in self._types or job.status is not JobStatus.QUEUED:
                return
            self._types.add(job.type)
        with suppress(IngotError):  # Who may make jobs need not be one who may look at them.
            reasons = {reason.code for reason in job.explain().reasons}
            if NO_WORKER in reasons and not self._has_worker(job.type):
                handlers = f"--handlers {job.type}" if job.type in BUILT_IN else "--app app:worker"
                self._say(f"No worker for {job.type} is online; start one: ingot worker {handlers}")

    def _has_worker(self, type: str) -> bool:
        """Whether one is there that may be too busy to ask."""
        for shared in (False, True):
            with suppress(IngotError):
                for worker in self._client.workers(shared=shared):
                    if worker.status is WorkerStatus.ONLINE and type in worker.types:
                        return True
        return False

    # -- and back ---------------------------------------------------------------------------------------------

    def _follow(self, number: int, document: Document, job: SyncJob) -> None:
        """Wait for a job, and fetch what it has made."""
        outputs: list[str] = []
        try:
            while not job.finished:
                self._steps.working.note(f"{document.place}{how_far(job.data)}")
                job.data = self._client.read(job.id, wait_seconds=self._left(job))
            expect_succeeded([job.data])
            if self._course.output is not None:
                outputs = self._fetch(job.files(), folder_of(self._course.output, document))
        except IngotError as error:
            self._end(number, document, job, error=error)
        else:
            self._end(number, document, job, outputs=outputs)

    def _left(self, job: SyncJob) -> float:
        left = LOOK_SECONDS if self._course.until is None else self._course.until - time.monotonic()
        if left <= 0:
            raise NotInTime(
                f"the job {job.id} is {job.status} when the time is over",
                hint="It goes on; the same command waits again.",
            )
        return min(LOOK_SECONDS, left)

    def _fetch(self, files: Sequence[JobFile], folder: Path) -> list[str]:
        """Fetch outputs unless they are there, and answer where they are. Raises `Conflict` before any is fetched."""
        targets = {file: folder / file_name(file.name, what="name") for file in files if file.kind == "output"}
        with told(f"{folder} cannot be written to"):
            for file in self._missing(targets, folder):
                self._fetch_one(file, targets[file])
        return [shown_path(target) for target in targets.values()]

    def _fetch_one(self, file: JobFile, target: Path) -> None:
        """Fetch an output. One that somebody else fetches to the same place is waited for."""
        until = time.monotonic() + OTHERS_SECONDS_MAX
        while True:
            try:
                self._client.blobs.save(file.blob_id, file.size, target)
                return
            except DownloadUnderWay:
                if time.monotonic() > until:
                    raise
                time.sleep(OTHERS_LOOK_SECONDS)
                if is_there(target, file.blob_id, file.size, replace=self._course.replace):
                    return

    def _missing(self, targets: dict[JobFile, Path], folder: Path) -> list[JobFile]:
        """Those that are not there yet; the folder for them is."""
        replace = self._course.replace
        missing = [file for file, to in targets.items() if not is_there(to, file.blob_id, file.size, replace=replace)]
        folder.mkdir(parents=True, exist_ok=True)
        return missing

    # -- what became of them ----------------------------------------------------------------------------------

    def _end(
        self,
        number: int,
        document: Document,
        job: SyncJob | None = None,
        *,
        outputs: Sequence[str] = (),
        error: IngotError | None = None,
    ) -> None:
        """Tell what became of a document, once those before it are told. Raises an error that is that of all."""
        outcome = Outcome(
            path=shown_path(document.path),
            type=document.type,
            job_id=None if job is None else job.id,
            status=None if job is None else job.status,
            reused=bool(getattr(job, "reused", False)),
            outputs=list(outputs),
            error=None if error is None else Problem(code=error.code, detail=error.detail, hint=error.hint),
        )
        self._steps.working.more(1)
        self._in_order(number, lambda: self._tell(outcome, error))
        if isinstance(error, ServerUnreachable) or (error is not None and error.status == UNAUTHORIZED):
            raise error

    def _in_order(self, number: int, do: Callable[[], None]) -> None:
        with self._door:
            if self._over:
                return
            self._ended[number] = do
            while (first := self._ended.pop(self._told, None)) is not None:
                self._told += 1
                first()


class Places:
    """Where what comes of documents goes to: each has a folder of its own."""

    def __init__(self, output: Path | None) -> None:
        self._output = output
        self._taken: dict[Path, Path] = {}

    def take(self, document: Document) -> tuple[Document, IngotError | None]:
        """A document, and what is wrong when another one has its folder."""
        if self._output is None:
            return document, None
        folder = folder_of(self._output, document)
        other = self._taken.setdefault(folder, document.path)
        if other is document.path:
            return document, None
        return document, Conflict(
            f"{shown_path(document.path)} and {shown_path(other)} would both be written to {shown_path(folder)}",
            hint="Ingest them with another --output each, or leave one out with --exclude.",
        )


def folder_of(output: Path, document: Document) -> Path:
    """The folder for what comes of a document: its path from what was named on, without the end of its name."""
    bare = document.place.with_suffix("")
    return output / (document.place if bare.name.strip(".") == "" else bare)


def shown_path(path: Path) -> str:
    """A path as it can be written, in one line; of a name that is no UTF-8 what can be."""
    text = str(path).encode(errors="surrogateescape").decode(errors="replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _name(path: Path) -> str:
    try:
        path.name.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the name of {shown_path(path)} is no UTF-8", hint="Rename it; what a job is given has a name in UTF-8."
        ) from None
    return path.name
