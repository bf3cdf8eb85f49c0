"""Metrics in the form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingot.blobs.counters import BlobCounters
from ingot.http.blob_metrics import BlobMetricsCollector
from ingot.http.event_loop_lag import EventLoopLag
from ingot.http.job_metrics import JobMetricsCollector
from ingot.http.routes import Granted, Route

SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """What this process counts about its requests; `figures` counts its jobs, and `lag` how late its loop is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        labels = ("method", "route", "status", "action")
        self._requests = Counter("ingot_http_requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            "ingot_http_request_seconds",
            "Time to answer.",
            ("method", "route"),
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.rate_limited = Counter(
            "ingot_http_rate_limited", "Requests refused by a rate limit.", ("route",), registry=registry
        )
        self.jobs = JobMetricsCollector()
        registry.register(self.jobs)
        self.blobs: BlobMetricsCollector | None = None
        self.lag = EventLoopLag()
        late = Gauge("ingot_event_loop_lag_seconds", "How late the event loop was, at worst.", registry=registry)
        late.set_function(lambda: self.lag.worst_seconds)
        self._label_cache: dict[tuple[int, int], tuple[Counter, Histogram]] = {}

    def register_streams(self, count: Callable[[], int]) -> None:
        """Where to ask how many streams are open."""
        Gauge("ingot_sse_clients", "Streams of events that are open.", registry=self.registry).set_function(count)

    def register_waiting_heartbeats(self, count: Callable[[], int]) -> None:
        """Where to ask how many workers wait for something to be told."""
        about = "Heartbeats of workers that wait here."
        Gauge("ingot_worker_heartbeats_waiting", about, registry=self.registry).set_function(count)

    def register_blobs(self, tally: BlobCounters) -> None:
        """What counts the blobs."""
        self.blobs = BlobMetricsCollector(tally)
        self.registry.register(self.blobs)

    def record_request(self, route: Route | None, status: int, seconds: float) -> None:
        """A request was answered."""
        known = self._label_cache.get((id(route), status))
        if known is None:
            method, path = ("", "none") if route is None else (route.method, route.path)
            action = route.needs.action if route is not None and isinstance(route.needs, Granted) else ""
            known = self._requests.labels(method, path, str(status), action), self._seconds.labels(method, path)
            self._label_cache[id(route), status] = known
        known[0].inc()
        known[1].observe(seconds)
        if status == 429 and route is not None:
            self.rate_limited.labels(route.path).inc()
