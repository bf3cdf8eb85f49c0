"""The orphan sweep: it deletes old objects that no row names, and nothing else."""

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
from tests.conformance.object_stores import STORES, put
from tests.factories import Bench, open_bench

DATA = bytes(range(256)) * 80
OLD_SECONDS = ORPHAN_AGE_MICROS / MICROS

A = TypeVar("A")


class BlobServices:
    """The services over an engine and an object store, which has its own clock."""

    def __init__(self, bench: Bench, objects: ObjectStore, clock: ManualClock) -> None:
        assert isinstance(objects, LocalStore | BucketStore)
        self.bench = bench
        self.objects = objects
        self.clock = clock
        self.counters = BlobCounters()
        self.blobs = Blobs(bench.store, objects)
        self.uploads = Uploads(bench.store, objects, objects if isinstance(objects, BucketStore) else None)
        self.collector = GarbageCollector(bench.store, objects, every_seconds=1, grace_seconds=0)
        self.sweep = OrphanSweep(bench.store, objects, database_id="ours", counters=self.counters)

    def pass_time(self, seconds: float) -> None:
        """Let all objects become older."""
        self.clock.advance(seconds=seconds)

    def incoming(self, size: int = len(DATA)) -> IncomingBlob:
        return IncomingBlob(tenant=self.bench.tenant, owner="token:ann", size=size)

    async def put(self, key: str, data: bytes = DATA) -> None:
        """Store a blob under a key."""

        async def parts() -> AsyncIterator[bytes]:
            yield data

        await self.blobs.put(key, parts(), self.incoming(len(data)))

    async def read(self, key: str) -> bytes:
        return await (await self.blobs.open_key(self.bench.tenant, key))[1].read_all()

    async def begin(self) -> UploadWithPlan:
        """Begin an upload and send its bytes."""
        upload = await self.uploads.begin(self.incoming())
        await self.send(upload)
        return upload

    async def send(self, upload: UploadWithPlan) -> None:
        if upload.plan is None:

            async def parts() -> AsyncIterator[bytes]:
                yield DATA

            await self.uploads.receive(self.bench.tenant, upload.upload.id, 0, parts())
            return
        headers = {name: value for name, value in upload.plan.headers.items() if name != "Content-Length"}
        async with httpx.AsyncClient(timeout=30, verify=False) as client:
            response = await client.put(upload.plan.url or "", headers=headers, content=DATA)
        assert response.is_success, response.text

    async def leave_parts(self) -> str:
        """Leave an unfinished object, like a process that dies while it writes."""
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
async def open_services(kind: str, data: Path, folder: Path) -> AsyncIterator[BlobServices]:
    clock = ManualClock(datetime.now(UTC))  # The age of objects is measured with the clock of the machine.
    async with open_bench("sqlite", data) as bench, STORES[kind](folder, clock) as objects:
        yield BlobServices(bench, objects, clock)


@pytest.fixture(params=STORES)
async def services(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BlobServices]:
    async with open_services(request.param, tmp_path / "data", tmp_path / "objects") as opened:
        yield opened


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[BlobServices]:
    async with open_services("s3", tmp_path / "data", tmp_path) as opened:
        yield opened


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[BlobServices]:
    async with open_services("local", tmp_path / "data", tmp_path) as opened:
        yield opened


async def test_an_old_object_that_no_row_names_is_deleted(services: BlobServices) -> None:
    await services.put("a")
    await services.put("deleted", DATA[1:])
    await services.blobs.delete(services.bench.tenant, "deleted")
    open_upload, canceled = await services.begin(), await services.begin()
    await services.uploads.cancel(services.bench.tenant, canceled.upload.id)
    named = await services.storage_keys()
    orphans = {await put(services.objects, DATA), await services.leave_parts()}
    assert len(named) == 4
    assert await services.storage_keys() == named | orphans
    services.pass_time(OLD_SECONDS - 600)
    assert await services.sweep.run_once() == 0
    assert await services.storage_keys() == named | orphans
    services.pass_time(1200)
    with capture_logs() as logs:
        assert await services.sweep.run_once() == 2
    assert [(line["event"], line["objects"], line["listed"]) for line in logs] == [("orphans_deleted", 2, 6)]
    assert await services.storage_keys() == named, "objects in the trash are kept, too"
    assert services.counters.orphans_deleted == 2
    assert await services.read("a") == DATA
    assert (await services.uploads.complete(services.bench.tenant, open_upload.upload.id)).upload.size == len(DATA)
    with capture_logs() as logs:
        assert await services.sweep.run_once() == 0
    assert logs == []


async def test_a_sweep_deletes_orphans_in_batches(services: BlobServices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_sweep, "BATCH_OBJECTS", 3)
    for n in range(4):
        await services.put(f"{n}", DATA[n:])
    named = await services.storage_keys()
    for _ in range(7):
        await put(services.objects, b"stray")
    services.pass_time(OLD_SECONDS + 600)
    assert await services.sweep.run_once() == 7
    assert await services.storage_keys() == named


async def test_young_objects_are_not_looked_up(services: BlobServices) -> None:
    """The row of a young object may not be written yet."""
    await put(services.objects, DATA)
    await services.bench.store.close()
    assert await services.sweep.run_once() == 0


async def test_nothing_is_deleted_while_the_rows_cannot_be_read(services: BlobServices) -> None:
    storage_keys = {await put(services.objects, DATA), await services.leave_parts()}
    services.pass_time(OLD_SECONDS + 600)
    await services.bench.store.close()
    with pytest.raises(StoreError):
        await services.sweep.run_once()
    assert await services.storage_keys() == storage_keys


async def test_objects_of_another_database_are_kept(services: BlobServices) -> None:
    await put(services.objects, DATA)
    assert await services.objects.register_owner("theirs") == "theirs"
    services.pass_time(OLD_SECONDS + 600)
    with capture_logs() as logs:
        assert await services.sweep.run_once() == 0
    assert [(line["event"], line["owner"]) for line in logs] == [("objects_of_another_database", "theirs")]
    assert len(await services.storage_keys()) == 1


async def test_an_object_that_cannot_be_deleted_does_not_stop_the_sweep(folder: BlobServices, tmp_path: Path) -> None:
    undeletable, deletable = sorted([folder.objects.new_storage_key(), folder.objects.new_storage_key()])
    (tmp_path / "blobs/uploads" / undeletable).mkdir()
    await put(folder.objects, DATA, storage_key=deletable)
    folder.pass_time(OLD_SECONDS + 600)
    with capture_logs() as logs:
        assert await folder.sweep.run_once() == 1
    assert [line["event"] for line in logs] == ["object_not_deleted", "orphans_deleted"]
    assert await folder.storage_keys() == {undeletable}


@pytest.mark.s3
async def test_an_object_that_arrives_after_its_upload_was_canceled_is_deleted(bucket: BlobServices) -> None:
    upload = await bucket.uploads.begin(bucket.incoming())
    await bucket.uploads.cancel(bucket.bench.tenant, upload.upload.id)
    await bucket.collector.run_once()
    await bucket.send(upload)
    assert len(await bucket.storage_keys()) == 1
    await bucket.collector.run_once()
    assert len(await bucket.storage_keys()) == 1, "the URL is still valid"
    bucket.bench.clock.advance(seconds=OLD_SECONDS)
    await bucket.collector.run_once()
    assert await bucket.storage_keys() == set()
    assert await bucket.sweep.run_once() == 0


class DyingStore:
    """A store that fails when an upload is finished, as if the server had died."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, command: Command[A]) -> A:
        if isinstance(command, FinishUpload):
            raise ConnectionResetError
        return await self._store.run(command)


@pytest.mark.s3
async def test_a_sealed_copy_of_a_server_that_died_is_deleted(bucket: BlobServices) -> None:
    """The bucket ignores conditions, so objects from clients are copied before they are verified."""
    assert isinstance(bucket.objects, BucketStore)
    bucket.objects.conditional_writes = False
    upload = await bucket.begin()
    uploads = Uploads(DyingStore(bucket.bench.store), bucket.objects, bucket.objects)
    with pytest.raises(ConnectionResetError):
        await uploads.complete(bucket.bench.tenant, upload.upload.id)
    assert len(await bucket.storage_keys()) == 2
    assert await bucket.sweep.run_once() == 0
    done = await bucket.uploads.complete(bucket.bench.tenant, upload.upload.id)
    await bucket.collector.run_once()
    assert len(await bucket.storage_keys()) == 2, "the copy that a row names, and the orphan"
    bucket.pass_time(OLD_SECONDS + 600)
    assert await bucket.sweep.run_once() == 1
    opened, _ = await bucket.blobs.open_blob(bucket.bench.tenant, done.upload.blob_id or "")
    assert await opened.read_all() == DATA


def test_the_orphan_age_exceeds_the_lifetimes_of_uploads_and_urls() -> None:
    """A client may use its URL at the last moment of an upload without progress, and clocks may differ by hours."""
    assert ORPHAN_AGE_MICROS >= UPLOAD_LIFETIME_MICROS + WRITE_URL_SECONDS * MICROS + 12 * 3600 * MICROS


def test_the_first_sweep_starts_late_and_at_a_random_time(folder: BlobServices) -> None:
    delays = {folder.sweep.initial_delay_seconds() for _ in range(20)}
    assert min(delays) >= 1800
    assert len(delays) == 20, "several servers do not sweep at the same time"


# -- one database and one object store ----------------------------------------------------------------------


async def parts_of(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.s3
async def test_two_databases_cannot_share_a_bucket(tmp_path: Path) -> None:
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
            incoming = IncomingBlob(tenant=opened.default_tenant.id, owner="test")
            await opened.blobs.put(f"{size}", parts_of(bytes(size)), incoming)
        with pytest.raises(StoreMisconfigured, match="another database"):
            async with ingot.open(settings=settings("second")):
                pass


async def test_a_new_database_cannot_open_the_blobs_of_another(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with ingot.open(old) as opened:
        incoming = IncomingBlob(tenant=opened.default_tenant.id, owner="test")
        await opened.blobs.put("k", parts_of(DATA), incoming)
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


async def test_the_sweep_leaves_the_trash_to_the_garbage_collector(folder: BlobServices) -> None:
    """A dry run reports exactly what the next round deletes."""
    await folder.put("k")
    await folder.blobs.delete(folder.bench.tenant, "k")
    await put(folder.objects, b"stray")
    upload = await folder.begin()
    await folder.uploads.cancel(folder.bench.tenant, upload.upload.id)
    folder.pass_time(OLD_SECONDS + 600)
    before = await folder.collector.preview()
    assert (before.blobs, before.objects) == (1, 1)
    assert await folder.sweep.run_once() == 1
    assert await folder.collector.preview() == before
    done = await folder.collector.run_once()
    assert (done.blobs, done.objects) == (1, 2), "the object of the blob is deleted in the same round"
    assert await folder.storage_keys() == set()
