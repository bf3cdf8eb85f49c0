"""Removing a tenant concurrently: other processes are notified, and open transactions leave no rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from ingot.engines.postgres import PostgresStore, maintenance
from ingot.events.audit import Act
from ingot.identity import TenantNotFound
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.grants import GRANT_ALL
from ingot.identity.ports import ClearTenants, RemoveTenant
from ingot.jobs import JobNotFound, JobStatus
from tests.conformance.tables import orphans, tables_of_tenant
from tests.engines.postgres.two_stores import two_stores
from tests.factories import LEASE_SECONDS, Bench, open_bench, open_store
from tests.postgres import ACT_SQL, database_for
from tests.two_tenant_database import TenantPair

PUBLISH = "SELECT * FROM ingot.publish(ARRAY[$1::uuid], ARRAY['a.b'], ARRAY['1'], ARRAY[NULL], ARRAY[NULL::bytea], 1)"
SETTLED_SECONDS = 125.0  # Five times the maximum duration of a call.


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench("postgres", tmp_path / "data") as bench:
        yield bench


async def clear(bench: Bench) -> tuple[str, ...]:
    """Clear until no more rows are found at once, and return the cleared tenants."""
    while (cleared := await bench.store.run(ClearTenants(limit=1000))).has_more:
        pass
    return cleared.cleared_tenants


# -- other processes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("listens", [True, False])
async def test_another_process_ends_waits_of_a_removed_tenant(tmp_path: Path, listens: bool) -> None:
    async with two_stores(tmp_path, listens=listens) as (bench_, other_process):
        tenant = await bench_.tenants.create("acme")
        notified = asyncio.Event()
        other_process.store.on_tenant_removed(other_process.jobs.end_tenant_waits)
        other_process.store.on_tenant_removed(lambda _: notified.set())
        waiting = asyncio.create_task(other_process.jobs.claim("w", ["noop"], tenant=tenant.id, wait_seconds=60))
        await other_process.events.read(tenant.id)
        await bench_.tenants.remove("acme")
        async with asyncio.timeout(30):
            await notified.wait()
            with pytest.raises(TenantNotFound):
                await waiting
        with pytest.raises(TenantNotFound):
            await other_process.events.read(tenant.id)


async def test_a_process_without_notification_hands_out_no_jobs_of_the_tenant(bench: Bench, tmp_path: Path) -> None:
    tenant = await bench.tenants.create("acme")
    for key in range(3):
        await bench.make_job(f"type-{key}", tenant=tenant.id)
    own = await bench.make_job("type-1")
    other = await open_store("postgres", tmp_path / "data", bench.clock)
    try:
        other_process = Bench(other, bench.clock, await bench.tenants.get("default"))
        other.lane_cache.poll_interval_seconds = 1e9  # type: ignore[union-attr]
        await bench.tenants.remove("acme")
        claims = await other_process.jobs.claim("w", ["type-0", "type-1", "type-2"], limit=10)
        assert [claim.job.id for claim in claims] == [own.id]
    finally:
        await other.close()


async def test_a_worker_role_of_the_tenant_is_refused(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[1])
    claim = "SELECT * FROM ingot.worker_claim(ARRAY['noop'], 'w', NULL, NULL, 10, 60000000)"
    await pair.bench.tenants.remove("other")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="not a worker of any tenant"):
        await worker.fetch(claim)


# -- open transactions --------------------------------------------------------------------------------------


async def test_rows_of_a_transaction_open_during_the_removal_are_cleared(bench: Bench, tmp_path: Path) -> None:
    tenant = await bench.tenants.create("acme")
    late = await asyncpg.connect((await database_for(tmp_path / "data")).server_url)
    await late.execute("BEGIN")
    await late.fetch(PUBLISH, tenant.id)
    await bench.tenants.remove("acme")
    assert await clear(bench) == ()
    bench.clock.advance(seconds=SETTLED_SECONDS - 1)
    assert await clear(bench) == ()
    await late.execute("COMMIT")
    await late.close()
    bench.clock.advance(seconds=1)
    assert (await bench.store.run(ClearTenants(limit=1000))).rows > 0
    assert await clear(bench) == ()
    bench.clock.advance(seconds=SETTLED_SECONDS)
    assert await clear(bench) == (tenant.id,)
    assert (await tables_of_tenant(bench, tmp_path, tenant.id)).filled == ["audit"]


async def test_no_credential_remains_that_was_created_during_the_removal(bench: Bench, tmp_path: Path) -> None:
    credentials = Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)
    for _ in range(10):
        tenant = await bench.tenants.create("acme")
        creations = [credentials.create_token(tenant.id, description="late", grants=[GRANT_ALL]) for _ in range(8)]
        answers = await asyncio.gather(
            *creations[:4], bench.tenants.remove("acme"), *creations[4:], return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert {type(error).code for error in refused} <= {"tenant_not_found", "token_not_found"}  # type: ignore[attr-defined]
        assert "tokens" in (await tables_of_tenant(bench, tmp_path, tenant.id)).empty


async def test_a_removal_waits_for_an_uncommitted_credential(bench: Bench, tmp_path: Path) -> None:
    tenant = await bench.tenants.create("acme")
    late = await asyncpg.connect((await database_for(tmp_path / "data")).server_url)
    await late.execute("BEGIN")
    text = f"SELECT ingot.create_token(gen_random_uuid(), $1, '', '', '[]', '{{}}', '', NULL, NULL, {ACT_SQL})"
    await late.fetch(text, tenant.id)
    removing = asyncio.create_task(bench.tenants.remove("acme"))
    done, _ = await asyncio.wait([removing], timeout=0.2)
    assert not done
    await late.execute("COMMIT")
    await late.close()
    assert await removing == tenant
    assert "tokens" in (await tables_of_tenant(bench, tmp_path, tenant.id)).empty


async def test_an_uncommitted_claim_keeps_its_job(bench: Bench, tmp_path: Path) -> None:
    tenant = await bench.tenants.create("acme")
    job = await bench.make_job(tenant=tenant.id)
    late = await asyncpg.connect((await database_for(tmp_path / "data")).server_url)
    await late.execute("BEGIN")
    rows = await late.fetch(
        "SELECT * FROM ingot.claim(ARRAY['noop'], ARRAY[$1::uuid], ARRAY[''], ARRAY[0::smallint], ARRAY[0::bigint],"
        " ARRAY['00000000-0000-0000-0000-000000000000'::uuid], ARRAY[32767::smallint], ARRAY[0::bigint],"
        " ARRAY['00000000-0000-0000-0000-000000000000'::uuid], ARRAY[1], ARRAY[1], ARRAY[1], ARRAY['w'],"
        " ARRAY[NULL], ARRAY[NULL::bigint], ARRAY[1], ARRAY[180000000::bigint])",
        tenant.id,
    )
    assert [row["id"] for row in rows] == [job.id]
    await bench.tenants.remove("acme")
    clearing = asyncio.create_task(clear(bench))
    done, _ = await asyncio.wait([clearing], timeout=0.2)
    assert not done
    await late.execute("COMMIT")
    await late.close()
    assert await clearing == ()
    await clear(bench)
    assert await orphans(bench, tmp_path) == []
    beat = await bench.jobs.heartbeat(job.id, rows[0]["fence"])
    assert beat.cancel_requested
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    await clear(bench)
    bench.clock.advance(seconds=SETTLED_SECONDS)
    assert await clear(bench) == (tenant.id,)


async def test_a_repeated_removal_returns_the_first_result(bench: Bench) -> None:
    tenant = await bench.tenants.create("acme")
    command = RemoveTenant(id=tenant.id, act=Act())
    assert [await bench.store.run(command) for _ in range(2)] == [tenant, tenant]


async def test_a_poll_drops_a_cleared_tenant_from_memory(bench: Bench) -> None:
    store = bench.store
    assert isinstance(store, PostgresStore)
    tenant = await bench.tenants.create("acme")
    await bench.make_job(tenant=tenant.id)
    await bench.tenants.remove("acme")
    await maintenance.poll(store.database, store.lane_cache)
    assert store.lane_cache.removed_tenants == {tenant.id}
    await clear(bench)
    bench.clock.advance(seconds=SETTLED_SECONDS)
    assert await clear(bench) == (tenant.id,)
    await maintenance.poll(store.database, store.lane_cache)
    assert store.lane_cache.removed_tenants == set()


async def test_a_process_without_notification_creates_no_jobs_of_the_tenant(bench: Bench, tmp_path: Path) -> None:
    tenant = await bench.tenants.create("acme")
    done = await bench.make_job_in(JobStatus.SUCCEEDED, tenant=tenant.id)
    other = await open_store("postgres", tmp_path / "data", bench.clock)
    try:
        other_process = Bench(other, bench.clock, await bench.tenants.get("default"))
        await bench.tenants.remove("acme")
        with pytest.raises(JobNotFound):
            await other_process.jobs.retry(tenant.id, done.id)
        with pytest.raises(TenantNotFound):
            await other_process.jobs.enqueue(tenant.id, "noop")
    finally:
        await other.close()
