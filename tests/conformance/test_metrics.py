"""Metrics: listeners are called once for each change, after it is durable."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from ingot.engines.postgres.revision import migrations as postgres_migrations
from ingot.engines.sqlite.migrate import migrations as sqlite_migrations
from ingot.http.job_metrics import JobMetricsCollector
from ingot.jobs import AttemptOutcome, Claim, Definition, Done, Enqueued, JobStatus, LeaseLost, Settle, Settled
from ingot.jobs.job_options import new_job
from ingot.jobs.metrics import Depth
from ingot.jobs.ports import ListQueueDepths
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import IngotError
from tests.factories import LEASE_SECONDS, Bench


class RecordingListener:
    """Records all calls of a listener."""

    def __init__(self, bench: Bench) -> None:
        self.created: list[bool] = []
        self.claims: list[Claim] = []
        self.ends: Counter[tuple[str, str, str]] = Counter()
        self.micros: list[int] = []
        self.answers: list[Settled | IngotError] = []
        self.canceled_jobs: Counter[str] = Counter()
        self.commits: Counter[tuple[str, str]] = Counter()
        bench.jobs.listen(self)

    def enqueued(self, jobs: Sequence[Enqueued]) -> None:
        self.created += [enqueued.created for enqueued in jobs]

    def claimed(self, claims: Sequence[Claim]) -> None:
        self.claims += claims

    def settled(self, answers: Sequence[Settled | IngotError]) -> None:
        self.answers += answers

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, micros: Sequence[int]) -> None:
        self.ends[type, outcome, status] += len(micros)
        self.micros += micros

    def canceled(self, type: str, jobs: int) -> None:
        self.canceled_jobs[type] += jobs

    def committed(self, engine: str, kind: str, commands: int) -> None:
        self.commits[engine, kind] += commands


@pytest.fixture
def listener(bench: Bench) -> RecordingListener:
    return RecordingListener(bench)


async def test_a_repeated_enqueue_is_not_reported_as_created(bench: Bench, listener: RecordingListener) -> None:
    for _ in range(2):
        await bench.make_job(idempotency_key="once")
    assert listener.created == [True, False]


async def test_each_outcome_is_reported_once_with_its_duration(bench: Bench, listener: RecordingListener) -> None:
    await bench.jobs.define(Definition(type="print", max_attempts=2))
    await bench.jobs.enqueue_many([new_job(bench.tenant, "print") for _ in range(4)])
    bench.clock.advance(seconds=3)
    claims = await bench.jobs.claim("worker", ["print"], limit=4)
    assert [claim.job.id for claim in listener.claims] == [claim.job.id for claim in claims]
    bench.clock.advance(seconds=7)
    await bench.jobs.complete(claims[0])
    await bench.jobs.complete(claims[0])  # A repeated settle returns the first result and is not counted.
    await bench.jobs.fail(claims[1], "broken")
    await bench.jobs.fail(claims[2], "broken", retry=False)
    await bench.jobs.cancel(bench.tenant, claims[3].job.id)
    await bench.jobs.fail(claims[3], "broken")
    with pytest.raises(LeaseLost):
        await bench.jobs.fail(claims[0], "too late")
    assert listener.ends == {
        ("print", "succeeded", "succeeded"): 1,
        ("print", "failed", "queued"): 1,
        ("print", "failed", "dead"): 1,
        ("print", "failed", "canceled"): 1,
    }
    assert listener.micros == [7 * MICROS] * 4
    assert [type(answer) for answer in listener.answers] == [Settled] * 5 + [LeaseLost]
    assert listener.canceled_jobs == {}


async def test_a_lost_lease_is_reported_once_when_a_claim_sweeps_it(bench: Bench, listener: RecordingListener) -> None:
    await bench.make_claim("print")
    bench.clock.advance(seconds=LEASE_SECONDS + 1)
    await bench.jobs.claim("worker", ["other"])
    await bench.jobs.maintain()
    assert listener.ends == {("print", "lost", "queued"): 1}


async def test_a_canceled_waiting_job_is_reported_once(bench: Bench, listener: RecordingListener) -> None:
    first = await bench.make_job("first")
    await bench.make_job("second", after=[first.id])
    for _ in range(2):
        await bench.jobs.cancel(bench.tenant, first.id)
    await bench.jobs.maintain()
    assert listener.canceled_jobs == {"first": 1, "second": 1}
    assert listener.ends == {}


async def test_commits_report_their_number_of_commands(bench: Bench, listener: RecordingListener, engine: str) -> None:
    await asyncio.gather(*(bench.make_job() for _ in range(5)))
    claims = await bench.jobs.claim("worker", ["noop"], limit=5)
    await bench.jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=Done()) for c in claims])
    expected = {"sqlite": {"write": 7}, "postgres": {"enqueue": 5, "claim": 1, "settle": 1}}[engine]
    assert {kind: commands for (_, kind), commands in listener.commits.items()} == expected


async def test_a_failing_listener_does_not_affect_others(bench: Bench) -> None:
    class FailingListener(RecordingListener):
        def fail(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("failed")

        enqueued = claimed = settled = ended = canceled = committed = fail

    FailingListener(bench)
    listener = RecordingListener(bench)
    with capture_logs() as logs:
        claim = await bench.make_claim()
        await bench.jobs.complete(claim)
        await bench.make_job_in(JobStatus.CANCELED)
    assert {line["event"] for line in logs} == {"listener_failed"}
    assert (len(listener.created), len(listener.claims), len(listener.answers)) == (2, 1, 1)
    assert listener.ends == {("noop", "succeeded", "succeeded"): 1}
    assert listener.canceled_jobs == {"noop": 1}


def sample_values(collector: JobMetricsCollector) -> dict[str, float]:
    """The samples of the type `noop` by name, without buckets."""
    return {
        sample.name: sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.labels.get("type") == "noop" and "le" not in sample.labels
    }


async def test_queue_latency_starts_when_a_job_becomes_ready(bench: Bench) -> None:
    collector = JobMetricsCollector()
    bench.jobs.listen(collector)
    first = await bench.make_job()
    await bench.make_job(delay=10)
    await bench.make_job(after=[first.id])
    bench.clock.advance(seconds=12)
    claims = await bench.jobs.claim("worker", ["noop"], limit=9)
    assert len(claims) == 2
    counts_by_tenant = sample_values(collector)
    assert (
        counts_by_tenant["ingot_queue_latency_seconds_count"],
        counts_by_tenant["ingot_queue_latency_seconds_sum"],
    ) == (2, 12 + 2)
    for claim in claims:
        await bench.jobs.complete(claim)
    await bench.jobs.maintain()
    assert (
        len(await bench.jobs.claim("worker", ["noop"])) == 1
    )  # The time at which a dependent became ready is not recorded.
    assert sample_values(collector)["ingot_queue_latency_seconds_count"] == 2


async def test_snoozed_and_released_attempts_count_as_neither_failed_nor_run(bench: Bench) -> None:
    collector = JobMetricsCollector()
    bench.jobs.listen(collector)
    snoozed, released = await bench.make_claim(), await bench.make_claim()
    bench.clock.advance(seconds=1)
    await bench.jobs.snooze(snoozed, 60)
    await bench.jobs.release(released)
    counts_by_tenant = sample_values(collector)
    assert (
        counts_by_tenant.pop("ingot_jobs_enqueued_total")
        == counts_by_tenant.pop("ingot_queue_latency_seconds_count")
        == 2
    )
    assert set(counts_by_tenant.values()) == {0}


# -- depths -------------------------------------------------------------------------------------------------------


def counts_by_tenant(depths: Sequence[Depth]) -> dict[str | None, dict[str, int]]:
    return {depth.tenant: {str(status): jobs for status, jobs in depth.counts.items() if jobs} for depth in depths}


async def test_depths_are_exact_and_by_tenant(bench: Bench) -> None:
    acme = await bench.tenants.create("acme")
    await bench.make_job_in(JobStatus.SUCCEEDED)
    await bench.make_job_in(JobStatus.DEAD)
    await bench.make_job(delay=60)
    bench.clock.advance(seconds=5)
    await bench.make_job("urgent", tenant=acme.id, priority=1)
    bench.clock.advance(seconds=5)
    await bench.make_job("slow", tenant=acme.id, priority=5)
    await bench.make_claim("run")
    depths = await bench.jobs.depths()
    assert counts_by_tenant(depths) == {
        "default": {"succeeded": 1, "dead": 1, "queued": 1, "running": 1},
        "acme": {"queued": 2},
    }
    assert {depth.tenant: depth.oldest_ready_seconds for depth in depths} == {"default": None, "acme": 5.0}


async def test_tenants_beyond_the_limit_are_summed_up(bench: Bench) -> None:
    for slug in ("alpha", "beta", "gamma"):
        tenant = await bench.tenants.create(slug)
        bench.clock.advance(seconds=1)
        await bench.make_job(tenant=tenant.id)
    depths = await bench.store.run(ListQueueDepths(tenants_max=2, lanes_max=100))
    assert counts_by_tenant(depths) == {"alpha": {"queued": 1}, None: {"queued": 2}}
    assert {depth.tenant: depth.oldest_ready_seconds for depth in depths} == {"alpha": 2.0, None: 1.0}


async def test_depths_read_the_first_lane_of_every_type_before_any_second_lane(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="keyed", limit_key="{a}", max_running_per_key=1))
    await bench.jobs.enqueue_many([new_job(bench.tenant, "z")])
    bench.clock.advance(seconds=9)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "keyed", {"a": n}) for n in range(20)])
    (depth,) = await bench.store.run(ListQueueDepths(tenants_max=1, lanes_max=2))
    assert depth.oldest_ready_seconds == 9.0


async def test_depths_read_at_most_lanes_max_lanes(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="keyed", limit_key="{a}", max_running_per_key=1))
    await bench.make_job("keyed", {"a": "b"})
    bench.clock.advance(seconds=9)
    await bench.make_job("keyed", {"a": "a"})
    ages = [
        (await bench.store.run(ListQueueDepths(tenants_max=1, lanes_max=most)))[0].oldest_ready_seconds
        for most in (1, 2)
    ]
    assert ages == [0.0, 9.0]


async def test_a_store_without_jobs_has_no_depths(bench: Bench) -> None:
    assert await bench.jobs.depths() == []


async def test_an_idle_store_reports_no_load(bench: Bench, engine: str) -> None:
    await bench.make_job()
    load = await bench.jobs.load()
    assert load.waiting_commands == 0
    if engine == "sqlite":
        assert load.commit_seconds is not None
        assert load.connections is None
    else:
        assert (load.commit_seconds, load.connections_max) == (None, 10)
        assert load.connections_used == 0


async def test_a_store_describes_its_database(bench: Bench, engine: str) -> None:
    first = await bench.jobs.describe_store()
    migrations = sqlite_migrations() if engine == "sqlite" else postgres_migrations()
    assert first.schema_version == migrations[-1].number
    assert re.fullmatch(r"(SQLite|PostgreSQL) \d+\.\d+.*", first.database_version)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", "x" * 60_000) for _ in range(10)])
    second = await bench.jobs.describe_store()
    if engine == "sqlite":
        assert first.wal_bytes is not None
        assert second.wal_bytes is not None
        assert second.wal_bytes - first.wal_bytes >= 600_000
    else:
        assert second.wal_bytes is None
        assert second.database_bytes > 1_000_000
