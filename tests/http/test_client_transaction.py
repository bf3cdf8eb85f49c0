"""The client on a database connection of its caller: with every driver, and without a server."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row, namedtuple_row

from ingot.client import AsyncClient, Client
from ingot.client.server_address import NoToken
from ingot.client.transaction import HasCursor
from ingot.engines.postgres import revoke_app_role
from ingot.identity.credentials import Forbidden
from ingot.jobs import JobStatus
from ingot.jobs.errors import DuplicateJob, JobNotFound, PayloadTooLarge
from ingot.kernel.errors import IdempotencyMismatch, InvalidInput
from ingot.settings import Settings
from tests.app_database import ROLE, AppDatabase, open_app_database
from tests.http.serving import serving

pytestmark = pytest.mark.postgres


@pytest.fixture
async def app_db() -> AsyncIterator[AppDatabase]:
    async with open_app_database() as made:
        yield made


@pytest.fixture
async def client(unused_tcp_port: int) -> AsyncIterator[AsyncClient]:
    """A client whose server does not respond."""
    async with AsyncClient(f"http://127.0.0.1:{unused_tcp_port}", token="x", patience=0) as opened_client:
        yield opened_client


Opened = tuple[HasCursor, Callable[[str], Awaitable[Any]]]


async def with_asyncpg(app_db: AppDatabase) -> Opened:
    connection = await app_db.connect()
    return connection, connection.execute


async def with_pool(app_db: AppDatabase) -> Opened:
    pool = await asyncpg.create_pool(app_db.app_url, min_size=1, max_size=1)
    app_db.open.callback(pool.terminate)
    connection = await pool.acquire()
    return connection, connection.execute


async def with_psycopg(app_db: AppDatabase, row_factory: Any = None) -> Opened:
    connection = await psycopg.AsyncConnection.connect(app_db.app_url, autocommit=True)
    if row_factory is not None:
        connection.row_factory = row_factory
    return connection, connection.execute


async def with_dicts(app_db: AppDatabase) -> Opened:
    return await with_psycopg(app_db, dict_row)


async def with_names(app_db: AppDatabase) -> Opened:
    return await with_psycopg(app_db, namedtuple_row)


@pytest.mark.parametrize("opened", [with_asyncpg, with_pool, with_psycopg, with_dicts, with_names])
async def test_jobs_and_events_on_a_connection_belong_to_its_transaction(
    app_db: AppDatabase, client: AsyncClient, opened: Callable[[AppDatabase], Awaitable[Opened]]
) -> None:
    connection, run = await opened(app_db)
    await run("BEGIN")
    await client.submit("mail", {"to": "ada"}, connection=connection, dedupe_key="k", tags=["a"])
    await client.publish("order.paid", {"n": 1}, dedupe_key="k", connection=connection)
    await run("ROLLBACK")
    await run("BEGIN")
    later = datetime.now(UTC) + timedelta(hours=1)
    job = await client.submit(
        "mail", {"to": "ada"}, connection=connection, dedupe_key="k", run_at=later, priority="low"
    )
    assert (job.type, job.status, job.created) == ("mail", JobStatus.QUEUED, True)
    many = await client.submit_many("many", range(501), connection=connection, delay="1h")
    event = await client.publish("order.paid", {"n": 1}, dedupe_key="k", connection=connection)
    await run("SAVEPOINT s")
    with pytest.raises(DuplicateJob) as duplicate:
        await client.submit("mail", connection=connection, dedupe_key="k")
    assert duplicate.value.holder_id == job.id
    await run("ROLLBACK TO s")
    await run("COMMIT")
    stored = await app_db.jobs.get(app_db.tenant, job.id)
    assert (stored.read("payload"), stored.priority, stored.run_at) == ({"to": "ada"}, 4, later)
    assert len({each.id for each in many}) == 501
    assert (await app_db.jobs.summary(app_db.tenant)).counts[JobStatus.QUEUED] == 502
    assert [each.id for each in await app_db.all_events() if each.name == "order.paid"] == [event]
    await connection.close()  # type: ignore[attr-defined]


async def test_the_synchronous_client_uses_the_transaction_of_its_caller(
    app_db: AppDatabase, unused_tcp_port: int
) -> None:
    def work() -> list[str]:
        with psycopg.connect(app_db.app_url) as connection, Client(f"http://127.0.0.1:{unused_tcp_port}") as client:
            rolled_back = client.submit("mail", connection=connection)
            connection.rollback()
            committed = client.submit("mail", [1], connection=connection, idempotency_key="k")
            client.publish("order.paid", connection=connection)
            connection.commit()
            with pytest.raises(IdempotencyMismatch), connection.transaction():
                client.submit("mail", [2], connection=connection, idempotency_key="k")
            (same,) = client.submit_many("mail", [[1]], connection=connection, idempotency_key="k")
            assert (same.id, same.created) == (committed.id, False)
            return [rolled_back.id, committed.id]

    rolled_back, committed = await asyncio.to_thread(work)
    assert (await app_db.jobs.get(app_db.tenant, committed)).read("payload") == [1]
    with pytest.raises(JobNotFound):
        await app_db.jobs.get(app_db.tenant, rolled_back)
    assert [event.name for event in await app_db.all_events()] == ["job.created", "order.paid"]


async def test_a_job_can_be_waited_for_after_the_commit(app_db: AppDatabase, tmp_path: Path) -> None:
    settings = Settings(database_url=app_db.url_of("ingot_server"))
    async with (
        serving(tmp_path, settings) as served,
        AsyncClient(served.url, token=served.operator, patience=0) as client,
    ):
        app = await app_db.begin()
        job = await client.submit("greet", {"name": "Ada"}, connection=app)
        with pytest.raises(JobNotFound):
            await job.wait(timeout=40)
        waiting = asyncio.create_task(served.ingot.jobs.claim("w", ["greet"], wait_seconds=60))
        await app.execute("COMMIT")
        (claim,) = await waiting
        await served.ingot.jobs.complete(claim, "hello")
        assert (await job.wait(timeout=40)).result == "hello"


async def test_errors_on_a_connection_have_their_classes(app_db: AppDatabase, client: AsyncClient) -> None:
    app = await app_db.connect()
    with pytest.raises(PayloadTooLarge) as large:
        await client.submit("mail", "x" * 70_000, connection=app)
    assert "blob" in large.value.hint
    for wrong in ({"priority": 9}, {"tags": ["x" * 200]}, {"run_at": datetime(2030, 1, 1)}):  # noqa: DTZ001 - that is it
        with pytest.raises(InvalidInput):
            await client.submit("mail", connection=app, **wrong)
    await app.execute("BEGIN")
    with pytest.raises(asyncpg.UndefinedTableError):
        await app.execute("SELECT * FROM nothing")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):  # Errors of the caller's own transaction are not wrapped.
        await client.submit("mail", connection=app)
    await app.execute("ROLLBACK")
    await revoke_app_role(app_db.owner_url, ROLE)
    with pytest.raises(Forbidden) as revoked:
        await client.submit("mail", connection=app)
    assert "grant-app" in revoked.value.hint
    other_database = await asyncpg.connect(
        app_db.owner_url.replace(app_db.owner_url.partition("?")[0].rpartition("/")[2], "postgres")
    )
    with pytest.raises(InvalidInput, match="ingot") as missing:
        await client.submit("mail", connection=other_database)
    assert "schema" in missing.value.hint
    await other_database.close()


async def test_an_object_that_is_not_a_supported_connection_is_rejected(
    app_db: AppDatabase, client: AsyncClient
) -> None:
    with Client(token="x") as plain, sqlite3.connect(":memory:") as other, psycopg.connect(app_db.app_url) as sync:
        wrong: list[Any] = [object(), "postgresql://", other]
        pool = asyncpg.create_pool(app_db.app_url, min_size=0)  # Each call on a pool is its own transaction.
        for connection in [*wrong, sync, pool]:
            with pytest.raises(InvalidInput, match="not a supported connection"):
                await client.submit("mail", connection=connection)
        for connection in [*wrong, await app_db.connect()]:
            with pytest.raises(InvalidInput, match="not a supported connection"):
                plain.submit("mail", connection=connection)


async def test_a_client_without_a_token_fails_at_its_first_request() -> None:
    async with AsyncClient("https://ingot.example.com", patience=0) as client:
        with pytest.raises(NoToken):
            await client.me()
        with pytest.raises(NoToken):
            async for _ in client.events():
                pass
