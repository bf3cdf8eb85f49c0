"""Prometheus metrics of blobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ingot.blobs.counters import BlobCounters
from ingot.blobs.model import BlobMetrics

COUNTERS: Final = {
    "ingot_blob_uploads_begun": ("uploads_begun", "Uploads started."),
    "ingot_blob_uploads_completed": ("uploads_completed", "Uploads that were verified and became a blob."),
    "ingot_blob_addresses": ("signed_urls", "Signed download URLs issued."),
    "ingot_blob_quota_refused": ("quota_refusals", "Blobs rejected because of a quota."),
    "ingot_blobs_collected": ("blobs_collected", "Unreferenced blobs deleted."),
    "ingot_blob_bytes_collected": ("bytes_collected", "Bytes of unreferenced blobs deleted."),
    "ingot_blobs_scrubbed": ("blobs_scrubbed", "Blobs read completely to verify them."),
    "ingot_blob_bytes_scrubbed": ("bytes_scrubbed", "Bytes read to verify blobs."),
    "ingot_blob_damage_found": ("damage_found", "Number of times that stored bytes were damaged."),
    "ingot_blob_strays_deleted": ("orphans_deleted", "Objects deleted because no row referred to them."),
}
GAUGES: Final = {
    "ingot_blobs": ("blobs", "Blobs of all tenants. Equal bytes of several tenants are several blobs."),
    "ingot_blob_bytes": ("bytes", "Bytes of all blobs."),
    "ingot_blob_bytes_deleted": ("deleted_bytes", "Bytes of deleted blobs and ended uploads that are still stored."),
    "ingot_blobs_damaged": ("damaged", "Damaged blobs, which are not served."),
    "ingot_blob_tombstones": (
        "tombstones",
        "Removed references whose blob the collector has not checked yet, counted up to 10,000.",
    ),
    "ingot_blob_objects_waiting": ("trash", "Objects that wait to be deleted, counted up to 10,000."),
    "ingot_blob_uploads": ("uploads", "Uploads in any state that have not been deleted yet, counted up to 10,000."),
}


class BlobMetricsCollector(Collector):
    """Reports the counters of this process, and the gauges last read from the store."""

    def __init__(self, counters: BlobCounters) -> None:
        self._counters = counters
        self.store_metrics: BlobMetrics | None = None

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        operations = CounterMetricFamily(
            "ingot_blob_operations", "Blob operations by outcome.", labels=("kind", "status")
        )
        for labels, count in self._counters.operations.items():
            operations.add_metric(labels, count)
        yield operations
        moved = CounterMetricFamily(
            "ingot_blob_bytes_moved", "Bytes of blobs that this process received or sent.", labels=("way",)
        )
        moved.add_metric(["in"], self._counters.bytes_in)
        moved.add_metric(["out"], self._counters.bytes_out)
        yield moved
        for name, (field, description) in COUNTERS.items():
            yield CounterMetricFamily(name, description, value=getattr(self._counters, field))
        if self.store_metrics is not None:
            for name, (field, description) in GAUGES.items():
                yield GaugeMetricFamily(name, description, value=getattr(self.store_metrics, field))
            if self.store_metrics.verified_before is not None:
                timestamp = self.store_metrics.verified_before.timestamp()
                description = "Unix time of the oldest verification: every blob has been read since then."
                yield GaugeMetricFamily("ingot_blobs_verified_before_seconds", description, value=timestamp)
