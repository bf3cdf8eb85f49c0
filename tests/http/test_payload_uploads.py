"""Payloads that travel as blobs: who may make jobs of a type may send them, and nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from blake3 import blake3

from ingot.client import AsyncClient, Client
from ingot.client.errors import error_from_response
from ingot.identity.grants import Grant
from ingot.identity.model import Limits
from ingot.jobs.checks import PAYLOAD_BLOB_BYTES_MAX
from ingot.kernel.errors import IngotError
from tests.http.serving import Served

LARGE = "x" * 70_000
TEXT = msgspec.json.encode(LARGE)
NOOP = Grant(action="jobs.create", resource="jobs/noop")


@pytest.fixture
async def maker(served: Served) -> str:
    """A token that may make jobs of one type, and do nothing else."""
    return await served.token(NOOP)


@pytest.fixture
async def client(served: Served, maker: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=maker) as one:
        yield one


async def begin(served: Served, token: str, **order: Any) -> httpx.Response:
    return await served.call("POST", "/blobs/uploads", token=token, json={"size": len(TEXT), **order})


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, error_from_response(answer.status_code, answer.content).code


async def test_who_may_make_a_job_may_give_it_a_large_payload(served: Served, client: AsyncClient) -> None:
    job = await client.submit("noop", LARGE)
    many = await client.submit_many("noop", [LARGE, "small", LARGE + "y"])
    assert [one.data.payload_blob is None for one in (job, *many)] == [False, False, True, False]
    async with AsyncClient(served.url, token=served.operator) as other:
        seen = await other.job(job.id)
        assert await seen.fetch_payload() == LARGE
        (file,) = await seen.files()
        assert (file.kind, file.content_type, file.size) == ("payload", "application/json", len(TEXT))


async def test_so_may_who_does_not_await(served: Served, maker: str) -> None:
    with Client(served.url, token=maker) as client:
        job = await asyncio.to_thread(client.submit, "noop", LARGE)
        assert (await served.call("GET", f"/jobs/{job.id}")).json()["payload_blob"] == blake3(TEXT).hexdigest()


@pytest.mark.parametrize(
    ("order", "refusal"),
    [
        pytest.param({}, (403, "forbidden"), id="for nothing"),
        pytest.param({"key": "a/b"}, (403, "forbidden"), id="for a key"),
        pytest.param({"payload_of": "other"}, (403, "forbidden"), id="for another type"),
        pytest.param({"payload_of": "noop", "key": "a"}, (422, "invalid_input"), id="for a key too"),
        pytest.param({"payload_of": "no op"}, (422, "invalid_input"), id="no type"),
        pytest.param(
            {"payload_of": "noop", "size": PAYLOAD_BLOB_BYTES_MAX + 1}, (413, "payload_too_large"), id="too large"
        ),
    ],
)
async def test_nothing_else_is_begun(
    served: Served, maker: str, order: dict[str, Any], refusal: tuple[int, str]
) -> None:
    assert code_of(await begin(served, maker, **order)) == refusal
    usage = (await served.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (0, 0)


async def test_who_may_write_blobs_and_make_no_jobs_sends_no_payload(served: Served) -> None:
    writer = await served.token(Grant(action="blobs.write"))
    assert code_of(await begin(served, writer, payload_of="noop")) == (403, "forbidden")
    reader = await served.token(Grant(action="jobs.read"))
    assert code_of(await begin(served, reader, payload_of="noop")) == (403, "forbidden")


async def test_a_payload_is_its_senders_and_is_not_read_back(served: Served, maker: str) -> None:
    plan = (await begin(served, maker, payload_of="noop")).json()
    id, other = plan["upload"]["id"], await served.token(NOOP)
    async with httpx.AsyncClient(verify=False) as anybody:
        assert (await anybody.put(plan["url"], content=TEXT)).is_success
    for method, path in (("GET", ""), ("POST", "/complete"), ("DELETE", "")):
        body: dict[str, Any] | None = {} if method == "POST" else None
        answer = await served.call(method, f"/blobs/uploads/{id}{path}", token=other, json=body)
        assert code_of(answer) == (404, "upload_not_found"), path
    done = await served.call("POST", f"/blobs/uploads/{id}/complete", token=maker, json={})
    blob = done.json()["upload"]["blob_id"]
    assert blob == blake3(TEXT).hexdigest()
    assert code_of(await served.call("GET", f"/blobs/{blob}", token=maker)) == (403, "forbidden")
    assert code_of(await served.call("GET", f"/blobs/{blob}/url", token=maker)) == (403, "forbidden")


async def test_a_payload_counts_against_the_quota_of_its_token(served: Served) -> None:
    poor = await served.token(NOOP, limits=Limits(quota_bytes=len(TEXT) - 1))
    async with AsyncClient(served.url, token=poor) as client:
        with pytest.raises(IngotError) as caught:
            await client.submit("noop", LARGE)
    assert caught.value.code == "quota_exceeded"
