"""Figures: what those who watch over a server are told, each thing once, after it is durable."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from ingot.http.job_metrics import JobMetricsCollector
from ingot.jobs import AttemptOutcome, Claim, Definition, Done, Enqueued, JobStatus, LeaseLost, Settle, Settled
from ingot.jobs.job_options import new_job
from ingot.jobs.metrics import Depth
from ingot.jobs.ports import ListQueueDepths
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import IngotError
from tests.factories import LEASE_SECONDS, Bench


class Heard:
    """Keeps what it is told."""

    def __init__(self, bench: Bench) -> None:
        self.made: list[bool] = []
        self.claims: list[Claim] = []
        self.ends: Counter[tuple[str, str, str]] = Counter()
        self.micros: list[int] = []
        self.answers: list[Settled | IngotError] = []
        self.dropped: Counter[str] = Counter()
        self.commits: Counter[tuple[str, str]] = Counter()
        bench.jobs.listen(self)

    def enqueued(self, made: Sequence[Enqueued]) -> None:
        self.made += [one.created for one in made]

    def claimed(self, claims: Sequence[Claim]) -> None:
        self.claims += claims

    def settled(self, answers: Sequence[Settled | IngotError]) -> None:
        self.answers += answers

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, micros: Sequence[int]) -> None:
        self.ends[type, outcome, status] += len(micros)
        self.micros += micros

    def canceled(self, type: str, jobs: int) -> None:
        self.dropped[type] += jobs

    def committed(self, engine: str, kind: str, commands: int) -> None:
        self.commits[engine, kind] += commands


@pytest.fixture
def heard(bench: Bench) -> Heard:
    return Heard(bench)


async def test_what_was_there_before_is_not_told_as_new(bench: Bench, heard: Heard) -> None:
    for _ in range(2):
        await bench.make_job(idempotency_key="once")
    assert heard.made == [True, False]


async def test_each_end_is_told_once_with_how_long_it_took(bench: Bench, heard: Heard) -> None:
    await bench.jobs.define(Definition(type="print", max_attempts=2))
    await bench.jobs.enqueue_many([new_job(bench.tenant, "print") for _ in range(4)])
    bench.clock.advance(seconds=3)
    claims = await bench.jobs.claim("worker", ["print"], limit=4)
    assert [claim.job.id for claim in heard.claims] == [claim.job.id for claim in claims]
    bench.clock.advance(seconds=7)
    await bench.jobs.complete(claims[0])
    await bench.jobs.complete(claims[0])  # The same again gets the first answer, and is no second end.
    await bench.jobs.fail(claims[1], "broken")
    await bench.jobs.fail(claims[2], "broken", retry=False)
    await bench.jobs.cancel(bench.tenant, claims[3].job.id)
    await bench.jobs.fail(claims[3], "broken")
    with pytest.raises(LeaseLost):
        await bench.jobs.fail(claims[0], "too late")
    assert heard.ends == {
        ("print", "succeeded", "succeeded"): 1,
        ("print", "failed", "queued"): 1,
        ("print", "failed", "dead"): 1,
        ("print", "failed", "canceled"): 1,
    }
    assert heard.micros == [7 * MICROS] * 4
    assert [type(answer) for answer in heard.answers] == [Settled] * 5 + [LeaseLost]
    assert heard.dropped == {}


async def test_a_lost_lease_is_told_whoever_sweeps_it(bench: Bench, heard: Heard) -> None:
    await bench.make_claim("print")
    bench.clock.advance(seconds=LEASE_SECONDS + 1)
    await bench.jobs.claim("worker", ["other"])
    await bench.jobs.maintain()
    assert heard.ends == {("print", "lost", "queued"): 1}


async def test_what_is_canceled_while_it_waits_is_told_once(bench: Bench, heard: Heard) -> None:
    first = await bench.make_job("first")
    await bench.make_job("second", after=[first.id])
    for _ in range(2):
        await bench.jobs.cancel(bench.tenant, first.id)
    await bench.jobs.maintain()
    assert heard.dropped == {"first": 1, "second": 1}
    assert heard.ends == {}


async def test_commits_tell_how_many_commands_they_carried(bench: Bench, heard: Heard, engine: str) -> None:
    await asyncio.gather(*(bench.make_job() for _ in range(5)))
    claims = await bench.jobs.claim("worker", ["noop"], limit=5)
    await bench.jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=Done()) for c in claims])
    expected = {"sqlite": {"write": 7}, "postgres": {"enqueue": 5, "claim": 1, "settle": 1}}[engine]
    assert {kind: commands for (_, kind), commands in heard.commits.items()} == expected


async def test_a_listener_that_fails_keeps_nobody_waiting(bench: Bench) -> None:
    class Deaf(Heard):
        def fail(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("deaf")

        enqueued = claimed = settled = ended = canceled = committed = fail

    Deaf(bench)
    heard = Heard(bench)
    with capture_logs() as logs:
        claim = await bench.make_claim()
        await bench.jobs.complete(claim)
        await bench.make_job_in(JobStatus.CANCELED)
    assert {line["event"] for line in logs} == {"listener_failed"}
    assert (len(heard.made), len(heard.claims), len(heard.answers)) == (2, 1, 1)
    assert heard.ends == {("noop", "succeeded", "succeeded"): 1}
    assert heard.dropped == {"noop": 1}


def sums(figures: JobMetricsCollector) -> dict[str, float]:
    """What there is of one type, by the name of the sample, without the buckets."""
    return {
        sample.name: sample.value
        for family in figures.collect()
        for sample in family.samples
        if sample.labels.get("type") == "noop" and "le" not in sample.labels
    }


async def test_latency_is_counted_from_when_work_was_ready(bench: Bench) -> None:
    figures = JobMetricsCollector()
    bench.jobs.listen(figures)
    first = await bench.make_job()
    await bench.make_job(delay=10)
    await bench.make_job(after=[first.id])
    bench.clock.advance(seconds=12)
    claims = await bench.jobs.claim("worker", ["noop"], limit=9)
    assert len(claims) == 2
    told = sums(figures)
    assert (told["ingot_queue_latency_seconds_count"], told["ingot_queue_latency_seconds_sum"]) == (2, 12 + 2)
    for claim in claims:
        await bench.jobs.complete(claim)
    await bench.jobs.maintain()
    assert len(await bench.jobs.claim("worker", ["noop"])) == 1  # Nobody knows since when that one was ready.
    assert sums(figures)["ingot_queue_latency_seconds_count"] == 2


async def test_what_is_put_off_has_neither_failed_nor_run(bench: Bench) -> None:
    figures = JobMetricsCollector()
    bench.jobs.listen(figures)
    snoozed, released = await bench.make_claim(), await bench.make_claim()
    bench.clock.advance(seconds=1)
    await bench.jobs.snooze(snoozed, 60)
    await bench.jobs.release(released)
    told = sums(figures)
    assert told.pop("ingot_jobs_enqueued_total") == told.pop("ingot_queue_latency_seconds_count") == 2
    assert set(told.values()) == {0}


# -- depths -------------------------------------------------------------------------------------------------------


def told(depths: Sequence[Depth]) -> dict[str | None, dict[str, int]]:
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
    assert told(depths) == {
        "default": {"succeeded": 1, "dead": 1, "queued": 1, "running": 1},
        "acme": {"queued": 2},
    }
    assert {depth.tenant: depth.oldest_ready_seconds for depth in depths} == {"default": None, "acme": 5.0}


async def test_tenants_beyond_so_many_are_told_together(bench: Bench) -> None:
    for slug in ("alpha", "beta", "gamma"):
        tenant = await bench.tenants.create(slug)
        bench.clock.advance(seconds=1)
        await bench.make_job(tenant=tenant.id)
    depths = await bench.store.run(ListQueueDepths(tenants_max=2, lanes_max=100))
    assert told(depths) == {"alpha": {"queued": 1}, None: {"queued": 2}}
    assert {depth.tenant: depth.oldest_ready_seconds for depth in depths} == {"alpha": 2.0, None: 1.0}


async def test_the_first_lane_of_every_type_is_looked_at_before_the_second_of_any(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="keyed", limit_key="{a}", max_running_per_key=1))
    await bench.jobs.enqueue_many([new_job(bench.tenant, "z")])
    bench.clock.advance(seconds=9)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "keyed", {"a": n}) for n in range(20)])
    (depth,) = await bench.store.run(ListQueueDepths(tenants_max=1, lanes_max=2))
    assert depth.oldest_ready_seconds == 9.0


async def test_no_more_lanes_are_looked_at_than_was_asked_for(bench: Bench) -> None:
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


async def test_an_idle_store_has_nothing_to_do(bench: Bench, engine: str) -> None:
    await bench.make_job()
    load = await bench.jobs.load()
    assert load.waiting_commands == 0
    if engine == "sqlite":
        assert load.commit_seconds is not None
        assert load.connections is None
    else:
        assert (load.commit_seconds, load.connections_max) == (None, 10)
        assert load.connections_used == 0
