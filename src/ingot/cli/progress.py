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

from ingot.cli.output import Output, printable
from ingot.client import Client
from ingot.client.errors import NotInTime
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import Batch, Job, JobStatus

POLL_SECONDS: Final = 1.0
STAGE_CHARS_MAX: Final = 60


@contextmanager
def counter_bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar that counts, on stderr when that is a terminal; what it gives is told how many more are done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with _bars(MofNCompleteColumn(), TimeElapsedColumn(), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda more: progress.advance(task, more)


@contextmanager
def transfer_bars() -> Iterator[Callable[[str], Callable[[int, int], None] | None]]:
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
                    task = progress.add_task(_truncate(label), total=total or None)
                progress.update(task, completed=done)
                if total and done >= total:
                    progress.update(task, visible=False)

            return tell

        yield made


class StepBar:
    """A bar for one of the steps that many things take, told in its own unit, from any thread.

    Without a terminal nothing is seen.
    """

    def __init__(self, progress: Progress | None, label: str, total: int, unit: Callable[[int], str]) -> None:
        self._progress = progress
        self._total = total
        self._format = unit
        self._done = 0
        self._lock = Lock()
        if progress is not None:
            self._task = progress.add_task(label, total=total, said="", start=False)

    def advance(self, count: int) -> None:
        """So much more is done."""
        if self._progress is None or count == 0:
            return
        with self._lock:
            if self._done == 0:
                self._progress.start_task(self._task)
            self._done += count
        self.describe("")

    def describe(self, text: str) -> None:
        """What is being done now."""
        if self._progress is not None:
            said = f"{self._format(self._done)} of {self._format(self._total)}  {_truncate(text)}".rstrip()
            self._progress.update(self._task, completed=self._done, total=self._total, said=said)

    def item(self, total: int) -> ItemProgress:
        """The share of one thing in it."""
        return ItemProgress(self, total)


class ItemProgress:
    """How far one thing is in a step. It is told as `Progress` of the client is."""

    def __init__(self, step: StepBar, total: int) -> None:
        self._step = step
        self._total = total
        self._done = 0

    def __call__(self, done: int, total: int) -> None:  # noqa: ARG002 - as in `Progress`
        """So much is done of it by now."""
        if self._done < done <= self._total:
            self._step.advance(done - self._done)
            self._done = done

    def finish(self) -> None:
        """All of it is done, whether it was told or not."""
        self(self._total, self._total)


@contextmanager
def step_bars() -> Iterator[Callable[[str, int, Callable[[int], str]], StepBar]]:
    """Bars one below the other, on stderr when that is a terminal. What it gives makes one: label, total and unit."""
    if not sys.stderr.isatty():
        yield partial(StepBar, None)
        return
    said = TextColumn("{task.fields[said]}", markup=False)
    with _bars(said, TimeElapsedColumn(), transient=True) as progress:
        yield partial(StepBar, progress)


def watch_until_finished(
    client: Client, job_ids: Sequence[str], out: Output, *, silent: bool = False, timeout_seconds: float | None = None
) -> list[Job]:
    """Show how these jobs stand until all are finished, and answer how they ended. Raises `NotInTime`.

    As JSON it is a line whenever one has changed; for people a bar each, or lines where there is no terminal. When it
    is `silent` nothing is written to stdout.
    """
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    known: dict[str, Job] = {}
    waiting = list(dict.fromkeys(job_ids))
    with _job_display(out, waiting, silent=silent) as tell:
        while waiting:
            alone = len(waiting) == 1 and waiting[0] in known
            for job_id in tuple(waiting):
                job = client.read(job_id, wait_seconds=_poll_delay(until, job_id) if alone else 0.0)
                if job != known.get(job_id):
                    known[job_id] = job
                    tell(job)
                if job.status in FINISHED:
                    waiting.remove(job_id)
            if len(waiting) > 1:
                time.sleep(_poll_delay(until, waiting[0]))
    return [known[job_id] for job_id in dict.fromkeys(job_ids)]


def _poll_delay(until: float | None, job_id: str) -> float:
    """How long to wait before the next look."""
    left = POLL_SECONDS if until is None else min(POLL_SECONDS, until - time.monotonic())
    if left <= 0:
        raise NotInTime(f"the job {job_id} is not finished yet")
    return left


def watch_batch_until_finished(client: Client, name: str, out: Output) -> Batch:
    """Show how far the jobs of a batch are until all are finished."""
    last: Batch | None = None
    batch = client.batch(name)
    with counter_bar(f"batch {printable(name)}", batch.total) as advance:
        while True:
            if batch != last:
                advance(_finished_count(batch) - (0 if last is None else _finished_count(last)))
                if out.json:
                    out.json_line(batch)
                elif not sys.stderr.isatty():
                    out.text(f"{_finished_count(batch)} of {batch.total} finished, {batch.dead} dead\n")
                last = batch
            if batch.unfinished == 0:
                return batch
            time.sleep(POLL_SECONDS)
            batch = client.batch(name)


def _finished_count(batch: Batch) -> int:
    return batch.total - batch.unfinished


@contextmanager
def _job_display(out: Output, job_ids: Sequence[str], *, silent: bool) -> Iterator[Callable[[Job], None]]:
    if out.json and not silent:
        yield out.json_line
    elif sys.stderr.isatty() and (silent or sys.stdout.isatty()):
        with JobBars(job_ids) as bars:
            yield bars.update
    elif silent:
        yield lambda _: None
    else:
        yield lambda job: out.text(f"{job.id} {job.type} {job.status}{progress_suffix(job)}\n")


def progress_suffix(job: Job) -> str:
    """Where a job stands, behind its status."""
    if job.status is JobStatus.DEAD:
        return f": {_truncate(job.last_error or '')}"
    if job.status is not JobStatus.RUNNING or job.progress is None:
        return ""
    return f" {job.progress.percent:.0f} % {_truncate(job.progress.stage)}".rstrip()


def _truncate(text: str) -> str:
    return printable(text).replace("\n", " ")[:STAGE_CHARS_MAX]


class JobBars:
    """A bar for each of some jobs."""

    def __init__(self, job_ids: Sequence[str]) -> None:
        self._progress = _bars(TextColumn("{task.fields[status]}", markup=False), TimeElapsedColumn())
        self._tasks: dict[str, TaskID] = {
            job_id: self._progress.add_task(job_id, total=None, status="") for job_id in dict.fromkeys(job_ids)
        }

    def __enter__(self) -> JobBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, job: Job) -> None:
        """Move the bar of a job to where that stands."""
        done = job.status is JobStatus.SUCCEEDED
        percent = 100.0 if done else job.progress.percent if job.progress is not None else None
        self._progress.update(
            self._tasks[job.id],
            description=f"{job.type} {job.id}",
            total=None if percent is None and job.status not in FINISHED else 100.0,
            completed=percent or 0.0,
            status=f"{job.status}{progress_suffix(job)}",
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
