"""Progress where one waits: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ingot.cli.output import Output, shown
from ingot.client import Client
from ingot.client.errors import NotInTime
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import Batch, Job, JobStatus

LOOK_SECONDS: Final = 1.0
STAGE_CHARS_MAX: Final = 60


@contextmanager
def counted(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar that counts, on stderr when that is a terminal; what it gives is told how many more are done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with _bars(MofNCompleteColumn(), TimeElapsedColumn(), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda more: progress.advance(task, more)


@contextmanager
def moved() -> Iterator[Callable[[str], Callable[[int, int], None] | None]]:
    """Bars of bytes, on stderr when that is a terminal.

    What it gives makes one of a label, which is told how many bytes are done and of how many, and is gone when all are.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()
    with _bars(*columns, transient=True) as progress:

        def made(label: str) -> Callable[[int, int], None]:
            task: TaskID | None = None

            def tell(done: int, total: int) -> None:
                nonlocal task
                if task is None:
                    task = progress.add_task(_cut(label), total=total or None)
                progress.update(task, completed=done)
                if total and done >= total:
                    progress.update(task, visible=False)

            return tell

        yield made


class Step:
    """A bar for one of the steps that many things take, told in its own unit, from any thread.

    Without a terminal nothing is seen.
    """

    def __init__(self, progress: Progress | None, label: str, total: int, unit: Callable[[int], str]) -> None:
        self._progress = progress
        self._total = total
        self._unit = unit
        self._done = 0
        self._door = Lock()
        if progress is not None:
            self._task = progress.add_task(label, total=total, said="", start=False)

    def more(self, count: int) -> None:
        """So much more is done."""
        if self._progress is None or count == 0:
            return
        with self._door:
            if self._done == 0:
                self._progress.start_task(self._task)
            self._done += count
        self.note("")

    def note(self, text: str) -> None:
        """What is being done now."""
        if self._progress is not None:
            said = f"{self._unit(self._done)} of {self._unit(self._total)}  {_cut(text)}".rstrip()
            self._progress.update(self._task, completed=self._done, total=self._total, said=said)

    def part(self, total: int) -> Part:
        """The share of one thing in it."""
        return Part(self, total)


class Part:
    """How far one thing is in a step. It is told as `Progress` of the client is."""

    def __init__(self, step: Step, total: int) -> None:
        self._step = step
        self._total = total
        self._done = 0

    def __call__(self, done: int, total: int) -> None:  # noqa: ARG002 - as in `Progress`
        """So much is done of it by now."""
        if self._done < done <= self._total:
            self._step.more(done - self._done)
            self._done = done

    def end(self) -> None:
        """All of it is done, whether it was told or not."""
        self(self._total, self._total)


@contextmanager
def steps() -> Iterator[Callable[[str, int, Callable[[int], str]], Step]]:
    """Bars one below the other, on stderr when that is a terminal. What it gives makes one: label, total and unit."""
    if not sys.stderr.isatty():
        yield partial(Step, None)
        return
    said = TextColumn("{task.fields[said]}", markup=False)
    with _bars(said, TimeElapsedColumn(), transient=True) as progress:
        yield partial(Step, progress)


def watch(
    client: Client, job_ids: Sequence[str], out: Output, *, silent: bool = False, seconds: float | None = None
) -> list[Job]:
    """Show how these jobs stand until all are finished, and answer how they ended. Raises `NotInTime`.

    As JSON it is a line whenever one has changed; for people a bar each, or lines where there is no terminal. When it
    is `silent` nothing is written to stdout.
    """
    until = None if seconds is None else time.monotonic() + seconds
    known: dict[str, Job] = {}
    waiting = list(dict.fromkeys(job_ids))
    with _shown_by(out, waiting, silent=silent) as tell:
        while waiting:
            alone = len(waiting) == 1 and waiting[0] in known
            for job_id in tuple(waiting):
                job = client.read(job_id, wait_seconds=_left(until, job_id) if alone else 0.0)
                if job != known.get(job_id):
                    known[job_id] = job
                    tell(job)
                if job.status in FINISHED:
                    waiting.remove(job_id)
            if len(waiting) > 1:
                time.sleep(_left(until, waiting[0]))
    return [known[job_id] for job_id in dict.fromkeys(job_ids)]


def _left(until: float | None, job_id: str) -> float:
    """How long to wait before the next look."""
    left = LOOK_SECONDS if until is None else min(LOOK_SECONDS, until - time.monotonic())
    if left <= 0:
        raise NotInTime(f"the job {job_id} is not finished yet")
    return left


def watch_batch(client: Client, name: str, out: Output) -> Batch:
    """Show how far the jobs of a batch are until all are finished."""
    last: Batch | None = None
    batch = client.batch(name)
    with counted(f"batch {shown(name)}", batch.total) as advance:
        while True:
            if batch != last:
                advance(_finished(batch) - (0 if last is None else _finished(last)))
                if out.json:
                    out.line(batch)
                elif not sys.stderr.isatty():
                    out.text(f"{_finished(batch)} of {batch.total} finished, {batch.dead} dead\n")
                last = batch
            if batch.unfinished == 0:
                return batch
            time.sleep(LOOK_SECONDS)
            batch = client.batch(name)


def _finished(batch: Batch) -> int:
    return batch.total - batch.unfinished


@contextmanager
def _shown_by(out: Output, job_ids: Sequence[str], *, silent: bool) -> Iterator[Callable[[Job], None]]:
    if out.json and not silent:
        yield out.line
    elif sys.stderr.isatty() and (silent or sys.stdout.isatty()):
        with Bars(job_ids) as bars:
            yield bars.tell
    elif silent:
        yield lambda _: None
    else:
        yield lambda job: out.text(f"{job.id} {job.type} {job.status}{how_far(job)}\n")


def how_far(job: Job) -> str:
    """Where a job stands, behind its status."""
    if job.status is JobStatus.DEAD:
        return f": {_cut(job.last_error or '')}"
    if job.status is not JobStatus.RUNNING or job.progress is None:
        return ""
    return f" {job.progress.percent:.0f} % {_cut(job.progress.stage)}".rstrip()


def _cut(text: str) -> str:
    return shown(text).replace("\n", " ")[:STAGE_CHARS_MAX]


class Bars:
    """A bar for each of some jobs."""

    def __init__(self, job_ids: Sequence[str]) -> None:
        self._progress = _bars(TextColumn("{task.fields[status]}", markup=False), TimeElapsedColumn())
        self._tasks: dict[str, TaskID] = {
            job_id: self._progress.add_task(job_id, total=None, status="") for job_id in dict.fromkeys(job_ids)
        }

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, job: Job) -> None:
        """Move the bar of a job to where that stands."""
        done = job.status is JobStatus.SUCCEEDED
        percent = 100.0 if done else job.progress.percent if job.progress is not None else None
        self._progress.update(
            self._tasks[job.id],
            description=f"{job.type} {job.id}",
            total=None if percent is None and job.status not in FINISHED else 100.0,
            completed=percent or 0.0,
            status=f"{job.status}{how_far(job)}",
        )
        if job.status in FINISHED:
            self._progress.stop_task(self._tasks[job.id])


def _bars(*columns: ProgressColumn, transient: bool = False) -> Progress:
    """Bars on stderr, each with its description before it, and these columns behind it."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(complete_style="cyan", finished_style="green"),
        *columns,
        console=Console(stderr=True, highlight=False),
        transient=transient,
    )
