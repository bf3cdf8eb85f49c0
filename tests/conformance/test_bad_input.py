"""Bad input changes nothing in a store. tests/unit/test_bad_input.py has every case, without a store."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from ingot.jobs import Definition, Done, NewJob, PayloadTooLarge, checks
from ingot.jobs.job_options import new_job
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from tests.bad_values import BAD_ORDERS, BAD_TENANTS
from tests.conformance.snapshots import refuses, refuses_each, snapshot
from tests.factories import Bench


async def _enqueue(bench: Bench, case: dict[str, Any]) -> None:
    options: dict[str, Any] = {"type": "noop", "payload": 1, **case}
    await bench.jobs.enqueue(bench.tenant, **options)


async def test_a_call_with_bad_input_changes_nothing(bench: Bench) -> None:
    jobs, tenant = bench.jobs, bench.tenant
    claim, job = await bench.make_claim(), await bench.make_job(tags=["a"])
    canceled = await jobs.cancel(tenant, (await bench.make_job()).id)
    good = new_job(tenant, "noop")
    bad = msgspec.structs.replace(good, id=new_id(), idempotency_key="k", payload_digest=b"d" * 32)
    await refuses_each(
        bench,
        InvalidInput,
        {
            "enqueue": lambda: _enqueue(bench, BAD_ORDERS["an idempotency key with NUL"]),
            "enqueue_many": lambda: jobs.enqueue_many([good, bad]),
            "claim": lambda: jobs.claim("worker", ["noop"], limit=0),
            "settle": lambda: jobs.settle(claim.job.id, claim.fence, Done(result=b"{")),
            "retry": lambda: jobs.retry(tenant, canceled.id, priority=6),
            "reschedule": lambda: jobs.reschedule(tenant, job.id, tags=[""]),
            "define": lambda: jobs.define(Definition(type="noop", max_attempts=0)),
            "create a tenant": lambda: bench.tenants.create("Acme"),
        },
    )


async def test_a_job_with_a_too_large_payload_changes_nothing(bench: Bench) -> None:
    async with refuses(bench, PayloadTooLarge):
        await _enqueue(bench, {"payload": "x" * (64 * 1024 - 1)})


async def test_a_tenant_change_with_bad_input_is_refused(bench: Bench) -> None:
    # A change reads the tenant from the store before the new values are checked.
    change = bench.tenants.change
    await refuses_each(
        bench, InvalidInput, {name: partial(change, "default", **case) for name, case in BAD_TENANTS.items()}
    )


async def test_a_valid_order_built_by_hand_is_accepted(bench: Bench) -> None:
    order = NewJob(
        id=new_id(),
        tenant=bench.tenant,
        type="noop",
        payload=b' {"a": 1} ',
        idempotency_key="k",
        payload_digest=checks.json_digest(b'{"a":1}'),
        tags=("b", "a", "b"),
        depth=16,
    )
    (enqueued,) = await bench.jobs.enqueue_many([order])
    assert (enqueued.job.id, enqueued.job.read(), enqueued.job.tags) == (order.id, {"a": 1}, ("a", "b"))
    assert enqueued.job == await bench.reload(enqueued.job)
    again = await bench.jobs.enqueue(bench.tenant, "noop", {"a": 1}, idempotency_key="k")
    assert (again.created, again.job.id) == (False, order.id)


async def test_invalid_calls_do_not_affect_concurrent_valid_calls(bench: Bench) -> None:
    good = [bench.make_job("good", n) for n in range(10)]
    bad = [_enqueue(bench, case) for case in BAD_ORDERS.values()]
    mixed = [call for pair in zip(good, bad, strict=False) for call in pair] + bad[len(good) :]
    answers = await asyncio.gather(*mixed, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert {type(error) for error in refused} == {InvalidInput}
    assert len(refused) == len(BAD_ORDERS)
    assert all(isinstance(error, IngotError) and error.hint for error in refused)
    assert len((await snapshot(bench))[0]["jobs"]) == 10
