"""Things done on a blob folder, with book kept of what was promised, on a disk that collects what may be left of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ingot.blobs.model import Trash
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

    def promise(self, place: str, promise: Promise) -> None:
        """Something is told, or begins, that changes what may be."""
        self.promises[place] = promise
        self.changed()


class Script:
    """Does things on a store and keeps book of what was promised."""

    def __init__(self, store: LocalStore, disk: PowerDisk) -> None:
        self.store = store
        self._disk = disk

    async def begin(self, size: int | None) -> Upload:
        """Begin an upload."""
        place = self.store.new_place()
        self._disk.promise(place, Promise())
        writer = await self.store.write(place, size=size)
        return Upload(place, writer, self._disk)

    async def resume(self, place: str) -> Upload:
        """Go on with one."""
        promise = self._disk.promises[place]
        self._disk.promise(place, replace(promise, finished=False))
        writer = await self.store.resume(place, offset=len(promise.kept))
        self._disk.promise(place, Promise(kept=promise.kept))
        return Upload(place, writer, self._disk, promise.kept)

    def lose_half_of_the_rename(self, place: str) -> None:
        """The power went after the first folder was synced: the object has both names."""
        self._disk.promise(place, replace(self._disk.promises[place], finished=False))
        self._disk.link(f"{DATA}/blobs/{place[-2:]}/{place}", f"{DATA}/blobs/uploads/{place}")

    async def delete(self, place: str) -> None:
        """Delete an object."""
        self._disk.promise(place, replace(self._disk.promises[place], finished=False, deleted=True))
        await self.store.delete(Trash(place=place))


class Upload:
    """One upload, and what it sent."""

    def __init__(self, place: str, writer: ObjectWriter, disk: PowerDisk, sent: bytes = b"") -> None:
        self.place = place
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
        self._disk.promise(self.place, replace(self._disk.promises[self.place], kept=self._sent))

    async def finish(self) -> str:
        """Have them stored."""
        promise = replace(self._disk.promises[self.place], whole=self._sent)
        self._disk.promise(self.place, promise)
        await self._writer.finish()
        self._disk.promise(self.place, replace(promise, finished=True))
        return self.place

    async def abort(self) -> None:
        """Stop."""
        await self._writer.abort()
