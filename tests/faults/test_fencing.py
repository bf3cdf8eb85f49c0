"""Workers that paused for longer than their lease: their later calls change nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.jobs import Definition, JobStatus, LeaseLost
from ingot.jobs.job_options import new_job
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.faults.paused_workers import STALE_CALLS_PER_CYCLE, run_paused_workers, take_over
from tests.faults.sqlite_rules import broken_rules
from tests.faults.tables import open_file

CYCLES = 300


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def bench(folder: Path) -> AsyncIterator[Bench]:
    async with open_bench("sqlite", folder) as bench:
        yield bench
    with closing(open_file(folder / FILE_NAME)) as connection:
        assert broken_rules(connection) == []


@pytest.mark.long
async def test_a_worker_whose_lease_was_swept_changes_nothing(folder: Path) -> None:
    assert (
        await run_paused_workers(folder, cycles=CYCLES, seed=random.randrange(2**32)) == STALE_CALLS_PER_CYCLE * CYCLES
    )


async def test_a_worker_with_an_expired_lease_keeps_its_job_until_the_sweep(bench: Bench) -> None:
    """An expired lease is valid until the sweep, because only the fence decides."""
    claim = await bench.make_claim()
    bench.clock.advance(seconds=10 * LEASE_SECONDS)
    await bench.jobs.heartbeat(claim.job.id, claim.fence)
    assert (await bench.jobs.maintain()).swept == 0
    assert (await bench.jobs.complete(claim)).status is JobStatus.SUCCEEDED


async def test_only_the_new_worker_settles_when_it_competes_with_the_swept_one(bench: Bench) -> None:
    for _ in range(50):
        stale = await bench.make_claim()
        bench.clock.advance(seconds=LEASE_SECONDS)
        await bench.jobs.maintain()
        holder = await take_over(bench, stale)
        answers = await asyncio.gather(
            bench.jobs.complete(stale, "stale"), bench.jobs.complete(holder, "holder"), return_exceptions=True
        )
        assert isinstance(answers[0], LeaseLost)
        assert (await bench.reload(stale)).read("result") == "holder"


@pytest.mark.parametrize("cap", [1, 2, 3, 5])
async def test_a_job_that_crashes_its_workers_is_dead_after_exactly_its_crash_cap(bench: Bench, cap: int) -> None:
    if cap != 3:  # the default
        await bench.jobs.define(Definition(type="noop", crash_cap=cap))
    job = await bench.make_job()
    crashes = 0
    while await bench.jobs.claim(f"victim-{crashes}", ["noop"]):
        crashes += 1
        bench.clock.advance(seconds=LEASE_SECONDS)
        await bench.jobs.maintain()
        bench.clock.advance(seconds=5)
    dead = await bench.reload(job)
    assert (crashes, dead.status, dead.crashes, dead.failures, dead.attempts) == (cap, JobStatus.DEAD, cap, 0, cap)


async def test_a_job_that_cannot_be_swept_does_not_block_the_sweep_of_others(bench: Bench, folder: Path) -> None:
    """A job that cannot be swept, here because of a trigger, does not prevent the sweep of others."""
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", n) for n in range(20)])
    claims = await bench.jobs.claim("worker", ["noop"], limit=20)
    unsweepable = claims[7].job.id
    with closing(open_file(folder / FILE_NAME)) as connection:
        connection.execute(
            "CREATE TRIGGER bad BEFORE UPDATE ON states "
            f"WHEN old.id = '{unsweepable}' BEGIN SELECT raise(ABORT, 'bad'); END"
        )
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await bench.jobs.maintain()).swept == 19
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert (counts[JobStatus.RUNNING], counts[JobStatus.QUEUED]) == (1, 19)
    bench.clock.advance(seconds=5)
    new_claims = await bench.jobs.claim("other", ["noop"], limit=100)
    assert {claim.job.id for claim in new_claims} == {claim.job.id for claim in claims} - {unsweepable}


async def test_a_failing_enqueue_does_not_affect_others_in_its_transaction(bench: Bench, folder: Path) -> None:
    """Only the failing call of a shared transaction gets an error and is rolled back."""
    with closing(open_file(folder / FILE_NAME)) as connection:
        connection.execute(
            "CREATE TRIGGER bad BEFORE INSERT ON states WHEN new.type = 'bad' BEGIN SELECT raise(ABORT, 'bad'); END"
        )
    types = ["noop"] * 10 + ["bad"] + ["noop"] * 10
    answers = await asyncio.gather(*(bench.make_job(type) for type in types), return_exceptions=True)
    assert [isinstance(answer, Exception) for answer in answers] == [type == "bad" for type in types]
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert counts[JobStatus.QUEUED] == 20
    assert len(await bench.jobs.claim("worker", ["noop", "bad"], limit=100)) == 20
