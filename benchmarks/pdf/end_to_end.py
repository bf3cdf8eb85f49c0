"""Conversion from upload to download: `ingot serve`, `ingot worker --handlers pdf` and `ingot ingest`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.queue.folders import REPOSITORY
from benchmarks.worker.ingot_server import IngotServer, serving
from ingot import Client

TERM_SECONDS_MAX = 30.0


@contextmanager
def server_with_worker(folder: Path) -> Iterator[IngotServer]:
    """Run a server on a new folder and a registered worker for PDFs, until the end of the block."""
    with serving(folder) as server, (folder / "worker.log").open("w") as log:
        command = [sys.executable, "-m", "ingot", "worker", "--handlers", "pdf"]
        worker = subprocess.Popen(command, cwd=folder, env=_environment(server), stdout=log, stderr=log)
        try:
            with Client(server.url, token=server.token) as client:
                while not any(client.workers()):
                    if worker.poll() is not None:
                        sys.exit(f"benchmark: the worker ended early: {(folder / 'worker.log').read_text()[-1000:]}")
                    time.sleep(0.05)
            yield server
        finally:
            worker.terminate()
            try:
                worker.wait(TERM_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def ingest(server: IngotServer, folder: Path, *options: str) -> float:
    """Ingest a folder of PDFs, and return the seconds, including the start of the command."""
    command = [sys.executable, "-m", "ingot", "ingest", str(folder), *options]
    began = time.perf_counter()
    process = subprocess.run(
        command, cwd=REPOSITORY, env=_environment(server), capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if process.returncode != 0:
        sys.exit(f"benchmark: ingest ended with exit code {process.returncode}: {process.stderr[-1000:]}")
    return seconds


def _environment(server: IngotServer) -> dict[str, str]:
    return {**os.environ, "INGOT_SERVER_URL": server.url, "INGOT_TOKEN": server.token}
