"""Files of jobs: what they are given, what they make, and who may touch that when."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.blobs.errors import BlobNotFound, QuotaExceeded, UploadEnded, UploadNotFound
from ingot.blobs.model import BlobNews, UploadState
from ingot.blobs.ports import FinishUpload
from ingot.events.audit import PROCESS
from ingot.identity import Limits
from ingot.jobs import (
    Claim,
    Definition,
    Done,
    FileNotFound,
    IdempotencyMismatch,
    Job,
    JobLimitExceeded,
    JobNotFound,
    JobStatus,
    LeaseLost,
    OutputMissing,
    Settle,
    Settled,
)
from ingot.jobs.files import INPUTS_MAX, OUTPUTS_MAX
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.depot import HOUR, OWNER, Depot, content_of, depot, id_of
from tests.conformance.pictures import picture, refuses
from tests.factories import LEASE_SECONDS, Bench, open_bench

__all__ = ["depot"]

BLOCKED, QUEUED, RUNNING = JobStatus.BLOCKED, JobStatus.QUEUED, JobStatus.RUNNING
SUCCEEDED, CANCELED = JobStatus.SUCCEEDED, JobStatus.CANCELED
DATA = b"what jobs read"
BLOB = id_of(DATA)
SIZE = len(DATA)


async def claim(depot: Depot, job: Job | None = None, *, worker: str = "worker") -> Claim:
    """The next job, which is this one."""
    (found,) = await depot.bench.jobs.claim(worker, ["noop"])
    assert job is None or found.job.id == job.id
    depot.jobs.setdefault(found.job.id, OWNER)
    return found


async def upload(depot: Depot, claim: Claim, name: str, data: bytes, file: str = "output") -> str:
    """Upload a file of an attempt, and answer the id of its upload."""
    for_job: dict[str, Any] = {"job_id": claim.job.id, "fence": claim.fence, "file": file, "name": name}
    begun = await depot.begin(len(data), **for_job)
    await depot.finish(begun.upload.id, data)
    return begun.upload.id


async def limit(depot: Depot, quota: int) -> None:
    """Let the tenant keep so many bytes."""
    await depot.bench.tenants.change(depot.tenant, limits=Limits(quota_bytes=quota))


async def status(depot: Depot, job: Job) -> JobStatus:
    """How a job stands."""
    return (await depot.bench.reload(job)).status


# -- inputs that are here -----------------------------------------------------------------------------------


async def test_inputs_are_files_of_the_job_and_seen_with_it(depot: Depot) -> None:
    await depot.put("k", DATA, content_type="text/plain")
    await depot.put("other", b"12", content_type="text/csv")
    inputs = {"b.txt": BLOB, "a.csv": id_of(b"12"), "same.txt": BLOB}
    (made,) = await depot.enqueue(depot.order(inputs=inputs))
    job = made.job
    assert (job.status, job.inputs, job.payload_blob) == (QUEUED, inputs, None)
    assert await depot.usage() == (3 * SIZE + 4, 0, 2)
    files = await depot.bench.jobs.files(depot.tenant, job.id)
    now = depot.bench.clock.now()
    assert [(one.kind, one.name, one.blob_id, one.size, one.content_type, one.since) for one in files] == [
        ("input", "a.csv", id_of(b"12"), 2, "text/csv", now),
        ("input", "b.txt", BLOB, SIZE, "text/plain", now),
        ("input", "same.txt", BLOB, SIZE, "text/plain", now),
    ]
    assert files[1].sha256 == content_of(DATA).sha256
    plain = await depot.bench.make_job("plain")
    assert plain.inputs == {}
    assert [one.inputs for one in (await depot.bench.jobs.list(depot.tenant)).items] == [{}, inputs]
    found = await claim(depot, job)
    assert found.job.inputs == inputs
    await depot.bench.jobs.complete(found)
    assert (await depot.bench.reload(job)).inputs == inputs
    assert (await depot.bench.jobs.retry(depot.tenant, job.id)).inputs == inputs
    assert await depot.bench.jobs.files(depot.tenant, plain.id) == []


async def test_an_input_keeps_its_blob(depot: Depot) -> None:
    await depot.put("k", content_of(DATA, "place"))
    (made,) = await depot.enqueue(depot.order(inputs={"a.txt": BLOB}))
    await depot.delete("k")
    assert await depot.collect(grace=0) == []
    found = await depot.store.open_blob(depot.tenant, BLOB)
    assert found is not None
    (reference,) = found[1]
    assert (reference.kind, reference.name, reference.job_id, reference.job_type) == (
        "input",
        "a.txt",
        made.job.id,
        "noop",
    )
    (again,) = await depot.enqueue(depot.order(inputs={"again.txt": BLOB}))
    assert again.job.inputs == {"again.txt": BLOB}


async def test_an_upload_that_is_done_can_be_an_input(depot: Depot) -> None:
    begun = await depot.begin(SIZE, content_type="text/plain")
    await depot.finish(begun.upload.id, DATA)
    (made,) = await depot.enqueue(depot.order(inputs={"a.txt": BLOB}))
    (file,) = await depot.bench.jobs.files(depot.tenant, made.job.id)
    assert (file.blob_id, file.content_type) == (BLOB, "text/plain")


@pytest.mark.parametrize("whose", ["nobody", "another tenant", "an upload under way", "an attempt that runs"])
async def test_a_blob_that_the_tenant_does_not_hold_is_no_input(depot: Depot, whose: str) -> None:
    if whose == "another tenant":
        await Depot(depot.bench, (await depot.bench.tenants.create("other")).id).put("k", DATA)
    elif whose == "an upload under way":
        await depot.begin(SIZE, blob_id=BLOB)
    elif whose == "an attempt that runs":
        await upload(depot, await depot.bench.make_claim(), "out", DATA)
    for files in ({"inputs": {"a.txt": BLOB}}, {"payload_blob": BLOB}):
        async with refuses(depot.bench, BlobNotFound):
            await depot.enqueue(depot.order(), depot.order(**files))
    assert await depot.store.open_blob(depot.tenant, BLOB) is None


async def test_inputs_count_against_the_quotas_all_or_none(depot: Depot) -> None:
    await depot.put("k", DATA)
    await limit(depot, 3 * SIZE)
    async with refuses(depot.bench, QuotaExceeded) as caught:
        await depot.enqueue(*(depot.order(inputs={"a.txt": BLOB}) for _ in range(3)))
    assert isinstance(caught.value, QuotaExceeded)
    assert (caught.value.scope, caught.value.limit) == ("tenant", 3 * SIZE)
    async with refuses(depot.bench, QuotaExceeded) as caught:
        await depot.enqueue(depot.order(inputs={"a.txt": BLOB, "b.txt": BLOB}, owner_quota=3 * SIZE - 1))
    assert isinstance(caught.value, QuotaExceeded)
    assert (caught.value.scope, caught.value.limit) == ("token", 3 * SIZE - 1)
    assert await depot.usage() == (SIZE, 0, 1)
    await depot.enqueue(*(depot.order(inputs={"a.txt": BLOB}, owner_quota=3 * SIZE) for _ in range(2)))
    assert await depot.usage() == (3 * SIZE, 0, 1)
    assert len(await depot.news("quota.warning")) == 2


async def test_files_of_jobs_that_a_cap_refuses_are_not_counted(depot: Depot) -> None:
    await depot.put("k", DATA)
    await depot.bench.tenants.change(depot.tenant, limits=Limits(max_unfinished_jobs=1))
    orders = [depot.order(inputs={"a.txt": BLOB}, uploads=["in"]) for _ in range(2)]
    async with refuses(depot.bench, JobLimitExceeded):
        await depot.enqueue(*orders)
    assert await depot.usage() == (SIZE, 0, 1)
    await depot.enqueue(orders[0])
    assert await depot.usage() == (2 * SIZE, 5, 1)


async def test_inputs_of_a_job_that_nobody_made_are_the_processs(depot: Depot) -> None:
    await depot.put("k", DATA)
    await depot.enqueue(depot.order(inputs={"a.txt": BLOB}, created_by=None))
    assert await depot.usage(PROCESS) == (SIZE, 0, 0)


async def test_as_many_inputs_as_may_be(depot: Depot) -> None:
    await depot.put("k", DATA)
    inputs = {f"{n:03}.txt": BLOB for n in range(INPUTS_MAX)}
    (made,) = await depot.enqueue(depot.order(inputs=inputs))
    assert (await depot.bench.reload(made.job)).inputs == inputs
    with pytest.raises(InvalidInput, match="101 inputs"):
        depot.order(inputs=inputs | {"one more": BLOB})
    with pytest.raises(InvalidInput, match="101 inputs"):
        await depot.enqueue(depot.order(inputs=inputs, uploads=["one more"]))


@pytest.mark.parametrize(
    "inputs",
    [
        {"": BLOB},
        {"a/b": BLOB},
        {"..": BLOB},
        {"a\x00b": BLOB},
        {"a\nb": BLOB},
        {"x" * 256: BLOB},
        {"a": ""},
        {"a": BLOB.upper()},
        {"a": BLOB[:-1]},
        {"a": 5},
        {5: BLOB},
        [BLOB],
        BLOB,
        5,
    ],
)
async def test_what_names_no_inputs_is_refused(depot: Depot, inputs: Any) -> None:
    await depot.put("k", DATA)
    async with refuses(depot.bench, InvalidInput):
        await depot.bench.jobs.enqueue(depot.tenant, "noop", inputs=inputs)


async def test_the_same_work_on_the_same_inputs_is_reused(depot: Depot) -> None:
    await depot.bench.jobs.define(Definition(type="noop", reuse=True))
    await depot.put("k", DATA)
    await depot.put("l", b"12")
    one, two = BLOB, id_of(b"12")
    kinds: list[dict[str, Any]] = [
        {},
        {"inputs": {"a": one}},
        {"inputs": {"b": one}},
        {"inputs": {"a": two}},
        {"inputs": {"a": one, "b": two}},
        {"inputs": {"a": two, "b": one}},
        {"payload_blob": one},
        {"payload_blob": two},
        {"payload_blob": one, "inputs": {"a": two}},
    ]
    made = [(await depot.enqueue(depot.order(**kind)))[0] for kind in kinds]
    assert all(one.created for one in made)
    usage = await depot.usage()
    turned = [{**kind, "inputs": dict(reversed(kind.get("inputs", {}).items()))} for kind in kinds]
    again = [(await depot.enqueue(depot.order(**kind)))[0] for kind in turned]
    assert [(one.job.id, one.reused) for one in again] == [(one.job.id, True) for one in made]
    assert await depot.usage() == usage


# -- a payload that is a blob -------------------------------------------------------------------------------


async def test_a_payload_can_be_a_blob(depot: Depot) -> None:
    await depot.put("k", DATA)
    (made,) = await depot.enqueue(depot.order(payload_blob=BLOB, inputs={"payload": BLOB}))
    assert (made.job.payload_blob, made.job.read("payload")) == (BLOB, None)
    assert await depot.files(made.job.id) == [("input", "payload", BLOB), ("payload", "payload", BLOB)]
    found = await claim(depot, made.job)
    assert (found.job.payload_blob, found.job.read("payload")) == (BLOB, None)
    assert (await depot.bench.reload(made.job)).payload_blob == BLOB
    file, content = await depot.bench.jobs.open_file(made.job.id, found.fence, "payload", "payload")
    assert (file.kind, file.blob_id, content) == ("payload", BLOB, content_of(DATA))
    assert (await depot.bench.make_job("plain")).payload_blob is None


async def test_an_idempotency_key_knows_a_payload_that_is_a_blob(depot: Depot) -> None:
    await depot.put("k", DATA)
    await depot.put("l", b"12")
    (made,) = await depot.enqueue(depot.order(payload_blob=BLOB, idempotency_key="once"))
    usage = await depot.usage()
    (again,) = await depot.enqueue(depot.order(payload_blob=BLOB, idempotency_key="once"))
    assert (again.job.id, again.created) == (made.job.id, False)
    for other in ({"payload_blob": id_of(b"12")}, {"payload": None}, {"payload": BLOB}):
        async with refuses(depot.bench, IdempotencyMismatch):
            await depot.enqueue(depot.order(**other, idempotency_key="once"))
    assert await depot.usage() == usage


async def test_a_payload_is_given_once(depot: Depot) -> None:
    await depot.put("k", DATA)
    async with refuses(depot.bench, InvalidInput):
        await depot.bench.jobs.enqueue(depot.tenant, "noop", {"a": 1}, payload_blob=BLOB)


# -- inputs that come first ---------------------------------------------------------------------------------


async def test_a_job_is_ready_with_the_upload_of_its_input(depot: Depot) -> None:
    order = depot.order(uploads=["in.txt"])
    (made,) = await depot.enqueue(order)
    assert (made.job.status, made.job.inputs, made.created) == (BLOCKED, {}, True)
    assert await depot.usage() == (0, 5, 0)
    assert await depot.bench.jobs.claim("worker", ["noop"]) == []
    assert await depot.files(made.job.id) == []
    (begun,) = order.uploads
    found = await depot.store.get_upload(depot.tenant, begun.id)
    assert found is not None
    assert (found.upload.state, found.upload.job_id, found.upload.file, found.upload.name) == (
        UploadState.OPEN,
        made.job.id,
        "input",
        "in.txt",
    )
    done = await depot.finish(begun.id, content_of(b"12345", begun.place))
    assert done.upload.state is UploadState.DONE
    assert await depot.usage() == (5, 0, 0)
    assert await depot.files(made.job.id) == [("input", "in.txt", id_of(b"12345"))]
    assert await depot.bench.event_names() == ["job.created", "blob.stored", "job.updated"]
    (news,) = await depot.news("blob.stored")
    assert isinstance(news, BlobNews)
    assert (news.blob_id, news.job_id, news.name) == (id_of(b"12345"), made.job.id, "in.txt")
    job = await depot.bench.reload(made.job)
    assert (job.status, job.inputs) == (QUEUED, {"in.txt": id_of(b"12345")})
    assert (await claim(depot, made.job)).job.inputs == {"in.txt": id_of(b"12345")}
    assert await depot.store.open_blob(depot.tenant, id_of(b"12345")) is not None


async def test_who_waits_for_work_hears_of_it_with_the_upload(depot: Depot) -> None:
    order = depot.order(uploads=["in.txt"])
    await depot.enqueue(order)
    waiting = asyncio.create_task(depot.bench.jobs.claim("worker", ["noop"], wait_seconds=20))
    await asyncio.sleep(0)
    await depot.finish(order.uploads[0].id, b"12345")
    assert [found.job.id for found in await waiting] == [order.id]


async def test_a_finished_input_counts_once_and_answers_again(depot: Depot) -> None:
    order = depot.order(uploads=["in.txt"])
    await depot.enqueue(order)
    (begun,) = order.uploads
    first = await depot.finish(begun.id, content_of(b"12345", begun.place))
    again = await depot.finish(begun.id, content_of(b"12345", begun.place))
    assert again == first
    with pytest.raises(UploadEnded):
        await depot.finish(begun.id, b"other")
    assert await depot.usage() == (5, 0, 0)
    assert await depot.references(id_of(b"12345")) == 1
    assert await depot.trash() == []
    depot.bench.clock.advance(days=2)
    assert await depot.sweep() == 1
    assert await depot.usage() == (5, 0, 0)
    assert await depot.files(order.id) == [("input", "in.txt", id_of(b"12345"))]
    assert await depot.condemned() == set()
    assert (await depot.bench.jobs.get(depot.tenant, order.id)).status is QUEUED


async def test_a_job_waits_for_the_last_of_its_uploads(depot: Depot) -> None:
    await depot.put("k", DATA)
    order = depot.order(inputs={"here.txt": BLOB}, uploads=["a", "b", "c"])
    (made,) = await depot.enqueue(order)
    for n, one in enumerate(order.uploads):
        assert await status(depot, made.job) is BLOCKED
        await depot.finish(one.id, bytes([n]))
    job = await depot.bench.reload(made.job)
    inputs = {"here.txt": BLOB, "a": id_of(b"\0"), "b": id_of(b"\1"), "c": id_of(b"\2")}
    assert (job.status, job.inputs) == (QUEUED, inputs)


async def test_uploads_that_are_finished_at_once_make_it_ready_once(depot: Depot) -> None:
    order = depot.order(uploads=["a", "b", "c", "d"])
    (made,) = await depot.enqueue(order)
    await asyncio.gather(
        *(
            depot.store.finish_upload(
                FinishUpload(tenant=depot.tenant, id=one.id, content=content_of(bytes([n])), keep=HOUR)
            )
            for n, one in enumerate(order.uploads)
        )
    )
    await depot.check()
    assert await status(depot, made.job) is QUEUED
    assert (await depot.bench.event_names()).count("job.updated") == 1
    assert (await depot.bench.jobs.summary(depot.tenant)).counts[QUEUED] == 1


@pytest.mark.parametrize("first", ["upload", "parent"])
async def test_a_job_waits_for_uploads_and_for_other_jobs(depot: Depot, first: str) -> None:
    parent = await depot.bench.make_claim("first")
    order = depot.order(uploads=["in"], after=[parent.job.id])
    (made,) = await depot.enqueue(order)
    steps = [depot.finish(order.uploads[0].id, b"12345"), depot.bench.jobs.complete(parent)]
    for step in steps if first == "upload" else reversed(steps):
        assert await status(depot, made.job) is BLOCKED
        await step
        await depot.bench.jobs.tend()
    assert await status(depot, made.job) is QUEUED


async def test_a_job_with_uploads_still_keeps_its_time(depot: Depot) -> None:
    order = depot.order(uploads=["in"], delay=60)
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, b"12345")
    assert await status(depot, made.job) is QUEUED
    assert await depot.bench.jobs.claim("worker", ["noop"]) == []
    depot.bench.clock.advance(seconds=61)
    await claim(depot, made.job)


@pytest.mark.parametrize("how", ["fails", "is given up", "is swept"])
async def test_a_job_whose_input_does_not_come_is_canceled(depot: Depot, how: str) -> None:
    order = depot.order(uploads=["never.txt", "here.txt", "open.txt"], tags=["t"])
    (made,) = await depot.enqueue(order)
    (child,) = await depot.enqueue(depot.order(after=[order.id]))
    never, here, still = order.uploads
    await depot.finish(here.id, content_of(b"12345", here.place))
    if how == "fails":
        await depot.end(never.id, "wrong_digest")
    elif how == "is given up":
        await depot.end(never.id)
    else:
        found = await depot.store.get_upload(depot.tenant, still.id)
        assert found is not None
        depot.bench.clock.advance(seconds=1800)
        await depot.note(still.id, found.epoch)
        depot.bench.clock.advance(seconds=1801)
        await depot.sweep()
    job = await depot.bench.reload(made.job)
    assert job.status is CANCELED
    assert "never.txt" in (job.last_error or "")
    assert job.finished_at == depot.bench.clock.now()
    await depot.bench.jobs.tend()
    assert await status(depot, child.job) is CANCELED
    assert await depot.usage() == (5, 0, 0)
    assert await depot.state(still.id) is None
    assert await depot.trash() == sorted([never.place or "", still.place or ""])
    assert await depot.files(job.id) == [("input", "here.txt", id_of(b"12345"))]
    assert "job.canceled" in await depot.bench.event_names()
    with pytest.raises((UploadNotFound, UploadEnded)):
        await depot.finish(still.id, b"late")
    assert (await depot.bench.jobs.summary(depot.tenant)).counts[CANCELED] == 2


async def test_ending_an_upload_that_is_done_cancels_nothing(depot: Depot) -> None:
    order = depot.order(uploads=["in"])
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, b"12345")
    await depot.end(order.uploads[0].id)
    assert await status(depot, made.job) is QUEUED
    assert await depot.files(order.id) == [("input", "in", id_of(b"12345"))]


@pytest.mark.parametrize("how", ["asked", "parent canceled"])
async def test_the_uploads_of_a_canceled_job_end(depot: Depot, how: str) -> None:
    parent = await depot.bench.make_job("first")
    order = depot.order(uploads=["a", "b"], after=[parent.id])
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, content_of(b"12345", order.uploads[0].place))
    await depot.bench.jobs.cancel(depot.tenant, made.job.id if how == "asked" else parent.id)
    await depot.bench.jobs.tend()
    job = await depot.bench.reload(made.job)
    assert (job.status, job.last_error) == (CANCELED, None)
    assert await depot.usage() == (5, 0, 0)
    assert await depot.trash() == [order.uploads[1].place]
    with pytest.raises(UploadNotFound):
        await depot.finish(order.uploads[1].id, b"late")
    await depot.check()


async def test_a_job_whose_input_never_came_is_not_retried(depot: Depot) -> None:
    order = depot.order(uploads=["in", "here"])
    await depot.enqueue(order)
    await depot.finish(order.uploads[1].id, b"12345")
    await depot.bench.jobs.cancel(depot.tenant, order.id)
    async with refuses(depot.bench, FileNotFound):
        await depot.bench.jobs.retry(depot.tenant, order.id)


async def test_a_canceled_job_whose_inputs_are_here_is_retried(depot: Depot) -> None:
    order = depot.order(uploads=["in"])
    (made,) = await depot.enqueue(order)
    await depot.finish(order.uploads[0].id, b"12345")
    await depot.bench.jobs.cancel(depot.tenant, order.id)
    job = await depot.bench.jobs.retry(depot.tenant, order.id)
    assert (job.status, job.inputs) == (QUEUED, {"in": id_of(b"12345")})
    await claim(depot, made.job)


@pytest.mark.parametrize("why", ["same id", "same idempotency key"])
async def test_an_order_that_was_made_before_begins_no_uploads(depot: Depot, why: str) -> None:
    order = depot.order(uploads=["in"], idempotency_key="once")
    (made,) = await depot.enqueue(order)
    again = order if why == "same id" else depot.order(uploads=["in"], idempotency_key="once")
    (known,) = await depot.enqueue(again)
    assert (known.job.id, known.created) == (made.job.id, False)
    assert await depot.usage() == (0, 5, 0)
    await depot.finish(order.uploads[0].id, b"12345")
    assert await status(depot, made.job) is QUEUED


async def test_uploads_are_begun_all_or_none(depot: Depot) -> None:
    await limit(depot, 10)
    async with refuses(depot.bench, QuotaExceeded):
        await depot.enqueue(depot.order(uploads=["a", "b"]), depot.order(uploads=["c"]))
    order = depot.order()
    small = msgspec.structs.replace(order, uploads=(depot.upload_of(order, "in", owner_quota=4),))
    async with refuses(depot.bench, QuotaExceeded):
        await depot.enqueue(small)
    assert await depot.usage() == (0, 0, 0)
    assert (await depot.store.blob_figures()).uploads == 0
    await depot.enqueue(depot.order(uploads=["a", "b"]))
    assert await depot.usage() == (0, 10, 0)


async def test_a_job_with_uploads_is_not_reused(depot: Depot) -> None:
    await depot.bench.jobs.define(Definition(type="noop", reuse=True))
    (plain,) = await depot.enqueue(depot.order())
    first, second = depot.order(uploads=["in"]), depot.order(uploads=["in"])
    made = [*await depot.enqueue(first), *await depot.enqueue(second)]
    assert [one.created for one in made] == [True, True]
    (again,) = await depot.enqueue(depot.order())
    assert (again.job.id, again.reused) == (plain.job.id, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "output"},
        {"job_id": new_id()},
        {"fence": 1},
        {"tenant": "other"},
        {"name": None},
        {"name": "a/b"},
        {"key": "k"},
        {"owner": ""},
        {"id": "x"},
    ],
)
async def test_an_upload_that_is_for_something_else_is_refused(depot: Depot, changes: dict[str, Any]) -> None:
    order = depot.order()
    bad = msgspec.structs.replace(depot.upload_of(order, "in"), **changes)
    async with refuses(depot.bench, InvalidInput):
        await depot.enqueue(msgspec.structs.replace(order, uploads=(bad,)))


async def test_two_inputs_do_not_share_a_name(depot: Depot) -> None:
    await depot.put("k", DATA)
    for order in (depot.order(uploads=["in", "in"]), depot.order(inputs={"in": BLOB}, uploads=["in"])):
        async with refuses(depot.bench, InvalidInput):
            await depot.enqueue(order)


async def test_it_is_told_that_a_job_waits_for_uploads(depot: Depot) -> None:
    parent = await depot.bench.make_job("first")
    order = depot.order(uploads=["a.txt", "b.txt"], after=[parent.id])
    await depot.enqueue(order)
    await depot.finish(order.uploads[1].id, b"12345")
    told = await depot.bench.jobs.explain(depot.tenant, order.id)
    assert [(one.code, one.data) for one in told.reasons] == [
        ("waits_for_uploads", {"inputs": ["a.txt"]}),
        ("waits_for", {"after": [parent.id]}),
    ]
    assert "a.txt" in told.reasons[0].message


async def test_a_job_waits_for_its_upload_over_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        depot = Depot(bench)
        order = depot.order(uploads=["in"])
        await depot.enqueue(order)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        depot = Depot(bench)
        await bench.jobs.tend()
        assert await bench.jobs.claim("worker", ["noop"]) == []
        depot.jobs[order.id] = OWNER
        await depot.finish(order.uploads[0].id, b"12345")
        assert [found.job.id for found in await bench.jobs.claim("worker", ["noop"])] == [order.id]


async def test_finishing_and_canceling_at_once_end_in_one_of_both(depot: Depot) -> None:
    for n in range(10):
        order = depot.order(uploads=["in"])
        await depot.enqueue(order)
        finish = FinishUpload(tenant=depot.tenant, id=order.uploads[0].id, content=content_of(bytes([n])), keep=HOUR)
        calls = [depot.store.finish_upload(finish), depot.bench.jobs.cancel(depot.tenant, order.id)]
        ended = await asyncio.gather(*(calls if n % 2 else reversed(calls)), return_exceptions=True)
        failed = [one for one in ended if isinstance(one, BaseException)]
        assert all(isinstance(one, UploadNotFound) for one in failed)
        assert (await depot.bench.jobs.get(depot.tenant, order.id)).status is CANCELED
        assert len(await depot.files(order.id)) == 1 - len(failed)
        await depot.check()
    assert (await depot.usage())[1] == 0


# -- what an attempt reads ----------------------------------------------------------------------------------


async def test_an_input_is_opened_under_its_fence_only(depot: Depot) -> None:
    await depot.put("k", DATA)
    (made,) = await depot.enqueue(depot.order(inputs={"in.txt": BLOB}))
    jobs = depot.bench.jobs
    with pytest.raises(LeaseLost):
        await jobs.open_file(made.job.id, 1, "input", "in.txt")
    found = await claim(depot, made.job, worker="press/1")
    file, content = await jobs.open_file(made.job.id, found.fence, "input", "in.txt", tenant=depot.tenant)
    assert (file.kind, file.name, file.blob_id, file.size) == ("input", "in.txt", BLOB, SIZE)
    assert content == content_of(DATA)
    assert await jobs.open_file(made.job.id, found.fence, "input", "in.txt", worker="press")
    other = (await depot.bench.tenants.create("other")).id
    refused: list[tuple[type[IngotError], dict[str, Any]]] = [
        (LeaseLost, {"fence": found.fence + 1}),
        (LeaseLost, {"fence": found.fence - 1}),
        (LeaseLost, {"worker": "other"}),
        (JobNotFound, {"tenant": other}),
        (JobNotFound, {"job_id": new_id()}),
        (JobNotFound, {"job_id": "x"}),
        (FileNotFound, {"name": "other.txt"}),
        (FileNotFound, {"kind": "payload"}),
        (FileNotFound, {"kind": "output"}),
    ]
    good = {"job_id": made.job.id, "fence": found.fence, "kind": "input", "name": "in.txt"}
    for kind, change in refused:
        with pytest.raises(kind):
            await jobs.open_file(**(good | change))  # type: ignore[arg-type]
    await jobs.release(found)
    with pytest.raises(LeaseLost):
        await jobs.open_file(made.job.id, found.fence, "input", "in.txt")


async def test_what_runs_under_a_fence_is_found_under_it_only(depot: Depot) -> None:
    found = await depot.bench.make_claim(worker="press/1")
    jobs = depot.bench.jobs
    running = await jobs.running(found.job.id, found.fence, worker="press")
    assert (running.job_id, running.tenant, running.type, running.attempt) == (
        found.job.id,
        depot.tenant,
        "noop",
        1,
    )
    other = (await depot.bench.tenants.create("other")).id
    for kind, change in (
        (LeaseLost, {"fence": found.fence + 1}),
        (LeaseLost, {"worker": "other"}),
        (JobNotFound, {"tenant": other}),
        (JobNotFound, {"job_id": new_id()}),
        (JobNotFound, {"job_id": "x"}),
    ):
        with pytest.raises(kind):
            await jobs.running(**({"job_id": found.job.id, "fence": found.fence} | change))  # type: ignore[arg-type]
    await jobs.release(found)
    (again,) = await jobs.claim("worker", ["noop"])
    assert (await jobs.running(again.job.id, again.fence)).attempt == 2
    with pytest.raises(LeaseLost):
        await jobs.running(found.job.id, found.fence)


async def test_files_are_listed_in_their_tenant_only(depot: Depot) -> None:
    await depot.put("k", DATA)
    (made,) = await depot.enqueue(depot.order(inputs={"in.txt": BLOB}))
    other = (await depot.bench.tenants.create("other")).id
    for tenant, job in ((other, made.job.id), (depot.tenant, new_id()), (depot.tenant, "x"), (new_id(), made.job.id)):
        with pytest.raises(JobNotFound):
            await depot.bench.jobs.files(tenant, job)


# -- outputs ------------------------------------------------------------------------------------------------


async def test_outputs_are_there_with_the_success_of_their_attempt(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    uploads = [await upload(depot, found, name, name.encode()) for name in ("b.txt", "a.txt")]
    late = await depot.begin(5, job_id=found.job.id, fence=found.fence, file="output", name="late", place="late")
    assert await depot.files(found.job.id) == []
    assert await depot.store.open_blob(depot.tenant, id_of(b"a.txt")) is None
    assert await depot.news("blob.stored") == []
    usage = await depot.usage()
    settled = await depot.bench.jobs.complete(found, outputs=["a.txt", "b.txt"])
    assert settled.status is SUCCEEDED
    await depot.check()
    assert await depot.usage() == usage
    assert await depot.files(found.job.id) == [
        ("output", "a.txt", id_of(b"a.txt")),
        ("output", "b.txt", id_of(b"b.txt")),
    ]
    told = {(one.blob_id, one.job_id, one.name) for one in await depot.news("blob.stored") if isinstance(one, BlobNews)}
    assert told == {(id_of(name.encode()), found.job.id, name) for name in ("a.txt", "b.txt")}
    opened = await depot.store.open_blob(depot.tenant, id_of(b"a.txt"))
    assert opened is not None
    assert [(one.kind, one.name, one.job_type) for one in opened[1]] == [("output", "a.txt", "noop")]
    assert await depot.references(id_of(b"a.txt")) == 1
    assert await depot.sweep() >= 1
    assert [await depot.state(one) for one in (*uploads, late.upload.id)] == [None, None, None]
    assert await depot.trash() == ["late"]
    assert await depot.usage() == (10, 0, 0)
    assert await depot.condemned() == set()
    assert len(await depot.files(found.job.id)) == 2


async def test_outputs_that_nobody_names_are_there_too(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "a.txt", b"12345")
    await depot.bench.jobs.complete(found)
    assert await depot.files(found.job.id) == [("output", "a.txt", id_of(b"12345"))]


async def test_an_output_that_is_not_there_settles_nothing(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "log", b"12345", "log")
    begun = await depot.begin(5, job_id=found.job.id, fence=found.fence, file="output", name="a.txt")
    for outputs in (["a.txt"], ["log"], ["nothing", "a.txt"]):
        async with refuses(depot.bench, OutputMissing):
            await depot.bench.jobs.complete(found, "x", outputs=outputs)
    assert await status(depot, found.job) is RUNNING
    await depot.finish(begun.upload.id, b"1234")
    await depot.bench.jobs.complete(found, "x", outputs=["a.txt"])
    assert await status(depot, found.job) is SUCCEEDED
    await depot.check()


async def test_a_missing_output_of_one_stops_no_other(depot: Depot) -> None:
    claims = [await depot.bench.make_claim() for _ in range(3)]
    for found in claims:
        depot.jobs[found.job.id] = OWNER
    await upload(depot, claims[0], "a.txt", b"12345")
    settles = [Settle(job_id=one.job.id, fence=one.fence, outcome=Done(outputs=("a.txt",))) for one in claims[:2]]
    settles += [Settle(job_id=claims[2].job.id, fence=claims[2].fence, outcome=Done())]
    answers = await depot.bench.jobs.settle_many(settles)
    assert [type(answer) for answer in answers] == [Settled, OutputMissing, Settled]
    assert [await status(depot, one.job) for one in claims] == [SUCCEEDED, RUNNING, SUCCEEDED]
    await depot.check()


async def test_the_same_success_is_answered_again(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "a.txt", b"12345")
    first = await depot.bench.jobs.complete(found, 1, outputs=["a.txt"])
    before = await picture(depot.bench)
    assert await depot.bench.jobs.complete(found, 1, outputs=["a.txt"]) == first
    assert await picture(depot.bench) == before
    assert await depot.files(found.job.id) == [("output", "a.txt", id_of(b"12345"))]


@pytest.mark.parametrize("how", ["failed", "released", "lost"])
async def test_what_an_attempt_made_that_did_not_succeed_is_never_seen(depot: Depot, how: str) -> None:
    first = await depot.bench.make_claim()
    depot.jobs[first.job.id] = OWNER
    await upload(depot, first, "old.txt", b"old")
    await upload(depot, first, "both.txt", b"first")
    if how == "failed":
        await depot.bench.jobs.fail(first, "broken")
    elif how == "released":
        await depot.bench.jobs.release(first)
    else:
        depot.bench.clock.advance(seconds=LEASE_SECONDS + 1)
        await depot.bench.jobs.tend()
    depot.bench.clock.advance(seconds=60)
    second = await claim(depot, first.job)
    await upload(depot, second, "both.txt", b"second")
    with pytest.raises(LeaseLost):
        await depot.bench.jobs.complete(first, outputs=["old.txt"])
    with pytest.raises(OutputMissing):
        await depot.bench.jobs.complete(second, outputs=["old.txt"])
    await depot.bench.jobs.complete(second, outputs=["both.txt"])
    assert await depot.files(first.job.id) == [("output", "both.txt", id_of(b"second"))]
    await depot.sweep()
    assert await depot.usage() == (6, 0, 0)
    assert await depot.condemned() == {id_of(b"old"), id_of(b"first")}
    assert [one.name for one in await depot.news("blob.stored") if isinstance(one, BlobNews)] == ["both.txt"]


@pytest.mark.parametrize("makes", [True, False])
async def test_a_second_run_takes_the_place_of_the_outputs_of_the_first(depot: Depot, makes: bool) -> None:
    first = await depot.bench.make_claim()
    depot.jobs[first.job.id] = OWNER
    await upload(depot, first, "old.txt", b"old")
    await upload(depot, first, "both.txt", b"first")
    await upload(depot, first, "1", b"log", "log")
    await depot.bench.jobs.complete(first)
    await depot.bench.jobs.retry(depot.tenant, first.job.id)
    assert len(await depot.files(first.job.id)) == 3
    second = await claim(depot, first.job)
    if makes:
        await upload(depot, second, "both.txt", b"second")
    await depot.bench.jobs.complete(second)
    await depot.check()
    outputs = [("output", "both.txt", id_of(b"second"))] if makes else []
    assert await depot.files(first.job.id) == [("log", "1", id_of(b"log")), *outputs]
    assert await depot.condemned() == {id_of(b"old"), id_of(b"first")}


async def test_of_two_outputs_with_one_name_the_last_is_the_file(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    for data in (b"first", b"second", b"third"):
        await upload(depot, found, "out.txt", data)
        depot.bench.clock.advance(seconds=1)
    await depot.bench.jobs.complete(found, outputs=["out.txt"])
    await depot.check()
    assert await depot.files(found.job.id) == [("output", "out.txt", id_of(b"third"))]
    await depot.sweep()
    assert await depot.usage() == (5, 0, 0)
    assert await depot.condemned() == {id_of(b"first"), id_of(b"second")}


async def test_an_attempt_makes_so_many_outputs_and_no_more(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    orders = [
        depot.upload_of(depot.order(), "x", 0, job_id=found.job.id, fence=found.fence, file="output", place=None)
        for _ in range(OUTPUTS_MAX)
    ]
    await asyncio.gather(*map(depot.store.begin_upload, orders))
    with pytest.raises(InvalidInput, match=str(OUTPUTS_MAX)):
        await depot.begin(0, job_id=found.job.id, fence=found.fence, file="output", name="one more")
    await depot.begin(0, job_id=found.job.id, fence=found.fence, file="log", name="1")


# -- logs ---------------------------------------------------------------------------------------------------


async def test_a_log_is_a_file_at_once_and_stays_whatever_comes_of_the_attempt(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    id = await upload(depot, found, "1", b"log", "log")
    assert await depot.files(found.job.id) == [("log", "1", id_of(b"log"))]
    (news,) = await depot.news("blob.stored")
    assert isinstance(news, BlobNews)
    assert (news.job_id, news.name) == (found.job.id, "1")
    again = await depot.finish(id, b"log")
    assert again.upload.state is UploadState.DONE
    assert await depot.usage() == (3, 0, 0)
    await depot.bench.jobs.fail(found, "broken", retry=False)
    await depot.sweep()
    assert await depot.files(found.job.id) == [("log", "1", id_of(b"log"))]
    assert await depot.usage() == (3, 0, 0)
    assert await depot.condemned() == set()


async def test_a_log_takes_the_place_of_one_with_its_name(depot: Depot) -> None:
    found = await depot.bench.make_claim()
    depot.jobs[found.job.id] = OWNER
    await upload(depot, found, "1", b"log", "log")
    await upload(depot, found, "1", b"longer log", "log")
    assert await depot.files(found.job.id) == [("log", "1", id_of(b"longer log"))]
    assert await depot.usage() == (10, 0, 0)
    assert await depot.condemned() == {id_of(b"log")}


# -- how they go --------------------------------------------------------------------------------------------


async def test_files_go_with_their_job(depot: Depot) -> None:
    await depot.bench.jobs.define(Definition(type="noop", retention_seconds=60))
    await depot.put("k", DATA)
    (made,) = await depot.enqueue(depot.order(inputs={"in.txt": BLOB}, payload_blob=BLOB))
    found = await claim(depot, made.job)
    await upload(depot, found, "out.txt", b"12345")
    await upload(depot, found, "1", b"log", "log")
    await depot.bench.jobs.complete(found)
    await depot.sweep()
    depot.bench.clock.advance(seconds=61)
    assert (await depot.bench.jobs.collect()).removed == 1
    await depot.check()
    assert await depot.usage() == (SIZE, 0, 1)
    assert sorted(await depot.collect(grace=0)) == [3, 5]
    with pytest.raises(JobNotFound):
        await depot.bench.jobs.files(depot.tenant, made.job.id)


async def test_a_job_that_waits_for_an_upload_counts_as_unfinished(bench: Bench) -> None:
    depot = Depot(bench)
    await depot.enqueue(depot.order(uploads=["in"]))
    summary = await bench.jobs.summary(bench.tenant)
    assert (summary.counts[BLOCKED], summary.counts[QUEUED]) == (1, 0)
