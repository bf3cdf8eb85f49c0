"""What the server's memory grows by while 1 GiB goes in and out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.blobs.client_process import ClientProcess
from benchmarks.blobs.large_blobs import BYTES, get, make, put
from benchmarks.blobs.measurements import Measurements
from benchmarks.server.processes import MeasuredProcess
from benchmarks.worker.ingot_server import IngotServer

TIMES: Final = 16  # Of 64 MiB.
LOOK_SECONDS: Final = 0.01
MIB: Final = 1024 * 1024


@contextmanager
def watched(process: MeasuredProcess, found: Measurements, name: str) -> Iterator[None]:
    """How far its memory grows in the block, in MiB."""
    before = most = process.resident_bytes()
    ended = threading.Event()

    def look() -> None:
        nonlocal most
        while not ended.wait(LOOK_SECONDS):
            most = max(most, process.resident_bytes())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
    found.note(name, (most - before) / MIB)


def grown(client: ClientProcess, site: IngotServer, folder: Path, found: Measurements) -> None:
    """A blob of 1 GiB in, and out again, on a server that has done nothing else before."""
    path = folder / "part"
    make(path, BYTES)
    with watched(site, found, "grown"):
        found.speed("put 1 GiB", put(client, site, "gib", path, times=TIMES))
        found.speed("get 1 GiB", get(client, site, "gib"))
