"""Reads of one tenant leave connections to the reads and writes of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from ingot.engines import fair_slots
from ingot.engines.postgres import PostgresStore, command_scope
from ingot.engines.postgres.command_scope import SCOPE, CommandScope
from ingot.jobs import Job, JobStatus
from ingot.kernel.errors import StoreBusy, TenantBusy
from tests.factories import Bench, open_bench
from tests.postgres import database_for
from tests.waiting import until

LOCK = 77
WAIT_FOR_LOCK = f"SELECT pg_advisory_xact_lock_shared({LOCK})"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench("postgres", tmp_path / "data") as bench:
        yield bench


class SlowReads:
    """Reads of a tenant that take until `finish`."""

    def __init__(self, bench: Bench, holder: asyncpg.Connection[asyncpg.Record]) -> None:
        assert isinstance(bench.store, PostgresStore)
        self._store = bench.store
        self._tenant = bench.tenant
        self._holder = holder
        self.tasks: list[asyncio.Task[object]] = []

    async def begin(self, count: int) -> None:
        database = self._store.database
        self.tasks += [asyncio.create_task(database.read(self._tenant, WAIT_FOR_LOCK)) for _ in range(count)]
        await until(self._are_running)

    async def _are_running(self) -> bool:
        return await self.count_running() == 4

    async def count_running(self) -> int:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"
        return int(await self._holder.fetchval(waiting, LOCK))

    async def finish(self) -> list[object]:
        await self._holder.execute("SELECT pg_advisory_unlock_all()")
        return await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def slow_reads(bench: Bench, tmp_path: Path) -> AsyncIterator[SlowReads]:
    database = await database_for(tmp_path / "data")
    holder = await asyncpg.connect(database.owner_url)
    await holder.execute(f"SELECT pg_advisory_lock({LOCK})")
    reads = SlowReads(bench, holder)
    yield reads
    await reads.finish()
    await holder.close()


async def test_slow_reads_of_one_tenant_leave_connections_to_others(bench: Bench, slow_reads: SlowReads) -> None:
    other = (await bench.tenants.create("other")).id
    await slow_reads.begin(800)
    job = await bench.make_job(tenant=other)
    assert (await bench.jobs.get(other, job.id)).id == job.id
    assert (await bench.make_job()).tenant == bench.tenant
    assert await slow_reads.count_running() == 4
    for task in slow_reads.tasks[-10:]:
        task.cancel()
    answers = await slow_reads.finish()
    assert [type(answer) for answer in answers].count(list) == 790
    assert (await bench.jobs.list(bench.tenant)).items != []


async def test_too_many_waiting_reads_are_refused(
    bench: Bench, slow_reads: SlowReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_slots, "WAITING_READS_MAX", 10)
    await slow_reads.begin(20)
    with pytest.raises(TenantBusy):
        await bench.jobs.list(bench.tenant)
    answers = await slow_reads.finish()
    assert [type(answer) for answer in answers].count(TenantBusy) == 6


async def test_a_read_that_waits_until_its_deadline_is_refused(bench: Bench, slow_reads: SlowReads) -> None:
    assert isinstance(bench.store, PostgresStore)
    await slow_reads.begin(10)
    SCOPE.set(CommandScope(asyncio.get_running_loop().time() + 0.05))
    with pytest.raises(StoreBusy):
        await bench.store.database.read(bench.tenant, "SELECT 1")
    assert [type(answer) for answer in await slow_reads.finish()] == [list] * 10


async def test_a_read_whose_turn_comes_too_late_is_not_sent(bench: Bench, slow_reads: SlowReads) -> None:
    """It would end with its deadline, as if the database did not respond."""
    assert isinstance(bench.store, PostgresStore)
    await slow_reads.begin(4)
    SCOPE.set(CommandScope(asyncio.get_running_loop().time() + command_scope.CALL_SECONDS_MAX / 10))
    with pytest.raises(StoreBusy):
        await bench.store.database.read(bench.tenant, "SELECT 1")
    SCOPE.set(None)
    assert bench.store.database.lost_at is None


async def test_a_repeated_order_does_not_wait_with_the_reads_of_its_tenant(
    bench: Bench, slow_reads: SlowReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of a batch contain jobs of several tenants, and are sent together."""
    monkeypatch.setattr(fair_slots, "WAITING_READS_MAX", 10)
    other = (await bench.tenants.create("other")).id
    first = await bench.make_job(idempotency_key="k")
    await slow_reads.begin(14)
    answers = await asyncio.gather(
        bench.jobs.enqueue(bench.tenant, "noop", idempotency_key="k"), bench.jobs.enqueue(other, "noop")
    )
    assert [(answer.job.tenant, answer.created) for answer in answers] == [(bench.tenant, False), (other, True)]
    assert answers[0].job.id == first.id


async def test_slow_writes_of_one_tenant_leave_connections_to_others(bench: Bench, tmp_path: Path) -> None:
    """Commands that are not batched wait for a lock."""
    other, job = (await bench.tenants.create("other")).id, await bench.make_job()
    other_job = await bench.make_job(tenant=other)
    locker = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
    try:
        await locker.execute("BEGIN")
        await locker.execute("SELECT FROM ingot.ready WHERE id = $1 FOR UPDATE", job.id)
        cancels = [asyncio.create_task(bench.jobs.cancel(bench.tenant, job.id)) for _ in range(100)]
        await asyncio.sleep(0.3)
        async with asyncio.timeout(10):
            assert (await bench.jobs.get(other, other_job.id)).id == other_job.id
            assert (await bench.jobs.cancel(other, other_job.id)).status is JobStatus.CANCELED
        for task in cancels[50:60]:
            task.cancel()
        await locker.execute("ROLLBACK")
        answers = await asyncio.gather(*cancels, return_exceptions=True)
        assert [type(answer) for answer in answers].count(Job) == 90
    finally:
        await locker.close()
