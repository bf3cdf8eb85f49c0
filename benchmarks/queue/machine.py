"""The machine of a run, and the time of a sync on its disk."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import apsw

from benchmarks.queue.folders import REPOSITORY

PAGE: Final = b"x" * 4096
SYNC_SAMPLES: Final = 300


@dataclass(frozen=True, slots=True)
class Machine:
    when: str
    revision: str
    cpu: str
    cores: int
    kernel: str
    python: str
    sqlite: str
    filesystem: str
    load: float

    @property
    def lines(self) -> list[str]:
        return [
            f"{self.cpu}, {self.cores} cores; {self.kernel}; load {self.load:.2f} at the start",
            f"{self.python}; SQLite {self.sqlite}; files on {self.filesystem}",
        ]


def describe(folder: Path) -> Machine:
    return Machine(
        when=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        revision=_revision(),
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        sqlite=f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()}), {sqlite3.sqlite_version} (sqlite3)",
        filesystem=_filesystem(folder),
        load=os.getloadavg()[0],
    )


def sync_micros(folder: Path) -> float:
    """Return the median time of writing a page and calling fdatasync, as a WAL commit does."""
    path = folder / "sync"
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    seconds = []
    try:
        for number in range(SYNC_SAMPLES):
            os.pwrite(file, PAGE, number * len(PAGE))
            began = time.perf_counter()
            (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(file)
            seconds.append(time.perf_counter() - began)
    finally:
        os.close(file)
        path.unlink()
    return statistics.median(seconds) * 1_000_000


def _revision() -> str:
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _filesystem(folder: Path) -> str:
    """Return the type of the file system of `folder`, which is the one with the longest mount point."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "an unknown file system"
    candidates = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(candidates)[1] if candidates else "an unknown file system"
