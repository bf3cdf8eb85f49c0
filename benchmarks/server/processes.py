"""The processes of a run: each is started, asked, and ended; and what they used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.queue.other_load import TICKS_PER_SECOND
from benchmarks.server.benchmark_server import BenchmarkServer
from benchmarks.server.followers import FrameCounts
from benchmarks.server.load import LoadRequest, LoadResult

RUN_SECONDS_MAX: Final = 300
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class MeasuredProcess:
    """A process that is measured from outside."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self.running = running

    def line(self) -> str:
        """The next line it prints."""
        assert self.running.stdout is not None
        line = self.running.stdout.readline()
        if not line:
            sys.exit(f"benchmark: {self.running.args!r} ended early")
        return line

    def cpu_seconds(self) -> float:
        """How long it has computed since it began."""
        fields = Path(f"/proc/{self.running.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def resident_bytes(self) -> int:
        """How much memory it has."""
        return int(Path(f"/proc/{self.running.pid}/statm").read_text().split()[1]) * PAGE_BYTES


@contextmanager
def started(module: str, *arguments: str) -> Iterator[MeasuredProcess]:
    """A process, ended at the end of the block."""
    command = [sys.executable, "-m", f"benchmarks.server.{module}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as running:
        try:
            yield MeasuredProcess(running)
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()


@contextmanager
def site(folder: Path) -> Iterator[tuple[MeasuredProcess, BenchmarkServer]]:
    """A server on a new folder."""
    place = tempfile.mkdtemp(dir=folder)
    try:
        with started("benchmark_server", place) as process:
            yield process, msgspec.json.decode(process.line(), type=BenchmarkServer)
    finally:
        shutil.rmtree(place)


def ask(order: LoadRequest) -> LoadResult:
    """Load from one process, and what came of it."""
    with started("load", msgspec.json.encode(order).decode()) as process:
        return msgspec.json.decode(process.line(), type=LoadResult)


@contextmanager
def following(order: LoadRequest) -> Iterator[MeasuredProcess]:
    """Many connections that follow, or wait."""
    with started("followers", msgspec.json.encode(order).decode()) as process:
        process.line()
        yield process


def heard(process: MeasuredProcess) -> FrameCounts:
    """What those who follow have heard."""
    assert process.running.stdin is not None
    process.running.stdin.write("tell\n")
    process.running.stdin.flush()
    return msgspec.json.decode(process.line(), type=FrameCounts)


def engine_alone(folder: Path, jobs: int, callers: int) -> LoadResult:
    """Claims and settles without a server."""
    place = tempfile.mkdtemp(dir=folder)
    try:
        with started("engine_only", place, str(jobs), str(callers)) as process:
            return msgspec.json.decode(process.line(), type=LoadResult)
    finally:
        shutil.rmtree(place)
