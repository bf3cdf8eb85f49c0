"""The scrub: a blob that cannot be read now is not damaged, and does not stop the scrub."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingot.blobs import scrub as scrub_module
from ingot.blobs.incoming import IncomingBlob
from ingot.blobs.ports import GetBlobMetrics, OpenKey
from ingot.blobs.scrub import RETRY_DELAY_MICROS, SCRUB_INTERVAL_MICROS, Scrub
from ingot.blobs.service import Blobs
from ingot.kernel.clock import MICROS, SystemClock
from ingot.objects.local import LocalStore
from tests.factories import Bench, open_bench

COUNT = 6


class UnreadableStore(LocalStore):
    """A folder in which some files cannot be opened. File modes would not do, because root can open all files."""

    unreadable: set[str] = set()  # noqa: RUF012 - set by each test

    async def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        if storage_key in self.unreadable:
            raise PermissionError(13, "Permission denied")
        async for part in super().read(storage_key, start, end):
            yield part


async def put(bench: Bench, objects: LocalStore, n: int) -> str:
    """Store a blob with a file and return its storage key."""

    async def parts() -> AsyncIterator[bytes]:
        yield b"%d" % n * 20_000

    await Blobs(bench.store, objects).put(f"{n}", parts(), IncomingBlob(tenant=bench.tenant, owner="token:ann"))
    key_and_content = await bench.store.run(OpenKey(tenant=bench.tenant, key=f"{n}"))
    assert key_and_content is not None
    storage_key = key_and_content[1].storage_key
    assert storage_key is not None
    return storage_key


async def test_the_scrub_continues_after_blobs_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "BATCH_BLOBS", 2)
    async with open_bench("sqlite", tmp_path) as bench:
        objects = await UnreadableStore.open(tmp_path / "blobs", clock=SystemClock())
        assert isinstance(objects, UnreadableStore)
        try:
            storage_keys = []
            for n in range(COUNT):
                bench.clock.advance(seconds=1)
                storage_keys.append(await put(bench, objects, n))
            objects.unreadable = set(storage_keys[:3])
            bench.clock.advance(seconds=SCRUB_INTERVAL_MICROS / MICROS + 1)
            scrub = Scrub(bench.store, objects, bench.clock, bytes_per_second=0)
            with capture_logs() as logs:
                assert [await scrub.run_once() for _ in range(5)] == [0, 1, 2, 0, 0]
            assert [line["event"] for line in logs] == ["blob_not_read"] * 3
            metrics = await bench.store.run(GetBlobMetrics())
            assert (metrics.damaged, metrics.blobs) == (0, COUNT)
            objects.unreadable = set()
            bench.clock.advance(seconds=RETRY_DELAY_MICROS / MICROS)
            assert [await scrub.run_once() for _ in range(3)] == [2, 1, 0]
        finally:
            await objects.close()
