"""Removing a tenant: no call can use it any more, and its rows are deleted gradually."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.maintenance import poll
from ingot.events.audit import Act, AuditFilter, ListAuditEntries
from ingot.identity import Limits, Tenant, TenantNotFound
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import TokenNotFound, Unauthorized
from ingot.identity.grants import GRANT_ALL
from ingot.identity.ports import ClearTenants, ClearTenantsResult, LeaveTenant, RemoveTenant
from ingot.identity.tenant_removal import TenantRemoval
from ingot.jobs import Claim, Definition, JobNotFound, JobStatus
from ingot.jobs.job_options import new_job
from ingot.jobs.ports import WorkerStore
from ingot.jobs.workers import Workers
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import BlobFixture
from tests.conformance.counting_workers import WatchedWorkers
from tests.conformance.people_fixture import PeopleFixture
from tests.conformance.snapshots import refuses, snapshot
from tests.conformance.tables import fill_the_rest, orphans, tables_of_tenant
from tests.factories import LEASE_SECONDS, Bench, Store, open_bench, open_store
from tests.waiting import eventually

KEPT_TABLES = {"audit"}  # Audit entries are permanent.
EMPTY_BEFORE_REMOVAL = {"audit", "removed_tenants"}


async def make_tenant_with_everything(bench: Bench, slug: str = "acme") -> Tenant:
    """Make a tenant with a row in every table and no running job."""
    tenant = await bench.tenants.create(
        slug, limits=Limits(rate=1000, max_running_jobs=1000), weight=3, groups={"staff": "viewer"}
    )
    id = tenant.id
    people = PeopleFixture(bench)
    await people.members.put(id, role="admin", email=f"{slug}@example.com", act=people.act())
    await people.join(await people.sign_in(slug, email=None), "admin", id)
    leaver = await people.sign_in(f"leaver of {slug}", email=None, groups=("staff",))
    await bench.store.run(LeaveTenant(tenant=id, user=leaver.id, act=people.act()))
    credentials = Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)
    await credentials.create_token(id, description="of a program", grants=[GRANT_ALL])
    await credentials.create_worker_credential(id, f"press-{slug}")
    await bench.workers.register(id, f"press-{slug}/1", ["noop"])
    await bench.jobs.define(Definition(type="past", tenant=id, retention_seconds=0, keep_history=True))
    await bench.make_job_in(JobStatus.SUCCEEDED, "past", tenant=id)
    await bench.jobs.collect()
    for status in (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED):
        await bench.make_job_in(status, "ended", tenant=id, tags=["red"])
    await bench.jobs.define(Definition(type="same", tenant=id, reuse=True))
    await bench.make_job("same", tenant=id)
    await bench.make_job("logged", tenant=id)
    (claim,) = await bench.jobs.claim("worker", ["logged"], tenant=id)
    await bench.jobs.append_log(claim.job.id, claim.fence, "at work")
    await bench.jobs.release(claim)
    first = await bench.make_job(tenant=id, idempotency_key="key", dedupe_key="key", batch="together")
    await bench.make_job(tenant=id, delay=60)
    await bench.make_job(tenant=id, after=[first.id], batch="together")
    await bench.jobs.pause(id, "asleep")
    await bench.jobs.claim("worker", ["asleep"], tenant=id)
    await bench.events.publish(id, "town.built", dedupe_key="key")
    await bench.events.publish(id, "town.built")
    blobs = BlobFixture(bench, id)
    await blobs.put("k", b"kept")
    await blobs.begin(5)
    return tenant


async def clear(bench: Bench, limit: int = 1000) -> list[ClearTenantsResult]:
    """Clear until no pass finds more rows, and return the results."""
    rounds = [await bench.store.run(ClearTenants(limit=limit))]
    while rounds[-1].has_more:
        rounds.append(await bench.store.run(ClearTenants(limit=limit)))
    return rounds


async def clear_all(bench: Bench, limit: int = 1000) -> list[str]:
    """Clear until every tenant is cleared, letting leases expire, and return the cleared tenants."""
    cleared_tenants: list[str] = []
    for _ in range(4):
        rounds = await clear(bench, limit)
        cleared_tenants += [tenant for one in rounds for tenant in one.cleared_tenants]
        if not rounds[-1].remaining_tenants:
            return cleared_tenants
        bench.clock.advance(seconds=LEASE_SECONDS)
        await bench.jobs.maintain()
    raise AssertionError("something is left")


# -- immediate effects --------------------------------------------------------------------------------------


async def test_removing_a_tenant_returns_it_and_makes_it_unknown(bench: Bench) -> None:
    tenant = await make_tenant_with_everything(bench)
    assert await bench.tenants.remove("acme") == tenant
    assert [tenant_.slug for tenant_ in await bench.tenants.list()] == ["default"]
    for name in (tenant.id, "acme"):
        for call in (bench.tenants.get, bench.tenants.remove, bench.tenants.change):
            async with refuses(bench, TenantNotFound):
                await call(name)
    async with refuses(bench, TenantNotFound):
        await bench.store.run(RemoveTenant(id=tenant.id, act=Act()))


async def test_the_default_tenant_cannot_be_removed(bench: Bench) -> None:
    for name in ("default", bench.tenant):
        async with refuses(bench, InvalidInput):
            await bench.tenants.remove(name)


async def test_calls_for_a_removed_tenant_are_refused(bench: Bench) -> None:
    tenant = (await make_tenant_with_everything(bench)).id
    await bench.tenants.remove(tenant)
    credentials = Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)
    for call in (
        lambda: bench.make_job(tenant=tenant),
        lambda: bench.jobs.enqueue_many([new_job(bench.tenant, "noop"), new_job(tenant, "noop")]),
        lambda: bench.jobs.claim("worker", ["noop"], tenant=tenant),
        lambda: bench.events.publish(tenant, "a.b"),
        lambda: bench.events.read(tenant),
        lambda: bench.jobs.list(tenant),
        lambda: bench.jobs.summary(tenant),
        lambda: bench.jobs.history(tenant),
        lambda: bench.jobs.pause(tenant, "noop"),
        lambda: bench.jobs.define(Definition(type="noop", tenant=tenant)),
        lambda: bench.workers.register(tenant, "press", ["noop"]),
        lambda: credentials.create_token(tenant, description="late", grants=[GRANT_ALL]),
        lambda: credentials.create_worker_credential(tenant, "late"),
    ):
        async with refuses(bench, TenantNotFound):
            await call()


async def test_jobs_of_a_removed_tenant_are_not_found(bench: Bench) -> None:
    tenant = (await make_tenant_with_everything(bench)).id
    (job, *_) = (await bench.jobs.list(tenant, status=JobStatus.DEAD)).items
    await bench.tenants.remove(tenant)
    for call in (
        lambda: bench.jobs.get(tenant, job.id),
        lambda: bench.jobs.attempts(tenant, job.id),
        lambda: bench.jobs.log(tenant, job.id),
        lambda: bench.jobs.explain(tenant, job.id),
        lambda: bench.jobs.cancel(tenant, job.id),
        lambda: bench.jobs.retry(tenant, job.id),
        lambda: bench.jobs.reschedule(tenant, job.id, tags=["green"]),
    ):
        with pytest.raises(JobNotFound):
            await call()


async def test_credentials_of_a_removed_tenant_are_refused(bench: Bench) -> None:
    tenant = await bench.tenants.create("acme")
    access = Authenticator(bench.store, bench.clock)
    credentials = Credentials(bench.store, access, bench.clock)
    token = await credentials.create_token(tenant.id, description="of a program", grants=[GRANT_ALL])
    worker = await credentials.create_worker_credential(tenant.id, "press")
    bench.store.on_tenant_removed(lambda _: access.invalidate())
    await access.authenticate_token(token.text)
    await access.authenticate_worker("press", worker.secret)
    await bench.tenants.remove(tenant.id)
    with pytest.raises(Unauthorized):
        await access.authenticate_token(token.text)
    with pytest.raises(Unauthorized):
        await access.authenticate_worker("press/1", worker.secret)
    with pytest.raises(TokenNotFound):
        await credentials.revoke_token(None, token.token.id)
    assert (await credentials.create_worker_credential(bench.tenant, "press")).credential.tenant == bench.tenant


async def test_jobs_of_a_removed_tenant_are_not_claimed(bench: Bench) -> None:
    tenant = (await bench.tenants.create("acme")).id
    for _ in range(3):
        await bench.make_job(tenant=tenant)
        await bench.make_job(tenant=tenant, delay=60)
    running = await bench.make_claim("held", tenant=tenant)
    own = await bench.make_job(delay=60)
    await bench.tenants.remove(tenant)
    bench.clock.advance(seconds=60)
    await bench.jobs.release(running)
    claims = [
        *await bench.jobs.claim("w", ["noop"], limit=10),
        *await bench.jobs.claim("w", ["noop", "held"], limit=10),
    ]
    assert [claim.job.id for claim in claims] == [own.id]


async def test_jobs_of_a_removed_tenant_are_not_claimed_after_a_restart(tmp_path: Path, engine: str) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        tenant = await make_tenant_with_everything(bench)
        await bench.tenants.remove(tenant.id)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert await bench.jobs.claim("w", ["noop", "same", "logged"], limit=10) == []
        assert [tenant_.slug for tenant_ in await bench.tenants.list()] == ["default"]
        other = await bench.tenants.create("acme")
        assert await clear_all(bench) == [tenant.id]
        assert await bench.tenants.get("acme") == other


async def test_listeners_are_notified_of_a_removed_tenant(bench: Bench) -> None:
    tenant = await bench.tenants.create("acme")
    removed_tenants: list[str] = []
    bench.store.on_tenant_removed(removed_tenants.append)
    await bench.tenants.remove("acme")
    assert removed_tenants == [tenant.id]


async def test_a_claim_that_waits_for_a_removed_tenant_ends(bench: Bench) -> None:
    tenant = await bench.tenants.create("acme")
    bench.store.on_tenant_removed(bench.jobs.end_tenant_waits)
    waiting = asyncio.create_task(bench.jobs.claim("w", ["noop"], tenant=tenant.id, wait_seconds=60))
    await eventually(lambda: bench.jobs.waiting_claims)
    await bench.tenants.remove("acme")
    async with asyncio.timeout(30):
        with pytest.raises(TenantNotFound):
            await waiting


async def test_a_heartbeat_that_waits_for_a_removed_tenant_ends(bench: Bench) -> None:
    tenant = (await bench.tenants.create("acme")).id
    store = WatchedWorkers(bench.store)
    workers = Workers(cast("WorkerStore", store), bench.jobs, lease_seconds=LEASE_SECONDS)
    bench.store.on_tenant_removed(workers.end_tenant_waits)
    await workers.register(tenant, "w", ["noop"])
    waiting = asyncio.create_task(workers.heartbeat(tenant, "w", wait_seconds=60))
    async with asyncio.timeout(30):
        assert await store.answers.get() == "w"
        await bench.tenants.remove("acme")
        await waiting


async def test_the_removal_stays_in_the_audit_log(bench: Bench) -> None:
    tenant = await make_tenant_with_everything(bench)
    act = Act(who="token:x", name="operator", address="10.0.0.1", request_id="r")
    await bench.tenants.remove("acme", act=act)
    await clear_all(bench)
    (entry,) = await bench.store.run(
        ListAuditEntries(
            filter=AuditFilter(tenant=None, action="tenant.removed", target="tenant/acme"), before=None, limit=10
        )
    )
    assert (entry.who, entry.name, entry.address) == ("token:x", "operator", "10.0.0.1")
    assert (entry.tenant, entry.action) == (tenant.id, "tenant.removed")
    assert msgspec.json.decode(entry.before, type=Tenant) == tenant
    assert bytes(entry.after) == b"null"


async def test_only_one_of_eight_concurrent_removals_succeeds(bench: Bench) -> None:
    tenant = await bench.tenants.create("acme")
    commands = [RemoveTenant(id=tenant.id, act=Act()) for _ in range(8)]
    answers = await asyncio.gather(*map(bench.store.run, commands), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["Tenant", *["TenantNotFound"] * 7]
    assert (
        len(
            await bench.store.run(
                ListAuditEntries(filter=AuditFilter(tenant=None, action="tenant.removed"), before=None, limit=10)
            )
        )
        == 1
    )


# -- clearing -----------------------------------------------------------------------------------------------


async def test_clearing_leaves_only_audit_entries(bench: Bench, engine: str, tmp_path: Path) -> None:
    tenant = await make_tenant_with_everything(bench)
    await bench.make_claim("held", tenant=tenant.id)
    await fill_the_rest(bench, tmp_path, tenant.id)
    assert set((await tables_of_tenant(bench, tmp_path, tenant.id)).empty) <= EMPTY_BEFORE_REMOVAL
    await bench.tenants.remove("acme")
    assert await clear_all(bench) == [tenant.id]
    assert set((await tables_of_tenant(bench, tmp_path, tenant.id)).filled) == KEPT_TABLES
    assert await orphans(bench, tmp_path) == []
    assert await clear(bench) == [ClearTenantsResult()]


async def test_clearing_does_not_affect_another_tenant(bench: Bench) -> None:
    other = await make_tenant_with_everything(bench, "other")
    before = await snapshot(bench)
    tenant = await make_tenant_with_everything(bench)
    await bench.tenants.remove(tenant.id)
    assert await clear_all(bench) == [tenant.id]
    assert await snapshot(bench) == before
    claimed = await bench.jobs.claim("w", ["same", "logged"], limit=10)
    assert {claim.job.tenant for claim in claimed} == {other.id}
    assert len(claimed) == 2


async def test_a_new_tenant_with_the_same_slug_sees_nothing_of_the_old_one(bench: Bench) -> None:
    old = await make_tenant_with_everything(bench)
    await bench.tenants.remove("acme")
    new = await bench.tenants.create("acme")
    assert new.id != old.id

    async def contents() -> list[object]:
        return [
            (await bench.jobs.list(new.id)).items,
            await bench.events.read(new.id),
            await bench.jobs.pauses(new.id),
            await bench.jobs.definitions(tenant=new.id),
            (await bench.workers.list(new.id)).items,
            sum((await bench.jobs.summary(new.id)).counts.values()),
        ]

    assert await contents() == [[], [], [], [], [], 0]
    job = await bench.make_job(tenant=new.id, idempotency_key="key", dedupe_key="key", batch="together")
    await clear_all(bench)
    assert [tenant_.id for tenant_ in (await bench.jobs.list(new.id)).items] == [job.id]
    assert (await bench.jobs.batch(new.id, "together")).total == 1
    (claim,) = await bench.jobs.claim("w", ["noop"], limit=10)
    assert claim.job.id == job.id


async def test_a_clearing_pass_deletes_at_most_limit_rows(bench: Bench) -> None:
    tenant = (await bench.tenants.create("acme")).id
    await bench.jobs.enqueue_many([new_job(tenant, "noop") for _ in range(25)])
    await bench.tenants.remove(tenant)
    rounds = await clear(bench, limit=10)
    assert [one.rows <= 10 for one in rounds] == [True] * len(rounds)
    assert len(rounds) > 3
    assert not rounds[-1].has_more


async def test_running_jobs_of_a_removed_tenant_are_canceled_and_cleared_when_they_end(bench: Bench) -> None:
    tenant = (await bench.tenants.create("acme")).id
    ending = await bench.make_claim(tenant=tenant, batch="together")
    lost = await bench.make_claim(tenant=tenant)
    await bench.make_job(tenant=tenant, after=[ending.job.id])
    await bench.tenants.remove(tenant)
    (*_, last) = await clear(bench)
    assert (last.remaining_tenants, last.cleared_tenants, last.has_more) == (1, (), False)
    beats = [await bench.jobs.heartbeat(claim.job.id, claim.fence) for claim in (ending, lost)]
    assert [beat.cancel_requested for beat in beats] == [True, True]
    assert (await bench.jobs.fail(ending, "stopped")).status is JobStatus.CANCELED
    (*_, last) = await clear(bench)
    assert (last.remaining_tenants, last.cleared_tenants) == (1, ())
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await bench.jobs.maintain()).swept == 1
    assert await clear_all(bench) == [tenant]


async def test_a_running_job_of_a_removed_tenant_can_be_completed(bench: Bench) -> None:
    claim: Claim = await bench.make_claim(tenant=(await bench.tenants.create("acme")).id)
    await bench.tenants.remove("acme")
    await clear(bench)
    assert (await bench.jobs.complete(claim, 1)).status is JobStatus.SUCCEEDED
    assert await clear_all(bench) == [claim.job.tenant]


async def test_attempts_that_end_during_clearing_leave_no_rows(bench: Bench, tmp_path: Path) -> None:
    bench.store.coalesce_commands()
    tenant = (await bench.tenants.create("acme")).id
    await bench.jobs.define(Definition(type="noop", retention_seconds=0))
    claims = [await bench.make_claim(tenant=tenant) for _ in range(8)]
    await bench.tenants.remove(tenant)
    for claim in claims:
        await asyncio.gather(
            bench.jobs.complete(claim),
            bench.jobs.collect(),
            *(bench.store.run(ClearTenants(limit=limit)) for limit in (1, 10, 1000)),
        )
    await clear_all(bench)
    assert set((await tables_of_tenant(bench, tmp_path, tenant)).filled) == KEPT_TABLES
    assert await orphans(bench, tmp_path) == []


async def test_clearing_continues_after_a_restart(tmp_path: Path, engine: str) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        tenant = await make_tenant_with_everything(bench)
        await bench.tenants.remove("acme")
    cleared_tenants: list[str] = []
    for _ in range(200):
        async with open_bench(engine, tmp_path / "data", clock) as bench:
            cleared = await bench.store.run(ClearTenants(limit=10))
            cleared_tenants += cleared.cleared_tenants
            if not cleared.remaining_tenants:
                break
    assert cleared_tenants == [tenant.id]
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert set((await tables_of_tenant(bench, tmp_path, tenant.id)).filled) == KEPT_TABLES


async def test_two_processes_that_clear_at_once_leave_no_rows(bench: Bench, engine: str, tmp_path: Path) -> None:
    if engine == "sqlite":
        pytest.skip("one process has the file")
    tenants = [await make_tenant_with_everything(bench, slug) for slug in ("acme", "ajax")]
    await bench.jobs.enqueue_many([new_job(tenants[0].id, "noop") for _ in range(200)])
    other = await open_store(engine, tmp_path / "data", bench.clock)
    try:
        for tenant in tenants:
            await bench.tenants.remove(tenant.id)
        cleared_tenants: list[str] = []

        async def rounds(store: Store) -> None:
            for _ in range(40):
                cleared_tenants.extend((await store.run(ClearTenants(limit=20))).cleared_tenants)

        for _ in range(3):
            await asyncio.gather(*(rounds(store) for store in (bench.store, other) for _ in range(2)))
            bench.clock.advance(seconds=LEASE_SECONDS)
    finally:
        await other.close()
    assert sorted(cleared_tenants) == sorted(tenant.id for tenant in tenants)
    for tenant in tenants:
        assert set((await tables_of_tenant(bench, tmp_path, tenant.id)).filled) == KEPT_TABLES
    assert await orphans(bench, tmp_path) == []


async def test_a_slug_can_be_reused_after_every_removal(bench: Bench) -> None:
    for _ in range(3):
        tenant = await bench.tenants.create("acme")
        await bench.make_job(tenant=tenant.id)
        await bench.tenants.remove("acme")
    assert len(set(await clear_all(bench))) == 3


async def test_queue_depths_exclude_removed_tenants(bench: Bench) -> None:
    tenant = await make_tenant_with_everything(bench)
    await bench.make_job()
    await bench.tenants.remove(tenant.id)
    assert [depth.tenant for depth in await bench.jobs.depths()] == ["default"]


def _state(bench: Bench) -> Any:
    """The state of the store that the process keeps in memory."""
    store = bench.store
    return store.lane_cache if isinstance(store, PostgresStore) else store.writer_state


async def test_memory_contains_nothing_of_a_cleared_tenant(bench: Bench) -> None:
    tenant = await make_tenant_with_everything(bench)
    await bench.jobs.claim("w", ["noop", "same"], limit=1)
    await bench.tenants.remove("acme")
    assert tenant.id not in repr(_state(bench).lanes)
    await bench.jobs.claim("w", ["noop", "same"], limit=10)
    await clear_all(bench)
    if isinstance(bench.store, PostgresStore):
        await poll(bench.store.database, bench.store.lane_cache)
    memory = _state(bench)
    names = [name for name in dir(memory) if not name.startswith("_")]
    assert [name for name in names if tenant.id in repr(getattr(memory, name))] == []


async def test_the_loop_clears_tenants_and_reports_when_nothing_is_left(bench: Bench) -> None:
    loop = TenantRemoval(bench.store)
    assert await loop.run_once() == ClearTenantsResult()
    tenant = await make_tenant_with_everything(bench)
    await bench.tenants.remove("acme")
    rounds = [await loop.run_once() for _ in range(4)]
    bench.clock.advance(seconds=LEASE_SECONDS)
    rounds += [await loop.run_once() for _ in range(2)]
    assert [one.cleared_tenants for one in rounds if one.cleared_tenants] == [(tenant.id,)]
    assert rounds[-1] == ClearTenantsResult()


async def test_an_unknown_tenant_cannot_be_removed(bench: Bench) -> None:
    async with refuses(bench, TenantNotFound):
        await bench.store.run(RemoveTenant(id=new_id(), act=Act()))
