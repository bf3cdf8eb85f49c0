"""Rows of workers in PostgreSQL: events are in order, and a heartbeat without changes writes nothing."""

from __future__ import annotations

import asyncpg
import pytest

from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.jobs.worker_model import HeartbeatAnswer
from tests.factories import LEASE_SECONDS
from tests.two_tenant_database import TenantPair

HEARTBEAT = "SELECT * FROM ingot.record_heartbeat($1, 'press', 0, 0, 10, '{}', '{}', '{}', '{}', '{}', '{}', '{}')"
REGISTER = "SELECT ingot.register_worker($1, 'press', '{noop}', NULL, NULL, NULL, NULL)"
REMOVE = "SELECT * FROM ingot.remove_worker($1, 'press', 10, NULL)"


async def begin_transaction(pair: TenantPair) -> Raw:
    """A connection whose transaction has its position in the order of events."""
    connection = await pair.as_server()
    await connection.execute("BEGIN")
    await connection.fetchval("SELECT pg_current_xact_id()")
    return connection


@pytest.mark.parametrize("call", [HEARTBEAT, REGISTER, REMOVE])
async def test_a_call_that_meets_a_change_of_a_later_transaction_fails_to_serialize(
    pair: TenantPair, call: str
) -> None:
    bench, tenant = pair.bench, pair.tenants[0]
    await bench.workers.register(tenant, "press", ["noop"])
    early = await begin_transaction(pair)
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (
        await bench.workers.maintain()
    ).marked_offline >= 1  # This event is later than one of the early transaction would be.
    with pytest.raises(asyncpg.SerializationError):
        await early.fetch(call, tenant)
    await early.execute("ROLLBACK")
    late = await begin_transaction(pair)
    await late.fetch(call, tenant)
    await late.execute("ROLLBACK")


async def test_a_heartbeat_without_changes_writes_nothing(pair: TenantPair) -> None:
    bench, tenant = pair.bench, pair.tenants[0]
    await bench.workers.register(tenant, "press", ["noop"])
    admin = await pair.connect()
    versions = "SELECT xmin::text, xmax::text, ctid::text FROM ingot.workers WHERE id = 'press'"
    before = await admin.fetch(versions)
    for _ in range(3):
        bench.clock.advance(seconds=1)
        assert await bench.workers.heartbeat(tenant, "press") == HeartbeatAnswer(jobs=[], drain=False)
    assert await admin.fetch(versions) == before
    bench.clock.advance(seconds=5)
    await bench.workers.heartbeat(tenant, "press")
    assert await admin.fetch(versions) != before
