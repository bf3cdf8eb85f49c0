"""Things done on a blob folder, with book kept of what was promised, on a disk that collects what may be left of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ingot.blobs.model import TrashedObject
from ingot.blobs.ports import ObjectWriter
from ingot.objects.local import LocalStore
from tests.faults.fake_disk import FakeDisk, Tree, outcomes

DATA = Path("/data")


@dataclass(frozen=True)
class Promise:
    """What was told of a place: so many bytes are `kept`; `whole` is what alone may be at its final name."""

    kept: bytes = b""
    whole: bytes | None = None
    finished: bool = False
    deleted: bool = False


Promises = tuple[tuple[str, Promise], ...]


class PowerDisk(FakeDisk):
    """Collects all that may be left of it, with what had been promised by then."""

    def __init__(self) -> None:
        super().__init__()
        self.promises: dict[str, Promise] = {}
        self.store_id: str | None = None
        self.left: dict[tuple[Tree, str | None, Promises], None] = {}

    def changed(self) -> None:
        super().changed()
        for tree in outcomes(self.root):
            self.left[tree, self.store_id, tuple(self.promises.items())] = None

    def promise(self, storage_key: str, promise: Promise) -> None:
        """Something is told, or begins, that changes what may be."""
        self.promises[storage_key] = promise
        self.changed()


class Script:
    """Does things on a store and keeps book of what was promised."""

    def __init__(self, store: LocalStore, disk: PowerDisk) -> None:
        self.store = store
        self._disk = disk

    async def begin(self, size: int | None) -> Upload:
        """Begin an upload."""
        storage_key = self.store.new_storage_key()
        self._disk.promise(storage_key, Promise())
        writer = await self.store.write(storage_key, size=size)
        return Upload(storage_key, writer, self._disk)

    async def resume(self, storage_key: str) -> Upload:
        """Go on with one."""
        promise = self._disk.promises[storage_key]
        self._disk.promise(storage_key, replace(promise, finished=False))
        writer = await self.store.resume(storage_key, offset=len(promise.kept))
        self._disk.promise(storage_key, Promise(kept=promise.kept))
        return Upload(storage_key, writer, self._disk, promise.kept)

    def lose_half_of_the_rename(self, storage_key: str) -> None:
        """The power went after the first folder was synced: the object has both names."""
        self._disk.promise(storage_key, replace(self._disk.promises[storage_key], finished=False))
        self._disk.link(f"{DATA}/blobs/{storage_key[-2:]}/{storage_key}", f"{DATA}/blobs/uploads/{storage_key}")

    async def delete(self, storage_key: str) -> None:
        """Delete an object."""
        self._disk.promise(storage_key, replace(self._disk.promises[storage_key], finished=False, deleted=True))
        await self.store.delete(TrashedObject(storage_key=storage_key))


class Upload:
    """One upload, and what it sent."""

    def __init__(self, storage_key: str, writer: ObjectWriter, disk: PowerDisk, sent: bytes = b"") -> None:
        self.storage_key = storage_key
        self._writer = writer
        self._disk = disk
        self._sent = sent

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        await self._writer.write(data)
        self._sent += data

    async def sync(self) -> None:
        """Have them kept."""
        await self._writer.sync()
        self._disk.promise(self.storage_key, replace(self._disk.promises[self.storage_key], kept=self._sent))

    async def finish(self) -> str:
        """Have them stored."""
        promise = replace(self._disk.promises[self.storage_key], whole=self._sent)
        self._disk.promise(self.storage_key, promise)
        await self._writer.finish()
        self._disk.promise(self.storage_key, replace(promise, finished=True))
        return self.storage_key

    async def abort(self) -> None:
        """Stop."""
        await self._writer.abort()
