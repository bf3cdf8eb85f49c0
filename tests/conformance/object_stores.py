"""The object stores that the conformance suite runs on: a name, and what opens one in a folder.

A store is empty and open inside the block. What it needs beside the folder, such as a server, is started by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from ingot.blobs.ports import ObjectStore
from ingot.kernel.clock import Clock, SystemClock
from ingot.objects.local import LocalStore
from ingot.objects.s3 import BucketStore
from tests.s3 import open_bucket


@asynccontextmanager
async def open_local(folder: Path, clock: Clock | None = None) -> AsyncIterator[ObjectStore]:
    """A blob folder."""
    store = await LocalStore.open(folder, clock=clock or SystemClock())
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_s3(_: Path, clock: Clock | None = None) -> AsyncIterator[ObjectStore]:
    """A folder in a bucket."""
    async with open_bucket(clock=clock or SystemClock()) as store:
        yield store


STORES: dict[str, Callable[..., AbstractAsyncContextManager[ObjectStore]]] = {"local": open_local, "s3": open_s3}


def skip_unless_it_resumes(store: ObjectStore) -> None:
    """For tests of uploads through us that go on where they stopped."""
    if isinstance(store, BucketStore):
        pytest.skip("A bucket keeps no part below 5 MiB: there, what is to go on goes in signed parts.")


async def put(store: ObjectStore, data: bytes, *, piece: int = 1 << 20, storage_key: str | None = None) -> str:
    """Store an object, and answer its place."""
    storage_key = storage_key or store.new_storage_key()
    writer = await store.write(storage_key, size=len(data))
    for start in range(0, len(data), piece):
        await writer.write(data[start : start + piece])
    await writer.finish()
    return storage_key


async def read(store: ObjectStore, storage_key: str, start: int, end: int) -> bytes:
    """Read an object."""
    return b"".join([part async for part in store.read(storage_key, start, end)])
