"""The types of a tenant are counted exactly while transactions add, use and remove them at the same time."""

from __future__ import annotations

import asyncpg
import pytest

from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.connection import Record
from ingot.identity import Limits
from ingot.kernel.errors import StoreBusy
from ingot.kernel.ids import new_id
from tests.app_database import AppDatabase, enqueue
from tests.engines.postgres.app_errors import error_of
from tests.engines.postgres.interleaving import ENQUEUE, Interleaving

ENDS = ["COMMIT", "ROLLBACK"]
TYPES = "SELECT type, unused IS NOT NULL FROM ingot.tenant_types WHERE tenant = $1 ORDER BY type"
TYPE_COUNT = "SELECT types FROM ingot.type_counts WHERE tenant = $1"


async def set_limit(interleaving: Interleaving, types: int) -> None:
    """Let the tenant have so many types, and remove its finished jobs at once."""
    limits = f'{{"max_job_types": {types}, "retention_seconds": 0}}'
    await interleaving.owner.execute("UPDATE ingot.tenants SET limits = $2 WHERE id = $1", interleaving.tenant, limits)


async def add_job(interleaving: Interleaving, connection: Raw, type: str) -> list[Record]:
    """Enqueue a job. The result is empty if the call was refused."""
    return await connection.fetch(ENQUEUE, new_id(), interleaving.tenant, type, 0, None)


async def remove_jobs(interleaving: Interleaving) -> None:
    """Cancel all jobs, remove them, and mark their types."""
    owner = interleaving.owner
    for (job,) in await owner.fetch("SELECT id FROM ingot.jobs WHERE tenant = $1", interleaving.tenant):
        await owner.execute("SELECT ingot.cancel($1, $2)", interleaving.tenant, job)
    await interleaving.second.fetch("SELECT * FROM ingot.collect_jobs(1000)")
    assert not await owner.fetch("SELECT FROM ingot.jobs WHERE tenant = $1", interleaving.tenant)
    await interleaving.second.execute("SELECT ingot.fold_counts(1000)")


async def free_types(interleaving: Interleaving) -> dict[str, bool]:
    """Delete unused types. Return those that are left, and whether each is marked as unused."""
    await interleaving.second.execute("SELECT ingot.free_types(1000)")
    types = {row[0]: row[1] for row in await interleaving.owner.fetch(TYPES, interleaving.tenant)}
    assert await interleaving.owner.fetchval(TYPE_COUNT, interleaving.tenant) == len(types)
    return types


@pytest.mark.parametrize("end", ENDS)
async def test_two_enqueues_cannot_both_add_the_last_type(interleaving: Interleaving, end: str) -> None:
    first, second = interleaving.first, interleaving.second
    await set_limit(interleaving, 1)
    await first.execute("BEGIN")
    assert await add_job(interleaving, first, "a")
    assert not await add_job(interleaving, second, "b")  # Does not wait.
    await first.execute(end)
    assert bool(await add_job(interleaving, second, "b")) == (end == "ROLLBACK")


async def test_an_enqueue_of_known_types_does_not_need_the_lock(interleaving: Interleaving) -> None:
    first, second = interleaving.first, interleaving.second
    assert await add_job(interleaving, first, "a")
    await first.execute("BEGIN")
    assert await add_job(interleaving, first, "b")
    assert await add_job(interleaving, second, "a")
    await first.execute("ROLLBACK")


@pytest.mark.parametrize("end", ENDS)
async def test_a_type_of_an_open_enqueue_is_not_removed(interleaving: Interleaving, end: str) -> None:
    await set_limit(interleaving, 1)
    await add_job(interleaving, interleaving.first, "a")
    await interleaving.first.execute("BEGIN")
    await add_job(interleaving, interleaving.first, "a")
    await remove_jobs(interleaving)
    for _ in range(3):
        assert await free_types(interleaving) == {"a": True}
    assert not await add_job(interleaving, interleaving.second, "b")
    await interleaving.first.execute(end)
    assert await free_types(interleaving) == ({"a": False} if end == "COMMIT" else {})
    assert bool(await add_job(interleaving, interleaving.second, "b")) == (end == "ROLLBACK")


@pytest.mark.parametrize("end", ENDS)
async def test_a_marked_type_can_be_used_again(interleaving: Interleaving, end: str) -> None:
    await set_limit(interleaving, 1)
    await add_job(interleaving, interleaving.first, "a")
    await remove_jobs(interleaving)
    await interleaving.first.execute("BEGIN")
    assert await add_job(interleaving, interleaving.first, "a")
    assert await free_types(interleaving) == {"a": True}
    await interleaving.first.execute(end)
    assert await free_types(interleaving) == ({"a": False} if end == "COMMIT" else {})


async def test_a_type_whose_mark_comes_from_another_server_is_removed(interleaving: Interleaving) -> None:
    await set_limit(interleaving, 1)
    await add_job(interleaving, interleaving.first, "a")
    await remove_jobs(interleaving)
    await interleaving.owner.execute("UPDATE ingot.tenant_types SET unused = '999999999999'")
    assert await free_types(interleaving) == {}


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_transaction_with_an_old_snapshot_does_not_use_a_removed_type(
    interleaving: Interleaving, isolation: str
) -> None:
    await set_limit(interleaving, 1)
    await add_job(interleaving, interleaving.first, "a")
    await interleaving.first.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    await interleaving.first.execute("SELECT FROM ingot.jobs")  # Takes the snapshot.
    await remove_jobs(interleaving)
    assert await free_types(interleaving) == {}
    with pytest.raises(asyncpg.SerializationError):
        await add_job(interleaving, interleaving.first, "a")


async def test_a_transaction_with_an_old_snapshot_counts_types_that_were_added_since(
    interleaving: Interleaving,
) -> None:
    await set_limit(interleaving, 2)
    await add_job(interleaving, interleaving.second, "a")
    await interleaving.first.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await interleaving.first.execute("SELECT FROM ingot.jobs")  # Takes the snapshot.
    assert await add_job(interleaving, interleaving.second, "b")
    with pytest.raises(asyncpg.SerializationError):
        await add_job(interleaving, interleaving.first, "c")


async def test_an_application_is_refused_a_type_beyond_the_limit(app_db: AppDatabase) -> None:
    await app_db.tenants.change(app_db.tenant, limits=Limits(max_job_types=1))
    app = await app_db.connect()
    await enqueue(app, {"type": "a"})
    assert await error_of(app, {"type": "a"}, {"type": "b"}) == ("IN074", {"code": "type_limit_exceeded"})
    assert len((await app_db.jobs.list(app_db.tenant)).items) == 1


async def test_an_open_transaction_of_an_application_delays_only_new_types(app_db: AppDatabase) -> None:
    await app_db.tenants.change(app_db.tenant, limits=Limits(max_job_types=2))
    await app_db.jobs.enqueue(app_db.tenant, "a")
    app = await app_db.begin()
    await enqueue(app, {"type": "b"})
    await app_db.jobs.enqueue(app_db.tenant, "a")
    with pytest.raises(StoreBusy):
        await app_db.jobs.enqueue(app_db.tenant, "c")
    await app.execute("ROLLBACK")
    await app_db.jobs.enqueue(app_db.tenant, "c")
