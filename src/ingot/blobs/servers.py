"""Running servers of a database: each renews its registration, and ends what servers that are gone left behind."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from ingot.blobs.errors import ObjectsElsewhere
from ingot.blobs.ports import RenewServer, UnregisterServer
from ingot.kernel.clock import MICROS
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

RENEW_SECONDS: Final = 5.0
# A server that has not renewed its registration for this time is gone. It is longer than the 25 seconds for which calls
# are repeated while the database is unreachable.
GONE_AFTER_MICROS: Final = 30 * MICROS
BATCH_UPLOADS: Final = 500

log = structlog.get_logger("ingot.blobs")


class ServerRegistration(Loop):
    """The loop that renews the registration of the server `server`, which has the object store `store_id` open."""

    name = "blobs.server_registration"
    pause_after_error_seconds_max = 2.0  # After an outage, other servers must not consider this one gone.

    def __init__(self, store: Store, *, server: str, store_id: str) -> None:
        super().__init__()
        self._store = store
        self._command = RenewServer(server=server, store_id=store_id, limit=BATCH_UPLOADS)

    async def run_once(self) -> int:
        """Renew the registration, and return the number of ended uploads of servers that are gone."""
        ended = 0
        while True:
            try:
                count = await self._store.run(self._command)
            except (
                ObjectsElsewhere
            ) as error:  # A server with another object store took over while this one was stopped.
                log.error("objects_elsewhere", detail=error.detail, hint=error.hint)
                return ended
            ended += count
            if count < BATCH_UPLOADS:
                break
        if ended:
            log.info("abandoned_uploads_ended", uploads=ended)
        return ended

    async def unregister(self) -> None:
        """Record that the server has ended. If that fails, it is gone when its registration is not renewed."""
        try:
            await self._store.run(UnregisterServer(server=self._command.server))
        except IngotError as error:
            report("server_not_unregistered", error)

    async def wait(self) -> None:
        """Wait until the registration must be renewed."""
        await asyncio.sleep(RENEW_SECONDS)
