"""Redirects what handlers print and log to the logs of their jobs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Any, Final

from ingot.kernel.logs import silence_libraries
from ingot.worker.job import WorkerJob

RECORD_FORMAT: Final = logging.Formatter("%(levelname)s %(name)s: %(message)s")
_current_job: ContextVar[WorkerJob | None] = ContextVar("ingot_job", default=None)


class _Tee:
    """A text stream that writes to the log of the current job, or without one to the original stream."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        job = _current_job.get()
        if job is None:
            return self._stream.write(text)
        job.log(text, end="")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _BinaryTee:
        return _BinaryTee(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _BinaryTee:
    """The binary buffer of a `_Tee`. Bytes that are not UTF-8 are replaced."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        job = _current_job.get()
        if job is None:
            return self._stream.buffer.write(data)  # type: ignore[attr-defined, no-any-return]
        job.log(bytes(data).decode("utf-8", "replace"), end="")
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream.buffer, name)  # type: ignore[attr-defined]


class _JobLogHandler(logging.Handler):
    """Writes log records to the log of the current job."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the log of the current job."""
        if (job := _current_job.get()) is None:
            return
        try:
            job.append_log(f"{self.format(record)}\n")  # `ingot dev` shows the record itself.
        except Exception:  # As in every logging handler, a record that cannot be formatted must not fail the caller.
            self.handleError(record)


@contextmanager
def capture_job_output(job: WorkerJob) -> Iterator[None]:
    """Make this the current job of the context, so that output goes to its log."""
    token = _current_job.set(job)
    try:
        yield
    finally:
        _current_job.reset(token)


def log_to_stdout(level: int) -> None:
    """Write log records to standard output, which is the log of the job in an isolated process."""
    records = logging.StreamHandler(sys.stdout)
    records.setFormatter(RECORD_FORMAT)
    logging.getLogger().addHandler(records)
    logging.getLogger().setLevel(level)
    silence_libraries()


@contextmanager
def capture_process_output() -> Iterator[None]:
    """Redirect standard output, standard error and logging of this process to the logs of jobs."""
    out, err = sys.stdout, sys.stderr
    records = _JobLogHandler()
    records.setFormatter(RECORD_FORMAT)
    logging.getLogger().addHandler(records)
    sys.stdout, sys.stderr = _Tee(out), _Tee(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        logging.getLogger().removeHandler(records)
