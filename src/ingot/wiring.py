"""Wiring: the only file that names concrete classes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from ingot.engines.sqlite import SQLiteStore
from ingot.events.service import Events
from ingot.identity.model import Tenant
from ingot.identity.service import Tenants
from ingot.jobs.maintenance import Maintenance
from ingot.jobs.service import Jobs
from ingot.kernel.clock import Clock, SystemClock
from ingot.kernel.logs import configure_logs
from ingot.settings import Settings, read_settings


class Ingot(msgspec.Struct, frozen=True, kw_only=True):
    """An open store, room by room."""

    jobs: Jobs
    tenants: Tenants
    events: Events
    default_tenant: Tenant
    maintenance: Maintenance


@asynccontextmanager
async def open(  # noqa: A001 - read as `ingot.open`
    data: Path | str | None = None, *, settings: Settings | None = None, clock: Clock | None = None, tend: bool = True
) -> AsyncIterator[Ingot]:
    """Open the store in a data folder, made when missing, and close it at the end of the block.

    `data` wins over `settings`, which are read from the environment when missing. With `tend=False` nothing runs
    in the background: due work and lost leases wait for a claim, or for `jobs.tend()`.
    """
    configure_logs()
    settings = settings or read_settings()
    folder = Path(data) if data is not None else settings.data
    store = await SQLiteStore.open(folder, clock=clock or SystemClock(), lease_seconds=settings.lease_seconds)
    try:
        tenants = Tenants(store)
        maintenance = Maintenance(store)
        ingot = Ingot(
            jobs=Jobs(store, lease_seconds=settings.lease_seconds),
            tenants=tenants,
            events=Events(store),
            default_tenant=await tenants.ensure_default(),
            maintenance=maintenance,
        )
        if tend:
            maintenance.start()
        try:
            yield ingot
        finally:
            await maintenance.stop()
            await ingot.jobs.close()
    finally:
        await store.close()
