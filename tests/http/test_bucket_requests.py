"""Servers with a bucket: signed parts stay within the announced size, and headers need no request to the bucket."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.bucket_settings import bucket_settings
from tests.http.serving import Served, serving
from tests.http.upload_requests import begin, complete, send

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
