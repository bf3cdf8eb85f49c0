"""Objects of another tenant are treated as missing, and a connection keeps no tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from ingot.engines.postgres import PostgresStore
from ingot.jobs import Done, JobNotFound, JobStatus
from ingot.jobs.ports import CancelJob, JobFilter, ListJobs
from ingot.kernel.errors import IngotError, StoreError
from ingot.kernel.ids import new_id
from tests.engines.postgres.tenant_visibility import READABLE, rows_of
from tests.factories import Bench
from tests.two_tenant_database import TenantPair, store_with_one_connection
from tests.waiting import eventually

# -- connections of the pool --------------------------------------------------------------------------------


async def visible_rows(store: PostgresStore) -> tuple[dict[str, set[str]], bool]:
    """The rows visible on the only connection of the store, and whether a transaction is still open on it."""
    async with store.database.pool.acquire() as connection:
        in_transaction = connection.is_in_transaction()
        return await rows_of(connection), in_transaction


NOTHING: Final = ({name: set[str]() for name in READABLE}, False)


@pytest.mark.parametrize(
    "failing", ["SELECT 1 / 0", "SELECT nonsense", "SELECT * FROM ingot.tenants", "COMMIT; SELECT"]
)
async def test_a_connection_keeps_no_tenant_after_an_error(pair: TenantPair, failing: str) -> None:
    async with store_with_one_connection(pair) as store:
        with pytest.raises(StoreError):
            await store.database.read(pair.tenants[0], failing)
        assert await visible_rows(store) == NOTHING


async def test_a_connection_keeps_no_tenant_after_a_refused_command(pair: TenantPair) -> None:
    async with store_with_one_connection(pair) as store:
        with pytest.raises(JobNotFound):
            await store.run(CancelJob(tenant=pair.tenants[0], job_id=new_id()))
        assert await visible_rows(store) == NOTHING


async def test_a_connection_keeps_no_tenant_after_a_canceled_read(pair: TenantPair) -> None:
    async with store_with_one_connection(pair) as store:
        admin = await pair.connect()
        reading = asyncio.create_task(store.database.read(pair.tenants[0], "SELECT pg_sleep(60)"))
        asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        await eventually(lambda: admin.fetchval(asleep))
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await visible_rows(store) == NOTHING


async def test_a_tenant_that_is_not_a_uuid_is_not_inserted_into_a_statement(pair: TenantPair) -> None:
    async with store_with_one_connection(pair) as store:
        for text in ("'; SET ingot.tenant = 'x", "", "A" * 36):
            with pytest.raises(AssertionError):
                await store.database.read(text, "SELECT 1")
        assert await visible_rows(store) == NOTHING


async def test_a_connection_keeps_no_tenant_between_reads(pair: TenantPair) -> None:
    async with store_with_one_connection(pair) as store:
        for tenant in pair.tenants:
            assert len((await store.run(ListJobs(where=JobFilter(tenant=tenant), before=None, limit=100)))[0]) == 8
        assert await visible_rows(store) == NOTHING


# -- objects of another tenant ------------------------------------------------------------------------------


Call = Callable[[Bench, str, str, int], Awaitable[object]]
CALLS: Final[dict[str, Call]] = {
    "get": lambda bench, tenant, job, _: bench.jobs.get(tenant, job),
    "attempts": lambda bench, tenant, job, _: bench.jobs.attempts(tenant, job),
    "cancel": lambda bench, tenant, job, _: bench.jobs.cancel(tenant, job),
    "retry": lambda bench, tenant, job, _: bench.jobs.retry(tenant, job),
    "reschedule": lambda bench, tenant, job, _: bench.jobs.reschedule(tenant, job, priority=1),
    "retag": lambda bench, tenant, job, _: bench.jobs.reschedule(tenant, job, tags=["a"]),
    "heartbeat": lambda bench, tenant, job, fence: bench.jobs.heartbeat(job, fence, tenant=tenant),
    "settle": lambda bench, tenant, job, fence: bench.jobs.settle(job, fence, Done(), tenant=tenant),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.CANCELED])
async def test_a_call_about_a_job_of_another_tenant_fails_like_one_about_a_missing_job(
    pair: TenantPair, name: str, status: JobStatus
) -> None:
    first, second = pair.tenants
    other_job = await pair.bench.make_job_in(status, "theirs", tenant=second)
    answers = []
    for job_id, fence in (
        (other_job.id, other_job.fence),
        (new_id(), other_job.fence),
        (other_job.id, other_job.fence + 1),
    ):
        with pytest.raises(IngotError) as caught:
            await CALLS[name](pair.bench, first, job_id, fence)
        error = caught.value
        answers.append((type(error), error.code, error.status, error.hint, error.detail.replace(job_id, "?")))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][1] == "job_not_found"
    assert await pair.bench.reload(other_job) == other_job


async def test_keys_of_one_tenant_do_not_affect_another(pair: TenantPair) -> None:
    first, second = pair.tenants
    await pair.bench.make_job("keyed", 1, tenant=second, idempotency_key="secret", dedupe_key="secret")
    created = await pair.bench.jobs.enqueue(first, "keyed", 2, idempotency_key="secret", dedupe_key="secret")
    assert created.created
    assert created.job.tenant == first
