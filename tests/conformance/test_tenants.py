"""Tenants: created once, found by ID or slug, and isolated from each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from ingot.events.audit import Act
from ingot.identity import Limits, Tenant, TenantExists, TenantNotFound
from ingot.identity.ports import ChangeTenant
from ingot.jobs import JobNotFound, JobStatus
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id, new_id
from tests.conformance.snapshots import refuses, refuses_each, snapshot
from tests.factories import Bench


async def test_a_tenant_is_read_as_it_was_created(bench: Bench) -> None:
    limits = Limits(rate=10.5, burst=20, quota_bytes=2**40, max_unfinished_jobs=7)
    created = await bench.tenants.create("acme", weight=3, time_zone="Europe/Berlin", limits=limits)
    assert is_id(created.id)
    assert created == Tenant(id=created.id, slug="acme", weight=3, time_zone="Europe/Berlin", limits=limits)
    assert [await bench.tenants.get(name) for name in (created.id, "acme")] == [created, created]


async def test_a_tenant_without_options_gets_the_defaults(bench: Bench) -> None:
    created = await bench.tenants.create("acme")
    assert (created.weight, created.time_zone, created.limits) == (1, "UTC", Limits())


async def test_tenants_are_listed_by_slug(bench: Bench) -> None:
    for slug in ("zeta", "acme", "m-1"):
        await bench.tenants.create(slug)
    assert [tenant.slug for tenant in await bench.tenants.list()] == ["acme", "default", "m-1", "zeta"]
    first = await bench.tenants.page(limit=3)
    second = await bench.tenants.page(limit=3, cursor=first.next_cursor)
    assert [tenant.slug for tenant in first.items + second.items] == ["acme", "default", "m-1", "zeta"]
    assert second.next_cursor is None


async def test_a_slug_can_be_used_only_once(bench: Bench) -> None:
    await bench.tenants.create("acme")
    async with refuses(bench, TenantExists):
        await bench.tenants.create("acme", weight=5)


async def test_only_one_of_eight_concurrent_creations_gets_the_slug(bench: Bench) -> None:
    answers = await asyncio.gather(*(bench.tenants.create("acme") for _ in range(8)), return_exceptions=True)
    assert Counter(type(answer) for answer in answers) == {Tenant: 1, TenantExists: 7}


async def test_the_default_tenant_is_created_once(bench: Bench) -> None:
    tenants = await asyncio.gather(*(bench.tenants.ensure_default() for _ in range(4)))
    assert {tenant.id for tenant in tenants} == {bench.tenant}
    assert [tenant.slug for tenant in await bench.tenants.list()] == ["default"]


async def test_a_change_replaces_only_the_named_fields(bench: Bench) -> None:
    created = await bench.tenants.create("acme", weight=3, time_zone="Asia/Tokyo")
    changed = await bench.tenants.change("acme", slug="ajax", limits=Limits(burst=1))
    expected = Tenant(id=created.id, slug="ajax", weight=3, time_zone="Asia/Tokyo", limits=Limits(burst=1))
    assert changed == expected
    assert await bench.tenants.get("ajax") == expected
    with pytest.raises(TenantNotFound):
        await bench.tenants.get("acme")


async def test_a_change_to_the_current_slug_succeeds(bench: Bench) -> None:
    await bench.tenants.create("acme")
    assert (await bench.tenants.change("acme", slug="acme", weight=2)).weight == 2


async def test_the_default_tenant_keeps_its_slug(bench: Bench) -> None:
    async with refuses(bench, InvalidInput):
        await bench.tenants.change("default", slug="acme")
    assert (await bench.tenants.change("default", weight=2)).slug == "default"


async def test_a_change_to_a_taken_slug_is_refused(bench: Bench) -> None:
    await bench.tenants.create("acme")
    async with refuses(bench, TenantExists):
        await bench.tenants.change("acme", slug="default", weight=9)


async def test_a_missing_tenant_cannot_be_changed(bench: Bench) -> None:
    async with refuses(bench, TenantNotFound):
        await bench.store.run(ChangeTenant(id=new_id(), slug="acme", act=Act()))


async def test_a_tenant_can_be_used_as_soon_as_it_is_created(bench: Bench) -> None:
    tenant = await bench.tenants.create("acme")
    job = await bench.make_job(tenant=tenant.id)
    assert (await bench.jobs.list(tenant.id)).items[0].id == job.id


async def test_an_unknown_or_malformed_tenant_is_not_found(bench: Bench) -> None:
    names = ["nobody", "", "\ud800", "a" * 10_000, "x\x00y", "' OR 1=1 --"]
    await refuses_each(bench, TenantNotFound, {repr(name): partial(bench.tenants.get, name) for name in names})


async def test_a_slug_equal_to_an_id_does_not_hide_the_tenant_with_that_id(bench: Bench) -> None:
    await bench.tenants.create(bench.tenant)
    assert (await bench.tenants.get(bench.tenant)).slug == "default"


async def test_a_tenant_cannot_see_jobs_of_another_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    before = _tenant_in(await snapshot(bench), other.id)
    claim = await bench.make_claim(idempotency_key="k", dedupe_key="d", tags=["t"])
    await bench.jobs.complete(claim, 1)
    await bench.make_job(delay=5)
    after = _tenant_in(await snapshot(bench), other.id)
    assert after == before
    assert (await bench.jobs.summary(other.id)).oldest_queued_seconds is None
    for call in (bench.jobs.get, bench.jobs.attempts, bench.jobs.cancel, bench.jobs.retry):
        with pytest.raises(JobNotFound):
            await call(other.id, claim.job.id)


async def test_the_error_for_a_job_of_another_tenant_equals_that_for_an_unknown_job(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    job = await bench.make_job()
    answers = []
    for id in (job.id, new_id()):
        with pytest.raises(JobNotFound) as caught:
            await bench.jobs.get(other.id, id)
        answers.append((caught.value.code, caught.value.hint, caught.value.detail.replace(id, "?")))
    assert answers[0] == answers[1]


async def test_counts_are_kept_per_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    for n in range(5):
        await bench.make_job(tenant=other.id if n % 2 else bench.tenant)
    counts = [(await bench.jobs.summary(tenant)).counts[JobStatus.QUEUED] for tenant in (bench.tenant, other.id)]
    assert counts == [3, 2]


def _tenant_in(tenants: list[dict[str, Any]], tenant: str) -> dict[str, Any]:
    (matching,) = [entry for entry in tenants if entry["tenant"]["id"] == tenant]
    return matching


async def test_concurrent_changes_of_different_fields_are_both_kept(bench: Bench) -> None:
    await asyncio.gather(
        bench.tenants.change(bench.tenant, weight=7), bench.tenants.change(bench.tenant, time_zone="Europe/Berlin")
    )
    tenant = await bench.tenants.get(bench.tenant)
    assert (tenant.weight, tenant.time_zone) == (7, "Europe/Berlin")


async def test_calls_with_a_slug_instead_of_an_id_are_refused(bench: Bench) -> None:
    await bench.tenants.create("acme")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: bench.jobs.pauses("acme"),
        lambda: bench.jobs.resume("acme", "noop"),
        lambda: bench.jobs.definition("noop", tenant="acme"),
        lambda: bench.jobs.definitions(tenant="acme"),
    ]
    for call in calls:
        async with refuses(bench, TenantNotFound):
            await call()
