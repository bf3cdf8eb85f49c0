"""The benchmark of workers with a few jobs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.worker.adapter import RunRequest, SystemAddress
from benchmarks.worker.ingot_server import serving
from benchmarks.worker.runs import run


def test_the_worker_benchmark_measures_rate_start_and_latency(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        request = RunRequest(
            system="ingot",
            address=SystemAddress(store="sqlite", url=server.url, token=server.token),
            start_times=str(tmp_path / "start_times"),
            jobs=300,
            steady_seconds=0.2,
            backlog_jobs=100,
            samples=2,
        )
        result = run(request)
    assert min(result.rate, result.start_seconds, result.steady_rate, *result.latencies_ms) > 0
    assert len(result.latencies_ms) == 2
