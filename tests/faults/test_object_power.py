"""Loss of power at any step of the folder store: every possible state of the disk is checked.

The store is the real one. After each change that it makes to the disk, it is opened on every possible state.
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

FOLDERS_PER_STATE = 32
STATES_MIN = 8


async def upload_of_known_size(script: Script) -> None:
    upload = await script.begin(9)
    for data in (b"one", b"two", b"end"):
        await upload.write(data)
    await upload.finish()


async def upload_of_unknown_size(script: Script) -> None:
    upload = await script.begin(None)
    for data in (b"one", b"two", b"six", b"end"):
        await upload.write(data)
    await upload.finish()


async def upload_shorter_than_announced(script: Script) -> None:
    upload = await script.begin(100)
    await upload.write(b"rather")
    await upload.write(b" short")
    await upload.finish()


async def empty_upload(script: Script) -> None:
    await (await script.begin(0)).finish()


async def upload_with_syncs(script: Script) -> None:
    upload = await script.begin(18)
    for data in (b"one", b"two", b"end"):
        await upload.write(data)
        await upload.write(data.upper())
        await upload.sync()
    await upload.finish()


async def resumed_upload(script: Script) -> None:
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


async def resumed_upload_without_sync(script: Script) -> None:
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


async def resumed_after_finish(script: Script) -> None:
    upload = await script.begin(None)
    await upload.write(b"kept")
    await upload.sync()
    await upload.write(b" and all of the rest")
    storage_key = await upload.finish()
    upload = await script.resume(storage_key)
    await upload.write(b"new")
    await upload.write(b"er")
    await upload.finish()


async def resumed_after_half_a_rename(script: Script) -> None:
    upload = await script.begin(None)
    await upload.write(b"kept")
    await upload.sync()
    await upload.write(b" and all of the rest")
    storage_key = await upload.finish()
    script.lose_second_half_of_rename(storage_key)
    upload = await script.resume(storage_key)
    await upload.write(b"new")
    await upload.finish()


async def delete_after_finish(script: Script) -> None:
    upload = await script.begin(3)
    await upload.write(b"one")
    await script.delete(await upload.finish())


async def delete_before_finish(script: Script) -> None:
    upload = await script.begin(9)
    await upload.write(b"one")
    await upload.sync()
    await upload.write(b"two")
    await script.delete(upload.storage_key)


async def two_uploads(script: Script) -> None:
    first, second = await script.begin(3), await script.begin(None)
    await first.write(b"one")
    await second.write(b"two")
    await first.finish()
    await second.sync()
    await second.finish()


SCRIPTS: list[Callable[[Script], Awaitable[None]]] = [
    upload_of_known_size,
    upload_of_unknown_size,
    upload_shorter_than_announced,
    empty_upload,
    upload_with_syncs,
    resumed_upload,
    resumed_upload_without_sync,
    resumed_after_finish,
    resumed_after_half_a_rename,
    delete_after_finish,
    delete_before_finish,
    two_uploads,
]


@pytest.mark.parametrize("act", SCRIPTS, ids=lambda act: act.__name__)
async def test_an_object_is_whole_or_missing_and_synced_bytes_survive_a_power_loss(
    act: Callable[[Script], Awaitable[None]],
) -> None:
    disk = await opened(PowerDisk())
    await run(act, disk)
    await check(disk)
    assert len(disk.states) >= STATES_MIN


class OpeningDisk(PowerDisk):
    """Collects the states of some of the many folders that are created in the same way."""

    def make_folder(self, path: str) -> None:
        if Path(path).name in SHARD_FOLDERS and SHARD_FOLDERS.index(Path(path).name) % FOLDERS_PER_STATE:
            FakeDisk.changed(self)
            self._folder(str(Path(path).parent)).change(Path(path).name, Folder())
        else:
            super().make_folder(path)


async def test_a_store_opens_after_a_power_loss_during_its_first_opening() -> None:
    disk = OpeningDisk()
    store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=disk)
    disk.store_id = store.store_id
    disk.changed()
    await store.close()
    await check(disk)
    assert len(disk.states) >= STATES_MIN


class NoSync(PowerDisk):
    """Does not sync files."""

    def sync(self, handle: int) -> None:
        pass


class NoFolderSync(PowerDisk):
    """Does not sync folders."""

    def sync_folder(self, path: str) -> None:
        pass


class NoShardSync(PowerDisk):
    """Does not sync the folders of finished objects."""

    def sync_folder(self, path: str) -> None:
        if Path(path).name not in SHARD_FOLDERS:
            super().sync_folder(path)


class NoSyncAfterHalfARename(PowerDisk):
    """Does not sync folders once an object has two names."""

    linked = False

    def link(self, path: str, to: str) -> None:
        super().link(path, to)
        self.linked = True

    def sync_folder(self, path: str) -> None:
        if not self.linked:
            super().sync_folder(path)


class NoUploadsSync(PowerDisk):
    """Does not sync the folder of uploads."""

    def sync_folder(self, path: str) -> None:
        if Path(path).name != "uploads":
            super().sync_folder(path)


class NoTruncate(PowerDisk):
    """Does not truncate files."""

    def truncate(self, handle: int, size: int) -> None:
        pass


PARTIAL = "a part of an object"
MISSING = "a finished object is missing"
STILL_UPLOADING = "is still an upload"
NOT_RESUMABLE = "cannot be resumed"


@pytest.mark.parametrize(
    ("disk_class", "act", "message"),
    [
        (NoSync, upload_of_known_size, PARTIAL),
        (NoSync, upload_with_syncs, NOT_RESUMABLE),
        (NoFolderSync, upload_of_unknown_size, MISSING),
        (NoShardSync, upload_of_unknown_size, MISSING),
        (NoUploadsSync, upload_of_unknown_size, STILL_UPLOADING),
        (NoUploadsSync, upload_with_syncs, NOT_RESUMABLE),
        (NoFolderSync, resumed_after_finish, NOT_RESUMABLE),
        (NoSyncAfterHalfARename, resumed_after_half_a_rename, PARTIAL),
        (NoTruncate, upload_shorter_than_announced, PARTIAL),
        (NoTruncate, resumed_upload_without_sync, PARTIAL),
    ],
)
async def test_the_check_fails_on_a_disk_that_skips_a_sync_or_truncate(
    disk_class: type[PowerDisk], act: Callable[[Script], Awaitable[None]], message: str
) -> None:
    disk = await opened(disk_class())
    await run(act, disk)
    with pytest.raises(AssertionError, match=message):
        await check(disk)


# -- checks of possible states------------------------------------------------------------------------------------


async def opened(disk: PowerDisk) -> PowerDisk:
    """Return a disk on which the folder exists already."""
    plain = FakeDisk()
    store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=plain)
    await store.close()
    disk.root, disk.store_id = plain.root, store.store_id
    return disk


async def run(act: Callable[[Script], Awaitable[None]], disk: PowerDisk) -> None:
    """Run a script on a store on this disk."""
    store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=disk)
    await act(Script(store, disk))
    await store.close()


async def check(disk: PowerDisk) -> None:
    """Open the store on all possible states, and check them."""
    for tree, store_id, promises in disk.states:
        again = disk_of(tree)
        store = await LocalStore.open(DATA, clock=ManualClock(), syscalls=again)
        try:
            assert store_id in (None, store.store_id)
            for storage_key, promise in promises:
                await check_object(store, tree, storage_key, promise)
        finally:
            await store.close()
    print(f"{disk.steps} steps, {len(disk.states)} possible states")


async def check_object(store: LocalStore, tree: Tree, storage_key: str, promise: Promise) -> None:
    """Compare the state of an object with what was promised."""
    files = {path: data for path, _, data in tree if data is not None}
    final = files.get(f"{DATA}/blobs/{storage_key[-2:]}/{storage_key}")
    upload = files.get(f"{DATA}/blobs/uploads/{storage_key}")
    assert final in (None, promise.whole), "a part of an object is at its final name"
    if promise.finished:
        assert final is not None, "a finished object is missing"
        assert upload is None, "a finished object is still an upload"
        assert await read(store, storage_key, 0, len(final)) == final
    elif not promise.deleted:
        assert await finish(store, storage_key, promise.synced, b"end") == promise.synced + b"end"


async def finish(store: LocalStore, storage_key: str, synced: bytes, tail: bytes) -> bytes:
    """Resume and finish an upload, and return the bytes of the object."""
    try:
        writer = await store.resume(storage_key, offset=len(synced))
        await writer.write(tail)
        await writer.finish()
    except IngotError as error:
        raise AssertionError("a synced upload cannot be resumed") from error
    size = len(synced) + len(tail)
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, size + 1)
    return await read(store, storage_key, 0, size)
