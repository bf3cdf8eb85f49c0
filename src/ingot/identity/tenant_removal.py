"""The loop that deletes the data of removed tenants."""

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
PAUSE_SECONDS: Final = 0.05  # Leaves the store to other commands between two rounds.


class TenantRemoval(Loop):
    """Deletes a bounded number of rows per round, with a pause after each. Starts as soon as a tenant is removed."""

    name = "identity.removal"

    def __init__(self, store: TenantStore) -> None:
        super().__init__()
        self._store = store
        self._has_more = False
        self._tenant_removed = asyncio.Event()
        store.on_tenant_removed(lambda _: self._tenant_removed.set())

    async def run_once(self) -> ClearTenantsResult:
        """Delete a bounded number of rows, and log the tenants that have no data left."""
        self._tenant_removed.clear()
        result = await self._store.run(ClearTenants(limit=ROWS_MAX))
        self._has_more = result.has_more
        for tenant in result.cleared_tenants:
            log.info("tenant_cleared", tenant_id=tenant)
        return result

    async def wait(self) -> None:
        """Pause briefly if there is more to delete. Otherwise wait for the next removal, or `EVERY_SECONDS`."""
        if self._has_more:
            await asyncio.sleep(PAUSE_SECONDS)
            return
        await wait_for(self._tenant_removed, EVERY_SECONDS)
