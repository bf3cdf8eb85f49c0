"""The loop that clears what removed tenants have left behind."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from ingot.identity.ports import ClearTenants, ClearTenantsResult, TenantStore
from ingot.kernel.loops import Loop
from ingot.kernel.waits import wait_for

log = structlog.get_logger(__name__)

EVERY_SECONDS: Final = 60.0
ROWS_MAX: Final = 1000
PAUSE_SECONDS: Final = 0.05  # Others come first between two rounds.


class TenantRemoval(Loop):
    """Takes away in bounded rounds, with a rest after each, and begins as soon as a tenant was removed."""

    name = "identity.removal"

    def __init__(self, store: TenantStore) -> None:
        super().__init__()
        self._store = store
        self._has_more = False
        self._tenant_removed = asyncio.Event()
        store.on_tenant_removed(lambda _: self._tenant_removed.set())

    async def run_once(self) -> ClearTenantsResult:
        """Take away one part; it is told of whom nothing is left."""
        self._tenant_removed.clear()
        cleared = await self._store.run(ClearTenants(limit=ROWS_MAX))
        self._has_more = cleared.has_more
        for tenant in cleared.cleared_tenants:
            log.info("tenant_cleared", tenant_id=tenant)
        return cleared

    async def wait(self) -> None:
        """Wait a little when there is more to take away, and otherwise until a tenant is removed, or a while."""
        if self._has_more:
            await asyncio.sleep(PAUSE_SECONDS)
            return
        await wait_for(self._tenant_removed, EVERY_SECONDS)
