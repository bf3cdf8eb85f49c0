"""Servers with a bucket: signed parts stay within the announced size, and headers need no request to the bucket."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.blobs.uploads import LATE_SECONDS
from ingot.identity import Limits
from ingot.kernel.clock import ManualClock
from ingot.objects.s3 import WRITE_URL_SECONDS, BucketStore
from tests import s3
from tests.http.bucket_settings import bucket_settings
from tests.http.raw_connections import connected
from tests.http.serving import Served, serving
from tests.http.upload_requests import begin, complete, send
from tests.waiting import eventually

DATA = random.Random(9).randbytes(100_000)
MIB = 1024 * 1024


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", bucket_settings()) as server:
        yield server


@pytest.mark.s3
async def test_requests_that_need_no_bytes_are_answered_without_the_bucket(bucket: Served) -> None:
    created = await bucket.call("PUT", "/keys/a", content=DATA)
    etag = created.headers["etag"]
    head = await bucket.call("HEAD", "/keys/a")
    assert (head.status_code, head.headers["content-length"], head.headers["etag"]) == (200, str(len(DATA)), etag)
    for headers, status in (
        ({}, 307),
        ({"range": "bytes=0-9"}, 307),
        ({"if-none-match": etag}, 304),
        ({"if-match": '"another"'}, 412),
        ({"range": f"bytes={len(DATA)}-"}, 416),
    ):
        for path in ("/keys/a", f"/blobs/{created.json()['blob_id']}"):
            assert (await bucket.call("GET", path, headers=headers)).status_code == status, headers


def _object_keys(server: Served) -> list[str]:
    """The keys of all objects of blobs in the bucket of a server."""
    assert isinstance(server.ingot.object_store, BucketStore)
    prefix = f"{s3.prefix_of(server.ingot.object_store)}blobs/"
    response = s3.client_of(s3.server_url()).list_objects_v2(Bucket=s3.bucket(), Prefix=prefix)
    return [entry["Key"] for entry in response.get("Contents", [])]


@pytest.mark.s3
@pytest.mark.parametrize("changed", [DATA[:-1], DATA[1:] + DATA[:1], None], ids=["cut", "other bytes", "missing"])
async def test_a_changed_object_is_not_redirected_to(bucket: Served, changed: bytes | None) -> None:
    created = await bucket.call("PUT", "/keys/a", content=DATA)
    blob_id = created.json()["blob_id"]
    assert (await bucket.call("GET", "/keys/a")).status_code == 307
    (key,) = _object_keys(bucket)
    client = s3.client_of(s3.server_url())
    if changed is None:
        client.delete_object(Bucket=s3.bucket(), Key=key)
    else:
        client.put_object(Bucket=s3.bucket(), Key=key, Body=changed)
    for path in (f"/blobs/{blob_id}/url", "/keys/a", f"/blobs/{blob_id}"):
        refused = await bucket.call("GET", path)
        assert (refused.status_code, refused.json()["code"]) == (500, "blob_damaged"), path
    repaired = await bucket.call("PUT", "/keys/b", content=DATA)
    assert repaired.status_code == 201
    assert (await bucket.call("GET", "/keys/a")).status_code == 307, "the second upload repaired the blob"


@pytest.mark.s3
async def test_equal_bytes_of_two_tenants_are_two_objects(bucket: Served) -> None:
    other = await bucket.ingot.tenants.create("other")
    assert (await bucket.call("PUT", "/keys/a", content=DATA)).status_code == 201
    acting = {"Ingot-Tenant": other.slug}
    assert (await bucket.call("PUT", "/keys/a", content=DATA, headers=acting)).status_code == 201
    assert len(_object_keys(bucket)) == 2


@pytest.mark.s3
async def test_a_late_put_counts_and_is_deleted_when_its_url_has_expired(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", bucket_settings(), clock=clock, maintenance=False) as bucket:
        await _send_late(bucket, clock)


async def _send_late(bucket: Served, clock: ManualClock) -> None:
    tenant = bucket.ingot.default_tenant.id
    await bucket.ingot.tenants.change(tenant, limits=Limits(quota_bytes=150_000))
    plan = await begin(bucket, size=len(DATA))
    assert (await bucket.call("DELETE", f"/blobs/uploads/{plan['upload']['id']}")).status_code == 204
    collector = bucket.ingot.garbage_collector
    await collector.run_once()
    refused = await bucket.call("POST", "/blobs/uploads", json={"size": len(DATA)})
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["deleted_bytes"]) == (507, "quota_exceeded", len(DATA))
    usage = (await bucket.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"], usage["deleted_bytes"]) == (0, 0, len(DATA))
    assert usage["freed_by"] == problem["freed_by"]
    assert (await send(plan, DATA)).is_success
    assert len(_object_keys(bucket)) == 1
    await collector.run_once()
    assert len(_object_keys(bucket)) == 1, "another client may still send it"
    clock.advance(seconds=WRITE_URL_SECONDS + LATE_SECONDS)
    await collector.run_once()
    assert _object_keys(bucket) == []
    assert (await bucket.call("GET", "/usage")).json()["deleted_bytes"] == 0


@pytest.mark.s3
async def test_signed_parts_cannot_exceed_the_announced_size(bucket: Served) -> None:
    plan = await begin(bucket, size=65 * MIB)
    each, parts = plan["part_bytes"], f"/blobs/uploads/{plan['upload']['id']}/parts"

    async def signed(number: int, size: int) -> int:
        order = {"parts": [{"number": number, "size": size, "sha256": "0" * 64}]}
        return (await bucket.call("POST", parts, json=order)).status_code

    assert [await signed(1, each), await signed(5, 65 * MIB - 4 * each)] == [200, 200]
    assert [await signed(1, each + 1), await signed(1, 2**50), await signed(5, each), await signed(6, 1)] == [422] * 4


@pytest.mark.s3
@pytest.mark.parametrize("size", [1000, 100_000])
async def test_concurrent_completions_get_the_same_response(bucket: Served, size: int) -> None:
    for number in range(3):
        plan = await begin(bucket, size=size, key=f"{number}", sha256=hashlib.sha256(DATA[:size]).hexdigest())
        assert (await send(plan, DATA[:size])).is_success
        responses = await asyncio.gather(*(complete(bucket, plan) for _ in range(8)))
        assert {(response.status_code, response.text) for response in responses} == {(200, responses[0].text)}


@pytest.mark.s3
async def test_all_bytes_of_a_transfer_with_a_bucket_that_are_in_memory_count(bucket: Served) -> None:
    store = bucket.ingot.object_store
    assert (store.write_memory_bytes(100_000), store.read_memory_bytes(100_000)) == (100_000, 100_000)
    assert (store.write_memory_bytes(None), store.read_memory_bytes(100 * MIB)) == (16 * MIB, 8 * MIB)
    assert store.write_memory_bytes(100 * 1024 * MIB) == 2 * 11 * MIB
    head = (
        f"PUT /api/v1/keys/large HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {bucket.operator}\r\n"
        f"content-length: {100 * MIB}\r\n\r\n"
    )
    async with connected(bucket) as (_, writer):
        writer.write(head.encode() + b"x" * 1000)
        await eventually(lambda: _counts(bucket, 16 * MIB))


async def _counts(server: Served, size: int) -> bool:
    text = (await server.client.get("/metrics", headers={"authorization": f"Bearer {server.operator}"})).text
    used = re.search(r"^ingot_http_buffered_bytes (\S+)$", text, re.MULTILINE)
    assert used is not None
    return float(used[1]) == size
