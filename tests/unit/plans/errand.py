"""An errand that makes a store run every statement it has, with the same sizes whatever the store holds."""

from __future__ import annotations

from contextlib import suppress

from benchmarks.queue.prefill import PAYLOAD
from ingot.jobs import (
    Definition,
    Done,
    DuplicateJob,
    Failed,
    JobStatus,
    LeaseLost,
    Outcome,
    Progress,
    Release,
    Settle,
    Snooze,
)
from ingot.jobs.orders import new_job
from ingot.kernel.clock import MICROS
from tests.factories import LEASE_SECONDS, Bench

TYPE = "noop"
OLD_KEY = "prefilled-10"
BATCH = 50


async def run_errand(bench: Bench) -> None:
    """Ask for everything once."""
    await _identity(bench)
    await _ask_for_work(bench)
    await _do_work(bench)
    await _steer(bench)
    await _look(bench)


async def _identity(bench: Bench) -> None:
    acme = await bench.tenants.create("acme")
    await bench.tenants.change(acme.id, weight=2)
    await bench.tenants.list()
    await bench.jobs.define(Definition(type="other", max_attempts=2))
    await bench.jobs.definition("other", tenant=bench.tenant)
    await bench.jobs.definitions(tenant=bench.tenant)


async def _ask_for_work(bench: Bench) -> None:
    tenant = bench.tenant
    assert not (await bench.jobs.enqueue(tenant, TYPE, PAYLOAD, idempotency_key=OLD_KEY)).created
    await bench.jobs.enqueue(tenant, TYPE, 1, tags=["red", "blue"], idempotency_key="new", dedupe_key="new")
    with suppress(DuplicateJob):
        await bench.jobs.enqueue(tenant, TYPE, 1, dedupe_key="new")
    await bench.jobs.enqueue_many([new_job(tenant, TYPE, n) for n in range(BATCH)])
    await bench.jobs.enqueue_many([new_job(tenant, TYPE, n, delay=60) for n in range(BATCH)])


async def _do_work(bench: Bench) -> None:
    claims = await bench.jobs.claim("w1", [TYPE], limit=BATCH)
    assert len(claims) == BATCH
    await bench.jobs.heartbeat_many([bench.jobs.beat(c.job.id, c.fence) for c in claims])
    await bench.jobs.heartbeat(claims[0].job.id, claims[0].fence, progress=Progress(percent=50))
    outcomes: list[Outcome] = [Done(result=b"1"), Failed(error="broken"), Snooze(delay=MICROS), Release()]
    settles = [
        Settle(job_id=claim.job.id, fence=claim.fence, outcome=outcomes[place % 4])
        for place, claim in enumerate(claims[:-10])
    ]
    await bench.jobs.settle_many(settles)
    await bench.jobs.settle_many(settles)
    with suppress(LeaseLost):
        await bench.jobs.settle(claims[0].job.id, claims[0].fence, Failed(error="too late"))
    await bench.jobs.cancel(bench.tenant, claims[-1].job.id)
    bench.clock.advance(seconds=LEASE_SECONDS)
    tended = await bench.jobs.tend()
    assert tended.swept == 10
    assert tended.promoted >= BATCH
    await bench.jobs.claim("w1", [TYPE], limit=1)


async def _steer(bench: Bench) -> None:
    tenant = bench.tenant
    old = (await bench.jobs.enqueue(tenant, TYPE, PAYLOAD, idempotency_key=OLD_KEY)).job
    assert old.status is JobStatus.SUCCEEDED
    await bench.jobs.retry(tenant, old.id)
    await bench.jobs.reschedule(tenant, old.id, priority=1, tags=["green"])
    await bench.jobs.cancel(tenant, old.id)


async def _look(bench: Bench) -> None:
    tenant = bench.tenant
    page = await bench.jobs.list(tenant, limit=BATCH)
    await bench.jobs.list(tenant, limit=BATCH, cursor=page.next_cursor)
    await bench.jobs.list(tenant, limit=BATCH, status=JobStatus.SUCCEEDED)
    await bench.jobs.get(tenant, page.items[0].id)
    await bench.jobs.attempts(tenant, page.items[0].id)
    await bench.jobs.summary(tenant)
    events = await bench.events.read(tenant, limit=BATCH)
    await bench.events.read(tenant, after=events[-1].id, limit=BATCH)
