"""The loop that clears what removed tenants have left behind."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from ingot.identity.ports import Cleared, ClearTenants, TenantStore
from ingot.kernel.loops import Loop
from ingot.kernel.waits import wait_for

log = structlog.get_logger(__name__)

EVERY_SECONDS: Final = 60.0
ROWS: Final = 1000
REST_SECONDS: Final = 0.05  # Others come first between two rounds.


class Removal(Loop):
    """Takes away in bounded rounds, with a rest after each, and begins as soon as a tenant was removed."""

    name = "identity.removal"

    def __init__(self, store: TenantStore) -> None:
        super().__init__()
        self._store = store
        self._more = False
        self._removed = asyncio.Event()
        store.on_removed(lambda _: self._removed.set())

    async def run_once(self) -> Cleared:
        """Take away one part; it is told of whom nothing is left."""
        self._removed.clear()
        cleared = await self._store.run(ClearTenants(limit=ROWS))
        self._more = cleared.more
        for tenant in cleared.gone:
            log.info("tenant_cleared", tenant_id=tenant)
        return cleared

    async def rest(self) -> None:
        """Wait a little when there is more to take away, and otherwise until a tenant is removed, or a while."""
        if self._more:
            await asyncio.sleep(REST_SECONDS)
            return
        await wait_for(self._removed, EVERY_SECONDS)
