"""Calls that run every statement about blobs, with the same sizes whatever the store contains."""

from __future__ import annotations

from typing import Any

from ingot.blobs.ports import (
    CollectBlob,
    FindBlob,
    FindKnownStorageKeys,
    ForgetTrash,
    GetBlobMetrics,
    GetReusableBytes,
    GetUsage,
    ListBlobsToScrub,
    ListKeys,
    ListTombstonedBlobs,
    ListTrash,
    ListVerifyingUploads,
    OpenKey,
    PreviewPurge,
    PurgeKeys,
    RecordScrub,
    RegisterObjectStore,
    RenewServer,
)
from ingot.events.audit import Act
from ingot.identity.ports import ClearTenants
from ingot.jobs import Definition
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, BlobFixture, content_of, id_of
from tests.factories import Bench

PAGE = 50
FOLDER = "calls/"


class UncheckedBlobs(BlobFixture):
    """Blobs without the recount of usage, which is slow with many keys."""

    async def check(self) -> None:
        """Do nothing."""


async def run_every_blob_statement(bench: Bench) -> None:
    """Run every statement about blobs."""
    blobs = UncheckedBlobs(bench)
    await _keys(blobs)
    await _uploads(blobs)
    await _collect(blobs)
    await _job_files(blobs)
    await _register_object_store(bench.store)
    await _remove(bench)


async def _keys(blobs: UncheckedBlobs) -> None:
    store, tenant = blobs.store, blobs.tenant
    for n in range(PAGE):
        await blobs.put(f"{FOLDER}{n:03}", f"blob {n}".encode(), id=new_id())
    await blobs.put(f"{FOLDER}large", content_of(b"large", "place-1"))
    await store.run(
        RecordScrub(intact=[(tenant, id_of(b"blob 1"), None)], damaged=[(tenant, id_of(b"large"), "place-1")])
    )
    await blobs.put(f"{FOLDER}large", content_of(b"large", "place-2"), if_match="*")
    for prefix in ("", FOLDER, "no such folder"):
        await store.run(ListKeys(tenant=tenant, prefix=prefix, after="", limit=PAGE))
    assert len(await store.run(ListKeys(tenant=tenant, prefix=FOLDER, after=f"{FOLDER}040", limit=PAGE))) == 10
    assert await store.run(OpenKey(tenant=tenant, key=f"{FOLDER}large")) is not None
    assert await store.run(FindBlob(tenant=tenant, blob_id=id_of(b"large"))) is not None
    await blobs.delete(f"{FOLDER}large")
    await blobs.put(f"{FOLDER}bob", b"bob's", owner="token:bob")
    await store.run(PreviewPurge(tenant=tenant, owner="token:bob"))
    await store.run(GetUsage(tenant=tenant))
    await store.run(PurgeKeys(tenant=tenant, owner="token:bob", limit=PAGE, act=Act()))


async def _uploads(blobs: UncheckedBlobs) -> None:
    begun = [await blobs.begin(10, storage_key=f"place/{n}", lifetime=1) for n in range(PAGE)]
    claim = await blobs.bench.make_claim("uploads")
    await blobs.begin(10, job_id=claim.job.id, fence=claim.fence, file="output", name="a")
    await blobs.bench.jobs.complete(claim)
    taken = await blobs.take(begun[0].upload.id)
    await blobs.note(begun[0].upload.id, taken.epoch, received=5, verifying=True, lifetime=1)
    assert len(await blobs.store.run(ListVerifyingUploads(limit=PAGE))) == 1
    await blobs.finish(begun[0].upload.id, b"upload", lifetime=1)
    await blobs.end(begun[1].upload.id, "wrong_digest", lifetime=1)
    await blobs.end(begun[2].upload.id)
    blobs.bench.clock.advance(seconds=1)
    assert await blobs.sweep(PAGE) == PAGE


async def _collect(blobs: UncheckedBlobs) -> None:
    store, now = blobs.store, blobs.bench.clock.micros()
    assert len(await store.run(ListTombstonedBlobs(grace=0, limit=2))) == 2
    assert await store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"upload"), grace=0)) == 6
    assert await store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"blob 1"), grace=HOUR)) is None
    assert await store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"bob's"), grace=0)) == 5
    trash = await store.run(ListTrash(limit=PAGE))
    assert len(trash) == PAGE
    await store.run(ForgetTrash(storage_keys=[one.storage_key for one in trash]))
    assert (
        await store.run(FindKnownStorageKeys(storage_keys=[*(one.storage_key for one in trash), *("nowhere",) * PAGE]))
        == set()
    )
    await store.run(ListBlobsToScrub(before=now, limit=PAGE))
    await store.run(GetBlobMetrics())
    await store.run(GetReusableBytes())


async def _job_files(blobs: UncheckedBlobs) -> None:
    """Run jobs with files of every kind, which are removed with them."""
    jobs = blobs.bench.jobs
    await jobs.define(Definition(type="filed", retention_seconds=0))
    blob = id_of(b"blob 1")
    inputs = {f"{n}": blob for n in range(10)}
    (filed,) = await blobs.enqueue(blobs.order("filed", inputs=inputs, payload_blob=blob))
    (claim,) = await jobs.claim("worker", ["filed"])
    for_job: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence}
    uploaded = (("output", b"out"), ("log", b"log"), ("log", b"longer log"), ("checkpoint", b"1"), ("checkpoint", b"2"))
    for n, (kind, data) in enumerate(uploaded):
        begun = await blobs.begin(10, **for_job, file=kind, name="1")
        await blobs.finish(begun.upload.id, data, lifetime=HOUR + n)
    await jobs.get_running_job(claim.job.id, claim.fence)
    await jobs.open_file(claim.job.id, claim.fence, "input", "0")
    assert len(await jobs.files(blobs.tenant, filed.job.id)) == 13
    await jobs.complete(claim, outputs=["1"])
    assert len(await jobs.files(blobs.tenant, filed.job.id)) == 13
    await jobs.retry(blobs.tenant, filed.job.id)
    (claim,) = await jobs.claim("worker", ["filed"])
    await jobs.complete(claim)
    await _inputs(blobs)
    await jobs.collect(PAGE)


async def _inputs(blobs: UncheckedBlobs) -> None:
    """Run jobs whose uploads finish, fail or are canceled."""
    complete, failing, canceled = (blobs.order("filed", uploads=["a", "b"]) for _ in range(3))
    await blobs.enqueue(complete, failing, canceled)
    await blobs.bench.jobs.explain(blobs.tenant, complete.id)
    for one in complete.uploads:
        await blobs.finish(one.id, b"input")
    await blobs.end(failing.uploads[0].id)
    await blobs.bench.jobs.cancel(blobs.tenant, canceled.id)
    await blobs.bench.jobs.cancel(blobs.tenant, complete.id)


async def _register_object_store(store: Any) -> None:
    """Register the object store, and try to change it."""
    for store_id in ("here", "here"):
        await store.run(RegisterObjectStore(store_id=store_id, grace=HOUR))
    identity = await store.run(RegisterObjectStore(store_id="there"))
    await store.run(RenewServer(server=new_id(), store_id=identity.store_id, limit=PAGE))


async def _remove(bench: Bench) -> None:
    removed = UncheckedBlobs(bench, (await bench.tenants.create("without-blobs")).id)
    for n in range(3):
        await removed.put(f"{n}", b"gone")
        await removed.begin(1)
    await removed.store.run(PurgeKeys(tenant=removed.tenant, owner=None, limit=1, act=Act()))
    await bench.tenants.remove(removed.tenant)
    while (await bench.store.run(ClearTenants(limit=PAGE))).has_more:
        pass
