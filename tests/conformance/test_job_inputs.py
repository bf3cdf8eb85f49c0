"""Inputs of jobs: stored blobs, and payloads stored as blobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ingot.blobs.errors import BlobNotFound, QuotaExceeded
from ingot.blobs.ports import FindBlob
from ingot.events.audit import PROCESS
from ingot.identity import Limits
from ingot.jobs import Definition, IdempotencyMismatch, JobLimitExceeded
from ingot.jobs.files import INPUTS_MAX
from ingot.kernel.errors import InvalidInput
from tests.conformance.blob_fixture import BlobFixture, blobs, content_of, id_of, stored
from tests.conformance.job_files import BLOB, DATA, QUEUED, SIZE, claim, upload
from tests.conformance.snapshots import refuses, refuses_each

__all__ = ["blobs"]


# -- stored blobs as inputs ---------------------------------------------------------------------------------


async def test_inputs_are_job_files_and_returned_with_the_job(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA, content_type="text/plain")
    await blobs.put("other", b"12", content_type="text/csv")
    inputs = {"b.txt": BLOB, "a.csv": id_of(b"12"), "same.txt": BLOB}
    (enqueued,) = await blobs.enqueue(blobs.order(inputs=inputs))
    job = enqueued.job
    assert (job.status, job.inputs, job.payload_blob) == (QUEUED, inputs, None)
    assert await blobs.usage() == (3 * SIZE + 4, 0, 2)
    files = await blobs.bench.jobs.files(blobs.tenant, job.id)
    now = blobs.bench.clock.now()
    assert [(one.kind, one.name, one.blob_id, one.size, one.content_type, one.since) for one in files] == [
        ("input", "a.csv", id_of(b"12"), 2, "text/csv", now),
        ("input", "b.txt", BLOB, SIZE, "text/plain", now),
        ("input", "same.txt", BLOB, SIZE, "text/plain", now),
    ]
    assert files[1].sha256 == content_of(DATA).sha256
    plain = await blobs.bench.make_job("plain")
    assert plain.inputs == {}
    assert [one.inputs for one in (await blobs.bench.jobs.list(blobs.tenant)).items] == [{}, inputs]
    running = await claim(blobs, job)
    assert running.job.inputs == inputs
    await blobs.bench.jobs.complete(running)
    assert (await blobs.bench.reload(job)).inputs == inputs
    assert (await blobs.bench.jobs.retry(blobs.tenant, job.id)).inputs == inputs
    assert await blobs.bench.jobs.files(blobs.tenant, plain.id) == []


async def test_an_input_keeps_its_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, "place"))
    (enqueued,) = await blobs.enqueue(blobs.order(inputs={"a.txt": BLOB}))
    await blobs.delete("k")
    assert await blobs.collect(grace=0) == []
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB))
    assert found is not None
    (reference,) = found[1]
    assert (reference.kind, reference.name, reference.job_id, reference.job_type) == (
        "input",
        "a.txt",
        enqueued.job.id,
        "noop",
    )
    (again,) = await blobs.enqueue(blobs.order(inputs={"again.txt": BLOB}))
    assert again.job.inputs == {"again.txt": BLOB}


async def test_a_finished_upload_can_be_an_input(blobs: BlobFixture) -> None:
    begun = await blobs.begin(SIZE, content_type="text/plain")
    await blobs.finish(begun.upload.id, DATA)
    (enqueued,) = await blobs.enqueue(blobs.order(inputs={"a.txt": BLOB}))
    (file,) = await blobs.bench.jobs.files(blobs.tenant, enqueued.job.id)
    assert (file.blob_id, file.content_type) == (BLOB, "text/plain")


@pytest.mark.parametrize("whose", ["nobody", "another tenant", "an upload under way", "an attempt that runs"])
async def test_a_blob_without_a_reference_in_the_tenant_cannot_be_an_input(blobs: BlobFixture, whose: str) -> None:
    if whose == "another tenant":
        await BlobFixture(blobs.bench, (await blobs.bench.tenants.create("other")).id).put("k", DATA)
    elif whose == "an upload under way":
        await blobs.begin(SIZE, blob_id=BLOB)
    elif whose == "an attempt that runs":
        await upload(blobs, await blobs.bench.make_claim(), "out", DATA)
    for files in ({"inputs": {"a.txt": BLOB}}, {"payload_blob": BLOB}):
        async with refuses(blobs.bench, BlobNotFound):
            await blobs.enqueue(blobs.order(), blobs.order(**files))
    assert await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB)) is None


async def test_inputs_count_against_the_quotas_and_a_call_is_refused_as_a_whole(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.limit(3 * SIZE)
    async with refuses(blobs.bench, QuotaExceeded) as caught:
        await blobs.enqueue(*(blobs.order(inputs={"a.txt": BLOB}) for _ in range(3)))
    assert isinstance(caught.value, QuotaExceeded)
    assert (caught.value.scope, caught.value.limit) == ("tenant", 3 * SIZE)
    async with refuses(blobs.bench, QuotaExceeded) as caught:
        await blobs.enqueue(blobs.order(inputs={"a.txt": BLOB, "b.txt": BLOB}, owner_quota=3 * SIZE - 1))
    assert isinstance(caught.value, QuotaExceeded)
    assert (caught.value.scope, caught.value.limit) == ("token", 3 * SIZE - 1)
    assert await blobs.usage() == (SIZE, 0, 1)
    await blobs.enqueue(*(blobs.order(inputs={"a.txt": BLOB}, owner_quota=3 * SIZE) for _ in range(2)))
    assert await blobs.usage() == (3 * SIZE, 0, 1)
    assert len(await blobs.news("quota.warning")) == 2


async def test_files_of_jobs_refused_by_the_cap_are_not_counted(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.bench.tenants.change(blobs.tenant, limits=Limits(max_unfinished_jobs=1))
    orders = [blobs.order(inputs={"a.txt": BLOB}, uploads=["in"]) for _ in range(2)]
    async with refuses(blobs.bench, JobLimitExceeded):
        await blobs.enqueue(*orders)
    assert await blobs.usage() == (SIZE, 0, 1)
    await blobs.enqueue(orders[0])
    assert await blobs.usage() == (2 * SIZE, 5, 1)


async def test_inputs_of_a_job_without_a_creator_belong_to_the_process(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.enqueue(blobs.order(inputs={"a.txt": BLOB}, created_by=None))
    assert await blobs.usage(PROCESS) == (SIZE, 0, 0)


async def test_a_job_can_have_at_most_inputs_max_inputs(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    inputs = {f"{n:03}.txt": BLOB for n in range(INPUTS_MAX)}
    (enqueued,) = await blobs.enqueue(blobs.order(inputs=inputs))
    assert (await blobs.bench.reload(enqueued.job)).inputs == inputs
    with pytest.raises(InvalidInput, match="101 inputs"):
        blobs.order(inputs=inputs | {"one more": BLOB})
    with pytest.raises(InvalidInput, match="101 inputs"):
        await blobs.enqueue(blobs.order(inputs=inputs, uploads=["one more"]))


INVALID_INPUTS: list[Any] = [
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
]


async def test_invalid_inputs_are_refused(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    enqueue = partial(blobs.bench.jobs.enqueue, blobs.tenant, "noop")
    await refuses_each(blobs.bench, InvalidInput, {repr(bad): partial(enqueue, inputs=bad) for bad in INVALID_INPUTS})


async def test_a_job_is_reused_only_for_the_same_inputs_and_payload(blobs: BlobFixture) -> None:
    await blobs.bench.jobs.define(Definition(type="noop", reuse=True))
    await blobs.put("k", DATA)
    await blobs.put("l", b"12")
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
    enqueued = [(await blobs.enqueue(blobs.order(**kind)))[0] for kind in kinds]
    assert all(one.created for one in enqueued)
    usage = await blobs.usage()
    turned = [{**kind, "inputs": dict(reversed(kind.get("inputs", {}).items()))} for kind in kinds]
    again = [(await blobs.enqueue(blobs.order(**kind)))[0] for kind in turned]
    assert [(one.job.id, one.reused) for one in again] == [(one.job.id, True) for one in enqueued]
    assert await blobs.usage() == usage


# -- payloads stored as blobs -------------------------------------------------------------------------------


async def test_a_payload_can_be_stored_as_a_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    (enqueued,) = await blobs.enqueue(blobs.order(payload_blob=BLOB, inputs={"payload": BLOB}))
    assert (enqueued.job.payload_blob, enqueued.job.read("payload")) == (BLOB, None)
    assert await blobs.files(enqueued.job.id) == [("input", "payload", BLOB), ("payload", "payload", BLOB)]
    running = await claim(blobs, enqueued.job)
    assert (running.job.payload_blob, running.job.read("payload")) == (BLOB, None)
    assert (await blobs.bench.reload(enqueued.job)).payload_blob == BLOB
    file, content = await blobs.bench.jobs.open_file(enqueued.job.id, running.fence, "payload", "payload")
    assert (file.kind, file.blob_id, stored(content)) == ("payload", BLOB, content_of(DATA))
    assert (await blobs.bench.make_job("plain")).payload_blob is None


async def test_an_idempotency_key_compares_payloads_stored_as_blobs(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.put("l", b"12")
    (enqueued,) = await blobs.enqueue(blobs.order(payload_blob=BLOB, idempotency_key="once"))
    usage = await blobs.usage()
    (again,) = await blobs.enqueue(blobs.order(payload_blob=BLOB, idempotency_key="once"))
    assert (again.job.id, again.created) == (enqueued.job.id, False)
    for other in ({"payload_blob": id_of(b"12")}, {"payload": None}, {"payload": BLOB}):
        async with refuses(blobs.bench, IdempotencyMismatch):
            await blobs.enqueue(blobs.order(**other, idempotency_key="once"))
    assert await blobs.usage() == usage


async def test_a_payload_together_with_a_payload_blob_is_refused(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    async with refuses(blobs.bench, InvalidInput):
        await blobs.bench.jobs.enqueue(blobs.tenant, "noop", {"a": 1}, payload_blob=BLOB)
