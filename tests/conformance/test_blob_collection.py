"""Why a blob is kept, and how it goes: references of every kind, tombstones, the trash, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.blobs.model import Reference, TrashedObject, UploadState, Usage
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
from tests.conformance.depot import OWNER, Depot, content_of, depot, id_of

__all__ = ["depot"]

PLACE = "place-1"


async def collect_one(depot: Depot, *, grace: int = 0, blob: str = BLOB) -> int | None:
    """Take the blob away if that may be."""
    return await depot.store.run(CollectBlob(blob_id=blob, grace=grace))


def put(depot: Depot, key: str, data: bytes, storage_key: str | None = None) -> PutBlob:
    """A command that a test gives by itself, beside others or without a recount."""
    return PutBlob(id=new_id(), tenant=depot.tenant, owner=OWNER, key=key, content=content_of(data, storage_key))


# -- what keeps a blob --------------------------------------------------------------------------------------


async def by_key(depot: Depot) -> Callable[[], Awaitable[Any]]:
    await depot.put("k", content_of(DATA, PLACE))
    return lambda: depot.delete("k")


async def by_replaced_key(depot: Depot) -> Callable[[], Awaitable[Any]]:
    await depot.put("k", content_of(DATA, PLACE))
    return lambda: depot.put("k", b"another", if_match="*")


async def by_upload(depot: Depot) -> Callable[[], Awaitable[Any]]:
    begun = await depot.begin(SIZE)
    await depot.finish(begun.upload.id, content_of(DATA, PLACE), lifetime=0)
    return depot.sweep


async def by_upload_under_way(depot: Depot) -> Callable[[], Awaitable[Any]]:
    begun = await depot.begin(SIZE, blob_id=BLOB)
    await depot.put("k", content_of(DATA, PLACE))
    await depot.delete("k")
    return lambda: depot.end(begun.upload.id)


async def by_upload_that_fails(depot: Depot) -> Callable[[], Awaitable[Any]]:
    begun = await depot.begin(SIZE, blob_id=BLOB)
    await depot.put("k", content_of(DATA, PLACE))
    await depot.delete("k")
    return lambda: depot.end(begun.upload.id, "wrong_digest")


KEEPERS = [by_key, by_replaced_key, by_upload, by_upload_under_way, by_upload_that_fails]


@pytest.mark.parametrize("keeper", KEEPERS, ids=lambda keeper: keeper.__name__)
async def test_a_blob_lives_while_it_is_referred_to_and_goes_after_the_grace(depot: Depot, keeper: Any) -> None:
    let_go = await keeper(depot)
    assert await depot.references(BLOB) == 1
    assert await collect_one(depot) is None
    assert await depot.store.run(ListTombstonedBlobs(grace=0, limit=10)) == []
    await let_go()
    assert await depot.references(BLOB) == 0
    assert await depot.store.run(ListTombstonedBlobs(grace=0, limit=10)) == [BLOB]
    depot.bench.clock.advance(seconds=60)
    assert await depot.store.run(ListTombstonedBlobs(grace=61 * MICROS, limit=10)) == []
    assert await collect_one(depot, grace=61 * MICROS) is None
    assert await depot.store.run(ListTombstonedBlobs(grace=60 * MICROS, limit=10)) == [BLOB]
    assert await collect_one(depot, grace=60 * MICROS) == SIZE
    assert await depot.trash() == [PLACE]
    assert await depot.store.run(ListTombstonedBlobs(grace=0, limit=10)) == []


async def test_a_file_of_a_job_keeps_a_blob_until_the_job_goes(depot: Depot, tmp_path: Path) -> None:
    bench, store = depot.bench, depot.store
    await bench.jobs.define(Definition(type="past", retention_seconds=60))
    job = await bench.make_job_in(JobStatus.SUCCEEDED, "past")
    await depot.put("k", content_of(DATA, PLACE))
    await give_file(depot, tmp_path, job)
    assert await depot.references(BLOB) == 2
    await store.run(DeleteKey(tenant=depot.tenant, key="k"))
    assert await collect_one(depot) is None
    assert await store.run(ListTombstonedBlobs(grace=0, limit=10)) == []
    assert await depot.usage() == await depot.usage(OWNER) == (SIZE, 0, 0)
    bench.clock.advance(seconds=61)
    assert (await bench.jobs.collect()).removed == 1
    assert await depot.usage() == await depot.usage(OWNER) == (0, 0, 0)
    assert await store.run(ListTombstonedBlobs(grace=0, limit=10)) == [BLOB]
    assert await collect_one(depot) == SIZE


async def test_a_job_that_is_kept_keeps_its_files(depot: Depot, tmp_path: Path) -> None:
    await depot.bench.jobs.define(Definition(type="past", retention_seconds=60))
    old = await depot.bench.make_job_in(JobStatus.SUCCEEDED, "past")
    depot.bench.clock.advance(seconds=61)
    young = await depot.bench.make_job_in(JobStatus.SUCCEEDED, "past")
    await depot.put("k", DATA)
    await give_file(depot, tmp_path, old)
    await give_file(depot, tmp_path, young)
    assert (await depot.bench.jobs.collect()).removed == 1
    assert await depot.references(BLOB) == 2
    assert await depot.usage() == (2 * SIZE, 0, 1)


async def test_what_a_removed_tenant_kept_is_collected(depot: Depot, tmp_path: Path) -> None:
    bench, store = depot.bench, depot.store
    tenant = (await bench.tenants.create("acme")).id
    theirs = Depot(bench, tenant)
    await theirs.put("k", content_of(DATA, PLACE))
    await theirs.begin(5, storage_key="place-2", multipart="parts")
    await give_file(theirs, tmp_path, await bench.make_job_in(JobStatus.SUCCEEDED, "past", tenant=tenant))
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
    assert await depot.references(BLOB) == 0
    assert await collect_one(depot) == SIZE
    trash = sorted(await store.run(ListTrash(limit=10)), key=lambda one: one.storage_key)
    assert trash == [TrashedObject(storage_key=PLACE), TrashedObject(storage_key="place-2", multipart="parts")]


async def test_the_references_of_all_tenants_keep_a_blob(depot: Depot) -> None:
    theirs = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    for each in (depot, theirs):
        await each.put("k", content_of(DATA, f"place of {each.tenant}"))
    await depot.delete("k")
    assert await collect_one(depot) is None
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=BLOB)) is None
    assert await theirs.store.run(FindBlob(tenant=theirs.tenant, blob_id=BLOB)) is not None
    await theirs.delete("k")
    assert await collect_one(depot) == SIZE


# -- tombstones ---------------------------------------------------------------------------------------------


async def test_a_tombstone_goes_with_what_is_referred_to_again(depot: Depot) -> None:
    await depot.put("k", DATA)
    await depot.delete("k")
    await depot.put("k", DATA)
    assert (await depot.store.run(GetBlobMetrics())).tombstones == 1
    assert await depot.store.run(ListTombstonedBlobs(grace=0, limit=10)) == [BLOB]
    assert await collect_one(depot) is None
    assert (await depot.store.run(GetBlobMetrics())).tombstones == 0
    assert await depot.read("k") == DATA
    depot.bench.clock.advance(seconds=60)
    await depot.delete("k")
    assert await collect_one(depot, grace=60 * MICROS) is None
    assert await collect_one(depot) == SIZE


async def test_a_tombstone_without_its_blob_goes_in_the_same_pass(depot: Depot) -> None:
    begun = await depot.begin(SIZE, blob_id=BLOB)
    await depot.end(begun.upload.id)
    assert await collect_one(depot) is None
    assert await depot.store.run(ListTombstonedBlobs(grace=0, limit=10)) == []
    assert (await depot.store.run(GetBlobMetrics())).tombstones == 0


async def test_a_blob_that_nobody_knows_is_not_collected(depot: Depot) -> None:
    assert await collect_one(depot) is None
    assert await depot.references(BLOB) == 0


async def test_young_tombstones_do_not_hide_old_ones(depot: Depot) -> None:
    """However often a blob lost a reference, a round gets to the others."""
    for n in range(40):
        await depot.store.run(put(depot, f"popular {n}", DATA))
        await depot.store.run(DeleteKey(tenant=depot.tenant, key=f"popular {n}"))
    await depot.put("stays", DATA)
    depot.bench.clock.advance(seconds=1)
    await depot.put("k", b"another")
    await depot.delete("k")
    collected = []
    for _ in range(20):
        for blob in await depot.store.run(ListTombstonedBlobs(grace=0, limit=2)):
            collected.append(await collect_one(depot, blob=blob))
    assert [size for size in collected if size is not None] == [len(b"another")]
    assert (await depot.store.run(GetBlobMetrics())).tombstones == 0


async def test_of_many_who_collect_a_blob_at_once_one_does(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, PLACE))
    await depot.delete("k")
    sizes = await asyncio.gather(*(collect_one(depot) for _ in range(8)))
    assert sorted(size or 0 for size in sizes) == [0] * 7 + [SIZE]
    assert await depot.trash() == [PLACE]


async def test_what_is_put_while_it_is_collected_is_there_in_the_end(depot: Depot) -> None:
    for n in range(20):
        await depot.store.run(put(depot, f"old {n}", DATA, f"old {n}"))
        await depot.store.run(DeleteKey(tenant=depot.tenant, key=f"old {n}"))
        await asyncio.gather(
            collect_one(depot), depot.store.run(put(depot, f"k {n}", DATA, f"new {n}")), collect_one(depot)
        )
        found = await depot.store.run(OpenKey(tenant=depot.tenant, key=f"k {n}"))
        assert found is not None, "the key is there, and so is its blob"
        assert found[1].storage_key not in await depot.trash()
        await depot.store.run(DeleteKey(tenant=depot.tenant, key=f"k {n}"))
        assert await collect_one(depot) == SIZE
        storage_keys = [one.storage_key for one in await depot.store.run(ListTrash(limit=100))]
        assert sorted(storage_keys) == [f"new {n}", f"old {n}"], "each object goes once, and none is forgotten"
        await depot.store.run(ForgetTrash(storage_keys=storage_keys))


# -- the trash ----------------------------------------------------------------------------------------------


async def test_an_object_waits_in_the_trash_until_it_is_deleted(depot: Depot) -> None:
    for n in range(3):
        await depot.end((await depot.begin(storage_key=f"place-{n}", multipart=f"parts-{n}")).upload.id)
    assert len(await depot.store.run(ListTrash(limit=2))) == 2
    found = await depot.store.run(ListTrash(limit=10))
    assert {one.storage_key: one.multipart for one in found} == {f"place-{n}": f"parts-{n}" for n in range(3)}
    for _ in range(2):
        await depot.store.run(ForgetTrash(storage_keys=["place-0", "place-2"]))
        assert await depot.trash() == ["place-1"]
    assert (await depot.store.run(GetBlobMetrics())).trash == 1


async def test_a_blob_that_is_kept_inline_leaves_no_trash(depot: Depot) -> None:
    await depot.put("k", DATA)
    await depot.delete("k")
    assert await collect_one(depot) == SIZE
    assert await depot.trash() == []


async def test_uploads_that_ended_before_are_dropped_without_a_trace(depot: Depot) -> None:
    failed = await depot.begin(5, storage_key=PLACE)
    await depot.end(failed.upload.id, "wrong_length", lifetime=60 * MICROS)
    await depot.store.run(ForgetTrash(storage_keys=[PLACE]))
    assert await depot.sweep() == 0
    assert await depot.state(failed.upload.id) is UploadState.FAILED
    depot.bench.clock.advance(seconds=60)
    assert await depot.sweep() == 1
    assert await depot.state(failed.upload.id) is None
    assert await depot.trash() == []
    assert (await depot.store.run(GetBlobMetrics())).uploads == 0


# -- reading through a reference ----------------------------------------------------------------------------


async def test_a_blob_tells_what_refers_to_it(depot: Depot, tmp_path: Path) -> None:
    clock, store = depot.bench.clock, depot.store
    first = clock.now()
    await depot.put("k", DATA)
    clock.advance(seconds=1)
    done = await depot.begin(SIZE)
    await depot.finish(done.upload.id, DATA)
    second = clock.now()
    job = await depot.bench.make_job("press")
    for kind in ("input", "output", "log", "payload", "checkpoint"):
        await give_file(depot, tmp_path, job, kind)
    found = await store.run(FindBlob(tenant=depot.tenant, blob_id=BLOB))
    assert found is not None
    content, references = found
    assert content == content_of(DATA)
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
    assert await depot.references(BLOB) == 7


async def test_what_is_not_complete_shows_no_blob(depot: Depot) -> None:
    claim = await depot.bench.make_claim()
    for_job: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": "out"}
    output = await depot.begin(SIZE, **for_job)
    await depot.finish(output.upload.id, DATA)
    await depot.begin(SIZE, blob_id=BLOB)
    verifying = await depot.begin(SIZE, blob_id=BLOB)
    await depot.note(verifying.upload.id, verifying.epoch, verifying=True)
    assert await depot.references(BLOB) == 3
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=BLOB)) is None


async def test_knowing_an_id_shows_nothing(depot: Depot) -> None:
    theirs = Depot(depot.bench, (await depot.bench.tenants.create("other")).id)
    await theirs.put("k", DATA)
    for blob in (BLOB, id_of(b"nobody has this")):
        assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=blob)) is None, blob
    await depot.begin(SIZE, blob_id=BLOB)
    assert await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=BLOB)) is None


async def test_a_blob_tells_a_bounded_number_of_references(depot: Depot) -> None:
    await asyncio.gather(*(depot.store.run(put(depot, f"k{n:03}", DATA)) for n in range(101)))
    found = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=BLOB))
    assert found is not None
    assert len(found[1]) == 100
    assert await depot.references(BLOB) == 101


# -- purging ------------------------------------------------------------------------------------------------


async def test_a_preview_tells_what_a_purge_deletes(depot: Depot) -> None:
    for n in range(3):
        await depot.put(f"ann {n}", b"1234", owner="token:ann")
    await depot.put("bob", b"12", owner="token:bob")
    await depot.finish((await depot.begin(5, owner="token:ann")).upload.id, b"12345")
    preview = await depot.store.run(PreviewPurge(tenant=depot.tenant, owner="token:ann"))
    assert (preview.keys, preview.bytes, preview.dry_run) == (3, 12, True)
    whole = await depot.store.run(PreviewPurge(tenant=depot.tenant, owner=None))
    assert (whole.keys, whole.bytes) == (4, 14)
    nobody = await depot.store.run(PreviewPurge(tenant=depot.tenant, owner="token:nobody"))
    assert (nobody.keys, nobody.bytes) == (0, 0)
    assert await depot.keys() == ["ann 0", "ann 1", "ann 2", "bob"]
    purge = PurgeKeys(tenant=depot.tenant, owner="token:ann", limit=10, act=Act(who="token:boss"))
    purged = await depot.store.run(purge)
    assert (purged.keys, purged.bytes, purged.more, purged.dry_run) == (3, 12, False, False)
    await depot.check()
    assert await depot.keys() == ["bob"]
    assert len(await depot.news("blob.deleted")) == 3
    assert await depot.store.run(ListTombstonedBlobs(grace=0, limit=10)) == [id_of(b"1234")]


async def test_a_purge_is_on_record_once(depot: Depot) -> None:
    await depot.put("k", DATA)
    purge = PurgeKeys(tenant=depot.tenant, owner=OWNER, limit=10, act=Act(who="token:boss"))
    await depot.store.run(purge)
    which = AuditFilter(tenant=depot.tenant, action="keys.purged")
    (entry,) = await depot.store.run(ListAuditEntries(filter=which, before=None, limit=10))
    assert (entry.who, entry.target) == ("token:boss", f"keys/{OWNER}")
    assert msgspec.json.decode(entry.after) == {"owner": OWNER, "keys": 1, "bytes": SIZE}


# -- scrubbing and figures ----------------------------------------------------------------------------------


async def test_a_damaged_blob_stays_damaged_until_it_is_whole_again(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, PLACE))
    await depot.store.run(RecordScrub(damaged=[(BLOB, PLACE), (id_of(b"collected meanwhile"), PLACE)]))
    found = await depot.store.run(FindBlob(tenant=depot.tenant, blob_id=BLOB))
    assert found is not None
    assert found[0].damaged
    assert (await depot.store.run(GetBlobMetrics())).damaged == 1
    await depot.delete("k")
    assert await collect_one(depot) == SIZE
    assert (await depot.store.run(GetBlobMetrics())).damaged == 0


async def test_every_blob_is_looked_at_in_turn(depot: Depot) -> None:
    clock, store = depot.bench.clock, depot.store
    blobs = [id_of(bytes([n])) for n in range(9)]
    for n in range(9):
        clock.advance(seconds=1)
        await depot.put(f"k{n}", bytes([n]))
    clock.advance(seconds=1)
    began, seen = clock.micros(), []
    while found := await store.run(ListBlobsToScrub(before=began, limit=4)):
        seen += [one.id for one in found]
        clock.advance(seconds=1)
        await store.run(RecordScrub(intact=[(one.id, None) for one in found[1:]], damaged=[(found[0].id, None)]))
    assert seen == blobs
    assert (await store.run(GetBlobMetrics())).verified_before == to_datetime(began + MICROS)


async def test_figures_tell_how_things_stand(depot: Depot) -> None:
    clock, store = depot.bench.clock, depot.store
    nothing = await store.run(GetBlobMetrics())
    assert (nothing.blobs, nothing.bytes, nothing.verified_before) == (0, 0, None)
    stored = clock.now()
    await depot.put("k", DATA)
    await depot.put("gone", content_of(b"12345", PLACE))
    clock.advance(seconds=1)
    await depot.put("same", content_of(DATA, "place-2"))
    await depot.delete("gone")
    await depot.begin(5)
    await store.run(RecordScrub(damaged=[(id_of(b"12345"), PLACE)]))
    assert msgspec.structs.asdict(await store.run(GetBlobMetrics())) == {
        "blobs": 2,
        "bytes": SIZE + 5,
        "damaged": 1,
        "tombstones": 1,
        "trash": 1,
        "uploads": 1,
        "verified_before": stored,
    }
