"""The process of many who store small blobs at once: over HTTP, in a store of its own, or each in a file."""

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

SHELVES: Final = 256


class PutLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Who stores what, and for how long."""

    what: str
    at_once: int
    bytes: int
    seconds: float
    port: int = 0
    token: str = ""
    folder: str = ""


class PutConnection(LoadConnection):
    """One connection: a put of a new key with new bytes, over and over."""

    def __init__(self, order: PutLoad, numbers: count[int], meter: ResponseMeter) -> None:
        super().__init__(b"", meter)
        self._order, self._numbers = order, numbers

    def _ask(self) -> None:
        order = self._order
        head = (
            f"PUT /api/v1/keys/small/{next(self._numbers):09} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"authorization: Bearer {order.token}\r\ncontent-length: {order.bytes}\r\n\r\n"
        )
        self._text = head.encode() + os.urandom(order.bytes)
        super()._ask()


async def put(order: PutLoad) -> LoadResult:
    """Over HTTP."""
    loop = asyncio.get_running_loop()
    meter, numbers = ResponseMeter(), count(time.time_ns() // 1_000_000 % 1_000_000 * 1000)
    for _ in range(order.at_once):
        await loop.create_connection(lambda: PutConnection(order, numbers, meter), "127.0.0.1", order.port)
    over = await meter.count(order.seconds)
    await asyncio.sleep(0.2)
    return meter.figures(over)


async def put_inside(order: PutLoad) -> LoadResult:
    """In a store that this process has open, as `ingot.open` gives it: without HTTP, like the files."""
    meter, numbers = ResponseMeter(), count()

    async def one(ingot: Ingot) -> None:
        arrival = IncomingBlob(tenant=ingot.default_tenant.id, owner="bench", size=order.bytes)
        while meter.running:
            data = os.urandom(order.bytes)
            began = time.perf_counter()
            await ingot.blobs.put(f"small/{next(numbers):09}", _only(data), arrival)
            if meter.counting:
                meter.seconds.append(time.perf_counter() - began)

    async with services.open(settings=Settings(data=Path(order.folder) / "data")) as ingot:
        putting = [asyncio.create_task(one(ingot)) for _ in range(order.at_once)]
        over = await meter.count(order.seconds)
        await asyncio.gather(*putting)
    return meter.figures(over)


async def _only(data: bytes) -> AsyncIterator[bytes]:
    yield data


def files(order: PutLoad) -> LoadResult:
    """In files: each is written, synced, renamed, and its folder synced. The folders are there already."""
    shelves = [Path(order.folder) / f"{number:02x}" for number in range(SHELVES)]
    for shelf in shelves:
        shelf.mkdir()
    meter = ResponseMeter()

    def one() -> None:
        while meter.running:
            data = os.urandom(order.bytes)
            name = data[:16].hex()
            began = time.perf_counter()
            store(shelves[data[0]], name, data)
            if meter.counting:
                meter.seconds.append(time.perf_counter() - began)

    threads = [threading.Thread(target=one) for _ in range(order.at_once)]
    for thread in threads:
        thread.start()
    time.sleep(WARM_SECONDS)
    meter.counting = True
    began = time.perf_counter()
    time.sleep(order.seconds)
    meter.counting = False
    over = time.perf_counter() - began
    meter.running = False
    for thread in threads:
        thread.join()
    return meter.figures(over)


def store(shelf: Path, name: str, data: bytes) -> None:
    """A blob that survives the loss of power when this returns."""
    part = f"{shelf}/{name}.part"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(file, data)
    os.fsync(file)
    os.close(file)
    os.rename(part, f"{shelf}/{name}")
    folder = os.open(shelf, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def main() -> LoadResult:
    """What was ordered."""
    order = msgspec.json.decode(sys.argv[1], type=PutLoad)
    if order.what == "files":
        return files(order)
    uvloop: Any = component("uvloop")
    found: LoadResult = uvloop.run(put_inside(order) if order.what == "inside" else put(order))
    return found


if __name__ == "__main__":
    print(msgspec.json.encode(main()).decode())
