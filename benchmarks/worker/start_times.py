"""Start times of handlers, in a file that all processes of a run map into memory."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "BENCH_START_TIMES"
JOBS_MAX: Final = 400_000
_NANOS: Final = struct.Struct("<q")
_mapped: list[mmap.mmap] = []


def record_start(number: int) -> None:
    """Record that the handler of this job starts now. May be called in any process of the run."""
    if not _mapped:
        _mapped.append(_map(Path(os.environ[VARIABLE])))
    _NANOS.pack_into(_mapped[0], number * _NANOS.size, time.monotonic_ns())


def _map(path: Path) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


class StartTimes:
    """The file, as the measuring process reads it. All jobs with a number below `started` have started."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(JOBS_MAX * _NANOS.size))
        self._mapped = _map(path)
        self.started = 0

    def at(self, number: int) -> int:
        """Return when this job started, in nanoseconds of the monotonic clock; 0 if it has not started."""
        nanos: int = _NANOS.unpack_from(self._mapped, number * _NANOS.size)[0]
        return nanos

    def all_started(self, upto: int) -> bool:
        """Return whether all jobs below this number have started."""
        while self.started < upto and self.at(self.started):
            self.started += 1
        return self.started >= upto

    def first(self, start: int, stop: int) -> int:
        """Return when the first of these jobs started."""
        return min(self.at(number) for number in range(start, stop))
