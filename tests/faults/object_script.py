"""Operations on a blob folder that record what was promised, on a disk that collects its possible states."""

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
    """What callers may rely on for an object: these bytes are `synced`, and only `whole` may be at its final name."""

    synced: bytes = b""
    whole: bytes | None = None
    finished: bool = False
    deleted: bool = False


Promises = tuple[tuple[str, Promise], ...]


class PowerDisk(FakeDisk):
    """Collects all states in which a power loss may leave it, with what had been promised by then."""

    def __init__(self) -> None:
        super().__init__()
        self.promises: dict[str, Promise] = {}
        self.store_id: str | None = None
        self.states: dict[tuple[Tree, str | None, Promises], None] = {}

    def changed(self) -> None:
        super().changed()
        for tree in outcomes(self.root):
            self.states[tree, self.store_id, tuple(self.promises.items())] = None

    def promise(self, storage_key: str, promise: Promise) -> None:
        """Change what is promised for an object, before or after a step."""
        self.promises[storage_key] = promise
        self.changed()


class Script:
    """Performs operations on a store and records what was promised."""

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
        """Resume an upload."""
        promise = self._disk.promises[storage_key]
        self._disk.promise(storage_key, replace(promise, finished=False))
        writer = await self.store.resume(storage_key, offset=len(promise.synced))
        self._disk.promise(storage_key, Promise(synced=promise.synced))
        return Upload(storage_key, writer, self._disk, promise.synced)

    def lose_second_half_of_rename(self, storage_key: str) -> None:
        """Simulate a power loss after the first folder was synced: the object has both names."""
        self._disk.promise(storage_key, replace(self._disk.promises[storage_key], finished=False))
        self._disk.link(f"{DATA}/blobs/{storage_key[-2:]}/{storage_key}", f"{DATA}/blobs/uploads/{storage_key}")

    async def delete(self, storage_key: str) -> None:
        """Delete an object."""
        self._disk.promise(storage_key, replace(self._disk.promises[storage_key], finished=False, deleted=True))
        await self.store.delete(TrashedObject(storage_key=storage_key))


class Upload:
    """One upload, and the bytes that were sent."""

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
        """Sync the bytes sent so far."""
        await self._writer.sync()
        self._disk.promise(self.storage_key, replace(self._disk.promises[self.storage_key], synced=self._sent))

    async def finish(self) -> str:
        """Finish the upload."""
        promise = replace(self._disk.promises[self.storage_key], whole=self._sent)
        self._disk.promise(self.storage_key, promise)
        await self._writer.finish()
        self._disk.promise(self.storage_key, replace(promise, finished=True))
        return self.storage_key

    async def abort(self) -> None:
        """Abort the upload."""
        await self._writer.abort()
