"""The power goes at any step of the folder store: all that may be left of the disk is looked at.

The store is the real one. After each change that it makes to the disk, every way the disk may look is opened again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ingot.blobs.errors import BlobDamaged
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import IngotError
from ingot.objects.layout import SHARD_FOLDERS
from ingot.objects.local import LocalStore
from tests.conformance.object_stores import read
from tests.faults.fake_disk import FakeDisk, Folder, Tree, disk_of
from tests.faults.object_script import DATA, PowerDisk, Promise, Script

FOLDERS_PER_LOOK = 32
WAYS_MIN = 8


async def of_known_size(script: Script) -> None:
    upload = await script.begin(9)
    for data in (b"one", b"two", b"end"):
        await upload.write(data)
    await upload.finish()


async def of_unknown_size(script: Script) -> None:
    upload = await script.begin(None)
    for data in (b"one", b"two", b"six", b"end"):
        await upload.write(data)
    await upload.finish()


async def shorter_than_announced(script: Script) -> None:
    upload = await script.begin(100)
    await upload.write(b"rather")
    await upload.write(b" short")
    await upload.finish()


async def of_nothing(script: Script) -> None:
    await (await script.begin(0)).finish()


async def synced_on_its_way(script: Script) -> None:
    upload = await script.begin(18)
    for data in (b"one", b"two", b"end"):
        await upload.write(data)
        await upload.write(data.upper())
        await upload.sync()
    await upload.finish()


async def resumed(script: Script) -> None:
    upload = await script.begin(20)
    await upload.write(b"kept")
    await upload.sync()
    await upload.write(b"lost")
    await upload.write(b", and longer than what comes")
    await upload.abort()
    upload = await script.resume(upload.storage_key)
    await upload.write(b"new")
    await upload.sync()
    await upload.write(b"!")
    await upload.finish()


async def resumed_and_finished_at_once(script: Script) -> None:
    upload = await script.begin(None)
    await upload.write(b"kept")
    await upload.sync()
    await upload.write(b"lost")
    await upload.write(b", and longer than what comes")
    await upload.abort()
    upload = await script.resume(upload.storage_key)
    await upload.write(b"new")
    await upload.write(b"er")
    await upload.finish()


async def finished_and_taken_back(script: Script) -> None:
    upload = await script.begin(None)
    await upload.write(b"kept")
    await upload.sync()
    await upload.write(b" and all of the rest")
    storage_key = await upload.finish()
    upload = await script.resume(storage_key)
    await upload.write(b"new")
    await upload.write(b"er")
    await upload.finish()


async def finished_by_half_and_taken_back(script: Script) -> None:
    upload = await script.begin(None)
    await upload.write(b"kept")
    await upload.sync()
    await upload.write(b" and all of the rest")
    storage_key = await upload.finish()
    script.lose_half_of_the_rename(storage_key)
    upload = await script.resume(storage_key)
    await upload.write(b"new")
    await upload.finish()


async def finished_and_deleted(script: Script) -> None:
    upload = await script.begin(3)
    await upload.write(b"one")
    await script.delete(await upload.finish())


async def deleted_on_its_way(script: Script) -> None:
    upload = await script.begin(9)
    await upload.write(b"one")
    await upload.sync()
    await upload.write(b"two")
    await script.delete(upload.storage_key)


async def two_at_once(script: Script) -> None:
    first, second = await script.begin(3), await script.begin(None)
    await first.write(b"one")
    await second.write(b"two")
    await first.finish()
    await second.sync()
    await second.finish()


SCRIPTS: list[Callable[[Script], Awaitable[None]]] = [
    of_known_size,
    of_unknown_size,
    shorter_than_announced,
    of_nothing,
    synced_on_its_way,
    resumed,
    resumed_and_finished_at_once,
    finished_and_taken_back,
    finished_by_half_and_taken_back,
    finished_and_deleted,
    deleted_on_its_way,
    two_at_once,
]


@pytest.mark.parametrize("act", SCRIPTS, ids=lambda act: act.__name__)
async def test_an_object_is_whole_or_not_there_and_what_was_synced_goes_on(
    act: Callable[[Script], Awaitable[None]],
) -> None:
    disk = await opened(PowerDisk())
    await run(act, disk)
    await check(disk)
    assert len(disk.left) >= WAYS_MIN


class OpeningDisk(PowerDisk):
    """Of the many folders that are made alike, looks at some."""

    def make_folder(self, path: str) -> None:
        if Path(path).name in SHARD_FOLDERS and SHARD_FOLDERS.index(Path(path).name) % FOLDERS_PER_LOOK:
            FakeDisk.changed(self)
            self._folder(str(Path(path).parent)).change(Path(path).name, Folder())
        else:
            super().make_folder(path)


async def test_opening_can_break_off_anywhere() -> None:
    disk = OpeningDisk()
    store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=disk)
    disk.store_id = store.store_id
    disk.changed()
    await store.close()
    await check(disk)
    assert len(disk.left) >= WAYS_MIN


class NoSync(PowerDisk):
    """Says that a file is synced."""

    def sync(self, handle: int) -> None:
        pass


class NoFolderSync(PowerDisk):
    """Says that a folder is synced."""

    def sync_folder(self, path: str) -> None:
        pass


class NoShelfSync(PowerDisk):
    """Says that a folder of whole objects is synced."""

    def sync_folder(self, path: str) -> None:
        if Path(path).name not in SHARD_FOLDERS:
            super().sync_folder(path)


class NoSyncAfterHalf(PowerDisk):
    """Says that folders are synced, from the time on when an object has two names."""

    linked = False

    def link(self, path: str, to: str) -> None:
        super().link(path, to)
        self.linked = True

    def sync_folder(self, path: str) -> None:
        if not self.linked:
            super().sync_folder(path)


class NoUploadsSync(PowerDisk):
    """Says that the folder of uploads is synced."""

    def sync_folder(self, path: str) -> None:
        if Path(path).name != "uploads":
            super().sync_folder(path)


class NoTruncate(PowerDisk):
    """Leaves a file as long as it is."""

    def truncate(self, handle: int, size: int) -> None:
        pass


PARTIAL = "a part of an object"
GONE = "an object that was finished is gone"
STILL = "is an upload still"
STUCK = "cannot go on"


@pytest.mark.parametrize(
    ("careless", "act", "noticed"),
    [
        (NoSync, of_known_size, PARTIAL),
        (NoSync, synced_on_its_way, STUCK),
        (NoFolderSync, of_unknown_size, GONE),
        (NoShelfSync, of_unknown_size, GONE),
        (NoUploadsSync, of_unknown_size, STILL),
        (NoUploadsSync, synced_on_its_way, STUCK),
        (NoFolderSync, finished_and_taken_back, STUCK),
        (NoSyncAfterHalf, finished_by_half_and_taken_back, PARTIAL),
        (NoTruncate, shorter_than_announced, PARTIAL),
        (NoTruncate, resumed_and_finished_at_once, PARTIAL),
    ],
)
async def test_a_disk_that_does_less_than_it_says_is_noticed(
    careless: type[PowerDisk], act: Callable[[Script], Awaitable[None]], noticed: str
) -> None:
    disk = await opened(careless())
    await run(act, disk)
    with pytest.raises(AssertionError, match=noticed):
        await check(disk)


# -- what may be left -------------------------------------------------------------------------------------------


async def opened(disk: PowerDisk) -> PowerDisk:
    """A disk that has the folder already."""
    plain = FakeDisk()
    store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=plain)
    await store.close()
    disk.root, disk.store_id = plain.root, store.store_id
    return disk


async def run(act: Callable[[Script], Awaitable[None]], disk: PowerDisk) -> None:
    """Do something on a store on this disk."""
    store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=disk)
    await act(Script(store, disk))
    await store.close()


async def check(disk: PowerDisk) -> None:
    """Open all that may be left."""
    for tree, store_id, promises in disk.left:
        again = disk_of(tree)
        store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=again)
        try:
            assert store_id in (None, store.store_id)
            for storage_key, promise in promises:
                await check_place(store, tree, storage_key, promise)
        finally:
            await store.close()
    print(f"{disk.steps} steps, {len(disk.left)} ways the disk may look")


async def check_place(store: LocalStore, tree: Tree, storage_key: str, promise: Promise) -> None:
    """Compare what is left of an object with what was promised."""
    files = {path: data for path, _, data in tree if data is not None}
    final = files.get(f"{DATA}/blobs/{storage_key[-2:]}/{storage_key}")
    upload = files.get(f"{DATA}/blobs/uploads/{storage_key}")
    assert final in (None, promise.whole), "a part of an object is at its final name"
    if promise.finished:
        assert final is not None, "an object that was finished is gone"
        assert upload is None, "an object that was finished is an upload still"
        assert await read(store, storage_key, 0, len(final)) == final
    elif not promise.deleted:
        assert await finish(store, storage_key, promise.kept, b"end") == promise.kept + b"end"


async def finish(store: LocalStore, storage_key: str, kept: bytes, rest: bytes) -> bytes:
    """Go on with an upload, and answer what it became."""
    try:
        writer = await store.resume(storage_key, offset=len(kept))
        await writer.write(rest)
        await writer.finish()
    except IngotError as error:
        raise AssertionError("what was synced cannot go on") from error
    size = len(kept) + len(rest)
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, size + 1)
    return await read(store, storage_key, 0, size)
