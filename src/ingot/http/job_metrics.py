"""Figures of jobs in the form that Prometheus reads: counted as they are told, put into words when asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ingot.jobs.metrics import Depth, Load
from ingot.jobs.model import AttemptOutcome, Claim, Enqueued, JobStatus, Settled
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import IngotError

TYPES_MAX: Final = 200
OTHER_LABEL: Final = "other"  # Stands for the types and tenants beyond those that are told by themselves.
SECONDS_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)
COMMAND_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COUNTERS: Final = {
    "ingot_jobs_enqueued": "Jobs that were made.",
    "ingot_jobs_succeeded": "Jobs that succeeded.",
    "ingot_attempts_failed": "Attempts of which the worker said that they failed.",
    "ingot_leases_lost": "Attempts whose worker went silent.",
    "ingot_jobs_retried": "Jobs that wait again after an attempt that failed or was lost.",
    "ingot_jobs_dead": "Jobs that are tried no more.",
    "ingot_jobs_canceled": "Jobs that were canceled.",
}
ENQUEUED, SUCCEEDED, FAILED, LOST, RETRIED, DEAD, CANCELED = range(len(COUNTERS))
UNSUCCESSFUL_OUTCOMES: Final = (AttemptOutcome.FAILED, AttemptOutcome.LOST)
TIMED_OUTCOMES: Final = (AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED)


class HistogramCounts:
    """How many values fell between which bounds, and their sum."""

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
        """How many values are not above each bound."""
        upto, found = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            upto += count
            found.append(("+Inf" if bound == float("inf") else str(float(bound)), float(upto)))
        return found


class JobTypeMetrics:
    """What is counted of one type of job."""

    __slots__ = ("counts", "latency_seconds", "run_seconds")

    def __init__(self) -> None:
        self.counts = [0] * len(COUNTERS)
        self.latency_seconds = HistogramCounts(SECONDS_BUCKETS)
        self.run_seconds = HistogramCounts(SECONDS_BUCKETS)


class JobMetricsCollector(Collector):
    """Counts what this process does with jobs, and tells what the store says when it is asked."""

    def __init__(self) -> None:
        self._types: dict[str, JobTypeMetrics] = {}
        self._commits: dict[tuple[str, str], HistogramCounts] = {}
        self.depths: Sequence[Depth] = ()
        self.load: Load | None = None

    # -- being told -----------------------------------------------------------------------------------------

    def enqueued(self, made: Sequence[Enqueued]) -> None:
        """See `Listener`."""
        for one in made:
            if one.created:
                self._metrics_of_type(one.job.type).counts[ENQUEUED] += 1

    def claimed(self, claims: Sequence[Claim]) -> None:
        """See `Listener`. Of work that waited for other jobs nobody knows since when it was ready."""
        for claim in claims:
            job = claim.job
            if job.started_at is not None and (job.attempts > 1 or not job.after):
                self._metrics_of_type(job.type).latency_seconds.observe(
                    max(0.0, (job.started_at - job.run_at).total_seconds())
                )

    def settled(self, answers: Sequence[Settled | IngotError]) -> None:
        """See `Listener`. How attempts ended is told once, by `ended`."""

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, micros: Sequence[int]) -> None:
        """See `Listener`."""
        known, jobs = self._metrics_of_type(type), len(micros)
        if outcome is AttemptOutcome.FAILED:
            known.counts[FAILED] += jobs
        elif outcome is AttemptOutcome.LOST:
            known.counts[LOST] += jobs
        if status is JobStatus.QUEUED:
            known.counts[RETRIED] += jobs if outcome in UNSUCCESSFUL_OUTCOMES else 0
        else:
            known.counts[_COUNTER_OF_STATUS[status]] += jobs
        if outcome in TIMED_OUTCOMES:
            for one in micros:
                known.run_seconds.observe(one / MICROS)

    def canceled(self, type: str, jobs: int) -> None:
        """See `Listener`."""
        self._metrics_of_type(type).counts[CANCELED] += jobs

    def committed(self, engine: str, kind: str, commands: int) -> None:
        """See `Listener`."""
        known = self._commits.get((engine, kind))
        if known is None:
            known = self._commits[engine, kind] = HistogramCounts(COMMAND_BUCKETS)
        known.observe(commands)

    def _metrics_of_type(self, type: str) -> JobTypeMetrics:
        known = self._types.get(type)
        if known is None:
            if len(self._types) >= TYPES_MAX:
                type = OTHER_LABEL
            known = self._types.setdefault(type, JobTypeMetrics())
        return known

    # -- telling --------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Everything, in words."""
        yield from self._counter_families()
        yield _histogram_family(
            "ingot_queue_latency_seconds",
            "How long jobs were ready before they were claimed.",
            ("type",),
            (((type,), known.latency_seconds) for type, known in self._types.items()),
        )
        yield _histogram_family(
            "ingot_run_seconds",
            "How long attempts ran that succeeded or failed.",
            ("type",),
            (((type,), known.run_seconds) for type, known in self._types.items()),
        )
        commits = self._commits.items()
        yield _histogram_family(
            "ingot_commit_commands", "Commands that were committed together.", ("engine", "kind"), commits
        )
        yield from self._depth_families()
        yield from self._load_families()

    def _counter_families(self) -> Iterator[Metric]:
        for place, (name, words) in enumerate(COUNTERS.items()):
            family = CounterMetricFamily(name, words, labels=("type",))
            for type, known in self._types.items():
                family.add_metric((type,), known.counts[place])
            yield family

    def _depth_families(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("ingot_jobs", "Jobs there are.", labels=("tenant", "status"))
        oldest = GaugeMetricFamily(
            "ingot_oldest_ready_seconds", "How long the oldest ready job has waited.", labels=("tenant",)
        )
        for depth in _merge_depths(self.depths):
            for status, count in depth.counts.items():
                jobs.add_metric((depth.tenant or OTHER_LABEL, status.value), count)
            oldest.add_metric((depth.tenant or OTHER_LABEL,), depth.oldest_ready_seconds or 0.0)
        yield jobs
        yield oldest

    def _load_families(self) -> Iterator[Metric]:
        load = self.load or Load(waiting_commands=0)
        for name, words, value in (
            ("ingot_store_waiting_commands", "Commands that wait to be begun.", load.waiting_commands),
            ("ingot_store_commit_seconds", "How long the commit under way has taken (SQLite).", load.commit_seconds),
            ("ingot_events_horizon_seconds", "How long events were kept from readers.", load.horizon_seconds),
            ("ingot_database_connections", "Connections to the database that are open.", load.connections),
            ("ingot_database_connections_used", "Those of them that are in use.", load.connections_used),
        ):
            family = GaugeMetricFamily(name, words)
            if value is not None and self.load is not None:
                family.add_metric((), value)
            yield family


_COUNTER_OF_STATUS: Final = {JobStatus.SUCCEEDED: SUCCEEDED, JobStatus.DEAD: DEAD, JobStatus.CANCELED: CANCELED}


def _merge_depths(depths: Sequence[Depth]) -> list[Depth]:
    """Depths with names of their own: a tenant may be called what stands for all others."""
    found: dict[str, Depth] = {}
    for depth in depths:
        name = depth.tenant or OTHER_LABEL
        before = found.get(name)
        if before is not None:
            counts = {status: before.counts[status] + depth.counts[status] for status in before.counts}
            ages = [age for age in (before.oldest_ready_seconds, depth.oldest_ready_seconds) if age is not None]
            depth = Depth(tenant=name, counts=counts, oldest_ready_seconds=max(ages, default=None))  # noqa: PLW2901
        found[name] = depth
    return list(found.values())


def _histogram_family(
    name: str, words: str, labels: Sequence[str], spreads: Iterable[tuple[Sequence[str], HistogramCounts]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, words, labels=labels)
    for values, spread in spreads:
        family.add_metric(values, buckets=spread.cumulative_buckets(), sum_value=spread.sum)
    return family
