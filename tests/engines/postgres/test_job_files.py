"""Files of jobs on PostgreSQL: several servers and applications, lost responses, and the cost of calls.

Tests of overlapping calls use two sessions, one of which pauses before its commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from ingot.blobs.errors import BlobNotFound, QuotaExceeded, UploadNotFound
from ingot.blobs.model import Content
from ingot.blobs.ports import (
    BeginUpload,
    CollectBlob,
    DeleteKey,
    EndUpload,
    FinishUpload,
    GetUpload,
    GetUsage,
    PutBlob,
    SweepUploads,
)
from ingot.engines.postgres import PostgresStore, grant_app_role
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.identity import Limits
from ingot.jobs import Claim, Definition, Done, JobStatus, NewJob, Settle
from ingot.jobs.ports import CancelJob, ClaimJobs, Enqueue, SettleJobs
from ingot.kernel.errors import IngotError, StoreBusy
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, OWNER, content_of, id_of
from tests.engines.postgres.blob_cluster import WAIT_SECONDS, BlobCluster, CommitRecorder, losing_first_response
from tests.postgres import with_database

SERVERS: Final = 3
DATA: Final = b"12345"
BLOB: Final = id_of(DATA)
COLLECT: Final = "SELECT ingot.collect_blob_of($1, $2, 0, false)"
ENQUEUE_JSON: Final = "SELECT * FROM ingot.enqueue_json($1)"
FINISH: Final = """
    SELECT * FROM ingot.finish_uploads(ARRAY[$1::uuid], ARRAY[$2::uuid], '{NULL}', '{1}', '{NULL}',
        ARRAY[$3::bytea], ARRAY[$3::bytea], '{5}', '{place}', '{NULL}', '{""}')
"""


@asynccontextmanager
async def uncommitted(connection: Raw) -> AsyncIterator[None]:
    """Run the block in a transaction of the session."""
    async with connection.transaction():
        yield


async def enqueue(store: PostgresStore, *orders: NewJob) -> list[str]:
    """Enqueue jobs in one call, and return their IDs."""
    return [made.job.id for made in await store.run(Enqueue(jobs=orders))]


def finish(cluster: BlobCluster, upload: BeginUpload, data: bytes = DATA) -> FinishUpload:
    """A command that finishes an upload."""
    return FinishUpload(
        tenant=cluster.tenant, id=upload.id, content=content_of(data, upload.storage_key), lifetime=HOUR
    )


def put(cluster: BlobCluster, key: str, content: Content, **values: Any) -> PutBlob:
    """A command that puts a blob under a key."""
    options = {"id": new_id(), "tenant": cluster.tenant, "owner": OWNER, "if_match": "*"} | values
    return PutBlob(key=key, content=content, **options)


def delete_key(cluster: BlobCluster, key: str) -> DeleteKey:
    """A command that deletes a key."""
    return DeleteKey(tenant=cluster.tenant, key=key)


async def status(cluster: BlobCluster, job_id: str) -> JobStatus:
    """The status of a job."""
    return (await cluster.bench.jobs.get(cluster.tenant, job_id)).status


async def is_consistent(cluster: BlobCluster) -> bool:
    """Return True if usage equals a recount, every file has its blob, and every blocked job waits for something."""
    owner = await cluster.session(server=False)
    missing_blobs = "SELECT count(*) FROM ingot.job_files AS f WHERE f.blob NOT IN (SELECT digest FROM ingot.blobs)"
    stuck_jobs = """
        SELECT count(*) FROM ingot.blocked AS b WHERE NOT ingot.waits_for_upload(b.id)
        AND NOT EXISTS (SELECT FROM ingot.waits AS w WHERE w.job = b.id AND w.open)
    """
    leftover_uploads = (
        "SELECT count(*) FROM ingot.uploads WHERE job IS NOT NULL AND fence IS NULL AND state IN ('open', 'verifying')"
    )
    leftover_uploads += " AND job NOT IN (SELECT id FROM ingot.blocked)"
    found = [await owner.fetchval(query) for query in (missing_blobs, stuck_jobs, leftover_uploads)]
    return found == [0, 0, 0] and await cluster.is_usage_correct()


# -- inputs and the collector -------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
async def test_an_order_waits_for_a_collection_of_its_input_blob(cluster: BlobCluster, commits: bool) -> None:
    await cluster.blobs.put("k", content_of(DATA, "place"))
    session, store = await cluster.session(server=False), await cluster.server()
    change = session.transaction()
    await change.start()
    # The collector locks the usage of the tenant before it reads the references of the blob.
    await session.fetch("SELECT ingot.lock_usage(ARRAY[$1::uuid])", cluster.tenant)
    enqueuing = asyncio.ensure_future(enqueue(store, cluster.blobs.order(inputs={"in": BLOB})))
    await cluster.wait_for_blocked_session()
    assert await session.fetchval(COLLECT, cluster.tenant, bytes.fromhex(BLOB)) is None, "the key refers to it"
    await (change.commit() if commits else change.rollback())
    async with asyncio.timeout(WAIT_SECONDS):
        (job_id,) = await enqueuing
    await cluster.blobs.store.run(delete_key(cluster, "k"))
    assert await store.run(CollectBlob(holder=cluster.tenant, blob_id=BLOB, grace=0)) is None
    assert await cluster.blobs.files(job_id) == [("input", "in", BLOB)]
    assert await is_consistent(cluster)


@pytest.mark.parametrize("commits", [True, False])
async def test_the_collector_keeps_a_blob_named_by_an_uncommitted_order(cluster: BlobCluster, commits: bool) -> None:
    await cluster.blobs.put("k", content_of(DATA, "place"))
    store, app = await cluster.server(), await app_of(cluster)
    change = app.transaction()
    await change.start()
    await app.fetch(ENQUEUE_JSON, msgspec.json.encode([{"type": "noop", "inputs": {"in": BLOB}}]).decode())
    await cluster.blobs.delete("k")  # The open transaction of the application blocks no other call.
    assert await store.run(CollectBlob(holder=cluster.tenant, blob_id=BLOB, grace=0)) is None
    await (change.commit() if commits else change.rollback())
    assert await store.run(CollectBlob(holder=cluster.tenant, blob_id=BLOB, grace=0)) == (
        None if commits else len(DATA)
    )
    assert (await store.run(GetUsage(tenant=cluster.tenant))).bytes == (len(DATA) if commits else 0)
    assert await is_consistent(cluster)


async def test_concurrent_orders_deletes_and_collections_never_leave_a_job_without_its_blob(
    cluster: BlobCluster,
) -> None:
    stores = [await cluster.server() for _ in range(SERVERS)]
    app = await app_of(cluster)
    made = 0

    async def work(n: int) -> None:
        nonlocal made
        store, data = stores[n % SERVERS], bytes([n % 3])
        for step in range(10):
            content = content_of(data, f"{n} {step}")
            key = f"k{n % 3}"
            try:
                match (n + step) % 4:
                    case 0:
                        await store.run(put(cluster, key, content))
                    case 1:
                        await store.run(delete_key(cluster, key))
                    case _:
                        await enqueue(store, cluster.blobs.order(inputs={"in": id_of(data)}))
                        made += 1
            except IngotError:
                pass
            await store.run(CollectBlob(holder=cluster.tenant, blob_id=id_of(data), grace=0))

    refusals: set[str | None] = {"IN048"}

    async def in_app() -> None:
        for n in range(20):
            jobs = [{"type": "noop", "inputs": {"in": id_of(bytes([n % 3]))}}]
            try:
                await app.fetch(ENQUEUE_JSON, msgspec.json.encode(jobs).decode())
            except asyncpg.PostgresError as error:
                refusals.add(error.sqlstate)

    await asyncio.gather(in_app(), *map(work, range(12)))
    assert made > 10
    assert refusals == {"IN048"}
    assert await is_consistent(cluster)


# -- quotas -------------------------------------------------------------------------------------------------


async def test_concurrent_servers_never_exceed_a_quota_with_inputs_and_uploads(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    await cluster.bench.tenants.change(cluster.tenant, limits=Limits(quota_bytes=100))
    stores = [await cluster.server() for _ in range(SERVERS)]
    orders = [
        cluster.blobs.order(inputs={"in": BLOB}) if n % 2 else cluster.blobs.order(uploads=["in"]) for n in range(60)
    ]
    calls = [enqueue(stores[n % SERVERS], order) for n, order in enumerate(orders)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(one) for one in answers if isinstance(one, BaseException)} == {QuotaExceeded}
    usage = await stores[0].run(GetUsage(tenant=cluster.tenant))
    assert usage.bytes + usage.reserved_bytes == 100
    assert len([one for one in answers if not isinstance(one, BaseException)]) == 19
    assert await is_consistent(cluster)


async def test_concurrent_orders_with_inputs_share_a_transaction_despite_a_refused_one(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    store, recorder = await cluster.server(), CommitRecorder()
    store.add_listener(recorder)
    orders = [cluster.blobs.order(inputs={"in": id_of(b"no") if n == 7 else BLOB}) for n in range(100)]
    answers = await asyncio.gather(*(enqueue(store, order) for order in orders), return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [7]
    assert isinstance(answers[7], BlobNotFound)
    assert recorder.sizes["enqueue"] == [100]
    assert await is_consistent(cluster)


# -- uploads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
async def test_a_cancel_waits_for_an_uncommitted_finish_of_an_upload(cluster: BlobCluster, commits: bool) -> None:
    order = cluster.blobs.order(uploads=["in"])
    store, session = await cluster.server(), await cluster.session()
    await enqueue(store, order)
    change = session.transaction()
    await change.start()
    await session.fetch(FINISH, cluster.tenant, order.uploads[0].id, bytes.fromhex(BLOB))
    canceling = asyncio.ensure_future(store.run(CancelJob(tenant=cluster.tenant, job_id=order.id)))
    await cluster.wait_for_blocked_session()
    await (change.commit() if commits else change.rollback())
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await canceling).status is JobStatus.CANCELED
    assert len(await cluster.blobs.files(order.id)) == commits
    assert (await store.run(GetUpload(tenant=cluster.tenant, id=order.uploads[0].id)) is None) != commits
    assert (await store.run(GetUsage(tenant=cluster.tenant))).reserved_bytes == 0
    names = [event.name for event in await cluster.bench.events.read(cluster.tenant)]
    assert names == ["job.created", *(["blob.stored", "job.updated"] if commits else []), "job.canceled"]
    assert await is_consistent(cluster)


async def test_a_finish_of_an_upload_waits_for_an_uncommitted_cancel(cluster: BlobCluster) -> None:
    order = cluster.blobs.order(uploads=["in"])
    store, session = await cluster.server(), await cluster.session()
    await enqueue(store, order)
    async with uncommitted(session):
        await session.fetch("SELECT ingot.cancel($1, $2)", cluster.tenant, order.id)
        finishing = asyncio.ensure_future(store.run(finish(cluster, order.uploads[0])))
        await cluster.wait_for_blocked_session()
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(UploadNotFound):
            await finishing
    assert await cluster.blobs.files(order.id) == []
    assert await is_consistent(cluster)


@pytest.mark.parametrize("first", ["release", "finish"])
async def test_the_last_upload_and_the_last_parent_together_queue_a_job_once(cluster: BlobCluster, first: str) -> None:
    parent = await cluster.bench.make_claim("first")
    order = cluster.blobs.order(uploads=["in"], after=[parent.job.id])
    store, session = await cluster.server(), await cluster.session()
    await enqueue(store, order)
    await session.fetch(  # The attempt ends, but its dependents are not released yet.
        "SELECT * FROM ingot.settle(ARRAY[$1::uuid], ARRAY[$2::bigint], NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        parent.job.id,
        parent.fence,
    )
    calls: list[tuple[Any, ...]] = [
        ("SELECT * FROM ingot.release_dependents(ARRAY[$1::uuid], 10)", parent.job.id),
        (FINISH, cluster.tenant, order.uploads[0].id, bytes.fromhex(BLOB)),
    ]
    starts_first, starts_second = calls if first == "release" else reversed(calls)
    other = await cluster.session()
    async with uncommitted(session):
        await session.fetch(*starts_first)
        second_call = asyncio.ensure_future(other.fetch(*starts_second))
        await cluster.wait_for_blocked_session()
    async with asyncio.timeout(WAIT_SECONDS):
        await second_call
    assert await status(cluster, order.id) is JobStatus.QUEUED
    assert (await cluster.bench.jobs.summary(cluster.tenant)).counts[JobStatus.QUEUED] == 1
    assert [event.name for event in await cluster.bench.events.read(cluster.tenant)].count("job.updated") == 1
    assert await is_consistent(cluster)


async def test_concurrent_finishes_sweeps_and_cancels_leave_consistent_jobs(cluster: BlobCluster) -> None:
    stores = [await cluster.server() for _ in range(SERVERS)]
    orders = [cluster.blobs.order(uploads=["a", "b"], batch="together") for _ in range(24)]
    for order in orders:
        await enqueue(stores[0], order)
    children = [cluster.blobs.order("child", after=[order.id]) for order in orders]
    await enqueue(stores[0], *children)

    async def work(n: int, order: NewJob) -> None:
        one, two, three = (stores[(n + k) % SERVERS] for k in range(3))
        first, second = order.uploads
        calls: list[Any] = [one.run(finish(cluster, first)), two.run(finish(cluster, second, b"more"))]
        if n % 3 == 0:
            calls.append(three.run(CancelJob(tenant=cluster.tenant, job_id=order.id)))
        elif n % 3 == 1:
            calls.append(three.run(EndUpload(tenant=cluster.tenant, id=second.id, error="wrong_digest", lifetime=HOUR)))
        else:
            calls.append(three.run(SweepUploads(limit=10)))
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert not isinstance(answer, BaseException) or isinstance(answer, IngotError), answer
            assert not isinstance(answer, StoreBusy)

    await asyncio.gather(*(work(n, order) for n, order in enumerate(orders)))
    for store in stores:
        await store.dependents.wait_until_idle()
    statuses = [await status(cluster, order.id) for order in orders]
    assert set(statuses) == {JobStatus.QUEUED, JobStatus.CANCELED}
    assert [await status(cluster, child.id) for child in children] == [
        JobStatus.BLOCKED if one is JobStatus.QUEUED else JobStatus.CANCELED for one in statuses
    ]
    counts = (await cluster.bench.jobs.summary(cluster.tenant)).counts
    assert counts[JobStatus.QUEUED] == statuses.count(JobStatus.QUEUED)
    assert counts[JobStatus.CANCELED] == 2 * statuses.count(JobStatus.CANCELED)
    assert await is_consistent(cluster)


async def test_another_server_is_notified_of_a_job_queued_by_an_upload(cluster: BlobCluster) -> None:
    one, two = await cluster.server(), await cluster.server()
    order = cluster.blobs.order(uploads=["in"])
    await enqueue(one, order)
    notified = asyncio.Event()
    two.on_ready(lambda _, type, __: notified.set() if type == "noop" else None)
    for store in (one, two):
        store.listener.start()
    async with asyncio.timeout(WAIT_SECONDS):
        await one.run(finish(cluster, order.uploads[0]))
        await notified.wait()


# -- outputs ------------------------------------------------------------------------------------------------


async def make_output(cluster: BlobCluster, store: PostgresStore, claim: Claim, name: str, data: bytes = DATA) -> None:
    """Upload an output of an attempt."""
    options: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": name}
    begin = BeginUpload(
        id=new_id(), tenant=cluster.tenant, owner=OWNER, reserve=5, lifetime=HOUR, storage_key=new_id(), **options
    )
    await store.run(begin)
    await store.run(finish(cluster, begin, data))


def success_of(claim: Claim, *outputs: str) -> Settle:
    """A settle of a successful attempt."""
    return Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done(outputs=outputs))


async def test_attempts_completed_on_several_servers_have_their_outputs(cluster: BlobCluster) -> None:
    stores = [await cluster.server() for _ in range(SERVERS)]
    claims = [await cluster.bench.make_claim() for _ in range(24)]
    for n, claim in enumerate(claims):
        if n % 3:
            await make_output(cluster, stores[n % SERVERS], claim, "out", bytes([n % 5]))
    calls: list[Any] = [
        stores[n % SERVERS].run(SettleJobs(settles=[success_of(claim)])) for n, claim in enumerate(claims)
    ]
    calls += [store.run(SweepUploads(limit=100)) for store in stores]
    await asyncio.gather(*calls)
    files = [await cluster.blobs.files(claim.job.id) for claim in claims]
    assert files == [[("output", "out", id_of(bytes([n % 5])))] if n % 3 else [] for n in range(len(claims))]
    assert len(await cluster.blobs.news("blob.stored")) == 16
    assert await is_consistent(cluster)


async def test_a_settle_whose_response_was_lost_is_executed_once(cluster: BlobCluster) -> None:
    store = await cluster.server(losing_first_response(cluster.bench.clock, "ingot.settle"))
    claim = await cluster.bench.make_claim()
    await make_output(cluster, store, claim, "out")
    (answer,) = await store.run(SettleJobs(settles=[success_of(claim, "out")]))
    assert not isinstance(answer, IngotError)
    assert await cluster.blobs.files(claim.job.id) == [("output", "out", BLOB)]
    assert len(await cluster.blobs.news("blob.stored")) == 1
    assert await is_consistent(cluster)


async def test_an_order_with_files_whose_response_was_lost_is_created_once(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    store = await cluster.server(losing_first_response(cluster.bench.clock, "ingot.enqueue"))
    order = cluster.blobs.order(inputs={"in": BLOB}, uploads=["more"], idempotency_key="once")
    (enqueued,) = await store.run(Enqueue(jobs=[order]))
    assert (enqueued.job.id, enqueued.created, enqueued.job.status) == (order.id, True, JobStatus.BLOCKED)
    usage = await store.run(GetUsage(tenant=cluster.tenant))
    assert (usage.bytes, usage.reserved_bytes) == (10, 5)
    assert await is_consistent(cluster)


# -- applications and workers -------------------------------------------------------------------------------


async def app_of(cluster: BlobCluster) -> Raw:
    """Connect as an application role of the tenant."""
    role = f"app_{new_id().replace('-', '')}"
    admin = await cluster.session(server=False)
    await admin.execute(f"CREATE ROLE {role} LOGIN")
    await grant_app_role(cluster.url, role, cluster.tenant)
    return await cluster.session_of(with_database(cluster.url, cluster.url.partition("?")[0].rsplit("/", 1)[1], role))


async def enqueue_in_sql(app: Raw, *jobs: dict[str, Any]) -> list[str]:
    """Enqueue jobs as an application, and return their IDs."""
    return [str(row["id"]) for row in await app.fetch(ENQUEUE_JSON, msgspec.json.encode(jobs).decode())]


async def test_an_application_can_enqueue_jobs_with_inputs(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA, content_type="text/plain")
    app = await app_of(cluster)
    inputs = {"b.txt": BLOB, "a.txt": BLOB}
    (job_id,) = await enqueue_in_sql(app, {"type": "noop", "inputs": inputs})
    job = await cluster.bench.jobs.get(cluster.tenant, job_id)
    assert (job.status, job.inputs) == (JobStatus.QUEUED, inputs)
    files = await cluster.bench.jobs.files(cluster.tenant, job_id)
    assert [(one.name, one.blob_id, one.content_type) for one in files] == [
        ("a.txt", BLOB, "text/plain"),
        ("b.txt", BLOB, "text/plain"),
    ]
    assert (await cluster.blobs.store.run(GetUsage(tenant=cluster.tenant, owner=job.created_by))).bytes == 2 * len(DATA)
    assert (await cluster.blobs.store.run(GetUsage(tenant=cluster.tenant))).bytes == 3 * len(DATA)
    assert await is_consistent(cluster)
    store = await cluster.server()
    (claim,) = await store.run(ClaimJobs(worker_id="worker", types=["noop"], limit=1, lease=HOUR))
    assert claim.job.inputs == inputs
    await cluster.blobs.store.run(delete_key(cluster, "k"))  # Every change of usage also folds owed usage.
    owner = await cluster.session(server=False)
    assert await owner.fetchval("SELECT count(*) FROM ingot.usage_owed") == 0
    assert (await cluster.blobs.store.run(GetUsage(tenant=cluster.tenant))).bytes == 2 * len(DATA)
    assert await is_consistent(cluster)


async def test_inputs_of_an_application_must_exist_and_fit_the_quota(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    other = (await cluster.bench.tenants.create("other")).id
    await cluster.blobs.store.run(put(cluster, "theirs", content_of(b"theirs"), tenant=other))
    await cluster.bench.tenants.change(cluster.tenant, limits=Limits(quota_bytes=3 * len(DATA)))
    app = await app_of(cluster)
    for blob in (id_of(b"theirs"), id_of(b"nobody's")):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await enqueue_in_sql(app, {"type": "noop"}, {"type": "noop", "inputs": {"in": blob}})
        assert caught.value.sqlstate == "IN048"
        assert msgspec.json.decode(caught.value.detail or "") == {"code": "blob_not_found"}
    async with app.transaction():
        await enqueue_in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        await enqueue_in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        with pytest.raises(asyncpg.PostgresError) as caught:
            async with app.transaction():
                await enqueue_in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        assert msgspec.json.decode(caught.value.detail or "") == {"code": "quota_exceeded"}
    assert len((await cluster.bench.jobs.list(cluster.tenant)).items) == 2
    assert await is_consistent(cluster)


async def test_jobs_with_inputs_are_reused_across_applications_and_the_api(cluster: BlobCluster) -> None:
    await cluster.bench.jobs.define(Definition(type="noop", reuse=True))
    await cluster.blobs.put("k", DATA)
    await cluster.blobs.put("l", b"l")
    app = await app_of(cluster)
    inputs = {"b é.txt": BLOB, "a.txt": id_of(b"l"), "\U0001f600": BLOB, "\uffee": BLOB}
    (job_id,) = await enqueue_in_sql(app, {"type": "noop", "inputs": inputs})
    repeated = await cluster.bench.jobs.enqueue(cluster.tenant, "noop", inputs=dict(reversed(inputs.items())))
    assert (repeated.job.id, repeated.reused) == (job_id, True)
    assert await enqueue_in_sql(app, {"type": "noop", "inputs": dict(sorted(inputs.items()))}) == [job_id]
    other = await enqueue_in_sql(app, {"type": "noop", "inputs": {**inputs, "a.txt": BLOB}})
    assert other != [job_id]
    assert await is_consistent(cluster)


async def test_an_open_transaction_of_an_application_does_not_block_calls_about_its_blobs(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    app = await app_of(cluster)
    claim = await cluster.bench.make_claim()
    async with asyncio.timeout(WAIT_SECONDS), uncommitted(app):
        await enqueue_in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        await cluster.blobs.put("other", DATA)
        await cluster.blobs.delete("k")
        await make_output(cluster, await cluster.server(), claim, "out")
        await cluster.bench.jobs.complete(claim, outputs=["out"])
        (job_id,) = await enqueue(await cluster.server(), cluster.blobs.order(inputs={"in": BLOB}))
    assert await cluster.blobs.files(job_id) == [("input", "in", BLOB)]
    assert await is_consistent(cluster)
