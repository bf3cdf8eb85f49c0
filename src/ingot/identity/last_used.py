"""The loop that records when credentials were last used."""

from __future__ import annotations

import asyncio
from typing import Final

from ingot.identity.authenticator import Authenticator
from ingot.identity.ports import RecordLastUsed
from ingot.kernel.commands import Store
from ingot.kernel.loops import Loop

EVERY_SECONDS: Final = 60.0


class LastUsedRecorder(Loop):
    """Writes the uses of all credentials in one command, so that a request needs no write of its own."""

    name = "identity.last_used"

    def __init__(self, store: Store, authenticator: Authenticator) -> None:
        super().__init__()
        self._store = store
        self._authenticator = authenticator

    async def run_once(self) -> RecordLastUsed:
        """Record the credentials that were used since the last round."""
        used = self._authenticator.take_last_used()
        if used.tokens or used.workers or used.sessions:
            await self._store.run(used)
        return used

    async def wait(self) -> None:
        """Wait until the next round is due."""
        await asyncio.sleep(EVERY_SECONDS)

    async def stop(self) -> None:
        """Stop the loop, then record the uses that are not recorded yet."""
        await super().stop()
        await self.run_once()
