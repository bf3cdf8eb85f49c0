"""Reads, claims and limits cost the same whatever the number of job types in a tenant."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from ingot.identity import Limits
from ingot.jobs import Definition, JobStatus, Source
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Claim
from ingot.jobs.ports import CountMatchingJobs, Enqueue, JobFilter
from tests.engines.sqlite.plans.meter import metered
from tests.factories import Bench, open_bench

FEW, MANY = 1_500, 4_500
MORE_STEPS_MAX = 1.1
OTHER_STEPS = 200  # The last statement of the call before may be counted here, because threads report their steps.
FILTERS: dict[str, dict[str, Any]] = {
    "all": {},
    "queued": {"status": JobStatus.QUEUED},
    "succeeded": {"status": JobStatus.SUCCEEDED},
    "dead": {"status": JobStatus.DEAD},
    "running": {"status": JobStatus.RUNNING},
    "type": {"type": "type-7"},
    "type and queued": {"type": "type-7", "status": JobStatus.QUEUED},
    "rare tag": {"tag": "rare"},
    "source": {"source": Source.MANUAL},
    "rare source": {"source": Source.SCHEDULE},
}


async def enqueue_types(bench: Bench, types: int) -> None:
    """Enqueue one job of each of this many types, the first of them with a tag."""
    names = [f"type-{n}" for n in range(types)]
    orders = [new_job(bench.tenant, name, tags=["rare"] if n < 3 else []) for n, name in enumerate(names)]
    await bench.store.run(Enqueue(jobs=orders))


async def steps_by_call(folder: Path, types: int) -> dict[str, int]:
    """Return the steps of each call in a tenant with jobs of this many types."""
    steps = {}
    with metered() as meter:
        async with open_bench("sqlite", folder) as bench:
            await enqueue_types(bench, types)
            for claim in await bench.jobs.claim("worker", [f"type-{n}" for n in range(20)], limit=20):
                await settle(bench, claim)

            async def count(name: str, call: Any) -> Any:
                meter.total_steps = 0
                result = await call
                steps[name] = meter.total_steps
                return result

            now = bench.clock.now()
            for name, where in (FILTERS | {"time": {"created_after": now - timedelta(hours=1)}}).items():
                await count(f"list {name}", bench.jobs.list(bench.tenant, limit=10, **where))
            queued = JobFilter(tenant=bench.tenant, status=JobStatus.QUEUED, type="type-100")
            await count("count matching jobs", bench.store.run(CountMatchingJobs(where=queued)))
            await count("summary", bench.jobs.summary(bench.tenant))
            await count("summary of a type", bench.jobs.summary(bench.tenant, type="type-7"))
            job = await count("enqueue", bench.make_job("type-7"))
            await count("explain", bench.jobs.explain(bench.tenant, job.id))
            limits = Limits(max_unfinished_jobs=1_000_000, max_running_jobs=1_000)
            await count("change limits", bench.tenants.change(bench.tenant, limits=limits))
            await bench.jobs.define(Definition(type="type-100", max_running=5))
            await count("enqueue under limits", bench.make_job("type-7"))
            (claim,) = await count("claim under limits", bench.jobs.claim("worker", ["type-100", "type-101"], limit=1))
            await count("settle under limits", bench.jobs.complete(claim))
    return steps


async def settle(bench: Bench, claim: Claim) -> None:
    number = int(claim.job.type.removeprefix("type-"))
    if number % 3 == 0:
        await bench.jobs.fail(claim, "broken", retry=False)
    elif number % 3 == 1:
        await bench.jobs.complete(claim)


async def test_calls_take_the_same_number_of_steps_with_many_types(tmp_path: Path) -> None:
    few, many = [await steps_by_call(tmp_path / str(types), types) for types in (FEW, MANY)]
    allowed = {name: steps * MORE_STEPS_MAX + OTHER_STEPS for name, steps in few.items()}
    assert {name: (few[name], steps) for name, steps in many.items() if steps > allowed[name]} == {}


async def test_a_settle_announces_capacity_only_to_types_that_workers_request(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        await enqueue_types(bench, 100)
        await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=1))
        (claim,) = await bench.jobs.claim("worker", ["type-1", "type-2"], limit=1)
        announced: list[str] = []
        bench.store.on_ready(lambda tenant, type, count: announced.append(type))
        await bench.jobs.complete(claim)
    assert "type-2" in announced
    assert set(announced) <= {"type-1", "type-2"}
