"""The growth of the server's memory while 1 GiB is uploaded and downloaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.blobs.client_process import ClientProcess
from benchmarks.blobs.large_blobs import BYTES, get, put, write_random_file
from benchmarks.blobs.measurements import Measurements
from benchmarks.server.processes import MeasuredProcess
from benchmarks.worker.ingot_server import IngotServer

TIMES: Final = 16  # 64 MiB each.
POLL_SECONDS: Final = 0.01
MIB: Final = 1024 * 1024


@contextmanager
def measured_growth(process: MeasuredProcess, measurements: Measurements, name: str) -> Iterator[None]:
    """Record how much the memory of a process grows during the block, in MiB."""
    before = highest = process.resident_bytes()
    ended = threading.Event()

    def poll() -> None:
        nonlocal highest
        while not ended.wait(POLL_SECONDS):
            highest = max(highest, process.resident_bytes())

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    measurements.record(name, (highest - before) / MIB)


def measure_growth(client: ClientProcess, server: IngotServer, folder: Path, measurements: Measurements) -> None:
    """Upload and download a blob of 1 GiB, on a server that has served no other request."""
    path = folder / "part"
    write_random_file(path, BYTES)
    with measured_growth(server, measurements, "grown"):
        measurements.record_speed("put 1 GiB", put(client, server, "gib", path, times=TIMES))
        measurements.record_speed("get 1 GiB", get(client, server, "gib"))
