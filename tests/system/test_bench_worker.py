"""The benchmark of workers, with a handful of jobs: a server and a worker as people run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.queue.places import REPOSITORY
from benchmarks.worker.adapter import Figures, Order, Place
from benchmarks.worker.site import serving


@pytest.mark.timeout(60)
def test_a_worker_is_measured_from_start_to_settle(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        order = Order(
            system="ingot",
            place=Place(store="sqlite", url=server.url, token=server.token),
            notes=str(tmp_path / "notes"),
            jobs=300,
            steady_seconds=0.2,
            backlog_jobs=100,
            samples=2,
        )
        command = [sys.executable, "-m", "benchmarks.worker.child", msgspec.json.encode(order).decode()]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = msgspec.json.decode(done.stdout, type=Figures)
    assert min(found.rate, found.start_seconds, found.steady_rate, *found.latencies_ms) > 0
    assert len(found.latencies_ms) == 2
