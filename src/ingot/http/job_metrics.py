"""Prometheus metrics of jobs. Events are counted as they happen and formatted when metrics are requested."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ingot.jobs.lifecycle import UNSUCCESSFUL_OUTCOMES
from ingot.jobs.metrics import Depth, Load
from ingot.jobs.model import AttemptOutcome, Claim, Enqueued, JobStatus, Settled
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import IngotError

TYPES_MAX: Final = 200
OTHER_LABEL: Final = "other"  # Label value of all types and tenants that have none of their own.
SECONDS_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)
COMMAND_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COUNTERS: Final = {
    "ingot_jobs_enqueued": "Jobs created.",
    "ingot_jobs_succeeded": "Jobs that succeeded.",
    "ingot_attempts_failed": "Attempts that the worker reported as failed or timed out.",
    "ingot_leases_lost": "Attempts whose lease expired because the worker was silent.",
    "ingot_jobs_retried": "Jobs queued again after a failed or lost attempt.",
    "ingot_jobs_dead": "Jobs that became dead.",
    "ingot_jobs_canceled": "Jobs that were canceled.",
}
ENQUEUED, SUCCEEDED, FAILED, LOST, RETRIED, DEAD, CANCELED = range(len(COUNTERS))
FAILED_OUTCOMES: Final = (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT)
MEASURED_OUTCOMES: Final = (AttemptOutcome.SUCCEEDED, *FAILED_OUTCOMES)  # Those whose duration is recorded.


class HistogramCounts:
    """A histogram: the number of values per bucket, and the sum of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        """Return each bound with the number of values up to it."""
        total, buckets = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        return buckets


class JobTypeMetrics:
    """The counters and histograms of one job type."""

    __slots__ = ("counts", "latency_seconds", "run_seconds")

    def __init__(self) -> None:
        self.counts = [0] * len(COUNTERS)
        self.latency_seconds = HistogramCounts(SECONDS_BUCKETS)
        self.run_seconds = HistogramCounts(SECONDS_BUCKETS)


class JobMetricsCollector(Collector):
    """Counts what happens to jobs in this process, and reports the gauges last read from the store."""

    def __init__(self) -> None:
        self._types: dict[str, JobTypeMetrics] = {}
        self._commits: dict[tuple[str, str], HistogramCounts] = {}
        self.depths: Sequence[Depth] = ()
        self.load: Load | None = None

    # -- counting -------------------------------------------------------------------------------------------

    def enqueued(self, results: Sequence[Enqueued]) -> None:
        """See `Listener`."""
        for result in results:
            if result.created:
                self._metrics_of_type(result.job.type).counts[ENQUEUED] += 1

    def claimed(self, claims: Sequence[Claim]) -> None:
        """See `Listener`. First claims of jobs with parents have no latency: it is unknown when they became ready."""
        for claim in claims:
            job = claim.job
            if job.started_at is not None and (job.attempts > 1 or not job.after):
                self._metrics_of_type(job.type).latency_seconds.observe(
                    max(0.0, (job.started_at - job.run_at).total_seconds())
                )

    def settled(self, results: Sequence[Settled | IngotError]) -> None:
        """See `Listener`. Outcomes are counted by `ended` instead, which reports each of them once."""

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, durations_micros: Sequence[int]) -> None:
        """See `Listener`."""
        metrics, jobs = self._metrics_of_type(type), len(durations_micros)
        if outcome in FAILED_OUTCOMES:
            metrics.counts[FAILED] += jobs
        elif outcome is AttemptOutcome.LOST:
            metrics.counts[LOST] += jobs
        if status is JobStatus.QUEUED:
            metrics.counts[RETRIED] += jobs if outcome in UNSUCCESSFUL_OUTCOMES else 0
        else:
            metrics.counts[_COUNTER_OF_STATUS[status]] += jobs
        if outcome in MEASURED_OUTCOMES:
            for duration in durations_micros:
                metrics.run_seconds.observe(duration / MICROS)

    def canceled(self, type: str, jobs: int) -> None:
        """See `Listener`."""
        self._metrics_of_type(type).counts[CANCELED] += jobs

    def committed(self, engine: str, kind: str, commands: int) -> None:
        """See `Listener`."""
        histogram = self._commits.get((engine, kind))
        if histogram is None:
            histogram = self._commits[engine, kind] = HistogramCounts(COMMAND_BUCKETS)
        histogram.observe(commands)

    def _metrics_of_type(self, type: str) -> JobTypeMetrics:
        metrics = self._types.get(type)
        if metrics is None:
            if len(self._types) >= TYPES_MAX:
                type = OTHER_LABEL
            metrics = self._types.setdefault(type, JobTypeMetrics())
        return metrics

    # -- reporting ------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        yield from self._counter_families()
        yield _histogram_family(
            "ingot_queue_latency_seconds",
            "Time from run_at to the claim of a job.",
            ("type",),
            (((type,), metrics.latency_seconds) for type, metrics in self._types.items()),
        )
        yield _histogram_family(
            "ingot_run_seconds",
            "Duration of attempts that succeeded or failed.",
            ("type",),
            (((type,), metrics.run_seconds) for type, metrics in self._types.items()),
        )
        commits = self._commits.items()
        yield _histogram_family("ingot_commit_commands", "Commands committed together.", ("engine", "kind"), commits)
        yield from self._depth_families()
        yield from self._load_families()

    def _counter_families(self) -> Iterator[Metric]:
        for index, (name, description) in enumerate(COUNTERS.items()):
            family = CounterMetricFamily(name, description, labels=("type",))
            for type, metrics in self._types.items():
                family.add_metric((type,), metrics.counts[index])
            yield family

    def _depth_families(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("ingot_jobs", "Number of jobs.", labels=("tenant", "status"))
        oldest = GaugeMetricFamily(
            "ingot_oldest_ready_seconds",
            "How long the oldest ready job has waited; 0 if none is ready.",
            labels=("tenant",),
        )
        for depth in _merge_depths(self.depths):
            for status, count in depth.counts.items():
                jobs.add_metric((depth.tenant or OTHER_LABEL, status.value), count)
            oldest.add_metric((depth.tenant or OTHER_LABEL,), depth.oldest_ready_seconds or 0.0)
        yield jobs
        yield oldest

    def _load_families(self) -> Iterator[Metric]:
        load = self.load or Load(waiting_commands=0)
        for name, description, value in (
            ("ingot_store_waiting_commands", "Commands that wait to be started.", load.waiting_commands),
            ("ingot_store_commit_seconds", "Duration so far of the commit in progress (SQLite).", load.commit_seconds),
            (
                "ingot_events_horizon_seconds",
                "How long the oldest transaction has kept newer events from being read (PostgreSQL).",
                load.horizon_seconds,
            ),
            ("ingot_database_connections", "Connections to the database (PostgreSQL).", load.connections),
            (
                "ingot_database_connections_used",
                "Connections to the database that are in use (PostgreSQL).",
                load.connections_used,
            ),
        ):
            family = GaugeMetricFamily(name, description)
            if value is not None and self.load is not None:
                family.add_metric((), value)
            yield family


_COUNTER_OF_STATUS: Final = {JobStatus.SUCCEEDED: SUCCEEDED, JobStatus.DEAD: DEAD, JobStatus.CANCELED: CANCELED}


def _merge_depths(depths: Sequence[Depth]) -> list[Depth]:
    """Merge depths with the same label. A tenant can have the slug that also labels all remaining tenants."""
    merged: dict[str, Depth] = {}
    for depth in depths:
        name = depth.tenant or OTHER_LABEL
        same = merged.get(name)
        if same is not None:
            counts = {status: same.counts[status] + depth.counts[status] for status in same.counts}
            ages = [age for age in (same.oldest_ready_seconds, depth.oldest_ready_seconds) if age is not None]
            depth = Depth(tenant=name, counts=counts, oldest_ready_seconds=max(ages, default=None))  # noqa: PLW2901
        merged[name] = depth
    return list(merged.values())


def _histogram_family(
    name: str, description: str, labels: Sequence[str], histograms: Iterable[tuple[Sequence[str], HistogramCounts]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, description, labels=labels)
    for label_values, histogram in histograms:
        family.add_metric(label_values, buckets=histogram.cumulative_buckets(), sum_value=histogram.sum)
    return family
