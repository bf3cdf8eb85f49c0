"""Definitions: the defaults and limits of a job type, for one tenant or for all."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ingot.events.audit import PROCESS
from ingot.identity import TenantNotFound
from ingot.jobs import Backoff, Definition, JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses
from tests.factories import LEASE_SECONDS, Bench

WHOLE = Definition(
    type="pdf",
    timeout_seconds=12.5,
    max_attempts=9,
    crash_cap=2,
    priority=1,
    backoff=Backoff(first_seconds=0.5, factor=1.5, max_seconds=30),
)


async def test_an_undefined_type_has_the_defaults(bench: Bench) -> None:
    assert await bench.jobs.definition("pdf", tenant=bench.tenant) == Definition(
        type="pdf",
        timeout_seconds=3600,
        max_attempts=5,
        crash_cap=3,
        priority=3,
        backoff=Backoff(first_seconds=1, factor=2, max_seconds=3600),
    )


async def test_a_definition_is_returned_as_it_was_defined(bench: Bench) -> None:
    assert await bench.jobs.define(WHOLE) == WHOLE
    assert await bench.jobs.definition("pdf") == WHOLE


async def test_a_definition_is_replaced_as_a_whole(bench: Bench) -> None:
    await bench.jobs.define(WHOLE)
    await bench.jobs.define(Definition(type="pdf", priority=5))
    assert await bench.jobs.definition("pdf") == Definition(type="pdf", priority=5)


async def test_a_tenants_own_definition_takes_precedence(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    await bench.jobs.define(Definition(type="pdf", priority=5))
    await bench.jobs.define(Definition(type="pdf", tenant=bench.tenant, priority=1))
    found = [await bench.jobs.definition("pdf", tenant=tenant) for tenant in (bench.tenant, other.id, None)]
    assert [definition.priority for definition in found] == [1, 5, 5]
    jobs = [await bench.make_job("pdf"), await bench.make_job("pdf", tenant=other.id)]
    assert [job.priority for job in jobs] == [1, 5]


async def test_a_tenant_lists_its_own_and_the_common_definitions_by_type(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    for type, tenant in (("c", None), ("a", bench.tenant), ("b", other.id), ("c", bench.tenant), ("b", None)):
        await bench.jobs.define(Definition(type=type, tenant=tenant))
    seen = [(d.type, d.tenant) for d in await bench.jobs.definitions(tenant=bench.tenant)]
    assert sorted(seen, key=str) == sorted(
        [("a", bench.tenant), ("b", None), ("c", None), ("c", bench.tenant)], key=str
    )
    assert [type for type, _ in seen] == ["a", "b", "c", "c"]
    assert [(d.type, d.tenant) for d in await bench.jobs.definitions()] == [("b", None), ("c", None)]


# -- ensured definitions ------------------------------------------------------------------------------------


REQUIRED = Definition(type="pdf", timeout_seconds=60, reuse=True, version=2)


async def count_audit_entries(bench: Bench) -> int:
    return len((await bench.audit.list(None, action="definition.put")).items)


async def test_a_definition_is_ensured_once_for_all_tenants(bench: Bench) -> None:
    made = await asyncio.gather(*(bench.jobs.ensure_definition(REQUIRED) for _ in range(8)))
    assert made == [REQUIRED] * 8
    assert list(await bench.jobs.definitions(tenant=bench.tenant)) == [REQUIRED]
    (entry,) = (await bench.audit.list(None, action="definition.put")).items
    assert (entry.who, entry.tenant, entry.target) == (PROCESS, None, "definition/pdf")


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_ensuring_an_existing_definition_only_raises_its_version(bench: Bench, version: int) -> None:
    existing = msgspec.structs.replace(WHOLE, version=version, max_running=2, limit_key="{a}", keep_history=True)
    await bench.jobs.define(existing)
    own = await bench.jobs.define(Definition(type="pdf", tenant=bench.tenant))
    before = await count_audit_entries(bench)
    for _ in range(2):
        found = await bench.jobs.ensure_definition(REQUIRED)
        assert found == msgspec.structs.replace(existing, version=max(2, version))
        assert list(await bench.jobs.definitions(tenant=bench.tenant)) == [found, own]
    assert await count_audit_entries(bench) - before == (version < 2)
    await bench.jobs.ensure_definition(msgspec.structs.replace(REQUIRED, version=1))
    assert (await bench.jobs.definition("pdf")).version == max(2, version)


async def test_an_ensured_definition_applies_to_new_jobs(bench: Bench) -> None:
    assert [(await bench.jobs.enqueue(bench.tenant, "pdf")).created for _ in range(2)] == [True, True]
    await bench.jobs.ensure_definition(REQUIRED)
    assert [(await bench.jobs.enqueue(bench.tenant, "pdf")).created for _ in range(2)] == [True, False]
    await bench.jobs.ensure_definition(msgspec.structs.replace(REQUIRED, version=3))
    assert [(await bench.jobs.enqueue(bench.tenant, "pdf")).created for _ in range(2)] == [True, False]


async def test_a_definition_of_one_tenant_cannot_be_ensured(bench: Bench) -> None:
    async with refuses(bench, InvalidInput):
        await bench.jobs.ensure_definition(msgspec.structs.replace(REQUIRED, tenant=bench.tenant))


async def test_a_definition_for_an_unknown_tenant_is_refused(bench: Bench) -> None:
    async with refuses(bench, TenantNotFound):
        await bench.jobs.define(Definition(type="pdf", tenant=new_id()))


async def test_a_definition_applies_to_new_jobs_and_not_to_waiting_ones(bench: Bench) -> None:
    before = await bench.make_job("pdf")
    await bench.jobs.define(WHOLE)
    after = await bench.make_job("pdf")
    seen = [((await bench.reload(job)).priority, (await bench.reload(job)).max_attempts) for job in (before, after)]
    assert seen == [(3, 5), (1, 9)]


async def test_a_new_backoff_applies_to_later_failures_of_running_attempts(bench: Bench) -> None:
    claim = await bench.make_claim("pdf")
    await bench.jobs.define(Definition(type="pdf", backoff=Backoff(first_seconds=1000, max_seconds=1000)))
    answer = await bench.jobs.fail(claim, "no")
    assert answer.run_at is not None
    assert 750 <= (answer.run_at - bench.clock.now()).total_seconds() <= 1000


async def test_a_new_crash_cap_applies_to_later_losses_of_running_attempts(bench: Bench) -> None:
    claim = await bench.make_claim("pdf")
    await bench.jobs.define(Definition(type="pdf", crash_cap=1))
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    assert (await bench.reload(claim)).status is JobStatus.DEAD


@pytest.mark.parametrize("tenant_has_its_own", [False, True])
async def test_a_claim_contains_the_timeout_of_the_effective_definition(bench: Bench, tenant_has_its_own: bool) -> None:
    await bench.jobs.define(Definition(type="pdf", timeout_seconds=10))
    if tenant_has_its_own:
        await bench.jobs.define(Definition(type="pdf", tenant=bench.tenant, timeout_seconds=20))
    assert (await bench.make_claim("pdf")).timeout_seconds == (20 if tenant_has_its_own else 10)
