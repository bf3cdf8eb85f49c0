"""The process that stores many small blobs concurrently: over HTTP, in its own store, or in one file each."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.queue.adapter import component
from benchmarks.server.load import WARM_SECONDS, LoadConnection, LoadResult, ResponseMeter
from ingot.blobs.incoming import IncomingBlob
from ingot.settings import Settings
from ingot.wiring import services
from ingot.wiring.services import Ingot

FOLDERS: Final = 256


class PutLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The blobs to store, how many at a time, and for how long."""

    what: str
    at_once: int
    bytes: int
    seconds: float
    port: int = 0
    token: str = ""
    folder: str = ""


class PutConnection(LoadConnection):
    """A connection that repeatedly puts a new key with new bytes."""

    def __init__(self, load: PutLoad, numbers: count[int], meter: ResponseMeter) -> None:
        super().__init__(b"", meter)
        self._load, self._numbers = load, numbers

    def _send(self) -> None:
        load = self._load
        head = (
            f"PUT /api/v1/keys/small/{next(self._numbers):09} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"authorization: Bearer {load.token}\r\ncontent-length: {load.bytes}\r\n\r\n"
        )
        self._request = head.encode() + os.urandom(load.bytes)
        super()._send()


async def put(load: PutLoad) -> LoadResult:
    """Store keys over HTTP."""
    loop = asyncio.get_running_loop()
    meter, numbers = ResponseMeter(), count(time.time_ns() // 1_000_000 % 1_000_000 * 1000)
    for _ in range(load.at_once):
        await loop.create_connection(lambda: PutConnection(load, numbers, meter), "127.0.0.1", load.port)
    seconds = await meter.count(load.seconds)
    await asyncio.sleep(0.2)
    return meter.result(seconds)


async def put_inside(load: PutLoad) -> LoadResult:
    """Store keys in a store that this process has opened with `ingot.open`, without HTTP."""
    meter, numbers = ResponseMeter(), count()

    async def call(ingot: Ingot) -> None:
        incoming = IncomingBlob(tenant=ingot.default_tenant.id, owner="bench", size=load.bytes)
        while meter.running:
            data = os.urandom(load.bytes)
            began = time.perf_counter()
            await ingot.blobs.put(f"small/{next(numbers):09}", _stream(data), incoming)
            if meter.counting:
                meter.seconds.append(time.perf_counter() - began)

    async with services.open(settings=Settings(data=Path(load.folder) / "data")) as ingot:
        tasks = [asyncio.create_task(call(ingot)) for _ in range(load.at_once)]
        seconds = await meter.count(load.seconds)
        await asyncio.gather(*tasks)
    return meter.result(seconds)


async def _stream(data: bytes) -> AsyncIterator[bytes]:
    yield data


def files(load: PutLoad) -> LoadResult:
    """Write one file per blob: write, sync, rename, sync the folder. The folders exist already."""
    folders = [Path(load.folder) / f"{number:02x}" for number in range(FOLDERS)]
    for folder in folders:
        folder.mkdir()
    meter = ResponseMeter()

    def call() -> None:
        while meter.running:
            data = os.urandom(load.bytes)
            name = data[:16].hex()
            began = time.perf_counter()
            store(folders[data[0]], name, data)
            if meter.counting:
                meter.seconds.append(time.perf_counter() - began)

    threads = [threading.Thread(target=call) for _ in range(load.at_once)]
    for thread in threads:
        thread.start()
    time.sleep(WARM_SECONDS)
    meter.counting = True
    began = time.perf_counter()
    time.sleep(load.seconds)
    meter.counting = False
    seconds = time.perf_counter() - began
    meter.running = False
    for thread in threads:
        thread.join()
    return meter.result(seconds)


def store(folder: Path, name: str, data: bytes) -> None:
    """Write a file that is durable when this returns."""
    partial_path = f"{folder}/{name}.part"
    file = os.open(partial_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
    os.rename(partial_path, f"{folder}/{name}")
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> LoadResult:
    """Run the requested load."""
    load = msgspec.json.decode(sys.argv[1], type=PutLoad)
    if load.what == "files":
        return files(load)
    uvloop: Any = component("uvloop")
    result: LoadResult = uvloop.run(put_inside(load) if load.what == "inside" else put(load))
    return result


if __name__ == "__main__":
    print(msgspec.json.encode(main()).decode())
