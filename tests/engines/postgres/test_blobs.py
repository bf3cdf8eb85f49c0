"""Blobs on PostgreSQL: several servers, lost responses, locks, roles and the cost of calls.

Tests of overlapping calls use two sessions, one of which pauses before its commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest

from ingot.blobs.errors import KeyExists, KeyNotFound, QuotaExceeded
from ingot.blobs.model import FinishedUpload, Key
from ingot.blobs.ports import (
    BeginUpload,
    CollectBlob,
    DeleteKey,
    FindBlob,
    FinishUpload,
    GetKey,
    GetUpload,
    GetUsage,
    ListTrash,
    OpenKey,
    PutBlob,
    RecordScrub,
)
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.identity import Limits
from ingot.kernel.errors import OutcomeUnknown
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, OWNER, content_of, id_of
from tests.engines.postgres.blob_cluster import WAIT_SECONDS, BlobCluster, CommitRecorder, losing_first_response
from tests.two_tenant_database import TenantPair, is_refused

SERVERS: Final = 3
COLLECT: Final = "SELECT ingot.collect_blob_of($1, $2, 0, false)"


def put(
    cluster: BlobCluster, key: str, data: bytes = b"data", storage_key: str | None = None, **values: Any
) -> PutBlob:
    values = {"id": new_id(), "tenant": cluster.tenant, "owner": OWNER} | values
    return PutBlob(key=key, content=content_of(data, storage_key), **values)


@asynccontextmanager
async def uncommitted(connection: Raw) -> AsyncIterator[None]:
    """Run the block in a transaction of the session."""
    async with connection.transaction():
        yield


# -- quotas -------------------------------------------------------------------------------------------------


async def test_concurrent_servers_use_a_quota_up_and_never_exceed_it(cluster: BlobCluster) -> None:
    await cluster.bench.tenants.change(cluster.tenant, limits=Limits(quota_bytes=100))
    stores = [await cluster.server() for _ in range(SERVERS)]
    calls: list[Any] = []
    for n in range(60):
        store = stores[n % SERVERS]
        calls.append(store.run(put(cluster, f"k{n}", n.to_bytes(4), owner=f"token:{n % 2}", owner_quota=52)))
        begin = BeginUpload(id=new_id(), tenant=cluster.tenant, owner="token:2", reserve=4, lifetime=HOUR)
        calls.append(store.run(begin))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    done = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} == {QuotaExceeded}
    usage = await stores[0].run(GetUsage(tenant=cluster.tenant))
    assert usage.bytes + usage.reserved_bytes == 4 * len(done) == 100
    for owner in ("token:0", "token:1"):
        assert (await stores[0].run(GetUsage(tenant=cluster.tenant, owner=owner))).bytes <= 52
    assert await cluster.is_usage_correct()


async def test_usage_is_exact_after_concurrent_calls_of_several_servers(cluster: BlobCluster) -> None:
    stores = [await cluster.server() for _ in range(SERVERS)]
    other = (await cluster.bench.tenants.create("other")).id

    async def work(n: int) -> None:
        store, tenant = stores[n % SERVERS], (cluster.tenant, other)[n % 2]
        for step in range(12):
            key, data = f"k{(n + step) % 5}", bytes((n * step) % 7)
            options: dict[str, Any] = {"tenant": tenant, "owner": f"token:{step % 3}"}
            try:
                match (n + step) % 4:
                    case 0 | 1:
                        await store.run(put(cluster, key, data, f"{n} {step}", if_match="*", **options))
                    case 2:
                        await store.run(DeleteKey(tenant=tenant, key=key))
                    case 3:
                        begin = BeginUpload(id=new_id(), reserve=9, lifetime=HOUR, key=key, if_match="*", **options)
                        await store.run(begin)
                        content = content_of(data, f"{n} {step} up")
                        await store.run(FinishUpload(tenant=tenant, id=begin.id, content=content, lifetime=HOUR))
            except KeyNotFound:
                pass
            await store.run(CollectBlob(holder=tenant, blob_id=id_of(data), grace=0))

    await asyncio.gather(*map(work, range(12)))
    assert await cluster.is_usage_correct()
    owner = await cluster.session(server=False)
    missing = (
        "SELECT count(*) FROM ingot.keys AS k WHERE NOT EXISTS (SELECT FROM ingot.{0} AS b WHERE b.digest = k.blob)"
    )
    assert await owner.fetchval(missing.format("blobs")) == await owner.fetchval(missing.format("blob_contents")) == 0
    lost = "SELECT count(*) FROM ingot.trash AS t JOIN ingot.blobs AS b ON b.place = t.place"
    assert await owner.fetchval(lost) == 0
    unreferenced = """
        SELECT count(*) FROM ingot.blobs AS b WHERE (SELECT ingot.count_references(b.holder, b.digest)) = 0
        AND NOT EXISTS (SELECT FROM ingot.tombstones AS t WHERE t.digest = b.digest)
    """
    assert await owner.fetchval(unreferenced) == 0, "every unreferenced blob has a tombstone"


# -- batches ------------------------------------------------------------------------------------------------


async def test_concurrent_puts_and_deletes_share_transactions_despite_refused_ones(cluster: BlobCluster) -> None:
    store, recorder = await cluster.server(), CommitRecorder()
    store.add_listener(recorder)
    await store.run(put(cluster, "k7"))
    answers = await asyncio.gather(
        *(store.run(put(cluster, f"k{n}", f"{n}".encode())) for n in range(200)), return_exceptions=True
    )
    assert [n for n, answer in enumerate(answers) if isinstance(answer, KeyExists)] == [7]
    assert sum(isinstance(answer, Key) for answer in answers) == 199
    assert recorder.sizes["put_blob"] == [1, 200]
    deletions = await asyncio.gather(
        *(store.run(DeleteKey(tenant=cluster.tenant, key=f"k{n}")) for n in range(201)), return_exceptions=True
    )
    assert [n for n, answer in enumerate(deletions) if isinstance(answer, KeyNotFound)] == [200]
    assert recorder.sizes["delete_key"] == [201]
    assert await cluster.is_usage_correct()


async def test_concurrent_finishes_of_uploads_share_a_transaction(cluster: BlobCluster) -> None:
    store, recorder = await cluster.server(), CommitRecorder()
    store.add_listener(recorder)
    begun = [
        BeginUpload(
            id=new_id(),
            tenant=cluster.tenant,
            owner=OWNER,
            reserve=9,
            lifetime=HOUR,
            key=f"k{n % 40}",
            storage_key=f"p{n}",
        )
        for n in range(50)
    ]
    for one in begun:
        await store.run(one)
    finishes = [
        FinishUpload(tenant=cluster.tenant, id=one.id, content=content_of(b"the same", one.storage_key), lifetime=HOUR)
        for one in begun
    ]
    answers = await asyncio.gather(*map(store.run, finishes), return_exceptions=True)
    assert sum(isinstance(answer, FinishedUpload) for answer in answers) == 40
    assert {n for n, answer in enumerate(answers) if isinstance(answer, KeyExists)} == set(range(40, 50))
    assert recorder.sizes["finish_upload"] == [50]
    assert len(await store.run(ListTrash(limit=100))) == 39, (
        "one object belongs to the blob, and refused uploads keep theirs"
    )
    assert await cluster.is_usage_correct()


# -- lost responses -----------------------------------------------------------------------------------------


async def test_a_command_whose_response_was_lost_is_executed_once(cluster: BlobCluster) -> None:
    store = await cluster.server(losing_first_response(cluster.bench.clock, "put_blobs"))
    key = await store.run(put(cluster, "k", b"12345", "place-1"))
    assert key == await store.run(GetKey(tenant=cluster.tenant, key="k"))
    assert await store.run(ListTrash(limit=10)) == []
    begin = BeginUpload(
        id=new_id(), tenant=cluster.tenant, owner=OWNER, reserve=9, lifetime=HOUR, key="up", storage_key="place-2"
    )
    store = await cluster.server(losing_first_response(cluster.bench.clock, "begin_upload"))
    begun = await store.run(begin)
    assert begun == await store.run(GetUpload(tenant=cluster.tenant, id=begin.id))
    store = await cluster.server(losing_first_response(cluster.bench.clock, "finish_uploads"))
    finish = FinishUpload(tenant=cluster.tenant, id=begin.id, content=content_of(b"other", "place-2"), lifetime=HOUR)
    done = await store.run(finish)
    assert done.key == await store.run(GetKey(tenant=cluster.tenant, key="up"))
    assert await store.run(ListTrash(limit=10)) == []
    assert len(await cluster.blobs.news("blob.stored")) == 2
    assert await cluster.is_usage_correct()


async def test_a_delete_whose_response_was_lost_raises_outcome_unknown(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", b"12345")
    store = await cluster.server(losing_first_response(cluster.bench.clock, "delete_keys"))
    with pytest.raises(OutcomeUnknown):
        await store.run(DeleteKey(tenant=cluster.tenant, key="k"))
    assert await store.run(GetKey(tenant=cluster.tenant, key="k")) is None
    assert len(await cluster.blobs.news("blob.deleted")) == 1
    with pytest.raises(KeyNotFound):
        await store.run(DeleteKey(tenant=cluster.tenant, key="k"))


# -- overlapping transactions -------------------------------------------------------------------------------

PUT: Final = """
    SELECT * FROM ingot.put_blobs(ARRAY[gen_random_uuid()], ARRAY[$1::uuid], '{a}', ARRAY[$2], '{NULL}',
        ARRAY[$3::bytea], ARRAY[$3::bytea], '{5}', ARRAY[$4::text], '{NULL}', '{""}', '{a/b}', '{NULL}', '{NULL}')
"""
BLOB: Final = bytes.fromhex(id_of(b"12345"))


async def make_tombstoned_blob(cluster: BlobCluster) -> str:
    """Make a blob without references, and return its ID."""
    await cluster.blobs.put("old", content_of(b"12345", "old"))
    await cluster.blobs.delete("old")
    return BLOB.hex()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_blob_with_an_uncommitted_reference_is_not_collected(cluster: BlobCluster, commits: bool) -> None:
    blob, store = await make_tombstoned_blob(cluster), await cluster.server()
    session = await cluster.session()
    change = session.transaction()
    await change.start()
    await session.fetch(PUT, cluster.tenant, "new", BLOB, "new")
    collect = CollectBlob(holder=cluster.tenant, blob_id=blob, grace=0)
    collecting = asyncio.ensure_future(store.run(collect))
    await cluster.wait_for_blocked_session()
    await (change.commit() if commits else change.rollback())
    assert await collecting == (None if commits else 5)
    found = await store.run(OpenKey(tenant=cluster.tenant, key="new"))
    assert (found is not None and found[1].storage_key == "old") == commits
    assert [one.storage_key for one in await store.run(ListTrash(limit=10))] == (["new"] if commits else ["old"])


@pytest.mark.parametrize("commits", [True, False])
async def test_an_upload_of_a_blob_under_collection_waits_and_stores_or_reuses_it(
    cluster: BlobCluster, commits: bool
) -> None:
    await make_tombstoned_blob(cluster)
    store = await cluster.server()
    session = await cluster.session()
    begin = BeginUpload(id=new_id(), tenant=cluster.tenant, owner=OWNER, reserve=5, lifetime=HOUR, storage_key="new")
    await store.run(begin)
    change = session.transaction()
    await change.start()
    assert await session.fetchval(COLLECT, cluster.tenant, BLOB) == 5
    content = content_of(b"12345", "new")
    finish = FinishUpload(tenant=cluster.tenant, id=begin.id, content=content, lifetime=HOUR)
    finishing = asyncio.ensure_future(store.run(finish))
    await cluster.wait_for_blocked_session()
    await (change.commit() if commits else change.rollback())
    async with asyncio.timeout(WAIT_SECONDS):
        await finishing
    found = await store.run(FindBlob(tenant=cluster.tenant, blob_id=BLOB.hex()))
    assert found is not None
    assert found[0].storage_key == ("new" if commits else "old")
    assert [one.storage_key for one in await store.run(ListTrash(limit=10))] == (["old"] if commits else ["new"])
    assert await store.run(CollectBlob(holder=cluster.tenant, blob_id=BLOB.hex(), grace=0)) is None


@pytest.mark.parametrize("commits", [True, False])
async def test_concurrent_puts_of_the_same_bytes_store_one_object(cluster: BlobCluster, commits: bool) -> None:
    store, session = await cluster.server(), await cluster.session()
    change = session.transaction()
    await change.start()
    await session.fetch(PUT, cluster.tenant, "j", BLOB, "first")
    putting = asyncio.ensure_future(store.run(put(cluster, "k", b"12345", "second")))
    await cluster.wait_for_blocked_session()
    await (change.commit() if commits else change.rollback())
    async with asyncio.timeout(WAIT_SECONDS):
        await putting
    found = await store.run(OpenKey(tenant=cluster.tenant, key="k"))
    assert found is not None
    assert found[1].storage_key == ("first" if commits else "second")
    assert [one.storage_key for one in await store.run(ListTrash(limit=10))] == (["second"] if commits else [])


async def test_a_reference_dropped_during_a_collection_leaves_its_tombstone(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", content_of(b"12345", "place"))
    await cluster.blobs.put("more", content_of(b"12345", "place"))
    await cluster.blobs.delete("more")
    session = await cluster.session()
    async with uncommitted(session):
        await session.fetch("SELECT * FROM ingot.delete_keys(ARRAY[$1::uuid], '{k}', '{NULL}')", cluster.tenant)
        collect = CollectBlob(holder=cluster.tenant, blob_id=BLOB.hex(), grace=HOUR)
        collecting = asyncio.ensure_future(cluster.blobs.store.run(collect))
        await cluster.wait_for_blocked_session()
    assert await collecting is None
    assert await cluster.blobs.tombstoned() == [BLOB.hex()]
    assert await cluster.blobs.store.run(CollectBlob(holder=cluster.tenant, blob_id=BLOB.hex(), grace=0)) == 5


async def test_concurrent_repairs_of_a_damaged_blob_leave_one_object(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", content_of(b"12345", "damaged"))
    await cluster.blobs.store.run(RecordScrub(damaged=[(cluster.tenant, BLOB.hex(), "damaged")]))
    store, session = await cluster.server(), await cluster.session()
    async with uncommitted(session):
        await session.fetch(PUT, cluster.tenant, "j", BLOB, "first")
        putting = asyncio.ensure_future(store.run(put(cluster, "more", b"12345", "second")))
        await cluster.wait_for_blocked_session()
    async with asyncio.timeout(WAIT_SECONDS):
        await putting
    found = await store.run(OpenKey(tenant=cluster.tenant, key="k"))
    assert found is not None
    assert (found[1].storage_key, found[1].damaged) == ("first", False)
    assert sorted(one.storage_key for one in await store.run(ListTrash(limit=10))) == ["damaged", "second"]


async def test_events_of_a_tenant_are_in_the_order_of_its_changes(cluster: BlobCluster) -> None:
    """The order of events follows the locks of the tenant, not the start of the calls."""
    tenants = sorted([(await cluster.bench.tenants.create(f"tenant-{n}")).id for n in range(3)])
    store, blocker, quick = await cluster.server(), await cluster.session(), await cluster.session()
    for tenant in tenants:
        await store.run(put(cluster, "k", tenant=tenant))
    async with uncommitted(blocker):
        await blocker.fetch(PUT, tenants[1], "other", BLOB, "blocker")
        slow = asyncio.gather(*(store.run(put(cluster, "k", b"last", tenant=one, if_match="*")) for one in tenants))
        await cluster.wait_for_blocked_session()  # The slow call has its position and has locked the first tenant.
        await quick.fetch(PUT, tenants[2], "quick", bytes(32), "quick")
    async with asyncio.timeout(WAIT_SECONDS):
        await slow
    events = [event for event in await cluster.bench.events.read(tenants[2], limit=10) if event.name == "blob.stored"]
    stored = [msgspec.json.decode(event.data)["blob_id"] for event in events]
    assert stored == [id_of(b"data"), bytes(32).hex(), id_of(b"last")]


async def test_a_completion_waits_for_an_uncommitted_finish_of_its_upload(cluster: BlobCluster) -> None:
    claim = await cluster.bench.make_claim()
    options: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": "out"}
    begin = BeginUpload(id=new_id(), tenant=cluster.tenant, owner=OWNER, reserve=5, lifetime=HOUR, **options)
    await cluster.blobs.store.run(begin)
    session = await cluster.session()
    async with uncommitted(session):
        await session.fetch(
            """SELECT * FROM ingot.finish_uploads(ARRAY[$1::uuid], ARRAY[$2::uuid], '{NULL}', '{1}', '{NULL}',
                ARRAY[$3::bytea], ARRAY[$3::bytea], '{5}', '{place}', '{NULL}', '{""}')""",
            cluster.tenant,
            begin.id,
            BLOB,
        )
        completing = asyncio.ensure_future(cluster.bench.jobs.complete(claim))
        await cluster.wait_for_blocked_session()
    async with asyncio.timeout(WAIT_SECONDS):
        await completing
    assert await cluster.blobs.files(claim.job.id) == [("output", "out", BLOB.hex())]


# -- roles --------------------------------------------------------------------------------------------------


async def test_worker_and_application_roles_cannot_access_blobs(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    worker = await pair.as_worker(tenant)
    role = await pair.make_role("IN ROLE ingot_app")
    admin = await pair.connect()
    await admin.execute("INSERT INTO ingot.app_roles VALUES ($1, $2)", role, tenant)
    app = await pair.connect(role)
    functions = await admin.fetch("""
        SELECT p.oid::regprocedure::text, pronargs FROM pg_proc AS p
        WHERE pronamespace = 'ingot'::regnamespace
            AND proname ~ 'blob|upload|_key|keys|usage|trash|scrub|condemned|verifying'
    """)
    assert len(functions) > 30
    tables = (
        "blobs",
        "blob_contents",
        "blob_totals",
        "keys",
        "uploads",
        "job_files",
        "usage",
        "usage_owed",
        "tombstones",
    )
    for connection in (worker, app):
        await connection.execute(f"SET ingot.tenant = '{tenant}'")
        for name, arguments in functions:
            function = name.partition("(")[0]
            assert await is_refused(connection, f"SELECT {function}({', '.join(['NULL'] * arguments)})"), name
        for table in (*tables, "trash"):
            assert await is_refused(connection, f"SELECT * FROM ingot.{table}"), table


async def test_each_of_two_tenants_sees_a_shared_blob_through_its_own_key(pair: TenantPair) -> None:
    server = await pair.as_server()
    for tenant in pair.tenants:
        found = await server.fetch("SELECT refers FROM ingot.open_blob($1, $2, 100)", tenant, await blob_of(pair))
        kinds = [one["kind"] for one in msgspec.json.decode(found[0]["refers"])]
        assert sorted(kinds) == ["input", "key"]
    assert await server.fetch("SELECT * FROM ingot.open_blob($1, $2, 100)", new_id(), await blob_of(pair)) == []


async def blob_of(pair: TenantPair) -> bytes:
    admin = await pair.connect()
    return bytes(await admin.fetchval("SELECT blob FROM ingot.keys GROUP BY blob HAVING count(*) = 2"))
