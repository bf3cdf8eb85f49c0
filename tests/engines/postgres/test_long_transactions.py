"""A transaction of one tenant's worker or application cannot hold back the events of all tenants for long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest
from structlog.testing import capture_logs

from ingot.engines.postgres import transaction_watch
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.store import PostgresStore
from ingot.engines.postgres.transaction_watch import TransactionWatch
from tests.postgres import with_database
from tests.two_tenant_database import TenantPair
from tests.waiting import eventually

APP_SECONDS = 3_600.0


def _store(pair: TenantPair) -> PostgresStore:
    store = pair.bench.store
    assert isinstance(store, PostgresStore)
    return store


@pytest.fixture(autouse=True)
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit transactions of workers to a moment."""
    monkeypatch.setattr(transaction_watch, "WORKER_TRANSACTION_SECONDS_MAX", 0.0)


async def _hold_open(connection: Raw) -> None:
    """Begin a transaction that holds back events and has no timeout."""
    await connection.execute("SET idle_in_transaction_session_timeout = 0; BEGIN; SELECT pg_current_xact_id()")


async def _is_open(connection: Raw) -> bool:
    try:
        await connection.execute("SELECT 1")
    except (
        asyncpg.AdminShutdownError,
        asyncpg.ConnectionDoesNotExistError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
    ):
        return False
    return True


async def _until_closed(connection: Raw) -> None:
    async def is_closed() -> bool:
        return not await _is_open(connection)

    await eventually(is_closed)


async def _app(pair: TenantPair) -> Raw:
    role = await pair.make_role("IN ROLE ingot_app")
    admin = await pair.connect()
    await admin.execute("INSERT INTO ingot.app_roles VALUES ($1, $2)", role, pair.tenants[0])
    return await pair.connect(role)


@pytest.mark.parametrize("database", [None, "postgres"])
async def test_a_worker_that_holds_a_transaction_open_is_disconnected(pair: TenantPair, database: str | None) -> None:
    """The worker has switched off its timeouts, or uses another database of the server."""
    worker = await pair.as_worker(pair.tenants[0])
    if database is not None:
        role = await worker.fetchval("SELECT current_user")
        worker = await asyncpg.connect(with_database(pair.database.owner_url, database, role))
    await _hold_open(worker)
    with capture_logs() as logs:
        await TransactionWatch(_store(pair).database, app_seconds_max=APP_SECONDS).run_once()
    (line,) = [line for line in logs if line["event"] == "transaction_ended"]
    assert line["tenant_id"] == pair.tenants[0]
    await _until_closed(worker)

    async def has_no_horizon() -> bool:
        return (await _store(pair).measure_load()).horizon_seconds == 0

    await eventually(has_no_horizon)


async def test_an_application_may_take_longer_than_a_worker(pair: TenantPair) -> None:
    app = await _app(pair)
    await _hold_open(app)
    database = _store(pair).database
    await TransactionWatch(database, app_seconds_max=APP_SECONDS).run_once()
    assert await _is_open(app)
    await TransactionWatch(database, app_seconds_max=0.0).run_once()
    await _until_closed(app)


async def test_transactions_that_hold_back_nothing_or_belong_to_others_stay_open(pair: TenantPair) -> None:
    reader, server, owner = await pair.as_worker(pair.tenants[0]), await pair.as_server(), await pair.connect()
    await reader.execute("BEGIN; SELECT 1")
    await _hold_open(server)
    await _hold_open(owner)
    await TransactionWatch(_store(pair).database, app_seconds_max=0.0).run_once()
    assert [await _is_open(connection) for connection in (reader, server, owner)] == [True, True, True]


async def test_a_transaction_that_holds_back_events_is_reported_once(
    pair: TenantPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_watch, "HELD_BACK_SECONDS", 0.0)
    owner = await pair.connect()
    await _hold_open(owner)
    transaction = await owner.fetchval("SELECT pg_current_xact_id()::text")
    watch = TransactionWatch(_store(pair).database, app_seconds_max=APP_SECONDS)
    with capture_logs() as logs:

        async def is_reported() -> bool:  # Transactions of autovacuum can be older.
            await watch.run_once()
            return any(line.get("transaction") == transaction for line in logs)

        await eventually(is_reported)
        await watch.run_once()
    assert [line["event"] for line in logs if line.get("transaction") == transaction] == ["events_held_back"]


@asynccontextmanager
async def _without_right_to_end_sessions(admin: Raw) -> AsyncIterator[None]:
    """Run the block as if the role that migrated could not grant pg_signal_backend."""
    await admin.execute("REVOKE pg_signal_backend FROM ingot_owner")
    try:
        yield
    finally:
        await admin.execute("GRANT pg_signal_backend TO ingot_owner")


async def test_roles_whose_transactions_cannot_be_ended_are_listed(pair: TenantPair) -> None:
    worker, app, admin = await pair.as_worker(pair.tenants[0]), await _app(pair), await pair.connect()
    names = sorted([await connection.fetchval("SELECT current_user") for connection in (worker, app)])
    assert (await _store(pair).describe_transactions()).unlimited_roles == []
    async with _without_right_to_end_sessions(admin):
        assert (await _store(pair).describe_transactions()).unlimited_roles == names
        await _hold_open(worker)
        watch = TransactionWatch(_store(pair).database, app_seconds_max=0.0)
        await watch.run_once()
        assert await _is_open(worker)
        await admin.execute(f"GRANT {await worker.fetchval('SELECT current_user')} TO ingot_owner")
        assert (await _store(pair).describe_transactions()).unlimited_roles == [
            await app.fetchval("SELECT current_user")
        ]
        await watch.run_once()
        await _until_closed(worker)


async def test_a_worker_of_a_removed_tenant_is_disconnected(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[1])
    await pair.bench.tenants.remove(pair.tenants[1])
    await _hold_open(worker)
    await TransactionWatch(_store(pair).database, app_seconds_max=APP_SECONDS).run_once()
    await _until_closed(worker)
