"""The goals, and whether the results meet them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.worker.adapter import Row, RunResult
from benchmarks.worker.server_cost import IDLE_WORKERS, NO_WORKERS, ServerCost
from benchmarks.worker.systems import DIRECT, POSTGRES, SQLITE
from ingot.worker.heartbeat import WAIT_SECONDS

Results = Mapping[Row, Sequence[RunResult]]
RATE_MIN: Final = {SQLITE: 3_000.0, DIRECT: 15_000.0}
OURS: Final = (SQLITE, POSTGRES, DIRECT)
P50_MS_MAX: Final = 5.0
P99_MS_MAX: Final = 25.0
IDLE_SHARE_MAX: Final = 0.02
HEARTBEAT_SECONDS: Final = WAIT_SECONDS
TRANSACTIONS_MAX: Final = 10.0  # Per worker and heartbeat interval.


def rate(results: Results, row: Row) -> float:
    """Return the median rate; 0 if the row was not measured."""
    return statistics.median(run.rate for run in results[row]) if results.get(row) else 0.0


def latency(results: Results, row: Row) -> tuple[float, float] | None:
    """Return the p50 and the p99 of all samples of a row."""
    samples = [latency_ms for run in results.get(row, ()) for latency_ms in run.latencies_ms]
    if len(samples) < 2:
        return None
    percentiles = statistics.quantiles(samples, n=100, method="inclusive")
    return percentiles[49], percentiles[98]


def judge(results: Results, costs: Sequence[ServerCost]) -> list[str]:
    """Return a line for each goal whose rows were measured."""
    return [*_judge_rates(results), *_judge_latencies(results), *_judge_costs(costs)]


def _goal_line(is_met: bool, text: str) -> str:
    return f"{'met' if is_met else 'NOT MET'}: {text}"


def _plain_title(row: Row) -> str:
    return row.title.replace("*", "")


def _judge_rates(results: Results) -> Iterator[str]:
    for row, rate_min in RATE_MIN.items():
        if value := rate(results, row):
            low, high = min(run.rate for run in results[row]), max(run.rate for run in results[row])
            text = (
                f"{_plain_title(row)} at least {rate_min:,.0f} jobs/s; measured {value:,.0f} ({low:,.0f}–{high:,.0f})"
            )
            yield _goal_line(value >= rate_min, text)
    ours = [row for row in OURS if rate(results, row)]
    peers = [row for row in results if row not in OURS and row.durable.startswith("yes") and rate(results, row)]
    if ours and peers:
        best, best_peer = (max(rows, key=lambda row: rate(results, row)) for rows in (ours, peers))
        ratio = rate(results, best) / rate(results, best_peer)
        text = f"fastest durable system; {_plain_title(best)} is {ratio:.2f} × {best_peer.title}, the fastest peer"
        yield _goal_line(ratio > 1, text)


def _judge_latencies(results: Results) -> Iterator[str]:
    for row in OURS:
        if (percentiles := latency(results, row)) is None:
            continue
        for name, value, maximum in (("p50", percentiles[0], P50_MS_MAX), ("p99", percentiles[1], P99_MS_MAX)):
            text = f"{_plain_title(row)}, idle, {name} at most {maximum:g} ms; measured {value:.2f} ms"
            yield _goal_line(value <= maximum, text)


def _judge_costs(costs: Sequence[ServerCost]) -> Iterator[str]:
    baselines = {cost.engine: cost for cost in costs if cost.group == NO_WORKERS}
    for cost in costs:
        baseline = baselines[cost.engine]
        if cost.group == IDLE_WORKERS:
            share = cost.per(1, _server_seconds) - baseline.per(1, _server_seconds)
            text = f"{cost.engine}, {cost.group.title} cost the server at most {IDLE_SHARE_MAX:.0%} of a core"
            yield _goal_line(share <= IDLE_SHARE_MAX, f"{text}; measured {share:.1%}")
        elif cost.group.jobs_each:
            total = cost.per(HEARTBEAT_SECONDS, _transactions) - baseline.per(HEARTBEAT_SECONDS, _transactions)
            per_worker = total / cost.group.workers
            text = (
                f"{cost.engine}, {cost.group.title}: at most {TRANSACTIONS_MAX:g} more commits or statements"
                f" per worker and {HEARTBEAT_SECONDS:g} s; measured {per_worker:.1f}"
            )
            yield _goal_line(per_worker <= TRANSACTIONS_MAX, text)


def _server_seconds(cost: ServerCost) -> float:
    return cost.server_seconds


def _transactions(cost: ServerCost) -> float:
    return cost.transactions
