"""The orphan sweep: finds objects that no row names, and deletes them.

Orphans appear in these ways:

- A client uses its signed URL after its upload was canceled and the object deleted.
- A server dies between `SigningStore.seal` and the row that names the copy.
- A server begins a multipart upload and dies before it stores the row of the upload.
- A deleted file reappears after a power failure.

A row never begins to name an old object that no row names now: an upload gets its row at about the time of its object,
and a sealed copy is named within the life of its upload or never. Storage keys are not reused, so a late deletion, or
one by two servers, cannot hit another object.

This is only true if all objects of the store belong to this database. The object store records its database: a server
does not start with the objects of another one, and each round checks again.
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
PAUSE_SECONDS: Final = 0.02  # After each batch, to leave time for other reads and writes.
INITIAL_DELAY_SECONDS: Final = 3600.0
EVERY_SECONDS: Final = 86_400.0
# More than the longest life of an upload without progress plus that of a signed URL, with some difference of clocks.
ORPHAN_AGE_MICROS: Final = 2 * UPLOAD_LIFETIME_MICROS
OTHER_DATABASE_HINT: Final = "Nothing was deleted. Give each database its own folder or INGOT_S3_PREFIX."

log = structlog.get_logger("ingot.blobs")


class OrphanSweep(Loop):
    """The loop that lists all objects about once a day and deletes the orphans.

    An orphan is deleted when it is at least `orphan_age` microseconds old. Nothing is deleted unless the objects belong
    to the database `database_id`.
    """

    name = "blobs.orphan_sweep"

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
        """Run one round and return the number of deleted objects.

        The round ends with the error when the objects cannot be listed or the database cannot be queried.
        """
        owner = await self._objects.register_owner(self._database_id)
        if owner != self._database_id:
            log.warning(
                "objects_of_another_database", owner=owner, database=self._database_id, hint=OTHER_DATABASE_HINT
            )
            return 0
        listed = deleted = 0
        old_keys: set[str] = set()
        async with aclosing(self._objects.list_objects()) as storage_keys:
            async for storage_key, age in storage_keys:
                listed += 1
                if age >= self._orphan_age:
                    old_keys.add(storage_key)
                if len(old_keys) == BATCH_OBJECTS:
                    deleted += await self._delete_orphans(old_keys)
                    old_keys.clear()
                    await asyncio.sleep(PAUSE_SECONDS)
        deleted += await self._delete_orphans(old_keys)
        if deleted:
            log.info("orphans_deleted", objects=deleted, listed=listed)
        return deleted

    async def wait(self) -> None:
        """Wait until the next round is due. The random part keeps several servers from running at once."""
        await asyncio.sleep(EVERY_SECONDS * random.uniform(0.8, 1.2))

    def initial_delay_seconds(self) -> float:
        """Return the pause before the first round. It is long, so that a restart does not cause a listing."""
        return INITIAL_DELAY_SECONDS * random.uniform(0.5, 1.5)

    async def _delete_orphans(self, storage_keys: set[str]) -> int:
        """Delete the objects that no row names, and return their number."""
        if not storage_keys:
            return 0
        deleted = 0
        known_keys = await self._store.run(FindKnownStorageKeys(storage_keys=sorted(storage_keys)))
        for storage_key in sorted(storage_keys - known_keys):
            try:
                await self._objects.delete(TrashedObject(storage_key=storage_key))
                deleted += 1
            except (IngotError, OSError) as error:  # The next round tries again.
                report("object_not_deleted", error, storage_key=storage_key)
        self._counters.orphans_deleted += deleted
        return deleted
