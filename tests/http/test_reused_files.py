"""The same file submitted with the same order again: one job, one result, and bytes that are sent once."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from ingot.blobs.incoming import IncomingBlob, JobFileTarget
from ingot.client import AsyncClient
from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.asynchronous.job_files import SubmitResult, submit_with_files
from ingot.client.errors import ServerUnreachable
from ingot.client.retry_policy import RetryPolicy
from ingot.client.server_address import resolve_server_address
from ingot.client.upload_source import READ_BYTES, Sendable
from ingot.engines.sqlite.connection import open_writer
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity.grants import Grant
from ingot.identity.model import Limits
from ingot.jobs.files import input_upload_id
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Definition, Job
from tests.http.bucket_settings import bucket_settings
from tests.http.faulty_transport import Fault, FaultyTransport, fault_once
from tests.http.job_files import expect_refusal, list_files, post, put_key
from tests.http.serving import Served, serving
from tests.waiting import SECONDS_MAX

DATA = random.Random(9).randbytes(3 * READ_BYTES + 11)
BLOB = blake3(DATA).hexdigest()
UPLOAD = {"name": "in.bin", "size": len(DATA), "blob_id": BLOB}
ORDER: dict[str, Any] = {"type": "noop", "uploads": [UPLOAD]}


@pytest.fixture(params=["folder", "bucket"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", bucket_settings() if request.param == "bucket" else None) as server:
        await server.ingot.jobs.define(Definition(type="noop", reuse=True))
        yield server


@pytest.fixture(autouse=True)
async def close_transports() -> AsyncIterator[None]:
    yield
    while FaultyTransport.instances:
        await FaultyTransport.instances.pop().aclose()


@pytest.fixture
async def reusing(served: Served) -> Served:
    await served.ingot.jobs.define(Definition(type="noop", reuse=True))
    return served


class Sender:
    """A client that submits jobs with a file, over its own transport."""

    def __init__(
        self,
        site: Served,
        transport: FaultyTransport | None = None,
        *,
        token: str | None = None,
        retry_seconds: float = 5,
    ) -> None:
        self.transport = transport or FaultyTransport()
        address = resolve_server_address(site.url, token=token or site.operator)
        self._http = AsyncHttp(address, RetryPolicy(retry_seconds=retry_seconds), transport=self.transport)

    async def submit(self, data: Sendable = DATA, **order: Any) -> tuple[Job, SubmitResult]:
        body = {"type": "noop", "payload": order.pop("payload", None), **order}
        return await submit_with_files(self._http, body, {"in.bin": data}, None, None)

    @property
    def sent(self) -> int:
        """The number of requests that sent bytes."""
        return sum(request.method in ("PATCH", "PUT") for request in self.transport.requests)


class PausingFile(io.BytesIO):
    """Bytes whose second reading, which sends them after the first computed digests, pauses after one piece."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.paused, self.resume = threading.Event(), threading.Event()
        self._hashed = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self._hashed and self.tell() >= READ_BYTES:
            self.paused.set()
            assert self.resume.wait(SECONDS_MAX)
        data = super().read(size)
        self._hashed = self._hashed or self.tell() == len(DATA)
        return data


async def status(site: Served, job: Job) -> str:
    return str((await site.call("GET", f"/jobs/{job.id}")).json()["status"])


# -- submitting again ---------------------------------------------------------------------------------------


async def test_submitting_the_same_file_twice_creates_one_job_and_sends_the_bytes_once(site: Served) -> None:
    sender = Sender(site)
    first, result = await sender.submit()
    assert (result.created, result.reused, first.status) == (True, False, "queued")
    sent, usage = sender.sent, (await site.call("GET", "/usage")).json()
    before, uploads = len(sender.transport.requests), (await site.ingot.blobs.metrics()).uploads
    again, result = await sender.submit()
    assert (again.id, result.created, result.reused) == (first.id, False, True)
    assert len(sender.transport.requests) == before + 1, "the second submission is one request without bytes"
    claimed = await site.claim()
    await post(site, f"/jobs/{first.id}/complete", {"fence": claimed["fence"], "result": {"pages": 3}})
    completed, result = await sender.submit()
    assert (completed.id, result.reused, completed.status, completed.read("result")) == (
        first.id,
        True,
        "succeeded",
        {"pages": 3},
    )
    assert (await site.call("GET", "/usage")).json() == usage
    assert (sender.sent, (await site.ingot.blobs.metrics()).uploads) == (sent, uploads)


async def test_other_options_other_bytes_and_force_create_another_job(site: Served) -> None:
    sender = Sender(site)
    first, _ = await sender.submit()
    sent = sender.sent
    for order in ({"payload": {"pages": "1-3"}}, {"force": True}):
        job, result = await sender.submit(**order)
        assert (job.id != first.id, result.created, result.reused) == (True, True, False)
        assert (job.status, sender.sent) == ("queued", sent), "bytes that the tenant has are not sent"
    other, result = await sender.submit(DATA[1:])
    assert (other.id != first.id, result.created) == (True, True)
    assert sender.sent == sent + 1


@pytest.mark.parametrize("end", ["canceled", "dead"])
async def test_a_canceled_or_dead_job_is_not_reused(reusing: Served, end: str) -> None:
    sender = Sender(reusing)
    first, _ = await sender.submit()
    if end == "canceled":
        await post(reusing, f"/jobs/{first.id}/cancel", {})
    else:
        fence = (await reusing.claim())["fence"]
        await post(reusing, f"/jobs/{first.id}/fail", {"fence": fence, "error": "no", "retry": False})
    fresh, result = await sender.submit()
    assert (fresh.id != first.id, result.created, fresh.status) == (True, True, "queued")


async def test_a_submission_reports_whether_its_job_is_new_existing_or_reused(reusing: Served) -> None:
    async with AsyncClient(reusing.url, token=reusing.operator) as client:
        jobs = [await client.submit("noop", 1, file={"a": b"1"}, idempotency_key="k") for _ in range(2)]
        jobs += [
            await client.submit("noop", payload, file=file)
            for payload, file in ((1, {"a": b"1"}), (2, None), (2, None))
        ]
        jobs += [*await client.submit_many("noop", [3, 3]), await client.job(jobs[0].id)]
    results = [(job.created, job.reused) for job in jobs]
    new, existing, reused = (True, False), (False, False), (False, True)
    assert results == [new, existing, reused, new, reused, new, reused, existing]
    assert len({job.id for job in jobs}) == 3
    first = await reusing.call("POST", "/jobs", json={"type": "noop", "payload": 4})
    again = await reusing.call("POST", "/jobs", json={"type": "noop", "payload": 4})
    for response, expected in ((first, (201, True, False)), (again, (200, False, True))):
        assert (response.status_code, response.json()["created"], response.json()["reused"]) == expected
    assert again.headers["location"] == first.headers["location"]


async def test_a_reused_job_needs_no_quota(reusing: Served) -> None:
    first = await post(reusing, "/jobs", ORDER, expect=201)
    await reusing.ingot.tenants.change(reusing.ingot.default_tenant.id, limits=Limits(quota_bytes=len(DATA)))
    again = await post(reusing, "/jobs", ORDER)
    assert (again["id"], again["reused"]) == (first["id"], True)
    usage = (await reusing.call("GET", "/usage")).json()
    assert (usage["reserved_bytes"], (await reusing.ingot.blobs.metrics()).uploads) == (len(DATA), 1)
    await expect_refusal(reusing, "/jobs", {**ORDER, "force": True}, 507, "quota_exceeded")


# -- unfinished uploads -------------------------------------------------------------------------------------


async def test_submitting_again_after_a_crash_resumes_the_upload(site: Served) -> None:
    part = "/bytes" if site.ingot.bucket is None else "X-Amz-Signature"
    failing = FaultyTransport(
        fault_once("PATCH" if site.ingot.bucket is None else "PUT", part, Fault(cut_request_after=2 * READ_BYTES))
    )
    with pytest.raises(ServerUnreachable):
        await Sender(site, failing, retry_seconds=0).submit()
    (blocked_job,) = (await site.call("GET", "/jobs")).json()["items"]
    assert blocked_job["status"] == "blocked"
    upload = f"/blobs/uploads/{input_upload_id(blocked_job['id'], 0)}"
    if site.ingot.bucket is None:
        while not (await site.call("GET", upload)).json()["upload"]["received"]:
            pass  # The server stores the received bytes when it notices the broken connection.
    sender = Sender(site)
    job, result = await sender.submit()
    assert (job.id, result.reused, job.status) == (blocked_job["id"], True, "queued")
    assert job.inputs == {"in.bin": BLOB}
    if site.ingot.bucket is None:
        (request,) = sender.transport.requests_to("PATCH", "/bytes")
        assert int(request.headers["upload-offset"]) > 0


async def test_a_file_that_a_killed_sender_had_sent_is_not_sent_again(site: Served) -> None:
    first = await post(site, "/jobs", ORDER, expect=201)
    async with asyncio.timeout(30):
        plan = first["uploads"][0]
        headers = {name: value for name, value in plan["headers"].items() if name.lower() != "content-length"}
        assert (await site.client.put(plan["url"], headers=headers, content=DATA)).is_success
    job, result = await Sender(site).submit()
    assert (job.id, result.reused, job.status) == (first["id"], True, "queued")


@pytest.mark.s3
async def test_a_large_file_is_resumed_with_the_missing_parts(tmp_path: Path) -> None:
    data = bytes(64 * 1024 * 1024 + 1)
    upload = {"name": "in.bin", "size": len(data), "blob_id": blake3(data).hexdigest()}
    async with serving(tmp_path / "data", bucket_settings()) as site:
        await site.ingot.jobs.define(Definition(type="noop", reuse=True))
        first = await post(site, "/jobs", {"type": "noop", "uploads": [upload]}, expect=201)
        (plan,) = first["uploads"]
        first_part = data[: plan["part_bytes"]]
        part = {"number": 1, "size": len(first_part), "sha256": hashlib.sha256(first_part).hexdigest()}
        signed = await post(site, f"/blobs/uploads/{plan['upload']['id']}/parts", {"parts": [part]})
        (target,) = signed["parts"]
        assert (await site.client.put(target["url"], headers=target["headers"], content=first_part)).is_success
        sender = Sender(site, token=await site.token(Grant(action="jobs.create"), Grant(action="jobs.read")))
        job, result = await sender.submit(data)
        assert (job.id, result.reused, await status(site, job)) == (first["id"], True, "queued")
        sent = [int(request.url.params["partNumber"]) for request in sender.transport.requests_to("PUT", "partNumber")]
        assert sorted(sent) == list(range(2, -(-len(data) // len(first_part)) + 1))


async def test_another_caller_with_the_same_file_finishes_the_upload(site: Served) -> None:
    creator = await site.token(Grant(action="jobs.create", resource="jobs/noop"))
    other = await site.token(*(Grant(action=f"jobs.{verb}", resource="jobs/noop") for verb in ("create", "read")))
    first = await post(site, "/jobs", ORDER, expect=201, token=creator)
    job, result = await Sender(site, token=other).submit()
    assert (job.id, result.reused) == (first["id"], True)
    assert await status(site, job) == "queued"
    assert await list_files(site, first) == [("input", "in.bin", BLOB)]


@pytest.mark.parametrize("wrong", [{"size": 10}, {"size": 10**9}, {"sha256": "1" * 64}])
async def test_a_wrong_announcement_does_not_block_others_from_sending_the_file(
    reusing: Served, wrong: dict[str, Any]
) -> None:
    order = {**ORDER, "uploads": [{**ORDER["uploads"][0], **wrong}]}
    first = await post(reusing, "/jobs", order, expect=201)
    job, result = await Sender(reusing).submit()
    assert (job.id != first["id"], result.created, job.status) == (True, True, "queued")


async def test_a_reused_job_hides_its_result_from_a_caller_that_may_only_create_jobs(reusing: Served) -> None:
    order = {"type": "noop", "payload": 1, "metadata": {"secret": 1}, "tags": ["theirs"]}
    created = await post(reusing, "/jobs", order, expect=201)
    claimed = await reusing.claim()
    await post(reusing, f"/jobs/{created['id']}/complete", {"fence": claimed["fence"], "result": "theirs"})
    creator = await reusing.token(Grant(action="jobs.create", resource="jobs/noop"))
    again = await post(reusing, "/jobs", {"type": "noop", "payload": 1}, token=creator)
    batch = await post(reusing, "/jobs/batch", {"jobs": [{"type": "noop", "payload": 1}]}, expect=201, token=creator)
    for job in (again, batch["jobs"][0]["job"]):
        assert (job["id"], job["status"]) == (created["id"], "succeeded")
        assert [job[name] for name in ("result", "metadata", "tags")] == [None, None, []]
    reader = await post(reusing, "/jobs", {"type": "noop", "payload": 1})
    assert (reader["result"], reader["tags"]) == ("theirs", ["theirs"])


async def test_an_upload_is_hidden_from_callers_that_do_not_name_its_blob_id(reusing: Served) -> None:
    creator = await reusing.token(Grant(action="jobs.create", resource="jobs/noop"))
    first = await post(reusing, "/jobs", ORDER, expect=201, token=creator)
    path = f"/blobs/uploads/{first['uploads'][0]['upload']['id']}"
    part = {"number": 1, "size": 1, "sha256": "0" * 64}
    creating, reading = [Grant(action=f"jobs.{verb}", resource="jobs/noop") for verb in ("create", "read")]
    same, only_creating = await reusing.token(creating, reading), await reusing.token(creating)
    other_type = await reusing.token(Grant(action="jobs.create", resource="jobs/other"))
    for token, named in (
        (same, {}),
        (same, {"blob_id": "0" * 64}),
        (only_creating, {"blob_id": BLOB}),
        (other_type, {"blob_id": BLOB}),
    ):
        assert (await reusing.call("GET", path, params=named, token=token)).status_code == 404
        await expect_refusal(reusing, f"{path}/parts", {"parts": [part], **named}, 404, "upload_not_found", token=token)
        await expect_refusal(reusing, f"{path}/complete", named, 404, "upload_not_found", token=token)
    assert (await reusing.call("GET", path, params={"blob_id": BLOB}, token=same)).status_code == 200
    assert (await reusing.call("DELETE", path, token=same)).status_code == 404, (
        "other callers may still complete the upload"
    )
    assert (await reusing.call("GET", path, token=creator)).json()["upload"]["state"] == "open"


async def test_the_slower_of_two_senders_of_the_same_file_gets_no_error(site: Served) -> None:
    slow = PausingFile(DATA)
    sending = asyncio.create_task(Sender(site).submit(slow))
    assert await asyncio.to_thread(slow.paused.wait, SECONDS_MAX)
    completed, result = await Sender(site).submit()
    assert (result.reused, completed.status) == (True, "queued")
    slow.resume.set()
    job, result = await sending
    assert (job.id, result.created, await status(site, job)) == (completed.id, True, "queued")


async def test_a_sender_that_is_fenced_out_leaves_the_upload_to_the_later_sender(reusing: Served) -> None:
    slow, last = PausingFile(DATA), PausingFile(DATA)
    first = asyncio.create_task(Sender(reusing).submit(slow))
    assert await asyncio.to_thread(slow.paused.wait, SECONDS_MAX)
    second = asyncio.create_task(Sender(reusing).submit(last))
    assert await asyncio.to_thread(last.paused.wait, SECONDS_MAX)
    slow.resume.set()
    job, _ = await first
    last.resume.set()
    again, result = await second
    assert (again.id, result.reused, await status(reusing, job)) == (job.id, True, "queued")


async def test_concurrent_senders_of_the_same_file_create_one_job(site: Served) -> None:
    responses = await asyncio.gather(*(Sender(site).submit() for _ in range(4)))
    assert len({job.id for job, _ in responses}) == 1
    assert sorted(result.created for _, result in responses) == [False, False, False, True]
    assert await status(site, responses[0][0]) == "queued"
    assert (await site.ingot.blobs.metrics()).blobs == 1


async def test_a_sender_whose_reused_job_is_canceled_creates_its_own(reusing: Served) -> None:
    first = await post(reusing, "/jobs", ORDER, expect=201)
    pausing = PausingFile(DATA)
    sending = asyncio.create_task(Sender(reusing).submit(pausing))
    assert await asyncio.to_thread(pausing.paused.wait, SECONDS_MAX)
    await post(reusing, f"/jobs/{first['id']}/cancel", {})
    pausing.resume.set()
    job, result = await sending
    assert (job.id != first["id"], result.created, job.status) == (True, True, "queued")


# -- blobs that the tenant has ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sent", "named", "in a batch"])
async def test_a_waiting_job_gets_its_input_once_the_tenant_has_the_blob(site: Served, method: str) -> None:
    first = await post(site, "/jobs", ORDER, expect=201)
    await put_key(site, "here", DATA)
    named = {"type": "noop", "inputs": {"in.bin": BLOB}}
    if method == "in a batch":
        (response,) = (await post(site, "/jobs/batch", {"jobs": [named]}, expect=201))["jobs"]
        job, reused = response["job"], response["reused"]
    else:
        job = await post(site, "/jobs", ORDER if method == "sent" else named)
        reused = job["reused"]
        assert [plan["upload"]["state"] for plan in job.get("uploads", [])] == (["done"] if method == "sent" else [])
    assert (job["id"], reused, job["status"]) == (first["id"], True, "queued")
    assert job["inputs"] == {"in.bin": BLOB}
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (2 * len(DATA), 0)


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_job_whose_server_crashed_before_attaching_its_input_is_reused_if_the_blob_exists(
    reusing: Served, is_stored: bool
) -> None:
    await put_key(reusing, "here", DATA)
    tenant = reusing.ingot.default_tenant.id
    order = new_job(tenant, "noop", created_by="token:crashed")
    incoming = IncomingBlob(tenant=tenant, owner="token:crashed", size=len(DATA), blob_id=BLOB)
    file = JobFileTarget(job_id=order.id, kind="input", name="in.bin")
    prepared = await reusing.ingot.uploads.prepare(incoming, id=input_upload_id(order.id, 0), file=file)
    await reusing.ingot.jobs.enqueue_many([msgspec.structs.replace(order, uploads=(prepared.command,))])
    if not is_stored:
        assert (await reusing.call("DELETE", "/keys/here")).is_success
    job, result = await Sender(reusing).submit()
    assert (job.id == order.id, result.reused, job.status) == (is_stored, is_stored, "queued")


@pytest.mark.parametrize("again", [{"idempotency_key": "once"}, {}])
async def test_a_small_input_whose_server_crashed_before_storing_it_is_sent_again(
    reusing: Served, again: dict[str, str]
) -> None:
    small = b"small"
    tenant = reusing.ingot.default_tenant.id
    order = new_job(tenant, "noop", created_by="token:crashed", idempotency_key="once")
    incoming = IncomingBlob(tenant=tenant, owner="token:crashed", size=len(small))
    file = JobFileTarget(job_id=order.id, kind="input", name="in.bin")
    prepared = await reusing.ingot.uploads.prepare(incoming, id=input_upload_id(order.id, 0), file=file, data=small)
    await reusing.ingot.jobs.enqueue_many([msgspec.structs.replace(order, uploads=(prepared.command,))])
    job, result = await Sender(reusing).submit(small, **again)
    assert (job.id, result.created, job.status) == (order.id, False, "queued")
    assert job.inputs == {"in.bin": blake3(small).hexdigest()}


async def test_a_small_input_that_is_not_stored_yet_can_be_uploaded_by_another_sender(site: Served) -> None:
    small = b"small"
    tenant = site.ingot.default_tenant.id
    order = new_job(tenant, "noop", created_by="token:slow")
    incoming = IncomingBlob(tenant=tenant, owner="token:slow", size=len(small))
    file = JobFileTarget(job_id=order.id, kind="input", name="in.bin")
    prepared = await site.ingot.uploads.prepare(incoming, id=input_upload_id(order.id, 0), file=file, data=small)
    await site.ingot.jobs.enqueue_many([msgspec.structs.replace(order, uploads=(prepared.command,))])
    upload = {"name": "in.bin", "size": len(small), "blob_id": blake3(small).hexdigest()}
    other = await post(site, "/jobs", {"type": "noop", "uploads": [upload]})
    assert (other["id"], other["status"], other["reused"]) == (order.id, "blocked", True)
    assert other["uploads"][0]["url"], "the second sender can upload it too"
    await site.ingot.uploads.continue_prepared(prepared)  # The first sender continues.
    job = await site.ingot.jobs.get(tenant, order.id)
    assert (job.status, job.inputs) == ("queued", {"in.bin": blake3(small).hexdigest()})
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (len(small), 0)


async def test_a_small_input_that_the_store_failed_to_save_is_stored_on_retry(reusing: Served, tmp_path: Path) -> None:
    with closing(open_writer(tmp_path / "data" / FILE_NAME)) as connection:
        connection.execute("CREATE TRIGGER no_blobs BEFORE INSERT ON blobs BEGIN SELECT RAISE(ABORT, 'not now'); END")
        transport = FaultyTransport(
            lambda _: (
                None if len(transport.requests) == 1 else connection.execute("DROP TRIGGER IF EXISTS no_blobs").get
            )
        )
        job, result = await Sender(reusing, transport).submit(b"small", idempotency_key="once")
    assert (result.created, job.status) == (False, "queued")
    assert len(transport.requests_to("POST", "/jobs")) == 2


async def test_two_tenants_with_the_same_file_get_separate_jobs_after_the_same_requests(site: Served) -> None:
    other = (await site.ingot.tenants.create("other")).id
    tokens = [site.operator, await site.token(Grant(action="*"), tenant=other)]
    senders = [Sender(site, token=token) for token in tokens]
    plain = Sender(site, token=await site.token(Grant(action="*"), tenant=(await site.ingot.tenants.create("new")).id))
    created = [await sender.submit() for sender in senders]
    assert [result.created for _, result in created] == [True, True]
    assert len({job.id for job, _ in created}) == 2
    requests = [[(each.method, each.url.path.count("/")) for each in sender.transport.requests] for sender in senders]
    assert requests[0] == requests[1], "neither tenant can see that the other has the file"
    assert (await site.ingot.blobs.metrics()).blobs == 2
    await plain.submit(b"something else")
    for token, (job, _) in zip(tokens, created, strict=True):
        again = await post(site, "/jobs", ORDER, token=token)
        assert (again["id"], again["reused"]) == (job.id, True)
