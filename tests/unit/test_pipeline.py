"""Bytes are hashed and stored while the next ones arrive, and no more are held than that takes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ingot.blobs.hashing import Hasher, hash_object
from ingot.blobs.model import PART_BYTES
from ingot.blobs.pipeline import WritePipeline
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StorageFull
from ingot.objects.local import LocalStore

WAIT_SECONDS_MAX = 30.0


@pytest.mark.parametrize("piece", [777, 65_536, PART_BYTES, 2 * PART_BYTES + 1])
async def test_what_comes_in_pieces_is_stored_and_hashed_whole(tmp_path: Path, piece: int) -> None:
    data = random.Random(piece).randbytes(3 * PART_BYTES + 4711)
    store = await LocalStore.open(tmp_path, clock=ManualClock())
    place, hasher, once = store.new_storage_key(), Hasher(), Hasher()
    writer = await store.write(place, size=len(data))
    async with WritePipeline(writer, hasher) as pipeline:
        for start in range(0, len(data), piece):
            await pipeline.write(data[start : start + piece])
        await pipeline.flush()
        assert pipeline.received_bytes == writer.offset == len(data)
    await writer.finish()
    once.update_sync(data)
    assert (
        once.content(storage_key=place)
        == hasher.content(storage_key=place)
        == await hash_object(store, place, len(data))
    )
    await store.close()


class Sink:
    """A writer that goes on when it is told, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.offset = 0
        self.go_on = asyncio.Event()
        self.entered = asyncio.Event()
        self._error = error

    async def write(self, data: bytes) -> None:
        self.entered.set()
        await self.go_on.wait()
        if self._error is not None:
            raise self._error
        self.offset += len(data)

    async def sync(self) -> None:
        pass

    async def finish(self) -> None:
        pass

    async def abort(self) -> None:
        pass


async def test_who_sends_faster_than_the_disk_writes_waits() -> None:
    sink, taken = Sink(), 0

    async def send(pipeline: WritePipeline) -> None:
        nonlocal taken
        for _ in range(10):
            await pipeline.write(bytes(PART_BYTES))
            taken += 1

    async with WritePipeline(sink, Hasher()) as pipeline:
        sending = asyncio.create_task(send(pipeline))
        await asyncio.wait_for(sink.entered.wait(), WAIT_SECONDS_MAX)
        await asyncio.wait([sending], timeout=0.05)
        assert taken == 1
        assert pipeline.received_bytes == 2 * PART_BYTES
        sink.go_on.set()
        await asyncio.wait_for(sending, WAIT_SECONDS_MAX)
        await pipeline.flush()
    assert sink.offset == 10 * PART_BYTES


async def test_a_failure_is_told_with_the_next_bytes_or_at_the_end() -> None:
    for last in ("take", "drain"):
        sink = Sink(StorageFull())
        sink.go_on.set()
        async with WritePipeline(sink, Hasher()) as pipeline:
            await pipeline.write(bytes(PART_BYTES))
            with pytest.raises(StorageFull):
                await (pipeline.write(bytes(PART_BYTES)) if last == "take" else pipeline.flush())


async def test_whoever_leaves_early_leaves_nothing_under_way() -> None:
    sink = Sink(StorageFull())

    async def break_off() -> None:
        async with WritePipeline(sink, Hasher()) as pipeline:
            await pipeline.write(bytes(PART_BYTES))
            await asyncio.wait_for(sink.entered.wait(), WAIT_SECONDS_MAX)
            asyncio.get_running_loop().call_soon(sink.go_on.set)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await break_off()
    assert asyncio.all_tasks() == {asyncio.current_task()}
