"""Metrics and status of a server."""

from __future__ import annotations

import asyncio
import platform
import re
import time
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from ingot.api import ops as of_ops
from ingot.api.ops import VERSION
from ingot.blobs.counters import BlobCounters
from ingot.blobs.model import BlobMetrics
from ingot.engines.sqlite.migrate import migrations
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.http import event_loop_lag as of_lag
from ingot.http.buffers import Buffers
from ingot.http.event_loop_lag import SAMPLES_MAX, EventLoopLag
from ingot.http.job_metrics import OTHER_LABEL, TYPES_MAX, HistogramCounts, JobMetricsCollector
from ingot.http.metrics import Metrics
from ingot.identity.grants import Grant
from ingot.jobs import Definition, JobStatus
from ingot.jobs.metrics import Depth
from ingot.jobs.worker_model import WorkerStatus
from tests.http.serving import Served
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

Samples = dict[tuple[str, tuple[str, ...]], float]


async def scrape(served: Served) -> Samples:
    response = await served.client.get("/metrics", headers={"authorization": f"Bearer {served.operator}"})
    assert response.status_code == 200, response.text
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


async def test_metrics_count_what_happened_to_jobs(served: Served) -> None:
    await served.ingot.jobs.define(Definition(type="noop", max_attempts=2))
    for key in ("a", "b", "c", "d"):
        await served.make_job(idempotency_key=key)
    again = await served.call("POST", "/jobs", json={"type": "noop", "idempotency_key": "a"})
    assert again.status_code == 200
    first, second, third = [await served.claim() for _ in range(3)]
    await served.call("POST", f"/jobs/{first['id']}/complete", json={"fence": first["fence"]})
    await served.call("POST", f"/jobs/{first['id']}/complete", json={"fence": first["fence"]})
    await served.call("POST", f"/jobs/{second['id']}/fail", json={"fence": second["fence"], "error": "no"})
    await served.call(
        "POST", f"/jobs/{third['id']}/fail", json={"fence": third["fence"], "error": "no", "retry": False}
    )
    page = (await served.call("GET", "/jobs", params={"status": "queued"})).json()
    fourth = next(job for job in page["items"] if job["attempts"] == 0)
    await served.call("POST", f"/jobs/{fourth['id']}/cancel")
    samples = await scrape(served)
    assert {name: samples[name, ("noop",)] for name, labels in samples if labels == ("noop",)} == {
        "ingot_jobs_enqueued_total": 4,
        "ingot_jobs_succeeded_total": 1,
        "ingot_attempts_failed_total": 2,
        "ingot_jobs_retried_total": 1,
        "ingot_jobs_dead_total": 1,
        "ingot_jobs_canceled_total": 1,
        "ingot_leases_lost_total": 0,
        "ingot_queue_latency_seconds_count": 3,
        "ingot_queue_latency_seconds_sum": samples["ingot_queue_latency_seconds_sum", ("noop",)],
        "ingot_run_seconds_count": 3,
        "ingot_run_seconds_sum": samples["ingot_run_seconds_sum", ("noop",)],
    }
    assert samples["ingot_queue_latency_seconds_bucket", ("+Inf", "noop")] == 3
    assert samples["ingot_commit_commands_count", ("sqlite", "write")] >= 10
    depths = {labels: jobs for (name, labels), jobs in samples.items() if name == "ingot_jobs" and jobs}
    assert depths == {
        ("queued", "default"): 1,
        ("succeeded", "default"): 1,
        ("dead", "default"): 1,
        ("canceled", "default"): 1,
    }
    assert samples["ingot_store_waiting_commands", ()] == 0
    assert samples["ingot_event_loop_lag_seconds", ()] >= 0


async def test_metrics_are_for_operators_only(served: Served) -> None:
    token = await served.token(Grant(action="*"))
    response = await served.client.get("/metrics", headers={"authorization": f"Bearer {token}"})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    assert "ingot_jobs" not in response.text
    order = {"description": "prometheus", "operator": True, "grants": [{"action": "ops.read"}]}
    own = (await served.call("POST", "/admin/tokens", json=order)).json()["token"]
    response = await served.client.get("/metrics", headers={"authorization": f"Bearer {own}"})
    assert response.status_code == 200


async def test_metrics_of_the_process_are_served_when_the_store_fails(served: Served, tmp_path: Path) -> None:
    await served.make_job()
    with closing(apsw.Connection(str(tmp_path / "data" / FILE_NAME))) as connection:
        connection.execute("ALTER TABLE counts RENAME TO elsewhere")
    with capture_logs() as logs:
        samples = await scrape(served)
        failed = await served.call("GET", "/jobs/summary", headers={"x-request-id": "r1"})
    assert samples["ingot_jobs_enqueued_total", ("noop",)] == 1
    assert not {"ingot_jobs", "ingot_workers", "ingot_database_bytes"} & {name for name, _ in samples}
    assert samples["ingot_disk_bytes", ()] > 0
    assert failed.status_code >= 500
    (missing, warned) = logs
    assert (missing["event"], missing["log_level"]) == ("metrics_incomplete", "error")
    assert (warned["event"], warned["log_level"]) == ("request_refused", "warning")
    assert (warned["route"], warned["status"], warned["code"]) == ("/api/v1/jobs/summary", 500, "store_misconfigured")
    assert warned["duration_ms"] > 0


async def test_the_status_covers_the_tenant_of_the_caller(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    await served.ingot.jobs.enqueue(other.id, "noop")
    await served.make_job()
    await served.make_job(delay_seconds=60)
    await served.claim()
    await served.call("POST", "/workers", json={"id": "w", "types": ["noop"]})
    token = await served.token(Grant(action="jobs.read"))
    status: dict[str, Any] = (await served.client.get("/status", headers={"authorization": f"Bearer {token}"})).json()
    assert {state: jobs for state, jobs in status["counts"].items() if jobs} == {"queued": 1, "running": 1}
    assert (status["queue_depth"], status["running"], status["oldest_queued_seconds"]) == (1, 1, None)
    assert (status["engine"], status["lags"]["store"]["waiting_commands"]) == ("sqlite", 0)
    assert status["uptime_seconds"] > 0
    assert status["workers"] == {"online": 1, "draining": 0, "silent": 0, "offline": 0, "disabled": 0}
    assert status["lags"]["event_loop_seconds"] >= 0


def test_the_reference_page_lists_exactly_the_metrics() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.register_streams(lambda: 0)
    metrics.register_waiting_heartbeats(lambda: 0)
    metrics.server.buffers = Buffers()
    metrics.register_blobs(BlobCounters())
    assert metrics.blobs is not None
    metrics.blobs.store_metrics = BlobMetrics(verified_before=datetime.now(UTC))
    exported = {(family.name, family.type) for family in metrics.registry.collect()}
    documented = set(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert documented == exported


async def test_the_metrics_describe_the_server(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_ops, "DESCRIBE_SECONDS", 0)
    await served.ingot.workers.register(served.ingot.default_tenant.id, "press/1", ["noop"])
    await served.ingot.workers.register(None, "shared/1", ["noop"])
    samples = await scrape(served)
    workers = {labels: count for (name, labels), count in samples.items() if name == "ingot_workers"}
    assert workers == {(status,): 2 if status == "online" else 0 for status in WorkerStatus}
    assert samples["ingot_build_info", ("sqlite", platform.python_version(), VERSION)] == 1
    assert samples["ingot_database_info", (f"SQLite {apsw.sqlite_lib_version()}",)] == 1
    assert samples["ingot_schema_version", ()] == migrations()[-1].number
    file = tmp_path / "data" / FILE_NAME
    assert samples["ingot_database_bytes", ()] == file.stat().st_size
    before = samples["ingot_database_wal_bytes", ()]
    await served.make_job(payload="x" * 60_000)
    samples = await scrape(served)
    assert samples["ingot_database_wal_bytes", ()] - before >= 60_000
    assert 0 < samples["ingot_disk_free_bytes", ()] < samples["ingot_disk_bytes", ()]
    assert samples["process_resident_memory_bytes", ()] > 0
    assert samples["process_open_fds", ()] > 0


async def test_the_size_of_the_database_is_read_once_a_minute(served: Served) -> None:
    before = (await scrape(served))["ingot_database_wal_bytes", ()]
    await served.make_job(payload="x" * 60_000)
    assert (await scrape(served))["ingot_database_wal_bytes", ()] == before


async def test_open_connections_are_counted(served: Served) -> None:
    before = (await scrape(served))["ingot_http_connections", ()]
    host, port = served.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    await eventually(partial(has_connections, served, before + 1))
    writer.close()
    await writer.wait_closed()
    await eventually(partial(has_connections, served, before))
    assert (await scrape(served))["ingot_http_connections_max", ()] == 10_000


async def has_connections(served: Served, count: float) -> bool:
    return (await scrape(served))["ingot_http_connections", ()] == count


def samples_of(collector: JobMetricsCollector, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_job_types_above_the_limit_are_counted_together() -> None:
    collector = JobMetricsCollector()
    for number in range(TYPES_MAX + 5):
        collector.canceled(f"type-{number}", 2)
    collector.canceled("type-0", 1)
    counted = samples_of(collector, "ingot_jobs_canceled_total")
    assert len(counted) == TYPES_MAX + 1
    assert (counted["type-0",], counted[OTHER_LABEL,]) == (3, 10)


def depth(tenant: str | None, queued: int, age: float | None) -> Depth:
    return Depth(tenant=tenant, counts={JobStatus.QUEUED: queued}, oldest_ready_seconds=age)


def test_a_tenant_named_like_the_overflow_label_is_counted_with_it() -> None:
    collector = JobMetricsCollector()
    depths: Sequence[Depth] = [depth("acme", 1, None), depth(OTHER_LABEL, 2, 3.0), depth(None, 4, 9.0)]
    collector.depths = depths
    assert samples_of(collector, "ingot_jobs") == {("acme", "queued"): 1, (OTHER_LABEL, "queued"): 6}
    assert samples_of(collector, "ingot_oldest_ready_seconds") == {("acme",): 0, (OTHER_LABEL,): 9}


def test_histogram_buckets_are_cumulative() -> None:
    histogram = HistogramCounts((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 5):
        histogram.observe(value)
    assert histogram.cumulative_buckets() == [("1.0", 2), ("2.0", 3), ("4.0", 4), ("+Inf", 5)]
    assert histogram.sum == 12


async def test_the_event_loop_lag_is_the_worst_of_the_last_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_lag, "EVERY_SECONDS", 0)
    lag, loop = EventLoopLag(), asyncio.get_running_loop()
    assert lag.worst_seconds == 0
    for blocked_seconds in (0.01, 0.2, 0.01):
        loop.call_soon(time.sleep, blocked_seconds)
        assert await lag.run_once() >= blocked_seconds
    assert lag.worst_seconds >= 0.2
    for _ in range(SAMPLES_MAX):
        await lag.run_once()
    assert lag.worst_seconds < 0.2
