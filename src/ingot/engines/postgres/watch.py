"""Many processes, one queue: what others did is looked for now and then, and told at once where that can be."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from typing import Any, Final

import asyncpg

from ingot.engines.postgres import tend
from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.connection import AWAY, Connection, Database
from ingot.engines.postgres.follow import Follow
from ingot.engines.postgres.memory import COST_FACTOR, LOOK_SECONDS, Memory
from ingot.kernel.errors import StoreError
from ingot.kernel.ids import new_id
from ingot.kernel.logs import for_all, report
from ingot.kernel.loops import Loop

CHANNEL: Final = "ingot_ready"
TELL_SECONDS: Final = 0.02
FOLD_SECONDS: Final = 5.0
NOTE_SECONDS: Final = 10.0


class Watch(Loop):
    """Looks at the database about once a second, folds counts, and passes news between processes.

    Polling is always right; news are only a hint. Behind a proxy that pools transactions nobody can listen, and
    polling is all there is.
    """

    name = "postgres.watch"

    def __init__(self, url: str, db: Database, memory: Memory, follow: Follow, *, listens: bool) -> None:
        super().__init__()
        self._follow = follow
        self._url, self._db, self._memory, self.listens = url, db, memory, listens
        self._me = new_id()
        self._listener: asyncpg.Connection[asyncpg.Record] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._folded_at = self._noted_at = time.monotonic()
        memory.on_news.append(self._note_news)

    async def run_once(self) -> None:
        """One look, and what goes with it."""
        if self.listens and (self._listener is None or self._listener.is_closed()):
            await self._listen()
        if self._memory.look_is_old():
            await tend.look(self._db, self._memory)
            await self._follow.look()
        if self._memory.asked and time.monotonic() - self._noted_at > NOTE_SECONDS:
            self._noted_at = time.monotonic()
            await tend.note_askers(self._db, self._memory)
        if self._memory.deltas and time.monotonic() - self._folded_at > FOLD_SECONDS:
            self._folded_at = time.monotonic()
            await tend.fold(self._db)
            await self._follow.fold()

    async def rest(self) -> None:
        """Wait until the next look, a little longer each time by chance, so that processes do not go in step."""
        await asyncio.sleep(LOOK_SECONDS * random.uniform(1.0, 1.2))

    async def stop(self) -> None:
        """End it, and let its connection go."""
        await super().stop()
        self.listens = False
        for task in (self._telling, self._looking):
            if task is not None:
                await asyncio.wait([task])
        if self._listener is not None and not self._listener.is_closed():
            await self._listener.close()

    # -- news -----------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            self._listener = await asyncpg.connect(self._url, connection_class=Connection)
            await self._listener.add_listener(CHANNEL, self._hear)
        except AWAY as error:
            report("listening_failed", error)

    def _hear(self, _: Any, __: int, ___: str, payload: object) -> None:
        """Somebody made work ready. Whose is not said: every role may listen. Looking is bounded by what it costs."""
        if payload != self._me and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), context=for_all())

    async def _look(self) -> None:
        pause = self._memory.look_cost * COST_FACTOR - (time.monotonic() - self._memory.looked_at)
        await asyncio.sleep(max(0.0, pause))
        with suppress(StoreError):
            await tend.look(self._db, self._memory)

    def _note_news(self) -> None:
        if not self.listens or self._task is None:
            self._memory.news = False
        elif self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), context=for_all())

    async def _tell(self) -> None:
        """Tell what gathered, at most once in a while."""
        while self._memory.news and self.listens:
            self._memory.news = False
            with suppress(StoreError):
                await self._db.call(CALL.tell, self._me)
            await asyncio.sleep(TELL_SECONDS)
