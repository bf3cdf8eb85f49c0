"""An errand that makes a store run every statement about blobs, with the same sizes whatever the store holds."""

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
)
from ingot.events.audit import Act
from ingot.identity.ports import ClearTenants
from ingot.jobs import Definition
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, BlobFixture, content_of, id_of
from tests.factories import Bench

PAGE = 50
FOLDER = "errand/"


class Errand(BlobFixture):
    """A blobs that does not recount: there may be many keys."""

    async def check(self) -> None:
        """Nothing."""


async def run_blob_errand(bench: Bench) -> None:
    """Ask for everything about blobs once."""
    errand = Errand(bench)
    await _keys(errand)
    await _uploads(errand)
    await _tidy(errand)
    await _files(errand)
    await _keep(bench.store)
    await _remove(bench)


async def _keys(errand: Errand) -> None:
    store, tenant = errand.store, errand.tenant
    for n in range(PAGE):
        await errand.put(f"{FOLDER}{n:03}", f"errand {n}".encode(), id=new_id())
    await errand.put(f"{FOLDER}large", content_of(b"large", "place-1"))
    await store.run(RecordScrub(intact=[(id_of(b"errand 1"), None)], damaged=[(id_of(b"large"), "place-1")]))
    await errand.put(f"{FOLDER}large", content_of(b"large", "place-2"), if_match="*")
    for prefix in ("", FOLDER, "no such folder"):
        await store.run(ListKeys(tenant=tenant, prefix=prefix, after="", limit=PAGE))
    assert len(await store.run(ListKeys(tenant=tenant, prefix=FOLDER, after=f"{FOLDER}040", limit=PAGE))) == 10
    assert await store.run(OpenKey(tenant=tenant, key=f"{FOLDER}large")) is not None
    assert await store.run(FindBlob(tenant=tenant, blob_id=id_of(b"large"))) is not None
    await errand.delete(f"{FOLDER}large")
    await errand.put(f"{FOLDER}bob", b"bob's", owner="token:bob")
    await store.run(PreviewPurge(tenant=tenant, owner="token:bob"))
    await store.run(GetUsage(tenant=tenant))
    await store.run(PurgeKeys(tenant=tenant, owner="token:bob", limit=PAGE, act=Act()))


async def _uploads(errand: Errand) -> None:
    begun = [await errand.begin(10, storage_key=f"place/{n}", lifetime=1) for n in range(PAGE)]
    claim = await errand.bench.make_claim("errand")
    await errand.begin(10, job_id=claim.job.id, fence=claim.fence, file="output", name="a")
    await errand.bench.jobs.complete(claim)
    taken = await errand.take(begun[0].upload.id)
    await errand.note(begun[0].upload.id, taken.epoch, received=5, verifying=True, lifetime=1)
    assert len(await errand.store.run(ListVerifyingUploads(limit=PAGE))) == 1
    await errand.finish(begun[0].upload.id, b"errand", lifetime=1)
    await errand.end(begun[1].upload.id, "wrong_digest", lifetime=1)
    await errand.end(begun[2].upload.id)
    errand.bench.clock.advance(seconds=1)
    assert await errand.sweep(PAGE) == PAGE


async def _tidy(errand: Errand) -> None:
    store, now = errand.store, errand.bench.clock.micros()
    assert len(await store.run(ListTombstonedBlobs(grace=0, limit=2))) == 2
    assert await store.run(CollectBlob(blob_id=id_of(b"errand"), grace=0)) == 6
    assert await store.run(CollectBlob(blob_id=id_of(b"errand 1"), grace=HOUR)) is None
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


async def _files(errand: Errand) -> None:
    """Jobs with files of every kind, which go with them."""
    jobs = errand.bench.jobs
    await jobs.define(Definition(type="filed", retention_seconds=0))
    blob = id_of(b"errand 1")
    inputs = {f"{n}": blob for n in range(10)}
    (filed,) = await errand.enqueue(errand.order("filed", inputs=inputs, payload_blob=blob))
    (claim,) = await jobs.claim("worker", ["filed"])
    for_job: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence}
    made = (("output", b"out"), ("log", b"log"), ("log", b"longer log"), ("checkpoint", b"1"), ("checkpoint", b"2"))
    for n, (kind, data) in enumerate(made):
        begun = await errand.begin(10, **for_job, file=kind, name="1")
        await errand.finish(begun.upload.id, data, lifetime=HOUR + n)
    await jobs.get_running_job(claim.job.id, claim.fence)
    await jobs.open_file(claim.job.id, claim.fence, "input", "0")
    assert len(await jobs.files(errand.tenant, filed.job.id)) == 13
    await jobs.complete(claim, outputs=["1"])
    assert len(await jobs.files(errand.tenant, filed.job.id)) == 13
    await jobs.retry(errand.tenant, filed.job.id)
    (claim,) = await jobs.claim("worker", ["filed"])
    await jobs.complete(claim)
    await _inputs(errand)
    await jobs.collect(PAGE)


async def _inputs(errand: Errand) -> None:
    """Jobs that wait for uploads, and get them or not."""
    fed, starved, unwanted = (errand.order("filed", uploads=["a", "b"]) for _ in range(3))
    await errand.enqueue(fed, starved, unwanted)
    await errand.bench.jobs.explain(errand.tenant, fed.id)
    for one in fed.uploads:
        await errand.finish(one.id, b"input")
    await errand.end(starved.uploads[0].id)
    await errand.bench.jobs.cancel(errand.tenant, unwanted.id)
    await errand.bench.jobs.cancel(errand.tenant, fed.id)


async def _keep(store: Any) -> None:
    """Where the objects are, and that they are not elsewhere."""
    for store_id in ("here", "here", "there"):
        await store.run(RegisterObjectStore(store_id=store_id))


async def _remove(bench: Bench) -> None:
    gone = Errand(bench, (await bench.tenants.create("without-blobs")).id)
    for n in range(3):
        await gone.put(f"{n}", b"gone")
        await gone.begin(1)
    await gone.store.run(PurgeKeys(tenant=gone.tenant, owner=None, limit=1, act=Act()))
    await bench.tenants.remove(gone.tenant)
    while (await bench.store.run(ClearTenants(limit=PAGE))).has_more:
        pass
