"""Reads of lanes by claims: none of lanes without capacity, and few of lanes whose jobs come later."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ingot.identity import Limits
from ingot.jobs import Definition
from ingot.jobs.job_options import new_job
from tests.engines.sqlite.plans.meter import Meter, metered
from tests.factories import Bench, open_bench

FEW = 1_000
MANY = 10_000
MORE_STEPS_MAX = 1.1  # Steps count rows that are read, not the depth of an index.
KEYS = 500


@pytest.mark.parametrize("full", ["key", "type", "tenant", "paused"])
async def test_jobs_without_capacity_are_not_read(tmp_path: Path, full: str) -> None:
    few = await _steps_of_claims(tmp_path / "few", full, waiting=FEW)
    many = await _steps_of_claims(tmp_path / "many", full, waiting=MANY)
    assert many <= few * MORE_STEPS_MAX


async def _steps_of_claims(folder: Path, full: str, *, waiting: int) -> int:
    """The steps of claims by another tenant while this many jobs wait without capacity."""
    with metered() as meter:
        async with open_bench("sqlite", folder) as bench:
            other = (await bench.tenants.create("other")).id
            await bench.jobs.define(
                Definition(
                    type="keyed",
                    tenant=bench.tenant,
                    max_running=1 if full == "type" else None,
                    limit_key="{key}",
                    max_running_per_key=1 if full == "key" else None,
                )
            )
            if full == "tenant":
                await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=1))
            await bench.jobs.enqueue_many([new_job(bench.tenant, "keyed", {"key": "full"}) for _ in range(waiting)])
            assert len(await bench.jobs.claim("w", ["keyed"])) == 1
            if full == "paused":
                await bench.jobs.pause(bench.tenant, "keyed")
            jobs = [await bench.make_job("keyed", {"key": f"k{n}"}, tenant=other) for n in range(20)]
            meter.steps.clear()
            claims = [claim for _ in range(25) for claim in await bench.jobs.claim("w", ["keyed"])]
            steps, reads = sum(map(sum, meter.steps.values())), len(meter.steps["ready_in_lane"])
    assert [claim.job.id for claim in claims] == [job.id for job in jobs]
    assert reads <= len(jobs) + 1  # One read for each job, and one that finds no more.
    return steps


async def _reads_of_claims(bench: Bench, meter: Meter, claims: int) -> int:
    meter.steps.clear()
    for _ in range(claims):
        (claim,) = await bench.jobs.claim("w", ["keyed"])
        await bench.jobs.complete(claim)
    return len(meter.steps["ready_in_lane"])


async def test_lanes_whose_jobs_come_later_are_not_read(tmp_path: Path) -> None:
    with metered() as meter:
        async with open_bench("sqlite", tmp_path / "data") as bench:
            await bench.jobs.define(Definition(type="keyed", limit_key="{key}", max_running_per_key=1))
            orders = [new_job(bench.tenant, "keyed", {"key": n % KEYS}) for n in range(3 * KEYS)]
            await bench.jobs.enqueue_many(orders)
            assert await _reads_of_claims(bench, meter, 50) <= 150


@pytest.mark.parametrize("seed", range(5))
async def test_jobs_of_many_keys_start_in_order_despite_other_changes(tmp_path: Path, seed: int) -> None:
    """Cached lane heads never hide jobs that were added, released or moved to the front."""
    chance = random.Random(seed)
    async with open_bench("sqlite", tmp_path / "data") as bench:
        await bench.jobs.define(Definition(type="keyed", limit_key="{key}"))
        for _ in range(150):
            waiting = [job for job in (await bench.jobs.list(bench.tenant, limit=1000)).items if job.status == "queued"]
            match chance.randrange(5):
                case 0 | 1:
                    key, delay = chance.randrange(6), chance.choice([0, 0, 5])
                    priorities = [chance.randint(1, 5) for _ in range(chance.randint(1, 3))]
                    await bench.jobs.enqueue_many(
                        [new_job(bench.tenant, "keyed", {"key": key}, priority=n, delay=delay) for n in priorities]
                    )
                case 2 if waiting:
                    job = chance.choice(waiting)
                    await bench.jobs.reschedule(bench.tenant, job.id, priority=chance.randint(1, 5))
                case 3 if waiting:
                    await bench.jobs.cancel(bench.tenant, chance.choice(waiting).id)
                case _:
                    bench.clock.advance(seconds=chance.choice([0, 5]))
                    due = [job for job in waiting if job.run_at <= bench.clock.now()]
                    due.sort(key=lambda job: (job.priority, job.run_at, job.id))
                    limit = chance.randint(1, 4)
                    claims = await bench.jobs.claim("w", ["keyed"], limit=limit)
                    assert [claim.job.id for claim in claims] == [job.id for job in due[:limit]]
                    for claim in claims:
                        end = chance.choice([bench.jobs.complete, bench.jobs.release])
                        await end(claim)
