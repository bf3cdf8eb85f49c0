"""Prometheus metrics of the build, the workers, the database, the disk and the connections."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ingot.http.buffers import Buffers
from ingot.jobs.metrics import StoreDescription
from ingot.jobs.worker_model import WorkerStatus

STORE_GAUGES: Final = {
    "ingot_schema_version": ("schema_version", "Number of the newest migration of the database."),
    "ingot_database_bytes": ("database_bytes", "Size of the database."),
    "ingot_database_wal_bytes": ("wal_bytes", "Size of the write-ahead log of the database (SQLite)."),
}
DISK_GAUGES: Final = {
    "ingot_disk_bytes": ("total", "Size of the disk of the data folder."),
    "ingot_disk_free_bytes": ("free", "Free space on the disk of the data folder."),
}


class DiskSpace(NamedTuple):
    """The size of a file system and its free space, in bytes."""

    total: int
    free: int


class ServerMetricsCollector(Collector):
    """Reports the state of the server: what was last read from the store and the disk, and the open connections.

    Values that could not be read are left out.
    """

    def __init__(self, *, version: str, engine: str) -> None:
        self._build = {"version": version, "python": platform.python_version(), "engine": engine}
        self.workers: Mapping[WorkerStatus, int] | None = None
        self.store: StoreDescription | None = None
        self.disk: DiskSpace | None = None
        self.count_connections: Callable[[], int] = lambda: 0
        self.connections_max = 0
        self.buffers: Buffers | None = None

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        build = GaugeMetricFamily("ingot_build_info", "Version of this process, always 1.", labels=tuple(self._build))
        build.add_metric(tuple(self._build.values()), 1)
        yield build
        workers = GaugeMetricFamily("ingot_workers", "Workers of all tenants, and shared ones.", labels=("status",))
        for status, count in (self.workers or {}).items():
            workers.add_metric((status.value,), count)
        yield workers
        info = GaugeMetricFamily(
            "ingot_database_info", "Version of the database system, always 1.", labels=("version",)
        )
        if self.store is not None:
            info.add_metric((self.store.database_version,), 1)
        yield info
        for gauges, values in ((STORE_GAUGES, self.store), (DISK_GAUGES, self.disk)):
            for name, (field, description) in gauges.items():
                yield GaugeMetricFamily(name, description, value=getattr(values, field, None))
        count = self.count_connections()
        yield GaugeMetricFamily("ingot_http_connections", "Open connections of clients.", value=count)
        description = "Maximum number of connections of clients."
        yield GaugeMetricFamily("ingot_http_connections_max", description, value=self.connections_max)
        if self.buffers is not None:
            yield from _buffer_metrics(self.buffers)


def _buffer_metrics(buffers: Buffers) -> Iterator[Metric]:
    description = "Bytes of large requests and responses in memory."
    yield GaugeMetricFamily("ingot_http_buffered_bytes", description, value=buffers.used_bytes)
    description = "Maximum number of these bytes."
    yield GaugeMetricFamily("ingot_http_buffered_bytes_max", description, value=buffers.bytes_max)
    description = "Requests refused because of a limit for buffered bytes."
    refusals = CounterMetricFamily("ingot_http_buffer_refusals", description, labels=("limit",))
    for limit, count in buffers.refusals.items():
        refusals.add_metric((limit,), count)
    yield refusals
