"""1 KiB blobs, 32 at once: over HTTP and without, beside a file for each."""

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


def ask(order: PutLoad) -> LoadResult:
    """What a process that does as ordered found."""
    command = [sys.executable, "-m", "benchmarks.blobs.concurrent_puts", msgspec.json.encode(order).decode()]
    text = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    return msgspec.json.decode(text, type=LoadResult)


def puts(site: IngotServer, seconds: float) -> LoadResult:
    """Puts of keys over connections that are kept."""
    port = int(site.url.rpartition(":")[2])
    return ask(PutLoad(what="put", port=port, token=site.token, seconds=seconds, at_once=AT_ONCE, bytes=BYTES))


def inside(folder: Path, seconds: float) -> LoadResult:
    """Puts of keys into a store that the process has open itself."""
    return _in_place("inside", folder, seconds)


def files(folder: Path, seconds: float) -> LoadResult:
    """A file for each blob, with fsync, rename and fsync of the folder, by threads."""
    return _in_place("files", folder, seconds)


def _in_place(what: str, folder: Path, seconds: float) -> LoadResult:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return ask(PutLoad(what=what, folder=place, seconds=seconds, at_once=AT_ONCE, bytes=BYTES))
