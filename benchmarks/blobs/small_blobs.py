"""Blobs of 1 KiB, 32 at a time: over HTTP and without it, compared with one file per blob."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs.concurrent_puts import PutLoad
from benchmarks.queue.folders import REPOSITORY
from benchmarks.server.load import LoadResult
from benchmarks.worker.ingot_server import IngotServer

AT_ONCE: Final = 32
BYTES: Final = 1024


def run_load(load: PutLoad) -> LoadResult:
    """Run a load in a new process and return its result."""
    command = [sys.executable, "-m", "benchmarks.blobs.concurrent_puts", msgspec.json.encode(load).decode()]
    text = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    return msgspec.json.decode(text, type=LoadResult)


def puts(server: IngotServer, seconds: float) -> LoadResult:
    """Put keys over open connections."""
    port = int(server.url.rpartition(":")[2])
    return run_load(PutLoad(what="put", port=port, token=server.token, seconds=seconds, at_once=AT_ONCE, bytes=BYTES))


def inside(folder: Path, seconds: float) -> LoadResult:
    """Put keys into a store that the process has opened."""
    return _run_in_folder("inside", folder, seconds)


def files(folder: Path, seconds: float) -> LoadResult:
    """Write one file per blob, with fsync, rename and fsync of the folder, in threads."""
    return _run_in_folder("files", folder, seconds)


def _run_in_folder(what: str, folder: Path, seconds: float) -> LoadResult:
    with tempfile.TemporaryDirectory(dir=folder) as load_folder:
        return run_load(PutLoad(what=what, folder=load_folder, seconds=seconds, at_once=AT_ONCE, bytes=BYTES))
