"""The Prometheus metrics of a server process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from ingot.blobs.counters import BlobCounters
from ingot.http.blob_metrics import BlobMetricsCollector
from ingot.http.event_loop_lag import EventLoopLag
from ingot.http.job_metrics import JobMetricsCollector
from ingot.http.routes import Granted, Route
from ingot.http.server_metrics import ServerMetricsCollector

SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """The metrics of HTTP requests. `server`, `jobs`, `blobs` and `lag` collect the other metrics of the process."""

    def __init__(self, registry: CollectorRegistry, *, version: str = "", engine: str = "") -> None:
        self.registry = registry
        labels = ("method", "route", "status", "action")
        self._requests = Counter(
            "ingot_http_requests", "Requests by route, status and required grant.", labels, registry=registry
        )
        self._seconds = Histogram(
            "ingot_http_request_seconds",
            "Duration of requests, including streams and waiting claims.",
            ("method", "route"),
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.rate_limited = Counter(
            "ingot_http_rate_limited", "Requests rejected by a rate limit.", ("route",), registry=registry
        )
        self.server = ServerMetricsCollector(version=version, engine=engine)
        registry.register(self.server)
        ProcessCollector(registry=registry)
        self.jobs = JobMetricsCollector()
        registry.register(self.jobs)
        self.blobs: BlobMetricsCollector | None = None
        self.lag = EventLoopLag()
        description = "Largest delay of the event loop in the last ten seconds."
        lag = Gauge("ingot_event_loop_lag_seconds", description, registry=registry)
        lag.set_function(lambda: self.lag.worst_seconds)
        self._label_cache: dict[tuple[int, int], tuple[Counter, Histogram]] = {}

    def register_streams(self, count: Callable[[], int]) -> None:
        """Register the function that counts open streams."""
        Gauge("ingot_sse_clients", "Open event streams.", registry=self.registry).set_function(count)

    def register_waiting_heartbeats(self, count: Callable[[], int]) -> None:
        """Register the function that counts waiting heartbeats."""
        description = "Waiting heartbeats in this process."
        Gauge("ingot_worker_heartbeats_waiting", description, registry=self.registry).set_function(count)

    def register_blobs(self, counters: BlobCounters) -> None:
        """Register the counters of blobs."""
        self.blobs = BlobMetricsCollector(counters)
        self.registry.register(self.blobs)

    def record_request(self, route: Route | None, status: int, seconds: float) -> None:
        """Count a request with its status and duration."""
        labeled = self._label_cache.get((id(route), status))
        if labeled is None:
            method, path = ("", "none") if route is None else (route.method, route.path)
            action = route.needs.action if route is not None and isinstance(route.needs, Granted) else ""
            labeled = self._requests.labels(method, path, str(status), action), self._seconds.labels(method, path)
            self._label_cache[id(route), status] = labeled
        requests, durations = labeled
        requests.inc()
        durations.observe(seconds)
        if status == 429 and route is not None:
            self.rate_limited.labels(route.path).inc()
