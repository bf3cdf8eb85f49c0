"""Starts, uses and stops the processes of a run, and measures their CPU time and memory."""

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
    """A process whose CPU time and memory are measured."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """Return the next line that the process prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"benchmark: {self.process.args!r} ended early")
        return line

    def cpu_seconds(self) -> float:
        """Return the CPU time since its start."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def resident_bytes(self) -> int:
        """Return the resident memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES


@contextmanager
def started(module: str, *arguments: str) -> Iterator[MeasuredProcess]:
    """Run a module of this package until the end of the block."""
    command = [sys.executable, "-m", f"benchmarks.server.{module}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            yield MeasuredProcess(process)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def running_server(folder: Path) -> Iterator[tuple[MeasuredProcess, BenchmarkServer]]:
    """Run a server on a new folder until the end of the block."""
    server_folder = tempfile.mkdtemp(dir=folder)
    try:
        with started("benchmark_server", server_folder) as process:
            yield process, msgspec.json.decode(process.line(), type=BenchmarkServer)
    finally:
        shutil.rmtree(server_folder)


def run_load(load: LoadRequest) -> LoadResult:
    """Create a load in a new process and return its result."""
    with started("load", msgspec.json.encode(load).decode()) as process:
        return msgspec.json.decode(process.line(), type=LoadResult)


@contextmanager
def following(load: LoadRequest) -> Iterator[MeasuredProcess]:
    """Keep connections open that follow a stream or wait for work."""
    with started("followers", msgspec.json.encode(load).decode()) as process:
        process.line()
        yield process


def read_frame_counts(process: MeasuredProcess) -> FrameCounts:
    """End the followers and return how many frames they received."""
    assert process.process.stdin is not None
    process.process.stdin.write("end\n")
    process.process.stdin.flush()
    return msgspec.json.decode(process.line(), type=FrameCounts)


def engine_alone(folder: Path, jobs: int, callers: int) -> LoadResult:
    """Claim and settle jobs without a server, and return the rate."""
    store_folder = tempfile.mkdtemp(dir=folder)
    try:
        with started("engine_only", store_folder, str(jobs), str(callers)) as process:
            return msgspec.json.decode(process.line(), type=LoadResult)
    finally:
        shutil.rmtree(store_folder)
