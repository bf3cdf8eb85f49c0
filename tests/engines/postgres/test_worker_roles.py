"""Database roles of workers: created for one tenant, with a new password at each call; other roles are refused."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from ingot.engines.postgres import make_worker_role
from ingot.identity import TenantNotFound
from ingot.kernel.errors import InvalidInput
from tests.factories import Bench, open_bench
from tests.postgres import database_for, server_url, with_database

ROLE = f"worker_{os.getpid()}"
CLAIM = "SELECT * FROM ingot.worker_claim($1, $2, NULL, NULL, 10, 60000000)"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A store on PostgreSQL. The role is dropped afterwards."""
    async with open_bench("postgres", tmp_path / "data") as bench:
        yield bench
    admin = await asyncpg.connect(server_url())
    await admin.execute(f"DROP ROLE IF EXISTS {ROLE}")
    await admin.close()


async def test_a_worker_can_claim_and_settle_with_its_role(bench: Bench, tmp_path: Path) -> None:
    database = await database_for(tmp_path / "data")
    password = await make_worker_role(database.owner_url, ROLE, bench.tenant)
    job = await bench.make_job("noop", {"n": 1})
    worker = await asyncpg.connect(with_database(database.owner_url, database.name, f"{ROLE}:{password}"))
    try:
        (claim,) = await worker.fetch(CLAIM, ["noop"], "w1")
        assert (claim["id"], claim["payload"]) == (job.id, b'{"n":1}')
        settled = await worker.fetch(
            "SELECT * FROM ingot.worker_settle($1, $2, $3, $4, $5, $6, $7, $8)",
            [claim["id"]], [claim["fence"]], ["succeeded"], [True], [0], [None], [None], [b'"done"'],
        )  # fmt: skip
        assert [row["status"] for row in settled] == ["succeeded"]
    finally:
        await worker.close()
    done = await bench.reload(job)
    assert (done.status, done.read("result")) == ("succeeded", "done")


async def test_a_role_created_again_gets_a_new_password_and_keeps_its_tenant(bench: Bench, tmp_path: Path) -> None:
    database = await database_for(tmp_path / "data")
    other = await bench.tenants.create("other")
    first = await make_worker_role(database.owner_url, ROLE, bench.tenant)
    second = await make_worker_role(database.owner_url, ROLE, bench.tenant)
    assert first != second
    with pytest.raises(InvalidInput, match="another tenant"):
        await make_worker_role(database.owner_url, ROLE, other.id)
    mine = await bench.make_job()
    await bench.make_job(tenant=other.id)
    worker = await asyncpg.connect(with_database(database.owner_url, database.name, f"{ROLE}:{second}"))
    try:
        assert [row["id"] for row in await worker.fetch(CLAIM, ["noop"], "w1")] == [mine.id]
    finally:
        await worker.close()


@pytest.mark.parametrize(
    "role",
    ["", "Upper", "a b", 'x"; DROP ROLE postgres; --', "pg_monitor", "ingot_worker", "ingot_server", "a" * 64, "1a"],
)
async def test_an_invalid_or_reserved_role_name_is_refused(bench: Bench, tmp_path: Path, role: str) -> None:
    database = await database_for(tmp_path / "data")
    with pytest.raises(InvalidInput):
        await make_worker_role(database.owner_url, role, bench.tenant)


async def test_an_existing_role_that_is_not_a_worker_is_refused(bench: Bench, tmp_path: Path) -> None:
    database = await database_for(tmp_path / "data")
    with pytest.raises(InvalidInput, match="not a worker role"):
        await make_worker_role(database.owner_url, "postgres", bench.tenant)


@pytest.mark.parametrize("tenant", ["nobody", "01a1df68-1ad1-734b-b395-698c43183af2"])
async def test_a_worker_of_an_unknown_tenant_is_refused(bench: Bench, tmp_path: Path, tenant: str) -> None:
    database = await database_for(tmp_path / "data")
    with pytest.raises(TenantNotFound):
        await make_worker_role(database.owner_url, ROLE, tenant)
    admin = await asyncpg.connect(database.owner_url)
    assert await admin.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", ROLE) == 0
    await admin.close()
