"""Batches: jobs enqueued under one name, their exact counts, and the event that reports completion."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.identity import TenantNotFound
from ingot.jobs import Batch, BatchNotFound, Done, DuplicateJob, Failed, JobStatus, OnDead, Settle
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.job_endings import all_events, end, settle_down
from tests.conformance.snapshots import refuses
from tests.factories import LEASE_SECONDS, Bench, open_bench

SUCCEEDED, DEAD, CANCELED = JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED


async def numbers(bench: Bench, batch: str = "batch") -> tuple[int, int, int, int, int]:
    """Total, unfinished, succeeded, dead, canceled."""
    batch_counts = await bench.jobs.batch(bench.tenant, batch)
    assert batch_counts.batch == batch
    return batch_counts.total, batch_counts.unfinished, batch_counts.succeeded, batch_counts.dead, batch_counts.canceled


async def completions(bench: Bench) -> list[Batch]:
    """The data of all `batch.completed` events so far."""
    await settle_down(bench)
    events = [event for event in await all_events(bench) if event.name == "batch.completed"]
    return [msgspec.json.decode(event.data, type=Batch, strict=True) for event in events]


def completed_batch(total: int, *, batch: str = "batch", **ends: int) -> Batch:
    """A batch without unfinished jobs."""
    return Batch(batch=batch, total=total, unfinished=0, **ends)


async def test_a_batch_counts_succeeded_dead_and_canceled_jobs(bench: Bench) -> None:
    jobs = [await bench.make_job(f"job-{n}", batch="batch") for n in range(4)]
    await bench.make_job("alone")
    assert [job.batch for job in jobs] == ["batch"] * 4
    assert (await bench.reload(jobs[0])).batch == "batch"
    assert await numbers(bench) == (4, 4, 0, 0, 0)
    await end(bench, jobs[0], SUCCEEDED)
    assert await numbers(bench) == (4, 3, 1, 0, 0)
    await end(bench, jobs[1], DEAD)
    assert await numbers(bench) == (4, 2, 1, 1, 0)
    await end(bench, jobs[2], CANCELED)
    assert await numbers(bench) == (4, 1, 1, 1, 1)
    (claim,) = await bench.jobs.claim("worker", ["job-3"])
    assert claim.job.batch == "batch"
    await bench.jobs.fail(claim, "again")
    assert await numbers(bench) == (4, 1, 1, 1, 1)
    assert await completions(bench) == []
    bench.clock.advance(seconds=300)
    await end(bench, jobs[3], SUCCEEDED)
    assert await numbers(bench) == (4, 0, 2, 1, 1)
    assert await completions(bench) == [completed_batch(4, succeeded=2, dead=1, canceled=1)]


async def test_lost_workers_and_requested_cancels_complete_a_batch(bench: Bench) -> None:
    lost = await bench.make_job("lost", batch="batch")
    asked = await bench.make_claim("asked", batch="batch")
    await bench.jobs.cancel(bench.tenant, asked.job.id)
    assert await numbers(bench) == (2, 2, 0, 0, 0)
    await bench.jobs.release(asked)
    assert await numbers(bench) == (2, 1, 0, 0, 1)
    for _ in range(3):
        (claim,) = await bench.jobs.claim("worker", ["lost"])
        assert claim.job.id == lost.id
        bench.clock.advance(seconds=LEASE_SECONDS + 10)
        await bench.jobs.maintain()
        bench.clock.advance(seconds=10)
    assert await numbers(bench) == (2, 0, 0, 1, 1)
    assert await completions(bench) == [completed_batch(2, dead=1, canceled=1)]


async def test_the_completion_event_follows_the_last_job_event(bench: Bench) -> None:
    await end(bench, await bench.make_job(batch="batch"))
    names = [event.name for event in await all_events(bench)]
    assert names == ["job.created", "job.started", "job.completed", "batch.completed"]


async def test_many_jobs_that_end_in_one_call_complete_their_batch_once(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", n, batch=f"batch-{n % 3}") for n in range(90)])
    claims = await bench.jobs.claim("worker", ["noop"], limit=90)
    await bench.jobs.settle_many(
        [
            Settle(job_id=c.job.id, fence=c.fence, outcome=Done() if n % 2 else Failed(error="no", retry=False))
            for n, c in enumerate(claims)
        ]
    )
    told = await completions(bench)
    assert sorted(batch.batch for batch in told) == ["batch-0", "batch-1", "batch-2"]
    assert [(batch.total, batch.succeeded + batch.dead) for batch in told] == [(30, 30)] * 3
    assert [await bench.jobs.batch(bench.tenant, batch.batch) for batch in told] == told


async def test_jobs_that_end_concurrently_complete_their_batch_once(bench: Bench) -> None:
    for n in range(10):
        await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", batch=f"batch-{n}") for _ in range(5)])
        claims = await bench.jobs.claim("worker", ["noop"], limit=5)
        await asyncio.gather(*(bench.jobs.complete(claim) for claim in claims))
    assert await completions(bench) == [completed_batch(5, batch=f"batch-{n}", succeeded=5) for n in range(10)]


@pytest.mark.parametrize("status", [SUCCEEDED, DEAD, CANCELED])
async def test_a_retry_reopens_the_batch(bench: Bench, status: JobStatus) -> None:
    other = await bench.make_job("other", batch="batch")
    await end(bench, other)
    job = await bench.make_job("noop", batch="batch")
    await end(bench, job, status)
    last = completed_batch(
        2, succeeded=2 if status is SUCCEEDED else 1, dead=int(status is DEAD), canceled=int(status is CANCELED)
    )
    assert await completions(bench) == [completed_batch(1, succeeded=1), last]
    await bench.jobs.retry(bench.tenant, job.id, reset_attempts=True)
    assert await numbers(bench) == (2, 1, 1, 0, 0)
    assert await completions(bench) == [completed_batch(1, succeeded=1), last]
    await end(bench, job)
    assert await numbers(bench) == (2, 0, 2, 0, 0)
    assert await completions(bench) == [completed_batch(1, succeeded=1), last, completed_batch(2, succeeded=2)]


async def test_added_jobs_reopen_the_batch(bench: Bench) -> None:
    for n in range(1, 4):
        job = await bench.make_job(batch="batch")
        assert await numbers(bench) == (n, 1, n - 1, 0, 0)
        await end(bench, job)
    assert await completions(bench) == [completed_batch(n, succeeded=n) for n in range(1, 4)]


async def test_blocked_jobs_count_as_unfinished_until_their_parents_end(bench: Bench) -> None:
    parent = await bench.make_job("parent")
    for on_dead in OnDead:
        await bench.make_job("child", after=[parent.id], on_dead=on_dead, batch="batch")
    assert await numbers(bench) == (2, 2, 0, 0, 0)
    await end(bench, parent, DEAD)
    assert await numbers(bench) == (2, 1, 0, 0, 1)
    assert await completions(bench) == []
    (claim,) = await bench.jobs.claim("worker", ["child"])
    await bench.jobs.complete(claim)
    assert await completions(bench) == [completed_batch(2, succeeded=1, canceled=1)]


async def test_a_batch_canceled_with_its_parent_is_complete(bench: Bench) -> None:
    parent = await bench.make_job("parent")
    await bench.jobs.enqueue_many([new_job(bench.tenant, "child", after=[parent.id], batch="batch") for _ in range(50)])
    await end(bench, parent, CANCELED)
    assert await numbers(bench) == (50, 0, 0, 0, 50)
    assert await completions(bench) == [completed_batch(50, canceled=50)]


async def test_jobs_that_were_not_created_are_not_counted(bench: Bench) -> None:
    await bench.make_job("noop", 1, batch="batch", idempotency_key="key", dedupe_key="key")
    await bench.make_job("noop", 1, batch="batch", idempotency_key="key")
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many(
            [new_job(bench.tenant, "noop", batch="batch"), new_job(bench.tenant, "noop", dedupe_key="key")]
        )
    async with refuses(bench, DuplicateJob):
        await bench.jobs.enqueue_many(
            [new_job(bench.tenant, "noop", batch="fresh"), new_job(bench.tenant, "noop", dedupe_key="key")]
        )
    assert await numbers(bench) == (1, 1, 0, 0, 0)
    with pytest.raises(BatchNotFound):
        await bench.jobs.batch(bench.tenant, "fresh")


async def test_a_resent_settle_counts_once(bench: Bench) -> None:
    claim = await bench.make_claim(batch="batch")
    for _ in range(3):
        await bench.jobs.complete(claim, 1)
    assert await numbers(bench) == (1, 0, 1, 0, 0)
    assert await completions(bench) == [completed_batch(1, succeeded=1)]


async def test_a_repeated_cancel_counts_once(bench: Bench) -> None:
    job = await bench.make_job(batch="batch")
    for _ in range(3):
        await bench.jobs.cancel(bench.tenant, job.id)
    assert await numbers(bench) == (1, 0, 0, 0, 1)
    assert await completions(bench) == [completed_batch(1, canceled=1)]


async def test_a_tenant_cannot_see_batches_of_another_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.make_job(batch="batch", tenant=other.id)
    await bench.make_job(batch="theirs", tenant=other.id)
    job = await bench.make_job("mine", batch="batch")
    with pytest.raises(BatchNotFound) as caught:
        await bench.jobs.batch(bench.tenant, "theirs")
    assert caught.value.hint.strip()
    await end(bench, job)
    assert await numbers(bench) == (1, 0, 1, 0, 0)
    assert (await bench.jobs.batch(other.id, "batch")).unfinished == 1
    assert await completions(bench) == [completed_batch(1, succeeded=1)]
    assert "batch.completed" not in await bench.event_names(other.id)
    with pytest.raises(TenantNotFound):
        await bench.jobs.batch(new_id(), "batch")


async def test_a_batch_keeps_its_counts_after_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        jobs = [await bench.make_job(f"job-{n}", batch="batch") for n in range(2)]
        await end(bench, jobs[0])
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert await numbers(bench) == (2, 1, 1, 0, 0)
        await end(bench, jobs[1])
        assert await completions(bench) == [completed_batch(2, succeeded=2)]


async def test_any_text_of_128_characters_names_a_batch(bench: Bench) -> None:
    for name in ("x" * 128, 'say "no"', "é\U0001f980", "a\\b", "'; DROP TABLE batches; --"):
        job = await bench.make_job(batch=name)
        assert await numbers(bench, name) == (1, 1, 0, 0, 0)
        await end(bench, job)
        assert (await completions(bench))[-1] == completed_batch(1, batch=name, succeeded=1)


BAD_NAMES: dict[str, Any] = {"too long": "x" * 129, "a number": 5, "bytes": b"batch", "a list": ["batch"]}


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_invalid_batch_names_are_refused(bench: Bench, name: str) -> None:
    async with refuses(bench, InvalidInput):
        await bench.make_job(batch=BAD_NAMES[name])
    async with refuses(bench, InvalidInput):
        await bench.jobs.batch(bench.tenant, BAD_NAMES[name])
