"""Commands about blobs that crowds send: those of one kind are run together."""

from __future__ import annotations

from functools import partial
from typing import Final

from ingot.blobs.model import Finished, Key
from ingot.blobs.ports import DeleteKey, FinishUpload, PutBlob
from ingot.engines.postgres import blobs
from ingot.engines.postgres.batches import Batches
from ingot.engines.postgres.context import BoundCommands, Context

IN_FLIGHT_MAX: Final = 1  # Each holds what tenants keep: a second batch would mostly wait for the first.


class BlobBatches:
    """The batches of blobs, by kind."""

    def __init__(self, context: Context) -> None:
        db, memory = context.database, context.memory
        self._puts: Batches[PutBlob, Key] = Batches(
            partial(blobs.put_blobs, db, memory),
            weigh=blobs.weigh,
            in_flight_max=IN_FLIGHT_MAX,
            told=partial(memory.tell_committed, "put_blob"),
        )
        self._finishes: Batches[FinishUpload, Finished] = Batches(
            partial(blobs.finish_uploads, db, memory),
            weigh=blobs.weigh,
            in_flight_max=IN_FLIGHT_MAX,
            told=partial(memory.tell_committed, "finish_upload"),
        )
        self._deletes: Batches[DeleteKey, Key] = Batches(
            partial(blobs.delete_keys, db, memory),
            weigh=lambda _: 1,
            in_flight_max=IN_FLIGHT_MAX,
            told=partial(memory.tell_committed, "delete_key"),
        )
        self.commands: BoundCommands = {
            PutBlob: self._puts.submit,
            FinishUpload: self._finishes.submit,
            DeleteKey: self._deletes.submit,
        }

    @property
    def waiting(self) -> int:
        """How many commands about blobs were not begun yet."""
        return self._puts.waiting + self._finishes.waiting + self._deletes.waiting

    async def close(self) -> None:
        """Take no more commands, and finish those that were queued."""
        for batches in (self._puts, self._finishes, self._deletes):
            await batches.close()
