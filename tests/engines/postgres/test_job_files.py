"""Files of jobs on PostgreSQL: several servers and applications at once, answers that are lost, and what a call costs.

What must hold however calls meet is asked of two sessions, one of which stands still in the middle.
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
from tests.engines.postgres.blob_cluster import WAIT_SECONDS, BlobCluster, Noting, losing
from tests.postgres import with_database

SERVERS: Final = 3
DATA: Final = b"12345"
BLOB: Final = id_of(DATA)
COLLECT: Final = "SELECT ingot.collect_blob($1, 0)"
KEEP: Final = "SELECT * FROM ingot.enqueue_json($1)"
FINISH: Final = """
    SELECT * FROM ingot.finish_uploads(ARRAY[$1::uuid], ARRAY[$2::uuid], '{NULL}', '{1}', '{NULL}',
        ARRAY[$3::bytea], ARRAY[$3::bytea], '{5}', '{place}', '{NULL}', '{""}')
"""


@asynccontextmanager
async def standing_still(connection: Raw) -> AsyncIterator[None]:
    """What a session does inside is not committed before the end."""
    async with connection.transaction():
        yield


async def enqueue(store: PostgresStore, *orders: NewJob) -> list[str]:
    """The ids of jobs that were made together."""
    return [made.job.id for made in await store.run(Enqueue(jobs=orders))]


def finish(cluster: BlobCluster, upload: BeginUpload, data: bytes = DATA) -> FinishUpload:
    """An upload has all of its bytes."""
    return FinishUpload(
        tenant=cluster.tenant, id=upload.id, content=content_of(data, upload.storage_key), lifetime=HOUR
    )


def put(cluster: BlobCluster, key: str, content: Content, **values: Any) -> PutBlob:
    """A blob under a key."""
    about = {"id": new_id(), "tenant": cluster.tenant, "owner": OWNER, "if_match": "*"} | values
    return PutBlob(key=key, content=content, **about)


def gone(cluster: BlobCluster, key: str) -> DeleteKey:
    """A key goes."""
    return DeleteKey(tenant=cluster.tenant, key=key)


async def status(cluster: BlobCluster, job_id: str) -> JobStatus:
    """How a job stands."""
    return (await cluster.bench.jobs.get(cluster.tenant, job_id)).status


async def is_whole(cluster: BlobCluster) -> bool:
    """Whether usage is what a recount finds, no file is without its blob, and no job waits for nothing."""
    owner = await cluster.session(server=False)
    without = "SELECT count(*) FROM ingot.job_files AS f WHERE f.blob NOT IN (SELECT digest FROM ingot.blobs)"
    stuck = """
        SELECT count(*) FROM ingot.blocked AS b WHERE NOT ingot.waits_for_upload(b.id)
        AND NOT EXISTS (SELECT FROM ingot.waits AS w WHERE w.job = b.id AND w.open)
    """
    left = (
        "SELECT count(*) FROM ingot.uploads WHERE job IS NOT NULL AND fence IS NULL AND state IN ('open', 'verifying')"
    )
    left += " AND job NOT IN (SELECT id FROM ingot.blocked)"
    found = [await owner.fetchval(query) for query in (without, stuck, left)]
    return found == [0, 0, 0] and await cluster.is_counted()


# -- inputs and the collector -------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
async def test_an_input_whose_blob_is_being_collected_is_kept_or_not_there(cluster: BlobCluster, commits: bool) -> None:
    await cluster.blobs.put("k", content_of(DATA, "place"))
    session, store = await cluster.session(server=False), await cluster.server()
    change = session.transaction()
    await change.start()
    # The collector has locked the blob, as it does before it looks who refers to it.
    await session.fetch("SELECT FROM ingot.blobs WHERE digest = $1 FOR UPDATE", bytes.fromhex(BLOB))
    making = asyncio.ensure_future(enqueue(store, cluster.blobs.order(inputs={"in": BLOB})))
    await cluster.somebody_waits()
    assert await session.fetchval(COLLECT, bytes.fromhex(BLOB)) is None, "the key refers to it"
    await (change.commit() if commits else change.rollback())
    async with asyncio.timeout(WAIT_SECONDS):
        (job_id,) = await making
    await cluster.blobs.store.run(gone(cluster, "k"))
    assert await store.run(CollectBlob(blob_id=BLOB, grace=0)) is None
    assert await cluster.blobs.files(job_id) == [("input", "in", BLOB)]
    assert await is_whole(cluster)


@pytest.mark.parametrize("commits", [True, False])
async def test_the_collector_leaves_a_blob_that_an_order_names_at_this_moment(
    cluster: BlobCluster, commits: bool
) -> None:
    await cluster.blobs.put("k", content_of(DATA, "place"))
    store, app = await cluster.server(), await app_of(cluster)
    change = app.transaction()
    await change.start()
    await app.fetch(KEEP, msgspec.json.encode([{"type": "noop", "inputs": {"in": BLOB}}]).decode())
    await cluster.blobs.delete("k")  # An application holds up nobody.
    assert await store.run(CollectBlob(blob_id=BLOB, grace=0)) is None
    await (change.commit() if commits else change.rollback())
    assert await store.run(CollectBlob(blob_id=BLOB, grace=0)) == (None if commits else len(DATA))
    assert (await store.run(GetUsage(tenant=cluster.tenant))).bytes == (len(DATA) if commits else 0)
    assert await is_whole(cluster)


async def test_orders_deletes_and_the_collector_never_leave_a_job_without_its_blob(cluster: BlobCluster) -> None:
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
                        await store.run(gone(cluster, key))
                    case _:
                        await enqueue(store, cluster.blobs.order(inputs={"in": id_of(data)}))
                        made += 1
            except IngotError:
                pass
            await store.run(CollectBlob(blob_id=id_of(data), grace=0))

    refusals: set[str | None] = {"IN048"}

    async def in_app() -> None:
        for n in range(20):
            jobs = [{"type": "noop", "inputs": {"in": id_of(bytes([n % 3]))}}]
            try:
                await app.fetch(KEEP, msgspec.json.encode(jobs).decode())
            except asyncpg.PostgresError as error:
                refusals.add(error.sqlstate)

    await asyncio.gather(in_app(), *map(work, range(12)))
    assert made > 10
    assert refusals == {"IN048"}
    assert await is_whole(cluster)


# -- quotas -------------------------------------------------------------------------------------------------


async def test_servers_at_once_never_exceed_a_quota_with_inputs_and_uploads(cluster: BlobCluster) -> None:
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
    assert await is_whole(cluster)


async def test_a_crowd_shares_few_transactions_and_the_refused_hold_up_nobody(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    store, noting = await cluster.server(), Noting()
    store.add_listener(noting)
    orders = [cluster.blobs.order(inputs={"in": id_of(b"no") if n == 7 else BLOB}) for n in range(100)]
    answers = await asyncio.gather(*(enqueue(store, order) for order in orders), return_exceptions=True)
    assert [n for n, answer in enumerate(answers) if isinstance(answer, BaseException)] == [7]
    assert isinstance(answers[7], BlobNotFound)
    assert noting.sizes["enqueue"] == [100]
    assert await is_whole(cluster)


# -- uploads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
async def test_a_cancel_waits_for_the_end_of_the_last_upload(cluster: BlobCluster, commits: bool) -> None:
    order = cluster.blobs.order(uploads=["in"])
    store, session = await cluster.server(), await cluster.session()
    await enqueue(store, order)
    change = session.transaction()
    await change.start()
    await session.fetch(FINISH, cluster.tenant, order.uploads[0].id, bytes.fromhex(BLOB))
    canceling = asyncio.ensure_future(store.run(CancelJob(tenant=cluster.tenant, job_id=order.id)))
    await cluster.somebody_waits()
    await (change.commit() if commits else change.rollback())
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await canceling).status is JobStatus.CANCELED
    assert len(await cluster.blobs.files(order.id)) == commits
    assert (await store.run(GetUpload(tenant=cluster.tenant, id=order.uploads[0].id)) is None) != commits
    assert (await store.run(GetUsage(tenant=cluster.tenant))).reserved_bytes == 0
    names = [event.name for event in await cluster.bench.events.read(cluster.tenant)]
    assert names == ["job.created", *(["blob.stored", "job.updated"] if commits else []), "job.canceled"]
    assert await is_whole(cluster)


async def test_the_end_of_an_upload_waits_for_a_cancel(cluster: BlobCluster) -> None:
    order = cluster.blobs.order(uploads=["in"])
    store, session = await cluster.server(), await cluster.session()
    await enqueue(store, order)
    async with standing_still(session):
        await session.fetch("SELECT ingot.cancel($1, $2)", cluster.tenant, order.id)
        finishing = asyncio.ensure_future(store.run(finish(cluster, order.uploads[0])))
        await cluster.somebody_waits()
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(UploadNotFound):
            await finishing
    assert await cluster.blobs.files(order.id) == []
    assert await is_whole(cluster)


@pytest.mark.parametrize("first", ["release", "finish"])
async def test_the_last_upload_and_the_last_parent_at_once_queue_a_job_once(cluster: BlobCluster, first: str) -> None:
    parent = await cluster.bench.make_claim("first")
    order = cluster.blobs.order(uploads=["in"], after=[parent.job.id])
    store, session = await cluster.server(), await cluster.session()
    await enqueue(store, order)
    await session.fetch(  # The attempt ends, and nobody has come to what follows.
        "SELECT * FROM ingot.settle(ARRAY[$1::uuid], ARRAY[$2::bigint], NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        parent.job.id,
        parent.fence,
    )
    calls: list[tuple[Any, ...]] = [
        ("SELECT * FROM ingot.release_dependents(ARRAY[$1::uuid], 10)", parent.job.id),
        (FINISH, cluster.tenant, order.uploads[0].id, bytes.fromhex(BLOB)),
    ]
    begins, follows = calls if first == "release" else reversed(calls)
    other = await cluster.session()
    async with standing_still(session):
        await session.fetch(*begins)
        following = asyncio.ensure_future(other.fetch(*follows))
        await cluster.somebody_waits()
    async with asyncio.timeout(WAIT_SECONDS):
        await following
    assert await status(cluster, order.id) is JobStatus.QUEUED
    assert (await cluster.bench.jobs.summary(cluster.tenant)).counts[JobStatus.QUEUED] == 1
    assert [event.name for event in await cluster.bench.events.read(cluster.tenant)].count("job.updated") == 1
    assert await is_whole(cluster)


async def test_servers_that_finish_end_sweep_and_cancel_at_once_agree(cluster: BlobCluster) -> None:
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
    ended = [await status(cluster, order.id) for order in orders]
    assert set(ended) == {JobStatus.QUEUED, JobStatus.CANCELED}
    assert [await status(cluster, child.id) for child in children] == [
        JobStatus.BLOCKED if one is JobStatus.QUEUED else JobStatus.CANCELED for one in ended
    ]
    counts = (await cluster.bench.jobs.summary(cluster.tenant)).counts
    assert counts[JobStatus.QUEUED] == ended.count(JobStatus.QUEUED)
    assert counts[JobStatus.CANCELED] == 2 * ended.count(JobStatus.CANCELED)
    assert await is_whole(cluster)


async def test_another_server_hears_that_an_upload_made_a_job_ready(cluster: BlobCluster) -> None:
    one, two = await cluster.server(), await cluster.server()
    order = cluster.blobs.order(uploads=["in"])
    await enqueue(one, order)
    heard = asyncio.Event()
    two.on_ready(lambda _, type, __: heard.set() if type == "noop" else None)
    for store in (one, two):
        store.listener.start()
    async with asyncio.timeout(WAIT_SECONDS):
        await one.run(finish(cluster, order.uploads[0]))
        await heard.wait()


# -- outputs ------------------------------------------------------------------------------------------------


async def make(cluster: BlobCluster, store: PostgresStore, claim: Claim, name: str, data: bytes = DATA) -> None:
    """Upload an output of an attempt."""
    about: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": "output", "name": name}
    begin = BeginUpload(
        id=new_id(), tenant=cluster.tenant, owner=OWNER, reserve=5, lifetime=HOUR, storage_key=new_id(), **about
    )
    await store.run(begin)
    await store.run(finish(cluster, begin, data))


def done(claim: Claim, *outputs: str) -> Settle:
    """An attempt has succeeded."""
    return Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done(outputs=outputs))


async def test_attempts_that_end_on_several_servers_at_once_have_their_outputs(cluster: BlobCluster) -> None:
    stores = [await cluster.server() for _ in range(SERVERS)]
    claims = [await cluster.bench.make_claim() for _ in range(24)]
    for n, claim in enumerate(claims):
        if n % 3:
            await make(cluster, stores[n % SERVERS], claim, "out", bytes([n % 5]))
    calls: list[Any] = [stores[n % SERVERS].run(SettleJobs(settles=[done(claim)])) for n, claim in enumerate(claims)]
    calls += [store.run(SweepUploads(limit=100)) for store in stores]
    await asyncio.gather(*calls)
    files = [await cluster.blobs.files(claim.job.id) for claim in claims]
    assert files == [[("output", "out", id_of(bytes([n % 5])))] if n % 3 else [] for n in range(len(claims))]
    assert len(await cluster.blobs.news("blob.stored")) == 16
    assert await is_whole(cluster)


async def test_a_settle_whose_answer_was_lost_is_done_once(cluster: BlobCluster) -> None:
    store = await cluster.server(losing(cluster.bench.clock, "ingot.settle"))
    claim = await cluster.bench.make_claim()
    await make(cluster, store, claim, "out")
    (answer,) = await store.run(SettleJobs(settles=[done(claim, "out")]))
    assert not isinstance(answer, IngotError)
    assert await cluster.blobs.files(claim.job.id) == [("output", "out", BLOB)]
    assert len(await cluster.blobs.news("blob.stored")) == 1
    assert await is_whole(cluster)


async def test_an_order_with_files_whose_answer_was_lost_is_made_once(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    store = await cluster.server(losing(cluster.bench.clock, "ingot.enqueue"))
    order = cluster.blobs.order(inputs={"in": BLOB}, uploads=["more"], idempotency_key="once")
    (made,) = await store.run(Enqueue(jobs=[order]))
    assert (made.job.id, made.created, made.job.status) == (order.id, True, JobStatus.BLOCKED)
    usage = await store.run(GetUsage(tenant=cluster.tenant))
    assert (usage.bytes, usage.reserved_bytes) == (10, 5)
    assert await is_whole(cluster)


# -- applications and workers -------------------------------------------------------------------------------


async def app_of(cluster: BlobCluster) -> Raw:
    """An application that was let into the tenant."""
    role = f"app_{new_id().replace('-', '')}"
    admin = await cluster.session(server=False)
    await admin.execute(f"CREATE ROLE {role} LOGIN")
    await grant_app_role(cluster.url, role, cluster.tenant)
    return await cluster.session_of(with_database(cluster.url, cluster.url.partition("?")[0].rsplit("/", 1)[1], role))


async def in_sql(app: Raw, *jobs: dict[str, Any]) -> list[str]:
    """The ids of jobs that an application has enqueued."""
    return [str(row["id"]) for row in await app.fetch(KEEP, msgspec.json.encode(jobs).decode())]


async def test_an_application_gives_jobs_their_inputs(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA, content_type="text/plain")
    app = await app_of(cluster)
    inputs = {"b.txt": BLOB, "a.txt": BLOB}
    (job_id,) = await in_sql(app, {"type": "noop", "inputs": inputs})
    job = await cluster.bench.jobs.get(cluster.tenant, job_id)
    assert (job.status, job.inputs) == (JobStatus.QUEUED, inputs)
    files = await cluster.bench.jobs.files(cluster.tenant, job_id)
    assert [(one.name, one.blob_id, one.content_type) for one in files] == [
        ("a.txt", BLOB, "text/plain"),
        ("b.txt", BLOB, "text/plain"),
    ]
    assert (await cluster.blobs.store.run(GetUsage(tenant=cluster.tenant, owner=job.created_by))).bytes == 2 * len(DATA)
    assert (await cluster.blobs.store.run(GetUsage(tenant=cluster.tenant))).bytes == 3 * len(DATA)
    assert await is_whole(cluster)
    store = await cluster.server()
    (claim,) = await store.run(ClaimJobs(worker_id="worker", types=["noop"], limit=1, lease=HOUR))
    assert claim.job.inputs == inputs
    await cluster.blobs.store.run(gone(cluster, "k"))  # Whoever changes what is kept counts what is owed.
    owner = await cluster.session(server=False)
    assert await owner.fetchval("SELECT count(*) FROM ingot.usage_owed") == 0
    assert (await cluster.blobs.store.run(GetUsage(tenant=cluster.tenant))).bytes == 2 * len(DATA)
    assert await is_whole(cluster)


async def test_an_application_is_refused_what_is_not_there_or_does_not_fit(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    other = (await cluster.bench.tenants.create("other")).id
    await cluster.blobs.store.run(put(cluster, "theirs", content_of(b"theirs"), tenant=other))
    await cluster.bench.tenants.change(cluster.tenant, limits=Limits(quota_bytes=3 * len(DATA)))
    app = await app_of(cluster)
    for blob in (id_of(b"theirs"), id_of(b"nobody's")):
        with pytest.raises(asyncpg.PostgresError) as caught:
            await in_sql(app, {"type": "noop"}, {"type": "noop", "inputs": {"in": blob}})
        assert caught.value.sqlstate == "IN048"
        assert msgspec.json.decode(caught.value.detail or "") == {"code": "blob_not_found"}
    async with app.transaction():
        await in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        await in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        with pytest.raises(asyncpg.PostgresError) as caught:
            async with app.transaction():
                await in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        assert msgspec.json.decode(caught.value.detail or "") == {"code": "quota_exceeded"}
    assert len((await cluster.bench.jobs.list(cluster.tenant)).items) == 2
    assert await is_whole(cluster)


async def test_work_on_the_same_inputs_is_known_wherever_it_was_asked_for(cluster: BlobCluster) -> None:
    await cluster.bench.jobs.define(Definition(type="noop", reuse=True))
    await cluster.blobs.put("k", DATA)
    await cluster.blobs.put("l", b"l")
    app = await app_of(cluster)
    inputs = {"b é.txt": BLOB, "a.txt": id_of(b"l"), "\U0001f600": BLOB, "\uffee": BLOB}
    (made,) = await in_sql(app, {"type": "noop", "inputs": inputs})
    found = await cluster.bench.jobs.enqueue(cluster.tenant, "noop", inputs=dict(reversed(inputs.items())))
    assert (found.job.id, found.reused) == (made, True)
    assert await in_sql(app, {"type": "noop", "inputs": dict(sorted(inputs.items()))}) == [made]
    other = await in_sql(app, {"type": "noop", "inputs": {**inputs, "a.txt": BLOB}})
    assert other != [made]
    assert await is_whole(cluster)


async def test_a_transaction_of_an_application_keeps_nobody_from_the_blobs_of_its_tenant(cluster: BlobCluster) -> None:
    await cluster.blobs.put("k", DATA)
    app = await app_of(cluster)
    claim = await cluster.bench.make_claim()
    async with asyncio.timeout(WAIT_SECONDS), standing_still(app):
        await in_sql(app, {"type": "noop", "inputs": {"in": BLOB}})
        await cluster.blobs.put("other", DATA)
        await cluster.blobs.delete("k")
        await make(cluster, await cluster.server(), claim, "out")
        await cluster.bench.jobs.complete(claim, outputs=["out"])
        (job_id,) = await enqueue(await cluster.server(), cluster.blobs.order(inputs={"in": BLOB}))
    assert await cluster.blobs.files(job_id) == [("input", "in", BLOB)]
    assert await is_whole(cluster)
