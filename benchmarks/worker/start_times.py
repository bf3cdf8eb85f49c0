"""Handlers note that they started: a file of times, one for each job, that all processes of a run have mapped."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "BENCH_NOTES"
JOBS_MAX: Final = 400_000
_NANOS: Final = struct.Struct("<q")
_mapped: list[mmap.mmap] = []


def note(number: int) -> None:
    """The handler of this job starts now. May be called in any process of the run."""
    if not _mapped:
        _mapped.append(_map(Path(os.environ[VARIABLE])))
    _NANOS.pack_into(_mapped[0], number * _NANOS.size, time.monotonic_ns())


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class StartTimes:
    """The file, as the process that measures reads it. `started` jobs from the first on were seen to start."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(JOBS_MAX * _NANOS.size))
        self._mapped = _map(path)
        self.started = 0

    def at(self, number: int) -> int:
        """When this job started, in nanoseconds of the monotonic clock; 0 when it did not yet."""
        found: int = _NANOS.unpack_from(self._mapped, number * _NANOS.size)[0]
        return found

    def all_started(self, upto: int) -> bool:
        """Whether all jobs below this number have started."""
        while self.started < upto and self.at(self.started):
            self.started += 1
        return self.started >= upto

    def first(self, start: int, stop: int) -> int:
        """When the first of these started."""
        return min(self.at(number) for number in range(start, stop))
