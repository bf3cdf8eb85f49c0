"""Show progress while a command waits: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from ingot.kernel.errors import IngotError

POLL_SECONDS: Final = 1.0
EXPLAIN_SECONDS: Final = 5.0  # After this time, the reason why a job does not run is shown.
WAITING: Final = (JobStatus.BLOCKED, JobStatus.QUEUED)
STAGE_CHARS_MAX: Final = 60


@contextmanager
def counter_bar(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar that counts items, if stderr is a terminal. Yield a function that takes the number of new items."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with _bars(MofNCompleteColumn(), TimeElapsedColumn(), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


@contextmanager
def transfer_bars() -> Iterator[Callable[[str], Callable[[int, int], None] | None]]:
    """Show bars for transferred bytes, if stderr is a terminal.

    Yield a function that takes a label and returns a progress callback: it takes the bytes done and the total. The bar
    of a label appears with its first progress and disappears when all bytes are done.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()
    with _bars(*columns, transient=True) as progress:

        def add_bar(label: str) -> Callable[[int, int], None]:
            task: TaskID | None = None

            def update(done: int, total: int) -> None:
                nonlocal task
                if task is None:
                    task = progress.add_task(_truncate(label), total=total or None)
                progress.update(task, completed=done)
                if total and done >= total:
                    progress.update(task, visible=False)

            return update

        yield add_bar


class StepBar:
    """A bar for one step of processing many items, such as hashing. Safe to use from several threads.

    `format_value` formats amounts of progress, such as bytes. Without `progress` nothing is shown.
    """

    def __init__(self, progress: Progress | None, label: str, total: int, format_value: Callable[[int], str]) -> None:
        self._progress = progress
        self._total = total
        self._format = format_value
        self._done = 0
        self._lock = Lock()
        if progress is not None:
            self._task = progress.add_task(label, total=total, status="", start=False)

    def advance(self, count: int) -> None:
        """Add to the amount that is done."""
        if self._progress is None or count == 0:
            return
        with self._lock:
            if self._done == 0:
                self._progress.start_task(self._task)
            self._done += count
        self.describe("")

    def describe(self, text: str) -> None:
        """Set the text behind the bar to what is being done now."""
        if self._progress is not None:
            status = f"{self._format(self._done)} of {self._format(self._total)}  {_truncate(text)}".rstrip()
            self._progress.update(self._task, completed=self._done, total=self._total, status=status)

    def item(self, total: int) -> ItemProgress:
        """Return a progress callback for one item of this size."""
        return ItemProgress(self, total)


class ItemProgress:
    """The progress of one item in a step. Instances are callbacks of type `Progress` for the client."""

    def __init__(self, step: StepBar, total: int) -> None:
        self._step = step
        self._total = total
        self._done = 0

    def __call__(self, done: int, total: int) -> None:  # noqa: ARG002 - signature of `Progress`
        """Report how much of the item is done."""
        if self._done < done <= self._total:
            self._step.advance(done - self._done)
            self._done = done

    def finish(self) -> None:
        """Report that all of the item is done."""
        self(self._total, self._total)


@contextmanager
def step_bars() -> Iterator[Callable[[str, int, Callable[[int], str]], StepBar]]:
    """Show a list of bars, if stderr is a terminal. Yield a function that adds one: label, total, format of values."""
    if not sys.stderr.isatty():
        yield partial(StepBar, None)
        return
    status = TextColumn("{task.fields[status]}", markup=False)
    with _bars(status, TimeElapsedColumn(), transient=True) as progress:
        yield partial(StepBar, progress)


def watch_until_finished(
    client: Client, job_ids: Sequence[str], out: Output, *, silent: bool = False, timeout_seconds: float | None = None
) -> list[Job]:
    """Show the progress of jobs until all are finished, and return the finished jobs. Raises `NotInTime`.

    Each change of a job is a line of JSON, a line of text, or an update of the job's bar on a terminal. With `silent`
    nothing is written to stdout. If a job does not run after 5 seconds, the reason is written to stderr once.
    """
    started_at = time.monotonic()
    deadline = None if timeout_seconds is None else started_at + timeout_seconds
    latest: dict[str, Job] = {}
    unfinished = list(dict.fromkeys(job_ids))
    is_explained = False
    with _job_display(out, unfinished, silent=silent) as show_job:
        while unfinished:
            can_wait = len(unfinished) == 1 and unfinished[0] in latest
            for job_id in tuple(unfinished):
                job = client.read(job_id, wait_seconds=_poll_delay(client, deadline, job_id) if can_wait else 0.0)
                if job != latest.get(job_id):
                    latest[job_id] = job
                    show_job(job)
                if job.status in FINISHED:
                    unfinished.remove(job_id)
            waiting = [job_id for job_id in unfinished if latest[job_id].status in WAITING]
            if waiting and not is_explained and time.monotonic() - started_at >= EXPLAIN_SECONDS:
                is_explained = True
                if reason := reason_suffix(client, waiting[0]):
                    out.message(f"Job {waiting[0]} is {latest[waiting[0]].status}{reason}")
            if len(unfinished) > 1:
                time.sleep(_poll_delay(client, deadline, unfinished[0]))
    return [latest[job_id] for job_id in dict.fromkeys(job_ids)]


def _poll_delay(client: Client, deadline: float | None, job_id: str) -> float:
    """Return how many seconds to wait before the next poll. Raises `NotInTime` after the deadline."""
    remaining = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
    if remaining <= 0:
        raise NotInTime(f"job {job_id} is not finished yet{reason_suffix(client, job_id)}")
    return remaining


def reason_suffix(client: Client, job_id: str) -> str:
    """Return what `explain` says about a job, to be appended to a message; nothing if that cannot be read."""
    with suppress(IngotError):  # The token may be allowed to create jobs but not to read them.
        for reason in client.explain(job_id).reasons:
            return f": {reason.message}"
    return ""


def watch_batch_until_finished(client: Client, name: str, out: Output) -> Batch:
    """Show the progress of a batch until all its jobs are finished."""
    previous: Batch | None = None
    batch = client.batch(name)
    with counter_bar(f"batch {printable(name)}", batch.total) as advance:
        while True:
            if batch != previous:
                advance(_finished_count(batch) - (0 if previous is None else _finished_count(previous)))
                if out.json:
                    out.json_line(batch)
                elif not sys.stderr.isatty():
                    out.text(f"{_finished_count(batch)} of {batch.total} finished, {batch.dead} dead\n")
                previous = batch
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
    """Return the progress of a running job or the error of a dead one, to be appended to its status."""
    if job.status is JobStatus.DEAD:
        return f": {_truncate(job.last_error or '')}"
    if job.status is not JobStatus.RUNNING or job.progress is None:
        return ""
    return f" {job.progress.percent:.0f} % {_truncate(job.progress.stage)}".rstrip()


def _truncate(text: str) -> str:
    return printable(text).replace("\n", " ")[:STAGE_CHARS_MAX]


class JobBars:
    """One progress bar per job."""

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
        """Update the bar of a job."""
        succeeded = job.status is JobStatus.SUCCEEDED
        percent = 100.0 if succeeded else job.progress.percent if job.progress is not None else None
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
    """Create bars on stderr, each between its description and these columns."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(complete_style="cyan", finished_style="green"),
        *columns,
        console=Console(stderr=True, highlight=False),
        transient=transient,
    )
