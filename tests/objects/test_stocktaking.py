"""The stocktaking: objects that no row names go when they are old, and nothing else ever does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from structlog.testing import capture_logs

import ingot
from ingot.blobs import orphan_sweep
from ingot.blobs.counters import BlobCounters
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.incoming import UPLOAD_LIFETIME_MICROS, IncomingBlob
from ingot.blobs.model import INLINE_BYTES_MAX
from ingot.blobs.orphan_sweep import ORPHAN_AGE_MICROS, OrphanSweep
from ingot.blobs.ports import FinishUpload, ObjectStore
from ingot.blobs.service import Blobs
from ingot.blobs.uploads import Uploads, UploadWithPlan
from ingot.kernel.clock import MICROS, ManualClock
from ingot.kernel.commands import Command, Store
from ingot.kernel.errors import StoreError, StoreMisconfigured
from ingot.objects.local import LocalStore
from ingot.objects.s3 import WRITE_URL_SECONDS, BucketStore
from ingot.settings import Settings
from tests import s3
from tests.conformance.objects import STORES, put
from tests.factories import Bench, open_bench

DATA = bytes(range(256)) * 80
OLD_SECONDS = ORPHAN_AGE_MICROS / MICROS

A = TypeVar("A")


class Yard:
    """An engine and an object store, which has a clock of its own, with the room in front of them."""

    def __init__(self, bench: Bench, objects: ObjectStore, clock: ManualClock) -> None:
        assert isinstance(objects, LocalStore | BucketStore)
        self.bench = bench
        self.objects = objects
        self.clock = clock
        self.tally = BlobCounters()
        self.blobs = Blobs(bench.store, objects)
        self.uploads = Uploads(bench.store, objects, objects if isinstance(objects, BucketStore) else None)
        self.collector = GarbageCollector(bench.store, objects, every_seconds=1, grace_seconds=0)
        self.stocktaking = OrphanSweep(bench.store, objects, database_id="ours", counters=self.tally)

    def pass_time(self, seconds: float) -> None:
        """Objects become older."""
        self.clock.advance(seconds=seconds)

    def arrival(self, size: int = len(DATA)) -> IncomingBlob:
        return IncomingBlob(tenant=self.bench.tenant, owner="token:ann", size=size)

    async def put(self, key: str, data: bytes = DATA) -> None:
        """A blob that is kept."""

        async def parts() -> AsyncIterator[bytes]:
            yield data

        await self.blobs.put(key, parts(), self.arrival(len(data)))

    async def read(self, key: str) -> bytes:
        return await (await self.blobs.open_key(self.bench.tenant, key))[1].read_all()

    async def begin(self) -> UploadWithPlan:
        """An upload with bytes that have come."""
        begun = await self.uploads.begin(self.arrival())
        await self.send(begun)
        return begun

    async def send(self, begun: UploadWithPlan) -> None:
        if begun.plan is None:

            async def parts() -> AsyncIterator[bytes]:
                yield DATA

            await self.uploads.receive(self.bench.tenant, begun.upload.id, 0, parts())
            return
        headers = {name: value for name, value in begun.plan.headers.items() if name != "Content-Length"}
        async with httpx.AsyncClient(timeout=30, verify=False) as client:
            answer = await client.put(begun.plan.url or "", headers=headers, content=DATA)
        assert answer.is_success, answer.text

    async def leave_parts(self) -> str:
        """What a process leaves that dies while it writes."""
        storage_key = self.objects.new_storage_key()
        if isinstance(self.objects, BucketStore):
            await s3.begin_parts(self.objects, storage_key, b"1")
        else:
            writer = await self.objects.write(storage_key, size=None)
            await writer.write(b"1")
            await writer.abort()
        return storage_key

    async def storage_keys(self) -> set[str]:
        return {storage_key async for storage_key, _ in self.objects.list_objects()}


@asynccontextmanager
async def open_yard(kind: str, data: Path, folder: Path) -> AsyncIterator[Yard]:
    clock = ManualClock(datetime.now(UTC))  # Objects have the time of the machine.
    async with open_bench("sqlite", data) as bench, STORES[kind](folder, clock) as objects:
        yield Yard(bench, objects, clock)


@pytest.fixture(params=STORES)
async def yard(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Yard]:
    async with open_yard(request.param, tmp_path / "data", tmp_path / "objects") as opened:
        yield opened


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[Yard]:
    async with open_yard("s3", tmp_path / "data", tmp_path) as opened:
        yield opened


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Yard]:
    async with open_yard("local", tmp_path / "data", tmp_path) as opened:
        yield opened


async def test_what_no_row_names_goes_when_it_is_old(yard: Yard) -> None:
    await yard.put("a")
    await yard.put("deleted", DATA[1:])
    await yard.blobs.delete(yard.bench.tenant, "deleted")
    open_upload, given_up = await yard.begin(), await yard.begin()
    await yard.uploads.cancel(yard.bench.tenant, given_up.upload.id)
    named = await yard.storage_keys()
    strays = {await put(yard.objects, DATA), await yard.leave_parts()}
    assert len(named) == 4
    assert await yard.storage_keys() == named | strays
    yard.pass_time(OLD_SECONDS - 600)
    assert await yard.stocktaking.run_once() == 0
    assert await yard.storage_keys() == named | strays
    yard.pass_time(1200)
    with capture_logs() as logs:
        assert await yard.stocktaking.run_once() == 2
    assert [(line["event"], line["objects"], line["looked_at"]) for line in logs] == [("strays_deleted", 2, 6)]
    assert await yard.storage_keys() == named, "also what is in the trash stays: that is the collector's"
    assert yard.tally.orphans_deleted == 2
    assert await yard.read("a") == DATA
    assert (await yard.uploads.complete(yard.bench.tenant, open_upload.upload.id)).upload.size == len(DATA)
    with capture_logs() as logs:
        assert await yard.stocktaking.run_once() == 0
    assert logs == []


async def test_a_round_goes_in_steps(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_sweep, "BATCH_OBJECTS", 3)
    for n in range(4):
        await yard.put(f"{n}", DATA[n:])
    named = await yard.storage_keys()
    for _ in range(7):
        await put(yard.objects, b"stray")
    yard.pass_time(OLD_SECONDS + 600)
    assert await yard.stocktaking.run_once() == 7
    assert await yard.storage_keys() == named


async def test_what_is_young_is_not_asked_for(yard: Yard) -> None:
    """Nothing is known of it yet: a row may be on its way."""
    await put(yard.objects, DATA)
    await yard.bench.store.close()
    assert await yard.stocktaking.run_once() == 0


async def test_nothing_goes_while_the_rows_cannot_be_read(yard: Yard) -> None:
    storage_keys = {await put(yard.objects, DATA), await yard.leave_parts()}
    yard.pass_time(OLD_SECONDS + 600)
    await yard.bench.store.close()
    with pytest.raises(StoreError):
        await yard.stocktaking.run_once()
    assert await yard.storage_keys() == storage_keys


async def test_objects_of_another_database_stay(yard: Yard) -> None:
    await put(yard.objects, DATA)
    assert await yard.objects.register_owner("theirs") == "theirs"
    yard.pass_time(OLD_SECONDS + 600)
    with capture_logs() as logs:
        assert await yard.stocktaking.run_once() == 0
    assert [(line["event"], line["owner"]) for line in logs] == [("objects_of_another_database", "theirs")]
    assert len(await yard.storage_keys()) == 1


async def test_one_that_cannot_be_deleted_keeps_no_other(folder: Yard, tmp_path: Path) -> None:
    stuck, gone = sorted([folder.objects.new_storage_key(), folder.objects.new_storage_key()])
    (tmp_path / "blobs/uploads" / stuck).mkdir()
    await put(folder.objects, DATA, storage_key=gone)
    folder.pass_time(OLD_SECONDS + 600)
    with capture_logs() as logs:
        assert await folder.stocktaking.run_once() == 1
    assert [line["event"] for line in logs] == ["object_not_deleted", "strays_deleted"]
    assert await folder.storage_keys() == {stuck}


@pytest.mark.s3
async def test_what_a_client_sends_too_late_goes(bucket: Yard) -> None:
    begun = await bucket.uploads.begin(bucket.arrival())
    await bucket.uploads.cancel(bucket.bench.tenant, begun.upload.id)
    await bucket.collector.run_once()
    await bucket.send(begun)
    assert len(await bucket.storage_keys()) == 1
    await bucket.collector.run_once()
    assert len(await bucket.storage_keys()) == 1, "the collector knows nothing of it"
    bucket.pass_time(OLD_SECONDS + 600)
    assert await bucket.stocktaking.run_once() == 1
    assert await bucket.storage_keys() == set()


class Dying:
    """A store whose server dies when an upload is finished."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, command: Command[A]) -> A:
        if isinstance(command, FinishUpload):
            raise ConnectionResetError
        return await self._store.run(command)


@pytest.mark.s3
async def test_a_copy_whose_server_died_goes(bucket: Yard) -> None:
    """The store obeys no condition, so that what clients put is copied before it is read."""
    assert isinstance(bucket.objects, BucketStore)
    bucket.objects.conditional_writes = False
    begun = await bucket.begin()
    dying = Uploads(Dying(bucket.bench.store), bucket.objects, bucket.objects)
    with pytest.raises(ConnectionResetError):
        await dying.complete(bucket.bench.tenant, begun.upload.id)
    assert len(await bucket.storage_keys()) == 2
    assert await bucket.stocktaking.run_once() == 0
    done = await bucket.uploads.complete(bucket.bench.tenant, begun.upload.id)
    await bucket.collector.run_once()
    assert len(await bucket.storage_keys()) == 2, "the copy that counts, and the one that nobody knows"
    bucket.pass_time(OLD_SECONDS + 600)
    assert await bucket.stocktaking.run_once() == 1
    opened, _ = await bucket.blobs.open_blob(bucket.bench.tenant, done.upload.blob_id or "")
    assert await opened.read_all() == DATA


def test_what_may_still_be_named_is_not_old() -> None:
    """An upload without news, after which an address is used at its last moment, and clocks that are hours apart."""
    assert ORPHAN_AGE_MICROS >= UPLOAD_LIFETIME_MICROS + WRITE_URL_SECONDS * MICROS + 12 * 3600 * MICROS


def test_a_server_that_was_just_started_has_time(folder: Yard) -> None:
    firsts = {folder.stocktaking.initial_delay_seconds() for _ in range(20)}
    assert min(firsts) >= 1800
    assert len(firsts) == 20, "several servers do not come at once"


# -- one database and one object store ----------------------------------------------------------------------


async def parts_of(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.s3
async def test_two_databases_do_not_share_a_bucket(tmp_path: Path) -> None:
    def settings(folder: str) -> Settings:
        return Settings(
            data=tmp_path / folder,
            s3_bucket=s3.bucket(),
            s3_endpoint=s3.server_url(),
            s3_access_key=s3.ACCESS_KEY,
            s3_secret_key=s3.SECRET_KEY,
            s3_region=s3.REGION,
            s3_prefix=f"{tmp_path.name}/",
        )

    for size in (INLINE_BYTES_MAX + 1, INLINE_BYTES_MAX + 2):
        async with ingot.open(settings=settings("first")) as opened:
            arrival = IncomingBlob(tenant=opened.default_tenant.id, owner="test")
            await opened.blobs.put(f"{size}", parts_of(bytes(size)), arrival)
        with pytest.raises(StoreMisconfigured, match="another database"):
            async with ingot.open(settings=settings("second")):
                pass


async def test_a_new_database_does_not_take_old_blobs_for_strays(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with ingot.open(old) as opened:
        arrival = IncomingBlob(tenant=opened.default_tenant.id, owner="test")
        await opened.blobs.put("k", parts_of(DATA), arrival)
    new.mkdir()
    (old / "blobs").rename(new / "blobs")
    with pytest.raises(StoreMisconfigured, match="another database"):
        async with ingot.open(new):
            pass
    (new / "blobs/database.id").unlink()
    clock = ManualClock(datetime.now(UTC))
    clock.advance(seconds=OLD_SECONDS + 600)
    async with ingot.open(new, clock=clock, maintenance=False) as opened:
        assert await opened.orphan_sweep.run_once() == 1


async def test_the_trash_stays_the_collector_s(folder: Yard) -> None:
    """What a dry run tells is what the next round deletes."""
    await folder.put("k")
    await folder.blobs.delete(folder.bench.tenant, "k")
    await put(folder.objects, b"stray")
    begun = await folder.begin()
    await folder.uploads.cancel(folder.bench.tenant, begun.upload.id)
    folder.pass_time(OLD_SECONDS + 600)
    before = await folder.collector.preview()
    assert (before.blobs, before.objects) == (1, 1)
    assert await folder.stocktaking.run_once() == 1
    assert await folder.collector.preview() == before
    done = await folder.collector.run_once()
    assert (done.blobs, done.objects) == (1, 2), "the object of the blob goes in the same round"
    assert await folder.storage_keys() == set()
