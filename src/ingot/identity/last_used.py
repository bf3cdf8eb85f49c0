"""The loop that writes down when credentials were last used."""

from __future__ import annotations

import asyncio
from typing import Final

from ingot.identity.authenticator import Authenticator
from ingot.identity.ports import RecordLastUsed
from ingot.kernel.commands import Store
from ingot.kernel.loops import Loop

EVERY_SECONDS: Final = 60.0


class LastUsedRecorder(Loop):
    """Writes for all callers together, so that a request costs no write of its own."""

    name = "identity.usage"

    def __init__(self, store: Store, access: Authenticator) -> None:
        super().__init__()
        self._store = store
        self._authenticator = access

    async def run_once(self) -> RecordLastUsed:
        """Write down what was used since the last round."""
        used = self._authenticator.take_last_used()
        if used.tokens or used.workers or used.sessions:
            await self._store.run(used)
        return used

    async def wait(self) -> None:
        """Wait for the next round."""
        await asyncio.sleep(EVERY_SECONDS)

    async def stop(self) -> None:
        """End it, and write down what it has not written yet."""
        await super().stop()
        await self.run_once()
