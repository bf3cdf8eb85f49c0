"""1 KiB blobs, 32 at once: over HTTP and without, beside a file for each."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.blobs.crowd import Crowd
from benchmarks.queue.places import REPOSITORY
from benchmarks.server.load import Figures
from benchmarks.worker.site import Site

AT_ONCE: Final = 32
BYTES: Final = 1024


def ask(order: Crowd) -> Figures:
    """What a process that does as ordered found."""
    command = [sys.executable, "-m", "benchmarks.blobs.crowd", msgspec.json.encode(order).decode()]
    text = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout
    return msgspec.json.decode(text, type=Figures)


def puts(site: Site, seconds: float) -> Figures:
    """Puts of keys over connections that are kept."""
    port = int(site.url.rpartition(":")[2])
    return ask(Crowd(what="put", port=port, token=site.token, seconds=seconds, at_once=AT_ONCE, bytes=BYTES))


def inside(folder: Path, seconds: float) -> Figures:
    """Puts of keys into a store that the process has open itself."""
    return _in_place("inside", folder, seconds)


def files(folder: Path, seconds: float) -> Figures:
    """A file for each blob, with fsync, rename and fsync of the folder, by threads."""
    return _in_place("files", folder, seconds)


def _in_place(what: str, folder: Path, seconds: float) -> Figures:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        return ask(Crowd(what=what, folder=place, seconds=seconds, at_once=AT_ONCE, bytes=BYTES))
