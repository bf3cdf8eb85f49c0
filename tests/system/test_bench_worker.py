"""The benchmark of workers, with a handful of jobs: a server and a worker as people run them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.worker.adapter import RunRequest, SystemAddress
from benchmarks.worker.ingot_server import serving
from benchmarks.worker.runs import run


def test_the_worker_benchmark_measures_rate_start_and_latency(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        order = RunRequest(
            system="ingot",
            place=SystemAddress(store="sqlite", url=server.url, token=server.token),
            notes=str(tmp_path / "notes"),
            jobs=300,
            steady_seconds=0.2,
            backlog_jobs=100,
            samples=2,
        )
        found = run(order)
    assert min(found.rate, found.start_seconds, found.steady_rate, *found.latencies_ms) > 0
    assert len(found.latencies_ms) == 2
