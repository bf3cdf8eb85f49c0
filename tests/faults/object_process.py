"""A process that stores, resumes and deletes objects until it is killed, and records each step before and after it."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import traceback
from pathlib import Path

import msgspec
from blake3 import blake3

from ingot.blobs.model import TrashedObject
from ingot.kernel.clock import SystemClock
from ingot.objects.local import LocalStore
from ingot.objects.local_writer import LocalWriter

SIZES = (1, 20_000, 300_000, 1 << 20, (1 << 20) + 7, 2_500_000)
WRITERS = 4
STORED_OBJECTS_MAX = 24

Line = tuple[str, str, int]  # The step, the storage key, and a number of bytes.


class ObjectPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The task of one process: the stored objects, and the unfinished uploads with the number of synced bytes."""

    folder: Path
    history: Path
    output: Path
    seed: int
    stored: list[str]
    unfinished: dict[str, int]


def bytes_of(storage_key: str, start: int, end: int) -> bytes:
    """Return the bytes of an object, which are derived from its storage key."""
    return blake3(storage_key.encode()).digest(length=end - start, seek=start) if end > start else b""


def work(plan: ObjectPlan) -> None:
    """Run the process. Its output goes to a file, so that a test can print it."""
    output = os.open(plan.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        asyncio.run(Work(plan).run())
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Work:
    """Stores and deletes several objects at a time."""

    def __init__(self, plan: ObjectPlan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._stored = [*plan.stored]
        self._unfinished = [*plan.unfinished.items()]
        self._history = os.open(plan.history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._history, b"\n")  # Ends a line that a kill has truncated.

    async def run(self) -> None:
        """Work until the process is killed."""
        self._store = await LocalStore.open(self._plan.folder, clock=SystemClock())
        await asyncio.gather(*(self._work() for _ in range(WRITERS)))

    async def _work(self) -> None:
        while True:
            if self._unfinished:
                storage_key, synced_bytes = self._unfinished.pop()
                if self._random.random() < 0.2:
                    await self._delete(storage_key)
                else:
                    await self._send(await self._store.resume(storage_key, offset=synced_bytes), synced_bytes)
            elif len(self._stored) > self._random.randrange(STORED_OBJECTS_MAX):
                await self._delete(self._stored.pop(self._random.randrange(len(self._stored))))
            else:
                storage_key, size = self._store.new_storage_key(), self._random.choice(SIZES)
                self._record("begin", storage_key, size)
                await self._send(await self._store.write(storage_key, size=self._random.choice((size, None))), 0)

    async def _send(self, writer: LocalWriter, synced_bytes: int) -> None:
        size = max(synced_bytes, self._random.choice(SIZES))
        while writer.offset < size:
            end = min(size, writer.offset + self._random.choice((1, 5_000, 100_000, 1 << 20)))
            await writer.write(bytes_of(writer.storage_key, writer.offset, end))
            if self._random.random() < 0.3:
                await writer.sync()
                self._record("kept", writer.storage_key, writer.offset)
        self._record("finishing", writer.storage_key, size)
        await writer.finish()
        self._record("finished", writer.storage_key, size)
        self._stored.append(writer.storage_key)

    async def _delete(self, storage_key: str) -> None:
        self._record("deleting", storage_key, 0)
        await self._store.delete(TrashedObject(storage_key=storage_key))
        self._record("deleted", storage_key, 0)

    def _record(self, step: str, storage_key: str, count: int) -> None:
        os.write(self._history, msgspec.json.encode((step, storage_key, count)) + b"\n")
