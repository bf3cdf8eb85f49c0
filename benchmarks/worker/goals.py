"""The goals, met or not, and what was found."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from benchmarks.worker.adapter import Row, RunResult
from benchmarks.worker.server_cost import IDLE, NOBODY, ServerCost
from benchmarks.worker.systems import DIRECT, POSTGRES, SQLITE
from ingot.worker.heartbeat import WAIT_SECONDS

Found = Mapping[Row, Sequence[RunResult]]
LEAST: Final = {SQLITE: 3_000.0, DIRECT: 15_000.0}
OURS: Final = (SQLITE, POSTGRES, DIRECT)
P50_MS_MAX: Final = 5.0
P99_MS_MAX: Final = 25.0
IDLE_SHARE_MAX: Final = 0.02
BEAT_SECONDS: Final = WAIT_SECONDS
TRANSACTIONS_MAX: Final = 10.0  # For each worker, and each time it is heard of.


def rate(found: Found, row: Row) -> float:
    """The median; 0 when it was not measured."""
    return statistics.median(run.rate for run in found[row]) if found.get(row) else 0.0


def latency(found: Found, row: Row) -> tuple[float, float] | None:
    """The p50 and the p99 over all samples of a row."""
    samples = [one for run in found.get(row, ()) for one in run.latencies_ms]
    if len(samples) < 2:
        return None
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    return cuts[49], cuts[98]


def judge(found: Found, costs: Sequence[ServerCost]) -> list[str]:
    """A line for each goal of what was measured."""
    return [*_of_rates(found), *_of_latencies(found), *_of_costs(costs)]


def _line(met: bool, text: str) -> str:
    return f"{'met' if met else 'NOT MET'}: {text}"


def _plain(row: Row) -> str:
    return row.title.replace("*", "")


def _of_rates(found: Found) -> Iterator[str]:
    for row, least in LEAST.items():
        if value := rate(found, row):
            low, high = min(run.rate for run in found[row]), max(run.rate for run in found[row])
            text = f"{_plain(row)} at least {least:,.0f} jobs/s; found {value:,.0f} ({low:,.0f}–{high:,.0f})"
            yield _line(value >= least, text)
    ours = [row for row in OURS if rate(found, row)]
    peers = [row for row in found if row not in OURS and row.durable.startswith("yes") and rate(found, row)]
    if ours and peers:
        best, first = max(ours, key=lambda row: rate(found, row)), max(peers, key=lambda row: rate(found, row))
        ratio = rate(found, best) / rate(found, first)
        text = f"first of all durable systems; {_plain(best)} is {ratio:.2f} × {first.title}, the fastest of the others"
        yield _line(ratio > 1, text)


def _of_latencies(found: Found) -> Iterator[str]:
    for row in OURS:
        if (known := latency(found, row)) is None:
            continue
        for name, value, most in (("p50", known[0], P50_MS_MAX), ("p99", known[1], P99_MS_MAX)):
            yield _line(value <= most, f"{_plain(row)}, idle, {name} at most {most:g} ms; found {value:.2f} ms")


def _of_costs(costs: Sequence[ServerCost]) -> Iterator[str]:
    nobody = {cost.engine: cost for cost in costs if cost.crowd == NOBODY}
    for cost in costs:
        alone = nobody[cost.engine]
        if cost.crowd == IDLE:
            more = cost.per(1, _server_seconds) - alone.per(1, _server_seconds)
            text = f"{cost.engine}, {cost.crowd.title} cost the server at most {IDLE_SHARE_MAX:.0%} of a core"
            yield _line(more <= IDLE_SHARE_MAX, f"{text}; found {more:.1%}")
        elif cost.crowd.jobs_each:
            both = cost.per(BEAT_SECONDS, _transactions) - alone.per(BEAT_SECONDS, _transactions)
            each = both / cost.crowd.workers
            text = f"{cost.engine}, {cost.crowd.title}: at most {TRANSACTIONS_MAX:g} more commits or statements"
            yield _line(each <= TRANSACTIONS_MAX, f"{text} per worker and {BEAT_SECONDS:g} s; found {each:.1f}")


def _server_seconds(cost: ServerCost) -> float:
    return cost.server_seconds


def _transactions(cost: ServerCost) -> float:
    return cost.transactions
