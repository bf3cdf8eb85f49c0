"""The client against a real server: its calls and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.client import AsyncClient, Client
from ingot.client.errors import JobCanceled, JobDead, NotIngot, NotInTime, ServerUnreachable
from ingot.client.server_address import NoToken, WrongUrl, resolve_server_address
from ingot.identity.credentials import Unauthorized
from ingot.identity.grants import Grant
from ingot.identity.model import TenantNotFound
from ingot.jobs.errors import DuplicateJob, JobNotFound, WorkerNotFound
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import IdempotencyMismatch, InvalidInput
from ingot.kernel.ids import new_id
from ingot.settings import ClientSettings
from tests.http.serving import Served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=served.operator, patience=0) as opened_client:
        yield opened_client


async def run_one_job(served: Served, *, error: str | None = None) -> None:
    """Claim one job, and complete or fail it."""
    (claim,) = await served.ingot.jobs.claim("w", ["greet"], wait_seconds=10)
    if error is None:
        await served.ingot.jobs.complete(claim, {"hello": claim.job.read()["name"]})
    else:
        await served.ingot.jobs.fail(claim, error, retry=False)


async def test_a_submitted_job_can_be_waited_for(served: Served, client: AsyncClient) -> None:
    job = await client.submit("greet", {"name": "Ada"}, tags=["a"], priority="high", metadata={"n": 1})
    assert (job.status, job.data.priority, job.data.tags, job.payload) == (JobStatus.QUEUED, 2, ("a",), {"name": "Ada"})
    working = asyncio.create_task(run_one_job(served))
    assert (await job.wait(timeout="40s")).result == {"hello": "Ada"}
    await working
    assert [attempt.number for attempt in await job.attempts()] == [1]


async def test_wait_raises_the_error_that_matches_the_end_of_the_job(served: Served, client: AsyncClient) -> None:
    broken = await client.submit("greet", {"name": "Bob"})
    working = asyncio.create_task(run_one_job(served, error="out of paper"))
    with pytest.raises(JobDead, match="out of paper"):
        await broken.wait()
    await working
    stopped = await client.submit("greet", {"name": "Eve"}, delay=timedelta(hours=1))
    with pytest.raises(NotInTime, match=r"still queued after 0\.05: The job is scheduled for "):
        await stopped.wait(timeout=0.05)
    await stopped.cancel()
    with pytest.raises(JobCanceled):
        await stopped.wait()
    assert (await stopped.retry()).status is JobStatus.QUEUED


async def test_the_reason_why_a_job_does_not_run_is_logged_once_while_it_is_waited_for(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("ingot.client.asynchronous.job.EXPLAIN_SECONDS", 0.05)
    monkeypatch.setattr("ingot.client.asynchronous.job.LONG_POLL_SECONDS", 0.05)
    job = await client.submit("unknown")
    with pytest.raises(NotInTime, match="No worker has requested jobs of type unknown so far"):
        await job.wait(timeout=0.5)
    (record,) = [record for record in caplog.records if record.name == "ingot.client"]
    assert record.getMessage().startswith(f"the job {job.id} is queued: No worker has requested jobs of type unknown")
    await job.cancel()


async def test_a_caller_that_may_not_read_explanations_gets_none(served: Served) -> None:
    token = await served.token(Grant(action="jobs.create"))
    async with AsyncClient(served.url, token=token, patience=0) as narrow:
        job = await narrow.submit("unknown")
        with pytest.raises(NotInTime, match=r"still queued after 0\n"):
            await job.wait(timeout=0)


async def test_many_jobs_are_submitted_listed_and_counted(client: AsyncClient) -> None:
    submitted = await client.submit_many("greet", ({"name": str(n)} for n in range(1201)), tags=["many"])
    assert len({job.id for job in submitted}) == 1201
    assert len([job async for job in client.jobs(tag="many")]) == 1201
    assert len([job async for job in client.jobs(tag="many", limit=250)]) == 250
    assert (await client.summary(type="greet")).counts[JobStatus.QUEUED] == 1201
    later = datetime.now(UTC) + timedelta(days=1)
    assert [job async for job in client.jobs(created_after=later)] == []


async def test_problems_of_the_server_raise_their_error_classes(served: Served, client: AsyncClient) -> None:
    with pytest.raises(JobNotFound) as missing:
        await client.job(new_id())
    assert missing.value.hint
    with pytest.raises(InvalidInput):
        await client.submit("")
    with pytest.raises(InvalidInput, match="JSON"):
        await client.submit("greet", object())
    with pytest.raises(InvalidInput, match="colour"):
        await client.submit("greet", colour="red")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="priority"):
        await client.submit("greet", priority="urgent")
    await client.submit("greet", 1, idempotency_key="k", dedupe_key="d")
    with pytest.raises(IdempotencyMismatch):
        await client.submit("greet", 2, idempotency_key="k")
    with pytest.raises(DuplicateJob):
        await client.submit("greet", 3, dedupe_key="d")
    async with AsyncClient(served.url, token="ingot_wrong", patience=0) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.me()


async def test_a_job_log_and_events_can_be_followed(served: Served, client: AsyncClient) -> None:
    job = await client.submit("greet", {"name": "Ada"})
    (claim,) = await served.ingot.jobs.claim("w", ["greet"])
    await served.ingot.jobs.append_log(claim.job.id, claim.fence, "hello\n")

    async def followed_log() -> str:
        return "".join([part async for part in job.follow_log()])

    following = asyncio.create_task(followed_log())
    await served.ingot.jobs.append_log(claim.job.id, claim.fence, "world\n")
    await served.ingot.jobs.complete(claim)
    assert await following == "hello\nworld\n"
    await client.publish("greeted", {"who": "Ada"})
    async for event in client.events(name="greeted", after="0000000000000000"):
        assert (event.name, event.data) == ("greeted", msgspec.Raw(b'{"who":"Ada"}'))
        break


async def test_submit_orders_sends_orders_of_different_types_in_one_request(client: AsyncClient) -> None:
    orders: list[dict[str, Any]] = [
        {"type": "greet", "payload": msgspec.Raw(b'{"n": 1.50}'), "idempotency_key": "one", "priority": "low"},
        {"type": "print", "delay": "1h", "tags": ["a"]},
    ]
    submitted = await client.submit_orders(orders)
    assert [(job.type, job.data.priority) for job in submitted] == [("greet", 4), ("print", 3)]
    assert bytes(submitted[0].data.payload) == b'{"n": 1.50}', "the payload keeps its text"
    assert (await client.submit_orders(orders[:1]))[0].id == submitted[0].id
    for wrong, message in (
        ({"payload": 1}, "no type"),
        ({"type": "greet", "priority": [1]}, "priority"),
        ({"type": "greet", "colour": 1}, "colour"),
    ):
        with pytest.raises(InvalidInput, match=message):
            await client.submit_orders([wrong])


async def test_past_events_are_read_up_to_a_limit_or_the_end(client: AsyncClient) -> None:
    ids = [await client.publish("counted", n) for n in range(7)]
    assert [event.id async for event in client.past_events()] == ids
    assert [event.id async for event in client.past_events(limit=3)] == ids[:3]
    assert [event.id async for event in client.past_events(after=ids[4])] == ids[5:]


async def test_workers_are_read_listed_and_removed(served: Served, client: AsyncClient) -> None:
    response = await served.call("POST", "/workers", json={"id": "press/a b", "types": ["print"]})
    assert response.status_code == 201
    assert (await client.worker("press/a b")).types == ("print",)
    assert [worker.id async for worker in client.workers()] == ["press/a b"]
    assert [worker.id async for worker in client.workers(shared=True)] == []
    await client.remove_worker("press/a b")
    with pytest.raises(WorkerNotFound):
        await client.worker("press/a b")


@pytest.mark.parametrize("name", ["a/b", "a?b", "a#b", "%2e", "a b", "ü"])
async def test_special_characters_in_an_id_do_not_change_the_path(client: AsyncClient, name: str) -> None:
    with pytest.raises(JobNotFound):
        await client.job(name)
    with pytest.raises(TenantNotFound):
        await client.admin.tenant(name)


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_an_id_that_cannot_be_in_a_path_is_rejected(client: AsyncClient, name: str) -> None:
    with pytest.raises(InvalidInput, match="not a valid ID"):
        await client.admin.remove_tenant(name)


async def test_a_response_of_another_server_raises_not_ingot() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\nconnection: close\r\n\r\n<p>Hello.</p>")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with other, AsyncClient(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}", token="x") as client:
        with pytest.raises(NotIngot, match="Hello"):
            await client.me()


async def test_the_synchronous_client_submits_and_waits(served: Served) -> None:
    def work() -> list[str]:
        with Client(served.url, token=served.operator, patience=0) as client:
            job = client.submit("greet", {"name": "Ada"})
            assert client.job(job.id).id == job.id
            assert job.wait(timeout=40).result == {"hello": "Ada"}
            return [listed.id for listed in client.jobs(type="greet")]

    working = asyncio.create_task(run_one_job(served))
    assert len(await asyncio.to_thread(work)) == 1
    await working


async def test_an_unreachable_server_is_retried_and_then_reported(unused_tcp_port: int) -> None:
    async with AsyncClient(f"http://127.0.0.1:{unused_tcp_port}", token="x", patience=0.3) as client:
        with pytest.raises(ServerUnreachable):
            await client.submit("greet")


def test_the_server_address_comes_from_settings_and_is_checked(tmp_path: Path) -> None:
    (tmp_path / "operator.token").write_text("ingot_own\n", encoding="utf-8")
    settings = ClientSettings(server_url="http://127.0.0.1:9", data=tmp_path)
    assert resolve_server_address(settings=settings).headers == {"authorization": "Bearer ingot_own"}
    with pytest.raises(NoToken):
        resolve_server_address("https://ingot.example.com", settings=settings)
    for wrong in (
        "ingot.example.com", "ftp://x", "http://x/api/v1", "http://", "http://[::1", "http://x:y", "http://x:0", "http://a@b",
    ):  # fmt: skip
        with pytest.raises(WrongUrl):
            resolve_server_address(wrong, token="x", settings=settings)
    for token in ("ingot_ü", "ingot\nhost: elsewhere"):
        with pytest.raises(NoToken, match="characters"):
            resolve_server_address(token=token, settings=settings)
