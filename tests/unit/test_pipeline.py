"""The write pipeline hashes and stores bytes while the next ones arrive, with limited memory."""

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
async def test_pieces_are_stored_and_hashed_as_a_whole(tmp_path: Path, piece: int) -> None:
    data = random.Random(piece).randbytes(3 * PART_BYTES + 4711)
    store = await LocalStore.open(tmp_path, clock=ManualClock())
    storage_key, hasher, expected = store.new_storage_key(), Hasher(), Hasher()
    writer = await store.write(storage_key, size=len(data))
    async with WritePipeline(writer, hasher) as pipeline:
        for start in range(0, len(data), piece):
            await pipeline.write(data[start : start + piece])
        await pipeline.flush()
        assert pipeline.received_bytes == writer.offset == len(data)
    await writer.finish()
    expected.update_sync(data)
    assert (
        expected.content(storage_key=storage_key)
        == hasher.content(storage_key=storage_key)
        == await hash_object(store, storage_key, len(data))
    )
    await store.close()


class Sink:
    """A writer that waits for an event, and then writes or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.offset = 0
        self.resume = asyncio.Event()
        self.entered = asyncio.Event()
        self._error = error

    async def write(self, data: bytes) -> None:
        self.entered.set()
        await self.resume.wait()
        if self._error is not None:
            raise self._error
        self.offset += len(data)

    async def sync(self) -> None:
        pass

    async def finish(self) -> None:
        pass

    async def abort(self) -> None:
        pass


async def test_a_sender_that_is_faster_than_the_disk_waits() -> None:
    sink, accepted = Sink(), 0

    async def send(pipeline: WritePipeline) -> None:
        nonlocal accepted
        for _ in range(10):
            await pipeline.write(bytes(PART_BYTES))
            accepted += 1

    async with WritePipeline(sink, Hasher()) as pipeline:
        sending = asyncio.create_task(send(pipeline))
        await asyncio.wait_for(sink.entered.wait(), WAIT_SECONDS_MAX)
        await asyncio.wait([sending], timeout=0.05)
        assert accepted == 1
        assert pipeline.received_bytes == 2 * PART_BYTES
        sink.resume.set()
        await asyncio.wait_for(sending, WAIT_SECONDS_MAX)
        await pipeline.flush()
    assert sink.offset == 10 * PART_BYTES


async def test_a_write_error_is_raised_by_the_next_write_or_by_flush() -> None:
    for last in ("write", "flush"):
        sink = Sink(StorageFull())
        sink.resume.set()
        async with WritePipeline(sink, Hasher()) as pipeline:
            await pipeline.write(bytes(PART_BYTES))
            with pytest.raises(StorageFull):
                await (pipeline.write(bytes(PART_BYTES)) if last == "write" else pipeline.flush())


async def test_an_aborted_pipeline_leaves_no_running_task() -> None:
    sink = Sink(StorageFull())

    async def abort_early() -> None:
        async with WritePipeline(sink, Hasher()) as pipeline:
            await pipeline.write(bytes(PART_BYTES))
            await asyncio.wait_for(sink.entered.wait(), WAIT_SECONDS_MAX)
            asyncio.get_running_loop().call_soon(sink.resume.set)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await abort_early()
    assert asyncio.all_tasks() == {asyncio.current_task()}
