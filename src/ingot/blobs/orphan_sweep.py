"""The stocktaking: finds objects that no row names, and takes them away.

They come to be when a client uses its address to write after its upload was given up and its object deleted, when a
server dies between `SigningStore.seal` and the row of the copy, or begins an object in parts and dies before its
upload, and when a file that was deleted comes back with the power.

A place that no row names, and that is old, is never named again: the row of an upload comes before its object but for
a moment, and a copy is named, or not at all, within the life of its upload. Places are not used twice, so that what is
deleted here late, or by two servers, is nothing else.

All this holds where the objects are those of this database alone. The object store remembers whose they are: no
server is started with those of another, and each round asks again.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from typing import Final

import structlog

from ingot.blobs.counters import BlobCounters
from ingot.blobs.incoming import UPLOAD_LIFETIME_MICROS
from ingot.blobs.model import TrashedObject
from ingot.blobs.ports import FindKnownStorageKeys, ObjectStore
from ingot.kernel.commands import Store
from ingot.kernel.errors import IngotError
from ingot.kernel.logs import report
from ingot.kernel.loops import Loop

BATCH_OBJECTS: Final = 500
PAUSE_SECONDS: Final = 0.02  # After each step: others read and write too.
INITIAL_DELAY_SECONDS: Final = 3600.0
EVERY_SECONDS: Final = 86_400.0
# More than the longest life of an upload without news and that of an address to write together, on clocks that differ.
ORPHAN_AGE_MICROS: Final = 2 * UPLOAD_LIFETIME_MICROS
OTHER_DATABASE_HINT: Final = "Nothing is deleted. Give each database a folder or an INGOT_S3_PREFIX of its own."

log = structlog.get_logger("ingot.blobs")


class OrphanSweep(Loop):
    """Looks once a day at all objects. Those that no row of `database` names go when they are `stray_age` old.

    Ages are in microseconds.
    """

    name = "stocktaking"

    def __init__(
        self,
        store: Store,
        objects: ObjectStore,
        *,
        database_id: str,
        orphan_age: int = ORPHAN_AGE_MICROS,
        counters: BlobCounters | None = None,
    ) -> None:
        super().__init__()
        self._store = store
        self._objects = objects
        self._database_id = database_id
        self._orphan_age = orphan_age
        self._counters = counters or BlobCounters()

    async def run_once(self) -> int:
        """One round; how many objects were deleted. What cannot be listed or asked for ends it."""
        owner = await self._objects.register_owner(self._database_id)
        if owner != self._database_id:
            log.warning(
                "objects_of_another_database", owner=owner, database=self._database_id, hint=OTHER_DATABASE_HINT
            )
            return 0
        looked_at = deleted = 0
        old: set[str] = set()
        async with aclosing(self._objects.list_objects()) as storage_keys:
            async for storage_key, age in storage_keys:
                looked_at += 1
                if age >= self._orphan_age:
                    old.add(storage_key)
                if len(old) == BATCH_OBJECTS:
                    deleted += await self._delete_orphans(old)
                    old.clear()
                    await asyncio.sleep(PAUSE_SECONDS)
        deleted += await self._delete_orphans(old)
        if deleted:
            log.info("strays_deleted", objects=deleted, looked_at=looked_at)
        return deleted

    async def wait(self) -> None:
        """Wait until the next round is due; several servers do not come at once."""
        await asyncio.sleep(EVERY_SECONDS * random.uniform(0.8, 1.2))

    def initial_delay_seconds(self) -> float:
        """A server that was just started has other things to do."""
        return INITIAL_DELAY_SECONDS * random.uniform(0.5, 1.5)

    async def _delete_orphans(self, storage_keys: set[str]) -> int:
        """Delete those of these objects that nobody knows; how many."""
        if not storage_keys:
            return 0
        deleted = 0
        for storage_key in sorted(
            storage_keys - await self._store.run(FindKnownStorageKeys(storage_keys=sorted(storage_keys)))
        ):
            try:
                await self._objects.delete(TrashedObject(storage_key=storage_key))
                deleted += 1
            except (IngotError, OSError) as error:  # The next round comes back to it.
                report("object_not_deleted", error, storage_key=storage_key)
        self._counters.orphans_deleted += deleted
        return deleted
