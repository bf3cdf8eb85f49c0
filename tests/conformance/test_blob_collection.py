"""Why a blob is kept and how it is removed: references of every kind, tombstones, the trash, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.blobs.model import GRACE_MICROS, Reference, TrashedObject, UploadState, Usage
from ingot.blobs.ports import (
    CollectBlob,
    DeleteKey,
    FindBlob,
    ForgetTrash,
    GetBlobMetrics,
    GetKey,
    GetUsage,
    ListBlobsToScrub,
    ListTombstonedBlobs,
    ListTrash,
    OpenKey,
    PreviewPurge,
    PurgeKeys,
    PutBlob,
    RecordScrub,
)
from ingot.events.audit import Act, AuditFilter, ListAuditEntries
from ingot.identity import TenantNotFound
from ingot.identity.ports import ClearTenants
from ingot.jobs import Definition, JobStatus
from ingot.kernel.clock import MICROS, to_datetime
from ingot.kernel.ids import new_id
from tests.conformance.blob_files import BLOB, DATA, SIZE, give_file
from tests.conformance.blob_fixture import OWNER, BlobFixture, blobs, content_of, id_of, stored

__all__ = ["blobs"]

STORAGE_KEY = "place-1"


async def collect_one(blobs: BlobFixture, *, grace: int = 0, blob: str = BLOB) -> int | None:
    """Collect the blob if nothing refers to it."""
    return await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=blob, grace=grace))


def put(blobs: BlobFixture, key: str, data: bytes, storage_key: str | None = None) -> PutBlob:
    """A command that a test runs concurrently with others or without a recount."""
    return PutBlob(id=new_id(), tenant=blobs.tenant, owner=OWNER, key=key, content=content_of(data, storage_key))


# -- references ---------------------------------------------------------------------------------------------


async def by_key(blobs: BlobFixture) -> Callable[[], Awaitable[Any]]:
    await blobs.put("k", content_of(DATA, STORAGE_KEY))
    return lambda: blobs.delete("k")


async def by_replaced_key(blobs: BlobFixture) -> Callable[[], Awaitable[Any]]:
    await blobs.put("k", content_of(DATA, STORAGE_KEY))
    return lambda: blobs.put("k", b"another", if_match="*")


async def by_upload(blobs: BlobFixture) -> Callable[[], Awaitable[Any]]:
    begun = await blobs.begin(SIZE)
    await blobs.finish(begun.upload.id, content_of(DATA, STORAGE_KEY), lifetime=0)
    return blobs.sweep


async def by_upload_under_way(blobs: BlobFixture) -> Callable[[], Awaitable[Any]]:
    begun = await blobs.begin(SIZE, blob_id=BLOB)
    await blobs.put("k", content_of(DATA, STORAGE_KEY))
    await blobs.delete("k")
    return lambda: blobs.end(begun.upload.id)


async def by_upload_that_fails(blobs: BlobFixture) -> Callable[[], Awaitable[Any]]:
    begun = await blobs.begin(SIZE, blob_id=BLOB)
    await blobs.put("k", content_of(DATA, STORAGE_KEY))
    await blobs.delete("k")
    return lambda: blobs.end(begun.upload.id, "wrong_digest")


REFERENCES = [by_key, by_replaced_key, by_upload]


@pytest.mark.parametrize(
    "announce", [by_upload_under_way, by_upload_that_fails], ids=lambda announce: announce.__name__
)
async def test_an_unfinished_upload_keeps_an_announced_blob_that_still_counts(
    blobs: BlobFixture, announce: Any
) -> None:
    end_upload = await announce(blobs)
    assert await blobs.references(BLOB) == 1
    assert await collect_one(blobs) is None
    assert await blobs.tombstoned() == [BLOB]
    assert await blobs.deleted() == await blobs.deleted(OWNER) == SIZE
    await end_upload()
    assert await collect_one(blobs) == SIZE


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.__name__)
async def test_a_blob_is_kept_while_referenced_and_collected_after_the_grace(
    blobs: BlobFixture, reference: Any
) -> None:
    drop_reference = await reference(blobs)
    assert await blobs.references(BLOB) == 1
    assert await collect_one(blobs) is None
    assert await blobs.tombstoned(grace=0, limit=10) == []
    await drop_reference()
    assert await blobs.references(BLOB) == 0
    assert await blobs.tombstoned(grace=0, limit=10) == [BLOB]
    blobs.bench.clock.advance(seconds=60)
    assert await blobs.tombstoned(grace=61 * MICROS, limit=10) == []
    assert await collect_one(blobs, grace=61 * MICROS) is None
    assert await blobs.tombstoned(grace=60 * MICROS, limit=10) == [BLOB]
    assert await collect_one(blobs, grace=60 * MICROS) == SIZE
    assert await blobs.trash() == [STORAGE_KEY]
    assert await blobs.tombstoned(grace=0, limit=10) == []


async def test_a_job_file_keeps_a_blob_until_its_job_is_removed(blobs: BlobFixture, tmp_path: Path) -> None:
    bench, store = blobs.bench, blobs.store
    await bench.jobs.define(Definition(type="past", retention_seconds=60))
    job = await bench.make_job_in(JobStatus.SUCCEEDED, "past")
    await blobs.put("k", content_of(DATA, STORAGE_KEY))
    await give_file(blobs, tmp_path, job)
    assert await blobs.references(BLOB) == 2
    await store.run(DeleteKey(tenant=blobs.tenant, key="k"))
    assert await collect_one(blobs) is None
    assert await blobs.tombstoned(grace=0, limit=10) == []
    assert await blobs.usage() == await blobs.usage(OWNER) == (SIZE, 0, 0)
    bench.clock.advance(seconds=61)
    assert (await bench.jobs.collect()).removed == 1
    assert await blobs.usage() == await blobs.usage(OWNER) == (0, 0, 0)
    assert await blobs.tombstoned(grace=0, limit=10) == [BLOB]
    assert await collect_one(blobs) == SIZE


async def test_a_retained_job_keeps_its_files(blobs: BlobFixture, tmp_path: Path) -> None:
    await blobs.bench.jobs.define(Definition(type="past", retention_seconds=60))
    old = await blobs.bench.make_job_in(JobStatus.SUCCEEDED, "past")
    blobs.bench.clock.advance(seconds=61)
    young = await blobs.bench.make_job_in(JobStatus.SUCCEEDED, "past")
    await blobs.put("k", DATA)
    await give_file(blobs, tmp_path, old)
    await give_file(blobs, tmp_path, young)
    assert (await blobs.bench.jobs.collect()).removed == 1
    assert await blobs.references(BLOB) == 2
    assert await blobs.usage() == (2 * SIZE, 0, 1)


async def test_blobs_of_a_removed_tenant_are_collected(blobs: BlobFixture, tmp_path: Path) -> None:
    bench, store = blobs.bench, blobs.store
    tenant = (await bench.tenants.create("acme")).id
    other = BlobFixture(bench, tenant)
    await other.put("k", content_of(DATA, STORAGE_KEY))
    await other.begin(5, storage_key="place-2", multipart="parts")
    await give_file(other, tmp_path, await bench.make_job_in(JobStatus.SUCCEEDED, "past", tenant=tenant))
    await bench.tenants.remove(tenant)
    reads: list[Callable[[], Awaitable[Any]]] = [
        lambda: store.run(GetKey(tenant=tenant, key="k")),
        lambda: store.run(OpenKey(tenant=tenant, key="k")),
        lambda: store.run(FindBlob(tenant=tenant, blob_id=BLOB)),
    ]
    for read in reads:
        with pytest.raises(TenantNotFound):
            await read()
    assert await store.run(GetUsage(tenant=tenant)) == Usage()
    assert await store.run(GetUsage(tenant=new_id(), owner=OWNER)) == Usage()
    while (await store.run(ClearTenants(limit=1))).has_more:
        pass
    assert await blobs.references(BLOB) == 0
    (blob,) = await store.run(ListTombstonedBlobs(grace=0, limit=10))
    assert await store.run(CollectBlob(holder=blob.holder, blob_id=BLOB, grace=0)) == SIZE
    trash = sorted(await store.run(ListTrash(limit=10)), key=lambda one: one.storage_key)
    assert trash == [TrashedObject(storage_key=STORAGE_KEY), TrashedObject(storage_key="place-2", multipart="parts")]


async def test_a_blob_is_not_kept_by_the_references_of_another_tenant(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    for each in (blobs, other):
        await each.put("k", content_of(DATA, f"place of {each.tenant}"))
    await blobs.delete("k")
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB)) is None
    assert await collect_one(blobs) == SIZE
    assert await blobs.trash() == [f"place of {blobs.tenant}"]
    assert await other.store.run(FindBlob(tenant=other.tenant, blob_id=BLOB)) is not None
    assert await collect_one(other) is None
    await other.delete("k")
    assert await collect_one(other) == SIZE


# -- tombstones ---------------------------------------------------------------------------------------------


async def test_a_tombstone_is_dropped_when_the_blob_is_referenced_again(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.delete("k")
    assert (await blobs.store.run(GetBlobMetrics())).tombstones == 1
    await blobs.put("k", DATA)
    assert await blobs.tombstoned(grace=0, limit=10) == []
    assert await collect_one(blobs) is None
    assert (await blobs.store.run(GetBlobMetrics())).tombstones == 0
    assert await blobs.read("k") == DATA
    blobs.bench.clock.advance(seconds=60)
    await blobs.delete("k")
    assert await collect_one(blobs, grace=60 * MICROS) is None
    assert await collect_one(blobs) == SIZE


async def test_a_tombstone_without_a_blob_is_dropped(blobs: BlobFixture) -> None:
    begun = await blobs.begin(SIZE, blob_id=BLOB)
    await blobs.end(begun.upload.id)
    assert await collect_one(blobs) is None
    assert await blobs.tombstoned(grace=0, limit=10) == []
    assert (await blobs.store.run(GetBlobMetrics())).tombstones == 0


async def test_an_unknown_blob_is_not_collected(blobs: BlobFixture) -> None:
    assert await collect_one(blobs) is None
    assert await blobs.references(BLOB) == 0


async def test_young_tombstones_do_not_hide_old_ones(blobs: BlobFixture) -> None:
    """However often one blob was deleted, a pass reaches the other tombstones."""
    for n in range(40):
        await blobs.store.run(put(blobs, f"popular {n}", DATA))
        await blobs.store.run(DeleteKey(tenant=blobs.tenant, key=f"popular {n}"))
    await blobs.put("stays", DATA)
    blobs.bench.clock.advance(seconds=1)
    await blobs.put("k", b"another")
    await blobs.delete("k")
    collected = []
    for _ in range(20):
        for blob in await blobs.tombstoned(grace=0, limit=2):
            collected.append(await collect_one(blobs, blob=blob))
    assert [size for size in collected if size is not None] == [len(b"another")]
    assert (await blobs.store.run(GetBlobMetrics())).tombstones == 0


async def test_only_one_of_many_concurrent_collections_removes_a_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, STORAGE_KEY))
    await blobs.delete("k")
    sizes = await asyncio.gather(*(collect_one(blobs) for _ in range(8)))
    assert sorted(size or 0 for size in sizes) == [0] * 7 + [SIZE]
    assert await blobs.trash() == [STORAGE_KEY]


async def test_a_blob_put_during_its_collection_stays_readable(blobs: BlobFixture) -> None:
    for n in range(20):
        await blobs.store.run(put(blobs, f"old {n}", DATA, f"old {n}"))
        await blobs.store.run(DeleteKey(tenant=blobs.tenant, key=f"old {n}"))
        await asyncio.gather(
            collect_one(blobs), blobs.store.run(put(blobs, f"k {n}", DATA, f"new {n}")), collect_one(blobs)
        )
        found = await blobs.store.run(OpenKey(tenant=blobs.tenant, key=f"k {n}"))
        assert found is not None, "the key is there, and so is its blob"
        assert found[1].storage_key not in await blobs.trash()
        await blobs.store.run(DeleteKey(tenant=blobs.tenant, key=f"k {n}"))
        assert await collect_one(blobs) == SIZE
        storage_keys = [one.storage_key for one in await blobs.store.run(ListTrash(limit=100))]
        assert sorted(storage_keys) == [f"new {n}", f"old {n}"], "each object goes to the trash once"
        await blobs.store.run(ForgetTrash(storage_keys=storage_keys))


# -- the trash ----------------------------------------------------------------------------------------------


async def test_an_object_waits_in_the_trash_until_it_is_deleted(blobs: BlobFixture) -> None:
    for n in range(3):
        await blobs.end((await blobs.begin(storage_key=f"place-{n}", multipart=f"parts-{n}")).upload.id)
    assert len(await blobs.store.run(ListTrash(limit=2))) == 2
    found = await blobs.store.run(ListTrash(limit=10))
    assert {one.storage_key: one.multipart for one in found} == {f"place-{n}": f"parts-{n}" for n in range(3)}
    for _ in range(2):
        await blobs.store.run(ForgetTrash(storage_keys=["place-0", "place-2"]))
        assert await blobs.trash() == ["place-1"]
    assert (await blobs.store.run(GetBlobMetrics())).trash == 1


async def test_an_inline_blob_leaves_no_trash(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.delete("k")
    assert await collect_one(blobs) == SIZE
    assert await blobs.trash() == []


async def test_a_failed_upload_is_swept_without_new_trash(blobs: BlobFixture) -> None:
    failed = await blobs.begin(5, storage_key=STORAGE_KEY)
    await blobs.end(failed.upload.id, "wrong_length", lifetime=60 * MICROS)
    await blobs.store.run(ForgetTrash(storage_keys=[STORAGE_KEY]))
    assert await blobs.sweep() == 0
    assert await blobs.state(failed.upload.id) is UploadState.FAILED
    blobs.bench.clock.advance(seconds=60)
    assert await blobs.sweep() == 1
    assert await blobs.state(failed.upload.id) is None
    assert await blobs.trash() == []
    assert (await blobs.store.run(GetBlobMetrics())).uploads == 0


# -- reading through a reference ----------------------------------------------------------------------------


async def test_a_blob_lists_its_references(blobs: BlobFixture, tmp_path: Path) -> None:
    clock, store = blobs.bench.clock, blobs.store
    first = clock.now()
    await blobs.put("k", DATA)
    clock.advance(seconds=1)
    done = await blobs.begin(SIZE)
    await blobs.finish(done.upload.id, DATA)
    second = clock.now()
    job = await blobs.bench.make_job("press")
    for kind in ("input", "output", "log", "payload", "checkpoint"):
        await give_file(blobs, tmp_path, job, kind)
    found = await store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB))
    assert found is not None
    content, references = found
    assert stored(content) == content_of(DATA)
    assert msgspec.to_builtins(sorted(references, key=lambda one: one.kind)) == msgspec.to_builtins(
        [
            Reference(kind="checkpoint", name="a.txt", job_id=job.id, job_type="press", since=second),
            Reference(kind="input", name="a.txt", job_id=job.id, job_type="press", since=second),
            Reference(kind="key", name="k", since=first),
            Reference(kind="log", name="a.txt", job_id=job.id, job_type="press", since=second),
            Reference(kind="output", name="a.txt", job_id=job.id, job_type="press", since=second),
            Reference(kind="payload", name="a.txt", job_id=job.id, job_type="press", since=second),
            Reference(kind="upload", name=done.upload.id, since=second),
        ]
    )
    assert await blobs.references(BLOB) == 7


async def test_incomplete_uploads_do_not_make_a_blob_visible(blobs: BlobFixture) -> None:
    claim = await blobs.bench.make_claim()
    for_job: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": "out"}
    output = await blobs.begin(SIZE, **for_job)
    await blobs.finish(output.upload.id, DATA)
    await blobs.begin(SIZE, blob_id=BLOB)
    verifying = await blobs.begin(SIZE, blob_id=BLOB)
    await blobs.note(verifying.upload.id, verifying.epoch, verifying=True)
    assert await blobs.references(BLOB) == 3
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB)) is None


async def test_a_blob_id_alone_gives_no_access(blobs: BlobFixture) -> None:
    other = BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id)
    await other.put("k", DATA)
    for blob in (BLOB, id_of(b"nobody has this")):
        assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=blob)) is None, blob
    await blobs.begin(SIZE, blob_id=BLOB)
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB)) is None


async def test_a_blob_lists_at_most_100_references(blobs: BlobFixture) -> None:
    await asyncio.gather(*(blobs.store.run(put(blobs, f"k{n:03}", DATA)) for n in range(101)))
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB))
    assert found is not None
    assert len(found[1]) == 100
    assert await blobs.references(BLOB) == 101


# -- purging ------------------------------------------------------------------------------------------------


async def test_a_purge_preview_returns_what_the_purge_deletes(blobs: BlobFixture) -> None:
    for n in range(3):
        await blobs.put(f"ann {n}", b"1234", owner="token:ann")
    await blobs.put("bob", b"12", owner="token:bob")
    await blobs.finish((await blobs.begin(5, owner="token:ann")).upload.id, b"12345")
    preview = await blobs.store.run(PreviewPurge(tenant=blobs.tenant, owner="token:ann"))
    assert (preview.keys, preview.bytes, preview.dry_run) == (3, 12, True)
    whole = await blobs.store.run(PreviewPurge(tenant=blobs.tenant, owner=None))
    assert (whole.keys, whole.bytes) == (4, 14)
    nobody = await blobs.store.run(PreviewPurge(tenant=blobs.tenant, owner="token:nobody"))
    assert (nobody.keys, nobody.bytes) == (0, 0)
    assert await blobs.keys() == ["ann 0", "ann 1", "ann 2", "bob"]
    purge = PurgeKeys(tenant=blobs.tenant, owner="token:ann", limit=10, act=Act(who="token:boss"))
    purged = await blobs.store.run(purge)
    assert (purged.keys, purged.bytes, purged.more, purged.dry_run) == (3, 12, False, False)
    await blobs.check()
    assert await blobs.keys() == ["bob"]
    assert len(await blobs.news("blob.deleted")) == 3
    assert await blobs.tombstoned(grace=0, limit=10) == [id_of(b"1234")]


async def test_a_purge_is_recorded_once_in_the_audit_log(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    purge = PurgeKeys(tenant=blobs.tenant, owner=OWNER, limit=10, act=Act(who="token:boss"))
    await blobs.store.run(purge)
    which = AuditFilter(tenant=blobs.tenant, action="keys.purged")
    (entry,) = await blobs.store.run(ListAuditEntries(filter=which, before=None, limit=10))
    assert (entry.who, entry.target) == ("token:boss", f"keys/{OWNER}")
    assert msgspec.json.decode(entry.after) == {"owner": OWNER, "keys": 1, "bytes": SIZE}


# -- scrubbing and metrics ----------------------------------------------------------------------------------


async def test_a_damaged_blob_stays_damaged_until_it_is_collected(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, STORAGE_KEY))
    await blobs.store.run(
        RecordScrub(
            damaged=[(blobs.tenant, BLOB, STORAGE_KEY), (blobs.tenant, id_of(b"collected meanwhile"), STORAGE_KEY)]
        )
    )
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB))
    assert found is not None
    assert found[0].damaged
    assert (await blobs.store.run(GetBlobMetrics())).damaged == 1
    await blobs.delete("k")
    assert await collect_one(blobs) == SIZE
    assert (await blobs.store.run(GetBlobMetrics())).damaged == 0


async def test_scrubs_list_every_blob_in_turn(blobs: BlobFixture) -> None:
    clock, store = blobs.bench.clock, blobs.store
    blob_ids = [id_of(bytes([n])) for n in range(9)]
    for n in range(9):
        clock.advance(seconds=1)
        await blobs.put(f"k{n}", bytes([n]))
    clock.advance(seconds=1)
    began, seen = clock.micros(), []
    while found := await store.run(ListBlobsToScrub(before=began, limit=4)):
        seen += [one.id for one in found]
        clock.advance(seconds=1)
        read = [(blobs.tenant, one.id, None) for one in found]
        await store.run(RecordScrub(intact=read[1:], damaged=read[:1]))
    assert seen == blob_ids
    assert (await store.run(GetBlobMetrics())).verified_before == to_datetime(began + MICROS)


async def test_metrics_count_blobs_bytes_and_damage(blobs: BlobFixture) -> None:
    clock, store = blobs.bench.clock, blobs.store
    nothing = await store.run(GetBlobMetrics())
    assert (nothing.blobs, nothing.bytes, nothing.verified_before) == (0, 0, None)
    stored = clock.now()
    await blobs.put("k", DATA)
    await blobs.put("gone", content_of(b"12345", STORAGE_KEY))
    clock.advance(seconds=1)
    await blobs.put("same", content_of(DATA, "place-2"))
    await blobs.delete("gone")
    await blobs.begin(5)
    await store.run(RecordScrub(damaged=[(blobs.tenant, id_of(b"12345"), STORAGE_KEY)]))
    assert msgspec.structs.asdict(await store.run(GetBlobMetrics())) == {
        "blobs": 2,
        "bytes": SIZE + 5,
        "deleted_bytes": SIZE + 5,
        "freed_from": clock.now(),
        "freed_by": to_datetime(clock.micros() + GRACE_MICROS),
        "damaged": 1,
        "tombstones": 1,
        "trash": 1,
        "uploads": 1,
        "verified_before": stored,
    }
