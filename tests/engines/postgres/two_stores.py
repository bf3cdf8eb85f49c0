"""Two stores on one database, as two server processes open them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ingot.engines.postgres import PostgresStore
from ingot.identity import Tenants
from ingot.kernel.clock import SystemClock
from tests.factories import LEASE_SECONDS, Bench
from tests.postgres import open_postgres


@asynccontextmanager
async def two_stores(folder: Path, *, listens: bool) -> AsyncIterator[tuple[Bench, Bench]]:
    """Open two stores on one database, as two server processes do."""
    clock = SystemClock()
    stores: list[PostgresStore] = []
    try:
        for _ in range(2):
            store = await open_postgres(folder, clock, lease_seconds=LEASE_SECONDS)
            store.listener.listens = listens
            stores.append(store)
            await store.listener.run_once()
            store.listener.start()
        tenant = await Tenants(stores[0]).ensure_default()
        yield Bench(stores[0], clock, tenant), Bench(stores[1], clock, tenant)  # type: ignore[arg-type]
    finally:
        for store in stores:
            await store.close()
