"""The whole way: `ingot serve`, `ingot worker --handlers pdf` and `ingot ingest`, as people run them."""

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
def running(place: Path) -> Iterator[IngotServer]:
    """A server on a new folder and one worker for PDFs, ready and warm; both ended at the end of the block."""
    with serving(place) as site, (place / "worker.log").open("w") as log:
        command = [sys.executable, "-m", "ingot", "worker", "--handlers", "pdf"]
        worker = subprocess.Popen(command, cwd=place, env=_environment(site), stdout=log, stderr=log)
        try:
            with Client(site.url, token=site.token) as client:
                while not any(client.workers()):
                    if worker.poll() is not None:
                        sys.exit(f"benchmark: the worker ended early: {(place / 'worker.log').read_text()[-1000:]}")
                    time.sleep(0.05)
            yield site
        finally:
            worker.terminate()
            try:
                worker.wait(TERM_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def ingest(site: IngotServer, folder: Path, *words: str) -> float:
    """Send a folder of PDFs through; answers how long that took, the start of the command included."""
    command = [sys.executable, "-m", "ingot", "ingest", str(folder), *words]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=REPOSITORY, env=_environment(site), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"benchmark: ingest ended with {done.returncode}: {done.stderr[-1000:]}")
    return seconds


def _environment(site: IngotServer) -> dict[str, str]:
    return {**os.environ, "INGOT_SERVER_URL": site.url, "INGOT_TOKEN": site.token}
