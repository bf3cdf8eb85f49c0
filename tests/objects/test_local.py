"""The blob folder: who may use it, which one it is, what is found in it, and callers that are canceled."""

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
from tests.conformance.objects import put, read
from tests.waiting import SECONDS_MAX

LARGE_PARTS = 48


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    """A store in `data`."""
    store = await LocalStore.open(tmp_path / "data", clock=ManualClock())
    yield store
    await store.close()


def files_in(folder: Path) -> list[Path]:
    """Everything below the blob folder that could be an object."""
    return [path for path in (folder / "blobs").rglob("*") if path.is_file() and not path.name.startswith("store.")]


async def test_a_folder_has_one_process(tmp_path: Path, store: LocalStore) -> None:
    with pytest.raises(StoreLocked):
        await LocalStore.open(tmp_path / "data", clock=ManualClock())
    await store.close()
    again = await LocalStore.open(tmp_path / "data", clock=ManualClock())
    await again.close()


def descriptor_of(file: Path) -> int:
    """The descriptor with which this process has a file open."""
    (found,) = (one for one in Path("/proc/self/fd").iterdir() if one.resolve() == file.resolve())
    return int(found.name)


async def test_a_forked_child_does_not_keep_the_folder(tmp_path: Path, store: LocalStore) -> None:
    inherited = os.dup(descriptor_of(tmp_path / "data/blobs/store.lock"))
    await store.close()
    again = await LocalStore.open(tmp_path / "data", clock=ManualClock())
    await again.close()
    os.close(inherited)


async def test_a_folder_keeps_its_id_and_no_two_have_the_same(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "one", "other"):
        store = await LocalStore.open(tmp_path / name, clock=ManualClock())
        ids.append(store.store_id)
        await store.close()
    assert ids[0] == ids[1] != ids[2]


async def test_a_folder_whose_id_is_damaged_is_refused(tmp_path: Path, store: LocalStore) -> None:
    await store.close()
    for text in ("", store.store_id[:-3], "x" * 4000):
        (tmp_path / "data/blobs/store.id").write_text(text)
        with pytest.raises(StoreMisconfigured):
            await LocalStore.open(tmp_path / "data", clock=ManualClock())
    (tmp_path / "data/blobs/store.id").write_text(store.store_id)
    await (await LocalStore.open(tmp_path / "data", clock=ManualClock())).close()


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StoreMisconfigured):
        await LocalStore.open(tmp_path / "file", clock=ManualClock())


async def test_only_we_can_look_into_the_folder(tmp_path: Path, store: LocalStore) -> None:
    await put(store, b"secret")
    for path in (tmp_path / "data/blobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


async def test_objects_are_spread_over_the_shelves(tmp_path: Path, store: LocalStore) -> None:
    shelves = {store.new_storage_key()[-2:] for _ in range(5000)}
    assert shelves == set(SHARD_FOLDERS)
    storage_key = await put(store, b"there")
    assert [path.relative_to(tmp_path / "data/blobs") for path in files_in(tmp_path / "data")] == [
        Path(storage_key[-2:], storage_key)
    ]


@pytest.mark.parametrize("storage_key", ["", "..", "../../etc/passwd", "a/b", "0" * 36, "store.id", "\0", "x" * 5000])
async def test_what_is_no_place_is_no_path(tmp_path: Path, store: LocalStore, storage_key: str) -> None:
    with pytest.raises(StoreError):
        await store.write(storage_key, size=1)
    with pytest.raises(StoreError):
        await store.resume(storage_key, offset=0)
    with pytest.raises(StoreError):
        await store.delete(TrashedObject(storage_key=storage_key))
    with pytest.raises(StoreError):
        await read(store, storage_key, 0, 1)
    assert files_in(tmp_path / "data") == []


async def test_a_link_is_not_followed(tmp_path: Path, store: LocalStore) -> None:
    storage_key = store.new_storage_key()
    (tmp_path / "elsewhere").write_text("elsewhere")
    (tmp_path / "data/blobs" / storage_key[-2:] / storage_key).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        await read(store, storage_key, 0, 9)


async def test_every_file_is_found_with_its_age(tmp_path: Path) -> None:
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
    found = dict([each async for each in store.list_objects()])
    assert found.keys() == set(storage_keys)
    assert all(0 <= age <= 5_000_000 for age in found.values())
    assert len(set(found.values())) == 4
    for storage_key in storage_keys:
        await store.delete(TrashedObject(storage_key=storage_key))
    assert [each async for each in store.list_objects()] == []
    await store.close()


async def test_room_is_taken_before_bytes_are_sent(tmp_path: Path, store: LocalStore) -> None:
    writer = await store.write(store.new_storage_key(), size=3 * PART_BYTES)
    (path,) = files_in(tmp_path / "data")
    assert path.stat().st_blocks * 512 >= 3 * PART_BYTES
    await writer.abort()


async def test_one_that_was_finished_but_not_named_goes_on(tmp_path: Path, store: LocalStore) -> None:
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


async def test_a_writer_that_ended_says_why(store: LocalStore) -> None:
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


async def test_a_deleted_object_is_read_to_its_end(store: LocalStore) -> None:
    data = os.urandom(3 * PART_BYTES)
    storage_key = await put(store, data)
    parts = store.read(storage_key, 0, len(data))
    got = [bytes(await anext(parts))]
    await store.delete(TrashedObject(storage_key=storage_key))
    got += [bytes(part) async for part in parts]
    assert b"".join(got) == data
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


class SlowFiles(Syscalls):
    """Holds every call of one kind until it is told to go on, and forgets what is in memory."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.open_now: set[int] = set()
        self._slow = slow

    def _wait(self, what: str) -> None:
        if what == self._slow:
            self.entered.set()
            assert self.go_on.wait(SECONDS_MAX)

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
    files = SlowFiles(slow)
    files.go_on.set()
    store = await LocalStore.open(tmp_path / "data", clock=ManualClock(), syscalls=files)
    files.entered.clear()
    files.go_on.clear()
    calling = asyncio.create_task(put(store, b"new") if slow in ("create", "write") else read(store, storage_key, 0, 5))
    assert await asyncio.to_thread(files.entered.wait, SECONDS_MAX)
    calling.cancel()
    with suppress(asyncio.CancelledError):
        await calling
    assert calling.cancelled()
    files.go_on.set()
    await store.close()
    assert files.open_now == set()


async def test_a_reader_that_is_gone_before_the_file_is_open_opens_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("there")
    files = SlowFiles("nothing")
    source = LocalReader(files, str(tmp_path / "file"))
    source.close()
    source.open()
    assert files.open_now == set()


async def test_who_goes_on_waits_for_the_write_under_way(tmp_path: Path) -> None:
    files = SlowFiles("write")
    files.go_on.set()
    store = await LocalStore.open(tmp_path / "data", clock=ManualClock(), syscalls=files)
    storage_key = store.new_storage_key()
    old = await store.write(storage_key, size=None)
    files.entered.clear()
    files.go_on.clear()
    late = asyncio.create_task(old.write(b"of the old one"))
    assert await asyncio.to_thread(files.entered.wait, SECONDS_MAX)
    going_on = asyncio.create_task(store.resume(storage_key, offset=0))
    done, _ = await asyncio.wait([going_on], timeout=0.05)
    assert not done
    files.go_on.set()
    new = await going_on
    await late
    await new.write(b"new")
    await new.finish()
    assert await read(store, storage_key, 0, 3) == b"new"
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 4)
    await store.close()
