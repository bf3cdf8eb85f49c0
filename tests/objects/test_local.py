"""The object store in a folder: locking, identity, listing, resuming, and canceled callers."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from ingot.blobs.errors import BlobDamaged, UploadEnded, UploadTaken
from ingot.blobs.hashing import Hasher, hash_object, read_verified
from ingot.blobs.model import PART_BYTES, TrashedObject
from ingot.blobs.pipeline import WritePipeline
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StoreError, StoreLocked, StoreMisconfigured
from ingot.objects.layout import SHARD_FOLDERS
from ingot.objects.local import LocalReader, LocalStore
from ingot.objects.syscalls import Syscalls
from tests.conformance.object_stores import put, read
from tests.waiting import SECONDS_MAX

LARGE_PARTS = 48


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    """Open a store in `data`."""
    store = await LocalStore.open(tmp_path / "data", clock=ManualClock())
    yield store
    await store.close()


def files_in(folder: Path) -> list[Path]:
    """Return all files below the blob folder that could be objects."""
    return [path for path in (folder / "blobs").rglob("*") if path.is_file() and not path.name.startswith("store.")]


async def test_only_one_process_can_open_a_folder(tmp_path: Path, store: LocalStore) -> None:
    with pytest.raises(StoreLocked):
        await LocalStore.open(tmp_path / "data", clock=ManualClock())
    await store.close()
    again = await LocalStore.open(tmp_path / "data", clock=ManualClock())
    await again.close()


def descriptor_of(file: Path) -> int:
    """Return the descriptor with which this process has a file open."""
    (descriptor,) = (path for path in Path("/proc/self/fd").iterdir() if path.resolve() == file.resolve())
    return int(descriptor.name)


async def test_a_forked_child_does_not_keep_the_folder_locked(tmp_path: Path, store: LocalStore) -> None:
    inherited = os.dup(descriptor_of(tmp_path / "data/blobs/store.lock"))
    await store.close()
    again = await LocalStore.open(tmp_path / "data", clock=ManualClock())
    await again.close()
    os.close(inherited)


async def test_a_folder_keeps_its_id_and_no_two_folders_share_one(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "one", "other"):
        store = await LocalStore.open(tmp_path / name, clock=ManualClock())
        ids.append(store.store_id)
        await store.close()
    assert ids[0] == ids[1] != ids[2]


async def test_a_folder_whose_id_is_damaged_is_rejected(tmp_path: Path, store: LocalStore) -> None:
    await store.close()
    for text in ("", store.store_id[:-3], "x" * 4000):
        (tmp_path / "data/blobs/store.id").write_text(text)
        with pytest.raises(StoreMisconfigured):
            await LocalStore.open(tmp_path / "data", clock=ManualClock())
    (tmp_path / "data/blobs/store.id").write_text(store.store_id)
    await (await LocalStore.open(tmp_path / "data", clock=ManualClock())).close()


async def test_a_folder_that_cannot_be_created_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreMisconfigured):
        await LocalStore.open(tmp_path / "file", clock=ManualClock())


async def test_only_the_owner_can_access_the_folder(tmp_path: Path, store: LocalStore) -> None:
    await put(store, b"secret")
    for path in (tmp_path / "data/blobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


async def test_objects_are_spread_over_the_shard_folders(tmp_path: Path, store: LocalStore) -> None:
    shards = {store.new_storage_key()[-2:] for _ in range(5000)}
    assert shards == set(SHARD_FOLDERS)
    storage_key = await put(store, b"there")
    assert [path.relative_to(tmp_path / "data/blobs") for path in files_in(tmp_path / "data")] == [
        Path(storage_key[-2:], storage_key)
    ]


@pytest.mark.parametrize("storage_key", ["", "..", "../../etc/passwd", "a/b", "0" * 36, "store.id", "\0", "x" * 5000])
async def test_an_invalid_storage_key_is_rejected(tmp_path: Path, store: LocalStore, storage_key: str) -> None:
    with pytest.raises(StoreError):
        await store.write(storage_key, size=1)
    with pytest.raises(StoreError):
        await store.resume(storage_key, offset=0)
    with pytest.raises(StoreError):
        await store.delete(TrashedObject(storage_key=storage_key))
    with pytest.raises(StoreError):
        await read(store, storage_key, 0, 1)
    assert files_in(tmp_path / "data") == []


async def test_a_symbolic_link_is_not_followed(tmp_path: Path, store: LocalStore) -> None:
    storage_key = store.new_storage_key()
    (tmp_path / "elsewhere").write_text("elsewhere")
    (tmp_path / "data/blobs" / storage_key[-2:] / storage_key).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        await read(store, storage_key, 0, 9)


async def test_every_object_is_listed_with_its_age(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await LocalStore.open(tmp_path / "data", clock=clock)
    finished = [await put(store, b"finished") for _ in range(3)]
    writer = await store.write(store.new_storage_key(), size=100)
    await writer.abort()
    (tmp_path / "data/blobs/aa/notes.txt").write_text("not ours")
    storage_keys = [*finished, writer.storage_key]
    for number, path in enumerate(sorted(files_in(tmp_path / "data"))):
        if path.name in storage_keys:
            seconds = clock.micros() // 1_000_000 - number
            os.utime(path, (seconds, seconds))
    ages = dict([key_and_age async for key_and_age in store.list_objects()])
    assert ages.keys() == set(storage_keys)
    assert all(0 <= age <= 5_000_000 for age in ages.values())
    assert len(set(ages.values())) == 4
    for storage_key in storage_keys:
        await store.delete(TrashedObject(storage_key=storage_key))
    assert [key_and_age async for key_and_age in store.list_objects()] == []
    await store.close()


async def test_disk_space_is_reserved_before_bytes_are_written(tmp_path: Path, store: LocalStore) -> None:
    writer = await store.write(store.new_storage_key(), size=3 * PART_BYTES)
    (path,) = files_in(tmp_path / "data")
    assert path.stat().st_blocks * 512 >= 3 * PART_BYTES
    await writer.abort()


async def test_a_finished_object_that_no_row_names_can_be_resumed(tmp_path: Path, store: LocalStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    await writer.write(b"synced")
    await writer.sync()
    await writer.write(b" and finished")
    await writer.finish()
    writer = await store.resume(storage_key, offset=6)
    assert [path.parent.name for path in files_in(tmp_path / "data")] == ["uploads"]
    await writer.write(b" again")
    await writer.finish()
    assert await read(store, storage_key, 0, 12) == b"synced again"


async def test_an_ended_writer_raises_the_reason(store: LocalStore) -> None:
    storage_keys = [store.new_storage_key() for _ in range(4)]
    taken, finished, deleted, closed = [await store.write(storage_key, size=None) for storage_key in storage_keys]
    await store.resume(storage_keys[0], offset=0)
    await finished.finish()
    await store.delete(TrashedObject(storage_key=storage_keys[2]))
    for writer, error in ((taken, UploadTaken), (finished, UploadEnded), (deleted, UploadEnded)):
        for call in (writer.write(b"late"), writer.sync(), writer.finish()):
            with pytest.raises(error):
                await call
    await store.close()
    with pytest.raises(StoreError):
        await closed.write(b"late")
    with pytest.raises(StoreError):
        await read(store, storage_keys[1], 0, 0)


async def test_an_open_reader_reads_a_deleted_object_to_its_end(store: LocalStore) -> None:
    data = os.urandom(3 * PART_BYTES)
    storage_key = await put(store, data)
    parts = store.read(storage_key, 0, len(data))
    chunks = [bytes(await anext(parts))]
    await store.delete(TrashedObject(storage_key=storage_key))
    chunks += [bytes(part) async for part in parts]
    assert b"".join(chunks) == data
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 1)


async def test_a_large_object_is_stored_and_read_in_constant_memory(store: LocalStore) -> None:
    storage_key, hasher, part = store.new_storage_key(), Hasher(), os.urandom(PART_BYTES)
    tracemalloc.start()
    try:
        writer = await store.write(storage_key, size=LARGE_PARTS * PART_BYTES)
        async with WritePipeline(writer, hasher) as pipeline:
            for _ in range(LARGE_PARTS * 16):
                await pipeline.write(bytes(PART_BYTES // 16 - 1) + part[:1])
            await pipeline.flush()
        await writer.finish()
        content = hasher.content(storage_key=storage_key)
        assert await hash_object(store, storage_key, content.size) == content
        async for _ in read_verified(store, content, 1, content.size - 1):
            pass
        assert tracemalloc.get_traced_memory()[1] < 8 * PART_BYTES
    finally:
        tracemalloc.stop()


class SlowSyscalls(Syscalls):
    """System calls of which one kind waits until the test continues it. Nothing is in the page cache."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.entered, self.continued = threading.Event(), threading.Event()
        self.open_now: set[int] = set()
        self._slow = slow

    def _wait(self, call: str) -> None:
        if call == self._slow:
            self.entered.set()
            assert self.continued.wait(SECONDS_MAX)

    def create(self, path: str) -> int:
        self._wait("create")
        return self._opened(super().create(path))

    def open(self, path: str, *, writing: bool = False) -> int:
        self._wait("open")
        return self._opened(super().open(path, writing=writing))

    def close(self, handle: int) -> None:
        self.open_now.discard(handle)
        super().close(handle)

    def write(self, handle: int, data: memoryview, offset: int) -> int:
        self._wait("write")
        return super().write(handle, data, offset)

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        self._wait("read")
        return super().read(handle, into, offset)

    def read_cached(self, handle: int, into: memoryview, offset: int) -> int:
        return 0

    def _opened(self, handle: int) -> int:
        self.open_now.add(handle)
        return handle


@pytest.mark.parametrize("slow", ["create", "write", "open", "read"])
async def test_a_canceled_caller_leaves_no_file_open(tmp_path: Path, slow: str) -> None:
    plain = await LocalStore.open(tmp_path / "data", clock=ManualClock())
    storage_key = await put(plain, b"there")
    await plain.close()
    syscalls = SlowSyscalls(slow)
    syscalls.continued.set()
    store = await LocalStore.open(tmp_path / "data", clock=ManualClock(), syscalls=syscalls)
    syscalls.entered.clear()
    syscalls.continued.clear()
    calling = asyncio.create_task(put(store, b"new") if slow in ("create", "write") else read(store, storage_key, 0, 5))
    assert await asyncio.to_thread(syscalls.entered.wait, SECONDS_MAX)
    calling.cancel()
    with suppress(asyncio.CancelledError):
        await calling
    assert calling.cancelled()
    syscalls.continued.set()
    await store.close()
    assert syscalls.open_now == set()


async def test_a_reader_that_is_closed_before_it_opens_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("there")
    syscalls = SlowSyscalls("nothing")
    reader = LocalReader(syscalls, str(tmp_path / "file"))
    reader.close()
    reader.open()
    assert syscalls.open_now == set()


async def test_resume_waits_for_the_running_write(tmp_path: Path) -> None:
    syscalls = SlowSyscalls("write")
    syscalls.continued.set()
    store = await LocalStore.open(tmp_path / "data", clock=ManualClock(), syscalls=syscalls)
    storage_key = store.new_storage_key()
    old_writer = await store.write(storage_key, size=None)
    syscalls.entered.clear()
    syscalls.continued.clear()
    late_write = asyncio.create_task(old_writer.write(b"of the old one"))
    assert await asyncio.to_thread(syscalls.entered.wait, SECONDS_MAX)
    resuming = asyncio.create_task(store.resume(storage_key, offset=0))
    done, _ = await asyncio.wait([resuming], timeout=0.05)
    assert not done
    syscalls.continued.set()
    new_writer = await resuming
    await late_write
    await new_writer.write(b"new")
    await new_writer.finish()
    assert await read(store, storage_key, 0, 3) == b"new"
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 4)
    await store.close()
