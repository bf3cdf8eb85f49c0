"""Payloads sent as blobs: a grant to create jobs of a type permits sending their payloads, and nothing more."""

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
async def creator(served: Served) -> str:
    """A token that may create jobs of one type, and nothing else."""
    return await served.token(NOOP)


@pytest.fixture
async def client(served: Served, creator: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.url, token=creator) as opened_client:
        yield opened_client


async def begin(served: Served, token: str, **order: Any) -> httpx.Response:
    return await served.call("POST", "/blobs/uploads", token=token, json={"size": len(TEXT), **order})


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, error_from_response(response.status_code, response.content).code


async def test_a_token_that_may_create_jobs_may_send_large_payloads(served: Served, client: AsyncClient) -> None:
    job = await client.submit("noop", LARGE)
    many = await client.submit_many("noop", [LARGE, "small", LARGE + "y"])
    assert [each.data.payload_blob is None for each in (job, *many)] == [False, False, True, False]
    async with AsyncClient(served.url, token=served.operator) as other:
        stored = await other.job(job.id)
        assert await stored.fetch_payload() == LARGE
        (file,) = await stored.files()
        assert (file.kind, file.content_type, file.size) == ("payload", "application/json", len(TEXT))


async def test_the_synchronous_client_sends_large_payloads(served: Served, creator: str) -> None:
    with Client(served.url, token=creator) as client:
        job = await asyncio.to_thread(client.submit, "noop", LARGE)
        assert (await served.call("GET", f"/jobs/{job.id}")).json()["payload_blob"] == blake3(TEXT).hexdigest()


@pytest.mark.parametrize(
    ("order", "problem"),
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
async def test_an_upload_that_is_not_a_permitted_payload_is_rejected(
    served: Served, creator: str, order: dict[str, Any], problem: tuple[int, str]
) -> None:
    assert code_of(await begin(served, creator, **order)) == problem
    usage = (await served.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (0, 0)


async def test_a_token_that_may_not_create_jobs_cannot_send_payloads(served: Served) -> None:
    writer = await served.token(Grant(action="blobs.write"))
    assert code_of(await begin(served, writer, payload_of="noop")) == (403, "forbidden")
    reader = await served.token(Grant(action="jobs.read"))
    assert code_of(await begin(served, reader, payload_of="noop")) == (403, "forbidden")


async def test_a_payload_upload_is_usable_only_by_its_sender_and_not_readable(served: Served, creator: str) -> None:
    plan = (await begin(served, creator, payload_of="noop")).json()
    id, other = plan["upload"]["id"], await served.token(NOOP)
    async with httpx.AsyncClient(verify=False) as client:
        assert (await client.put(plan["url"], content=TEXT)).is_success
    for method, path in (("GET", ""), ("POST", "/complete"), ("DELETE", "")):
        body: dict[str, Any] | None = {} if method == "POST" else None
        response = await served.call(method, f"/blobs/uploads/{id}{path}", token=other, json=body)
        assert code_of(response) == (404, "upload_not_found"), path
    done = await served.call("POST", f"/blobs/uploads/{id}/complete", token=creator, json={})
    blob = done.json()["upload"]["blob_id"]
    assert blob == blake3(TEXT).hexdigest()
    assert code_of(await served.call("GET", f"/blobs/{blob}", token=creator)) == (403, "forbidden")
    assert code_of(await served.call("GET", f"/blobs/{blob}/url", token=creator)) == (403, "forbidden")


async def test_a_payload_counts_against_the_quota_of_its_token(served: Served) -> None:
    limited = await served.token(NOOP, limits=Limits(quota_bytes=len(TEXT) - 1))
    async with AsyncClient(served.url, token=limited) as client:
        with pytest.raises(IngotError) as caught:
            await client.submit("noop", LARGE)
    assert caught.value.code == "quota_exceeded"
