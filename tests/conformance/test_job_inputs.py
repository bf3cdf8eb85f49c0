"""What jobs are given to work on: blobs that are here, and payloads that are blobs."""

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
from tests.conformance.blob_fixture import BlobFixture, blobs, content_of, id_of
from tests.conformance.job_files import BLOB, DATA, QUEUED, SIZE, claim, upload
from tests.conformance.snapshots import refuses, refuses_each

__all__ = ["blobs"]


# -- inputs that are here -----------------------------------------------------------------------------------


async def test_inputs_are_files_of_the_job_and_seen_with_it(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA, content_type="text/plain")
    await blobs.put("other", b"12", content_type="text/csv")
    inputs = {"b.txt": BLOB, "a.csv": id_of(b"12"), "same.txt": BLOB}
    (made,) = await blobs.enqueue(blobs.order(inputs=inputs))
    job = made.job
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
    found = await claim(blobs, job)
    assert found.job.inputs == inputs
    await blobs.bench.jobs.complete(found)
    assert (await blobs.bench.reload(job)).inputs == inputs
    assert (await blobs.bench.jobs.retry(blobs.tenant, job.id)).inputs == inputs
    assert await blobs.bench.jobs.files(blobs.tenant, plain.id) == []


async def test_an_input_keeps_its_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", content_of(DATA, "place"))
    (made,) = await blobs.enqueue(blobs.order(inputs={"a.txt": BLOB}))
    await blobs.delete("k")
    assert await blobs.collect(grace=0) == []
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=BLOB))
    assert found is not None
    (reference,) = found[1]
    assert (reference.kind, reference.name, reference.job_id, reference.job_type) == (
        "input",
        "a.txt",
        made.job.id,
        "noop",
    )
    (again,) = await blobs.enqueue(blobs.order(inputs={"again.txt": BLOB}))
    assert again.job.inputs == {"again.txt": BLOB}


async def test_an_upload_that_is_done_can_be_an_input(blobs: BlobFixture) -> None:
    begun = await blobs.begin(SIZE, content_type="text/plain")
    await blobs.finish(begun.upload.id, DATA)
    (made,) = await blobs.enqueue(blobs.order(inputs={"a.txt": BLOB}))
    (file,) = await blobs.bench.jobs.files(blobs.tenant, made.job.id)
    assert (file.blob_id, file.content_type) == (BLOB, "text/plain")


@pytest.mark.parametrize("whose", ["nobody", "another tenant", "an upload under way", "an attempt that runs"])
async def test_a_blob_that_the_tenant_does_not_hold_is_no_input(blobs: BlobFixture, whose: str) -> None:
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


async def test_inputs_count_against_the_quotas_all_or_none(blobs: BlobFixture) -> None:
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


async def test_files_of_jobs_that_a_cap_refuses_are_not_counted(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.bench.tenants.change(blobs.tenant, limits=Limits(max_unfinished_jobs=1))
    orders = [blobs.order(inputs={"a.txt": BLOB}, uploads=["in"]) for _ in range(2)]
    async with refuses(blobs.bench, JobLimitExceeded):
        await blobs.enqueue(*orders)
    assert await blobs.usage() == (SIZE, 0, 1)
    await blobs.enqueue(orders[0])
    assert await blobs.usage() == (2 * SIZE, 5, 1)


async def test_inputs_of_a_job_that_nobody_made_are_the_processs(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.enqueue(blobs.order(inputs={"a.txt": BLOB}, created_by=None))
    assert await blobs.usage(PROCESS) == (SIZE, 0, 0)


async def test_as_many_inputs_as_may_be(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    inputs = {f"{n:03}.txt": BLOB for n in range(INPUTS_MAX)}
    (made,) = await blobs.enqueue(blobs.order(inputs=inputs))
    assert (await blobs.bench.reload(made.job)).inputs == inputs
    with pytest.raises(InvalidInput, match="101 inputs"):
        blobs.order(inputs=inputs | {"one more": BLOB})
    with pytest.raises(InvalidInput, match="101 inputs"):
        await blobs.enqueue(blobs.order(inputs=inputs, uploads=["one more"]))


NO_INPUTS: list[Any] = [
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


async def test_what_names_no_inputs_is_refused(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    enqueue = partial(blobs.bench.jobs.enqueue, blobs.tenant, "noop")
    await refuses_each(blobs.bench, InvalidInput, {repr(bad): partial(enqueue, inputs=bad) for bad in NO_INPUTS})


async def test_the_same_work_on_the_same_inputs_is_reused(blobs: BlobFixture) -> None:
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
    made = [(await blobs.enqueue(blobs.order(**kind)))[0] for kind in kinds]
    assert all(one.created for one in made)
    usage = await blobs.usage()
    turned = [{**kind, "inputs": dict(reversed(kind.get("inputs", {}).items()))} for kind in kinds]
    again = [(await blobs.enqueue(blobs.order(**kind)))[0] for kind in turned]
    assert [(one.job.id, one.reused) for one in again] == [(one.job.id, True) for one in made]
    assert await blobs.usage() == usage


# -- a payload that is a blob -------------------------------------------------------------------------------


async def test_a_payload_can_be_a_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    (made,) = await blobs.enqueue(blobs.order(payload_blob=BLOB, inputs={"payload": BLOB}))
    assert (made.job.payload_blob, made.job.read("payload")) == (BLOB, None)
    assert await blobs.files(made.job.id) == [("input", "payload", BLOB), ("payload", "payload", BLOB)]
    found = await claim(blobs, made.job)
    assert (found.job.payload_blob, found.job.read("payload")) == (BLOB, None)
    assert (await blobs.bench.reload(made.job)).payload_blob == BLOB
    file, content = await blobs.bench.jobs.open_file(made.job.id, found.fence, "payload", "payload")
    assert (file.kind, file.blob_id, content) == ("payload", BLOB, content_of(DATA))
    assert (await blobs.bench.make_job("plain")).payload_blob is None


async def test_an_idempotency_key_knows_a_payload_that_is_a_blob(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    await blobs.put("l", b"12")
    (made,) = await blobs.enqueue(blobs.order(payload_blob=BLOB, idempotency_key="once"))
    usage = await blobs.usage()
    (again,) = await blobs.enqueue(blobs.order(payload_blob=BLOB, idempotency_key="once"))
    assert (again.job.id, again.created) == (made.job.id, False)
    for other in ({"payload_blob": id_of(b"12")}, {"payload": None}, {"payload": BLOB}):
        async with refuses(blobs.bench, IdempotencyMismatch):
            await blobs.enqueue(blobs.order(**other, idempotency_key="once"))
    assert await blobs.usage() == usage


async def test_a_payload_is_given_once(blobs: BlobFixture) -> None:
    await blobs.put("k", DATA)
    async with refuses(blobs.bench, InvalidInput):
        await blobs.bench.jobs.enqueue(blobs.tenant, "noop", {"a": 1}, payload_blob=BLOB)
