"""Figures of blobs in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ingot.blobs.counters import BlobCounters
from ingot.blobs.model import BlobMetrics

COUNTERS: Final = {
    "ingot_blob_uploads_begun": ("uploads_begun", "Uploads that were begun."),
    "ingot_blob_uploads_completed": ("uploads_completed", "Uploads whose bytes were read and are a blob."),
    "ingot_blob_addresses": ("signed_urls", "Signed URLs for reading that were created."),
    "ingot_blob_quota_refused": ("quota_refusals", "Blobs that were refused because a quota is reached."),
    "ingot_blobs_collected": ("blobs_collected", "Blobs that nothing referred to and that were taken away."),
    "ingot_blob_bytes_collected": ("bytes_collected", "Their bytes."),
    "ingot_blobs_scrubbed": ("blobs_scrubbed", "Blobs that were read whole to see that they are."),
    "ingot_blob_bytes_scrubbed": ("bytes_scrubbed", "Their bytes."),
    "ingot_blob_damage_found": ("damage_found", "How often bytes were not what they should be."),
    "ingot_blob_strays_deleted": ("orphans_deleted", "Objects that no row named and that were deleted."),
}
GAUGES: Final = {
    "ingot_blobs": ("blobs", "Blobs that are kept, of all tenants."),
    "ingot_blob_bytes": ("bytes", "Their bytes."),
    "ingot_blobs_damaged": ("damaged", "Blobs that are damaged: they are not served."),
    "ingot_blob_tombstones": ("tombstones", "References that went, and whose blob was not looked at since."),
    "ingot_blob_objects_waiting": ("trash", "Objects that wait to be deleted."),
    "ingot_blob_uploads": ("uploads", "Uploads that are under way."),
}


class BlobMetricsCollector(Collector):
    """Tells what this process counted, and what the store says when it is asked."""

    def __init__(self, tally: BlobCounters) -> None:
        self._counters = tally
        self.store_metrics: BlobMetrics | None = None

    def collect(self) -> Iterator[Metric]:
        """All of it."""
        operations = CounterMetricFamily("ingot_blob_operations", "Operations on blobs.", labels=("kind", "status"))
        for labels, count in self._counters.operations.items():
            operations.add_metric(labels, count)
        yield operations
        moved = CounterMetricFamily("ingot_blob_bytes_moved", "Bytes of blobs through this process.", labels=("way",))
        moved.add_metric(["in"], self._counters.bytes_in)
        moved.add_metric(["out"], self._counters.bytes_out)
        yield moved
        for name, (field, about) in COUNTERS.items():
            yield CounterMetricFamily(name, about, value=getattr(self._counters, field))
        if self.store_metrics is not None:
            for name, (field, about) in GAUGES.items():
                yield GaugeMetricFamily(name, about, value=getattr(self.store_metrics, field))
            if self.store_metrics.verified_before is not None:
                at = self.store_metrics.verified_before.timestamp()
                about = "When the blob that was not read for longest was last read."
                yield GaugeMetricFamily("ingot_blobs_verified_before_seconds", about, value=at)
