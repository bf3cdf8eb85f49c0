"""The horizon: how long a transaction of anybody has kept events from being read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingot.engines.postgres import PostgresStore
from tests.two_tenant_database import TenantPair
from tests.waiting import eventually


async def horizon_until(store: PostgresStore, right: Callable[[float], bool]) -> None:
    """Measure until it is right: transactions of autovacuum come and go."""

    async def is_right() -> bool:
        return right((await store.measure_load()).horizon_seconds or 0.0)

    await eventually(is_right)


@pytest.mark.parametrize("user", ["ingot_server", None])
async def test_a_transaction_that_holds_readers_back_is_measured_until_it_ends(
    pair: TenantPair, user: str | None
) -> None:
    store = pair.bench.store
    assert isinstance(store, PostgresStore)
    connection = await pair.connect(user)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT pg_current_xact_id()")
    await horizon_until(store, lambda seconds: seconds > 0)
    await transaction.rollback()
    await horizon_until(store, lambda seconds: seconds == 0)


async def test_a_transaction_that_only_reads_holds_nobody_back(pair: TenantPair) -> None:
    store = pair.bench.store
    assert isinstance(store, PostgresStore)
    connection = await pair.connect()
    async with connection.transaction():
        await connection.execute("SELECT 1")
        await horizon_until(store, lambda seconds: seconds == 0)
