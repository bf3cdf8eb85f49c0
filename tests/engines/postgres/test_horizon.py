"""The horizon: how long the oldest transaction has kept events from being read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingot.engines.postgres import PostgresStore
from tests.two_tenant_database import TenantPair
from tests.waiting import eventually


async def wait_for_horizon(store: PostgresStore, matches: Callable[[float], bool]) -> None:
    """Measure until the horizon matches, because transactions of autovacuum interfere."""

    async def does_match() -> bool:
        return matches((await store.measure_load()).horizon_seconds or 0.0)

    await eventually(does_match)


@pytest.mark.parametrize("user", ["ingot_server", None])
async def test_the_horizon_is_positive_while_a_writing_transaction_is_open(pair: TenantPair, user: str | None) -> None:
    store = pair.bench.store
    assert isinstance(store, PostgresStore)
    connection = await pair.connect(user)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT pg_current_xact_id()")
    await wait_for_horizon(store, lambda seconds: seconds > 0)
    await transaction.rollback()
    await wait_for_horizon(store, lambda seconds: seconds == 0)


async def test_a_read_only_transaction_does_not_affect_the_horizon(pair: TenantPair) -> None:
    store = pair.bench.store
    assert isinstance(store, PostgresStore)
    connection = await pair.connect()
    async with connection.transaction():
        await connection.execute("SELECT 1")
        await wait_for_horizon(store, lambda seconds: seconds == 0)
