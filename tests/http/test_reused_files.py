"""The same file sent with the same order again: one job, one result, and bytes that travel once."""

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
from tests.http.bucket_settings import in_bucket
from tests.http.faulty_transport import Harm, Line, once
from tests.http.job_files import files, key, post, refused
from tests.http.serving import Served, serving
from tests.waiting import SECONDS_MAX

DATA = random.Random(9).randbytes(3 * READ_BYTES + 11)
BLOB = blake3(DATA).hexdigest()
UPLOAD = {"name": "in.bin", "size": len(DATA), "blob_id": BLOB}
ORDER: dict[str, Any] = {"type": "noop", "uploads": [UPLOAD]}


@pytest.fixture(params=["folder", "bucket"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", in_bucket() if request.param == "bucket" else None) as one:
        await one.ingot.jobs.define(Definition(type="noop", reuse=True))
        yield one


@pytest.fixture(autouse=True)
async def lines() -> AsyncIterator[None]:
    yield
    while Line.made:
        await Line.made.pop().aclose()


@pytest.fixture
async def reusing(served: Served) -> Served:
    await served.ingot.jobs.define(Definition(type="noop", reuse=True))
    return served


class Sender:
    """A program that sends a file with its jobs, over a line of its own."""

    def __init__(
        self, site: Served, line: Line | None = None, *, token: str | None = None, patience: float = 5
    ) -> None:
        self.line = line or Line()
        place = resolve_server_address(site.url, token=token or site.operator)
        self._http = AsyncHttp(place, RetryPolicy(retry_seconds=patience), transport=self.line)

    async def submit(self, data: Sendable = DATA, **order: Any) -> tuple[Job, SubmitResult]:
        body = {"type": "noop", "payload": order.pop("payload", None), **order}
        return await submit_with_files(self._http, body, {"in.bin": data}, None, None)

    @property
    def sent(self) -> int:
        """How many requests brought bytes."""
        return sum(one.method in ("PATCH", "PUT") for one in self.line.asked)


class Halting(io.BytesIO):
    """Bytes that come to a halt where they are read for the second time, as they are when they are sent."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.halted, self.go_on = threading.Event(), threading.Event()
        self._hashed = False

    def read(self, size: int | None = -1, /) -> bytes:
        place = self.tell()
        if self._hashed and place >= READ_BYTES:
            self.halted.set()
            assert self.go_on.wait(SECONDS_MAX)
        data = super().read(size)
        self._hashed = self._hashed or self.tell() == len(DATA)
        return data


async def status(site: Served, job: Job) -> str:
    return str((await site.call("GET", f"/jobs/{job.id}")).json()["status"])


# -- the same again -----------------------------------------------------------------------------------------


async def test_the_same_file_twice_is_one_job_and_its_bytes_travel_once(site: Served) -> None:
    sender = Sender(site)
    first, told = await sender.submit()
    assert (told.created, told.reused, first.status) == (True, False, "queued")
    sent, usage = sender.sent, (await site.call("GET", "/usage")).json()
    before, begun = len(sender.line.asked), (await site.ingot.blobs.metrics()).uploads
    again, told = await sender.submit()
    assert (again.id, told.created, told.reused) == (first.id, False, True)
    assert len(sender.line.asked) == before + 1, "it is asked once, and nothing is sent"
    claimed = await site.claim()
    await post(site, f"/jobs/{first.id}/complete", {"fence": claimed["fence"], "result": {"pages": 3}})
    done, told = await sender.submit()
    assert (done.id, told.reused, done.status, done.read("result")) == (first.id, True, "succeeded", {"pages": 3})
    assert (await site.call("GET", "/usage")).json() == usage
    assert (sender.sent, (await site.ingot.blobs.metrics()).uploads) == (sent, begun)


async def test_other_options_and_other_bytes_are_another_job_and_force_is_one_too(site: Served) -> None:
    sender = Sender(site)
    first, _ = await sender.submit()
    sent = sender.sent
    for order in ({"payload": {"pages": "1-3"}}, {"force": True}):
        job, told = await sender.submit(**order)
        assert (job.id != first.id, told.created, told.reused) == (True, True, False)
        assert (job.status, sender.sent) == ("queued", sent), "what the tenant has is not sent"
    other, told = await sender.submit(DATA[1:])
    assert (other.id != first.id, told.created) == (True, True)
    assert sender.sent == sent + 1


@pytest.mark.parametrize("how", ["canceled", "dead"])
async def test_a_job_that_came_to_nothing_is_made_anew(reusing: Served, how: str) -> None:
    sender = Sender(reusing)
    first, _ = await sender.submit()
    if how == "canceled":
        await post(reusing, f"/jobs/{first.id}/cancel", {})
    else:
        fence = (await reusing.claim())["fence"]
        await post(reusing, f"/jobs/{first.id}/fail", {"fence": fence, "error": "no", "retry": False})
    fresh, told = await sender.submit()
    assert (fresh.id != first.id, told.created, fresh.status) == (True, True, "queued")


async def test_an_answer_says_whether_it_is_new_there_already_or_reused(reusing: Served) -> None:
    async with AsyncClient(reusing.url, token=reusing.operator) as client:
        asked = [await client.submit("noop", 1, file={"a": b"1"}, idempotency_key="k") for _ in range(2)]
        asked += [
            await client.submit("noop", payload, file=file)
            for payload, file in ((1, {"a": b"1"}), (2, None), (2, None))
        ]
        asked += [*await client.submit_many("noop", [3, 3]), await client.job(asked[0].id)]
    told = [(job.created, job.reused) for job in asked]
    new, known, reused = (True, False), (False, False), (False, True)
    assert told == [new, known, reused, new, reused, new, reused, known]
    assert len({job.id for job in asked}) == 3
    first = await reusing.call("POST", "/jobs", json={"type": "noop", "payload": 4})
    again = await reusing.call("POST", "/jobs", json={"type": "noop", "payload": 4})
    assert [(one.status_code, one.json()["created"], one.json()["reused"]) for one in (first, again)] == [
        (201, True, False),
        (200, False, True),
    ]
    assert again.headers["location"] == first.headers["location"]


async def test_what_is_reused_needs_no_room(reusing: Served) -> None:
    first = await post(reusing, "/jobs", ORDER, expect=201)
    await reusing.ingot.tenants.change(reusing.ingot.default_tenant.id, limits=Limits(quota_bytes=len(DATA)))
    again = await post(reusing, "/jobs", ORDER)
    assert (again["id"], again["reused"]) == (first["id"], True)
    usage = (await reusing.call("GET", "/usage")).json()
    assert (usage["reserved_bytes"], (await reusing.ingot.blobs.metrics()).uploads) == (len(DATA), 1)
    await refused(reusing, "/jobs", {**ORDER, "force": True}, 507, "quota_exceeded")


# -- while the files are on their way -----------------------------------------------------------------------


async def test_who_asks_again_after_a_crash_goes_on_where_it_stopped(site: Served) -> None:
    part = "/bytes" if site.ingot.bucket is None else "X-Amz-Signature"
    cut = Line(once("PATCH" if site.ingot.bucket is None else "PUT", part, Harm(cut_sent=2 * READ_BYTES)))
    with pytest.raises(ServerUnreachable):
        await Sender(site, cut, patience=0).submit()
    (left,) = (await site.call("GET", "/jobs")).json()["items"]
    assert left["status"] == "blocked"
    upload = f"/blobs/uploads/{input_upload_id(left['id'], 0)}"
    if site.ingot.bucket is None:
        while not (await site.call("GET", upload)).json()["upload"]["received"]:
            pass  # What had come is made safe when the server sees that the line is cut.
    sender = Sender(site)
    job, told = await sender.submit()
    assert (job.id, told.reused, job.status) == (left["id"], True, "queued")
    assert job.inputs == {"in.bin": BLOB}
    if site.ingot.bucket is None:
        (rest,) = sender.line.said("PATCH", "/bytes")
        assert int(rest.headers["upload-offset"]) > 0


async def test_a_file_that_a_killed_sender_had_brought_is_not_brought_again(site: Served) -> None:
    first = await post(site, "/jobs", ORDER, expect=201)
    async with asyncio.timeout(30):
        plan = first["uploads"][0]
        headers = {name: value for name, value in plan["headers"].items() if name.lower() != "content-length"}
        assert (await site.client.put(plan["url"], headers=headers, content=DATA)).is_success
    job, told = await Sender(site).submit()
    assert (job.id, told.reused, job.status) == (first["id"], True, "queued")


@pytest.mark.s3
async def test_a_large_file_goes_on_with_the_parts_that_are_missing(tmp_path: Path) -> None:
    data = bytes(64 * 1024 * 1024 + 1)
    upload = {"name": "in.bin", "size": len(data), "blob_id": blake3(data).hexdigest()}
    async with serving(tmp_path / "data", in_bucket()) as site:
        await site.ingot.jobs.define(Definition(type="noop", reuse=True))
        first = await post(site, "/jobs", {"type": "noop", "uploads": [upload]}, expect=201)
        (plan,) = first["uploads"]
        begin = data[: plan["part_bytes"]]
        part = {"number": 1, "size": len(begin), "sha256": hashlib.sha256(begin).hexdigest()}
        signed = await post(site, f"/blobs/uploads/{plan['upload']['id']}/parts", {"parts": [part]})
        (at,) = signed["parts"]
        assert (await site.client.put(at["url"], headers=at["headers"], content=begin)).is_success
        sender = Sender(site, token=await site.token(Grant(action="jobs.create")))
        job, told = await sender.submit(data)
        assert (job.id, told.reused, await status(site, job)) == (first["id"], True, "queued")
        sent = [int(one.url.params["partNumber"]) for one in sender.line.said("PUT", "partNumber")]
        assert sorted(sent) == list(range(2, -(-len(data) // len(begin)) + 1))


async def test_somebody_else_with_the_same_file_finishes_what_was_begun(site: Served) -> None:
    maker = await site.token(Grant(action="jobs.create", resource="jobs/noop"))
    other = await site.token(Grant(action="jobs.create", resource="jobs/noop"))
    first = await post(site, "/jobs", ORDER, expect=201, token=maker)
    job, told = await Sender(site, token=other).submit()
    assert (job.id, told.reused) == (first["id"], True)
    assert await status(site, job) == "queued"
    assert await files(site, first) == [("input", "in.bin", BLOB)]


@pytest.mark.parametrize("wrong", [{"size": 10}, {"size": 10**9}, {"sha256": "1" * 64}])
async def test_what_somebody_announced_wrongly_keeps_nobody_from_sending_the_file(
    reusing: Served, wrong: dict[str, Any]
) -> None:
    order = {**ORDER, "uploads": [{**ORDER["uploads"][0], **wrong}]}
    first = await post(reusing, "/jobs", order, expect=201)
    job, told = await Sender(reusing).submit()
    assert (job.id != first["id"], told.created, job.status) == (True, True, "queued")


async def test_who_may_only_make_jobs_learns_nothing_of_what_came_of_anothers(reusing: Served) -> None:
    order = {"type": "noop", "payload": 1, "metadata": {"secret": 1}, "tags": ["theirs"]}
    made = await post(reusing, "/jobs", order, expect=201)
    claimed = await reusing.claim()
    await post(reusing, f"/jobs/{made['id']}/complete", {"fence": claimed["fence"], "result": "theirs"})
    maker = await reusing.token(Grant(action="jobs.create", resource="jobs/noop"))
    again = await post(reusing, "/jobs", {"type": "noop", "payload": 1}, token=maker)
    batch = await post(reusing, "/jobs/batch", {"jobs": [{"type": "noop", "payload": 1}]}, expect=201, token=maker)
    for job in (again, batch["jobs"][0]["job"]):
        assert (job["id"], job["status"]) == (made["id"], "succeeded")
        assert [job[name] for name in ("result", "metadata", "tags")] == [None, None, []]
    reader = await post(reusing, "/jobs", {"type": "noop", "payload": 1})
    assert (reader["result"], reader["tags"]) == ("theirs", ["theirs"])


async def test_who_does_not_know_the_file_has_no_say_in_its_upload(reusing: Served) -> None:
    maker = await reusing.token(Grant(action="jobs.create", resource="jobs/noop"))
    first = await post(reusing, "/jobs", ORDER, expect=201, token=maker)
    path = f"/blobs/uploads/{first['uploads'][0]['upload']['id']}"
    part = {"number": 1, "size": 1, "sha256": "0" * 64}
    same = await reusing.token(Grant(action="jobs.create", resource="jobs/noop"))
    elsewhere = await reusing.token(Grant(action="jobs.create", resource="jobs/other"))
    for token, said in ((same, {}), (same, {"blob_id": "0" * 64}), (elsewhere, {"blob_id": BLOB})):
        assert (await reusing.call("GET", path, params=said, token=token)).status_code == 404
        await refused(reusing, f"{path}/parts", {"parts": [part], **said}, 404, "upload_not_found", token=token)
        await refused(reusing, f"{path}/complete", said, 404, "upload_not_found", token=token)
    assert (await reusing.call("GET", path, params={"blob_id": BLOB}, token=same)).status_code == 200
    assert (await reusing.call("DELETE", path, token=same)).status_code == 404, "others may go on with it"
    assert (await reusing.call("GET", path, token=maker)).json()["upload"]["state"] == "open"


async def test_of_two_who_send_the_same_the_slower_one_is_told_no_error(site: Served) -> None:
    slow = Halting(DATA)
    sending = asyncio.create_task(Sender(site).submit(slow))
    assert await asyncio.to_thread(slow.halted.wait, SECONDS_MAX)
    quick, told = await Sender(site).submit()
    assert (told.reused, quick.status) == (True, "queued")
    slow.go_on.set()
    job, told = await sending
    assert (job.id, told.created, await status(site, job)) == (quick.id, True, "queued")


async def test_who_is_fenced_out_leaves_the_rest_to_who_came_last(reusing: Served) -> None:
    slow, last = Halting(DATA), Halting(DATA)
    first = asyncio.create_task(Sender(reusing).submit(slow))
    assert await asyncio.to_thread(slow.halted.wait, SECONDS_MAX)
    second = asyncio.create_task(Sender(reusing).submit(last))
    assert await asyncio.to_thread(last.halted.wait, SECONDS_MAX)
    slow.go_on.set()
    job, _ = await first
    last.go_on.set()
    again, told = await second
    assert (again.id, told.reused, await status(reusing, job)) == (job.id, True, "queued")


async def test_many_who_send_the_same_at_once_make_one_job(site: Served) -> None:
    answers = await asyncio.gather(*(Sender(site).submit() for _ in range(4)))
    assert len({job.id for job, _ in answers}) == 1
    assert sorted(told.created for _, told in answers) == [False, False, False, True]
    assert await status(site, answers[0][0]) == "queued"
    assert (await site.ingot.blobs.metrics()).blobs == 1


async def test_a_sender_whose_job_is_given_up_by_another_makes_its_own(reusing: Served) -> None:
    first = await post(reusing, "/jobs", ORDER, expect=201)
    halting = Halting(DATA)
    sending = asyncio.create_task(Sender(reusing).submit(halting))
    assert await asyncio.to_thread(halting.halted.wait, SECONDS_MAX)
    await post(reusing, f"/jobs/{first['id']}/cancel", {})
    halting.go_on.set()
    job, told = await sending
    assert (job.id != first["id"], told.created, job.status) == (True, True, "queued")


# -- what the tenant has ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sent", "named", "in a batch"])
async def test_a_job_gets_the_input_that_the_tenant_has_by_now(site: Served, way: str) -> None:
    first = await post(site, "/jobs", ORDER, expect=201)
    await key(site, "here", DATA)
    named = {"type": "noop", "inputs": {"in.bin": BLOB}}
    if way == "in a batch":
        (answer,) = (await post(site, "/jobs/batch", {"jobs": [named]}, expect=201))["jobs"]
        job, reused = answer["job"], answer["reused"]
    else:
        job = await post(site, "/jobs", ORDER if way == "sent" else named)
        reused = job["reused"]
        assert [one["upload"]["state"] for one in job.get("uploads", [])] == (["done"] if way == "sent" else [])
    assert (job["id"], reused, job["status"]) == (first["id"], True, "queued")
    assert job["inputs"] == {"in.bin": BLOB}
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (2 * len(DATA), 0)


@pytest.mark.parametrize("there", [True, False])
async def test_a_job_whose_server_died_before_it_gave_it_its_input(reusing: Served, there: bool) -> None:
    await key(reusing, "here", DATA)
    tenant = reusing.ingot.default_tenant.id
    order = new_job(tenant, "noop", created_by="token:gone")
    arrival = IncomingBlob(tenant=tenant, owner="token:gone", size=len(DATA), blob_id=BLOB)
    file = JobFileTarget(job_id=order.id, kind="input", name="in.bin")
    prepared = await reusing.ingot.uploads.prepare(arrival, id=input_upload_id(order.id, 0), file=file)
    await reusing.ingot.jobs.enqueue_many([msgspec.structs.replace(order, uploads=(prepared.command,))])
    if not there:
        assert (await reusing.call("DELETE", "/keys/here")).is_success
    job, told = await Sender(reusing).submit()
    assert (job.id == order.id, told.reused, job.status) == (there, there, "queued")


@pytest.mark.parametrize("again", [{"idempotency_key": "once"}, {}])
async def test_a_small_input_whose_server_died_before_it_was_stored_comes_again(
    reusing: Served, again: dict[str, str]
) -> None:
    small = b"small"
    tenant = reusing.ingot.default_tenant.id
    order = new_job(tenant, "noop", created_by="token:gone", idempotency_key="once")
    arrival = IncomingBlob(tenant=tenant, owner="token:gone", size=len(small))
    file = JobFileTarget(job_id=order.id, kind="input", name="in.bin")
    prepared = await reusing.ingot.uploads.prepare(arrival, id=input_upload_id(order.id, 0), file=file, data=small)
    await reusing.ingot.jobs.enqueue_many([msgspec.structs.replace(order, uploads=(prepared.command,))])
    job, told = await Sender(reusing).submit(small, **again)
    assert (job.id, told.created, job.status) == (order.id, False, "queued")
    assert job.inputs == {"in.bin": blake3(small).hexdigest()}


async def test_a_small_input_that_is_not_stored_yet_may_come_from_who_has_only_announced_it(site: Served) -> None:
    small = b"small"
    tenant = site.ingot.default_tenant.id
    order = new_job(tenant, "noop", created_by="token:slow")
    arrival = IncomingBlob(tenant=tenant, owner="token:slow", size=len(small))
    file = JobFileTarget(job_id=order.id, kind="input", name="in.bin")
    prepared = await site.ingot.uploads.prepare(arrival, id=input_upload_id(order.id, 0), file=file, data=small)
    await site.ingot.jobs.enqueue_many([msgspec.structs.replace(order, uploads=(prepared.command,))])
    upload = {"name": "in.bin", "size": len(small), "blob_id": blake3(small).hexdigest()}
    other = await post(site, "/jobs", {"type": "noop", "uploads": [upload]})
    assert (other["id"], other["status"], other["reused"]) == (order.id, "blocked", True)
    assert other["uploads"][0]["url"], "it can be sent by this one as well"
    await site.ingot.uploads.continue_prepared(prepared)  # And the first goes on.
    job = await site.ingot.jobs.get(tenant, order.id)
    assert (job.status, job.inputs) == ("queued", {"in.bin": blake3(small).hexdigest()})
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (len(small), 0)


async def test_a_small_input_that_the_store_cannot_take_now_is_taken_when_it_comes_again(
    reusing: Served, tmp_path: Path
) -> None:
    with closing(open_writer(tmp_path / "data" / FILE_NAME)) as beside:
        beside.execute("CREATE TRIGGER no_blobs BEFORE INSERT ON blobs BEGIN SELECT RAISE(ABORT, 'not now'); END")
        line = Line(lambda _: None if len(line.asked) == 1 else beside.execute("DROP TRIGGER IF EXISTS no_blobs").get)
        job, told = await Sender(reusing, line).submit(b"small", idempotency_key="once")
    assert (told.created, job.status) == (False, "queued")
    assert len(line.said("POST", "/jobs")) == 2


async def test_two_tenants_have_a_job_each_and_neither_learns_of_the_other(site: Served) -> None:
    other = (await site.ingot.tenants.create("other")).id
    tokens = [site.operator, await site.token(Grant(action="*"), tenant=other)]
    senders = [Sender(site, token=token) for token in tokens]
    plain = Sender(site, token=await site.token(Grant(action="*"), tenant=(await site.ingot.tenants.create("new")).id))
    made = [await sender.submit() for sender in senders]
    assert [told.created for _, told in made] == [True, True]
    assert len({job.id for job, _ in made}) == 2
    asked = [[(one.method, one.url.path.count("/")) for one in sender.line.asked] for sender in senders]
    assert asked[0] == asked[1], "the same is asked of both, and the same is sent"
    assert (await site.ingot.blobs.metrics()).blobs == 1
    await plain.submit(b"something else")
    for token, (job, _) in zip(tokens, made, strict=True):
        again = await post(site, "/jobs", ORDER, token=token)
        assert (again["id"], again["reused"]) == (job.id, True)
