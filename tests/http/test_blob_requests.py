"""Wrong requests about blobs: conditions, ranges, content types and offsets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.kernel.clock import ManualClock
from ingot.settings import Settings
from tests.http.serving import Served, serving
from tests.http.upload_requests import begin
from tests.waiting import eventually

DATA = random.Random(9).randbytes(100_000)
SVG = "image/svg+xml"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data") as server:
        yield server


async def request(
    served: Served, method: str, path: str, headers: list[tuple[str, str]], **more: Any
) -> httpx.Response:
    """Send a request in which headers can be repeated."""
    all_headers = [("authorization", f"Bearer {served.operator}"), *headers]
    return await served.client.request(method, f"/api/v1{path}", headers=all_headers, **more)


async def test_a_request_with_a_repeated_condition_changes_nothing(site: Served) -> None:
    await site.call("PUT", "/keys/a", content=b"one")
    other = f'"{"0" * 64}"'
    for headers in ([("if-match", other), ("if-match", other)], [("if-none-match", "*")]):
        assert (await request(site, "DELETE", "/keys/a", headers)).status_code == 422
    put = await request(site, "PUT", "/keys/b", [("if-match", other), ("if-match", other)], content=b"two")
    assert put.status_code == 422
    assert [key["key"] for key in (await site.call("GET", "/keys")).json()["items"]] == ["a"]


async def test_a_put_with_a_content_range_is_rejected(site: Served) -> None:
    headers = {"content-range": "bytes 3-5/6"}  # `curl -C - -T` sends this to resume an upload.
    assert (await site.call("PUT", "/keys/a", content=b"def", headers=headers)).status_code == 422
    plan = await begin(site, size=3)
    async with httpx.AsyncClient(verify=False) as client:
        assert (await client.put(plan["url"], content=b"def", headers=headers)).status_code == 422
    assert (await site.call("GET", "/keys/a")).status_code == 404


async def test_a_put_with_a_content_encoding_is_rejected(site: Served) -> None:
    zipped = await site.call("PUT", "/keys/a", content=b"zipped", headers={"content-encoding": "gzip"})
    assert (zipped.status_code, zipped.json()["code"]) == (415, "unsupported_media_type")
    assert (await site.call("PUT", "/keys/a", content=b"a", headers={"content-encoding": "identity"})).is_success


@pytest.mark.parametrize("offsets", [[""], ["0", "0"], ["", "7"]])
async def test_an_upload_offset_must_be_one_number(site: Served, offsets: list[str]) -> None:
    plan = await begin(site, size=10)
    async with httpx.AsyncClient(verify=False) as client:
        headers = [("upload-offset", offset) for offset in offsets]
        assert (await client.patch(plan["url"], content=b"abc", headers=headers)).status_code == 422
        assert (await client.head(plan["url"])).headers["upload-offset"] == "0"


@pytest.mark.parametrize("content_type", [f"{SVG} ;a=b", f"{SVG}\t; a=b", "text/xml ;charset=utf-8", f"{SVG};a=b"])
async def test_a_space_before_its_parameters_does_not_make_an_unsafe_type_safe(site: Served, content_type: str) -> None:
    created = await site.call("PUT", "/keys/a", content=b"<svg/>", headers={"content-type": content_type})
    assert created.status_code == 201, created.text
    assert (await site.call("GET", "/keys/a")).headers["content-type"] == "application/octet-stream"
    signed = await site.call("GET", f"/blobs/{created.json()['blob_id']}/url", params={"content_type": content_type})
    async with httpx.AsyncClient(verify=False) as client:
        assert (await client.get(signed.json()["url"])).headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("content_type", ["a/b\n;c=d", "a/b;\rc=d", "a/" + "b" * 8000, "no type"])
async def test_an_invalid_content_type_is_rejected_by_every_route(site: Served, content_type: str) -> None:
    created = await site.call("PUT", "/keys/a", content=b"a")
    upload = await site.call("POST", "/blobs/uploads", json={"size": 1, "content_type": content_type})
    signed = await site.call("GET", f"/blobs/{created.json()['blob_id']}/url", params={"content_type": content_type})
    assert (upload.status_code, signed.status_code) == (422, 422)


def is_open(file: Path) -> bool:
    """Whether this process has a file open."""
    return any(descriptor.resolve() == file for descriptor in Path("/proc/self/fd").iterdir())


async def test_verifying_a_blob_stops_when_the_client_disconnects(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", Settings(scrub_bytes_per_second=1)) as served:
        created = await served.call("PUT", "/keys/a", content=DATA)
        (storage_key,) = [storage_key async for storage_key, _ in served.ingot.object_store.list_objects()]
        (file,) = await asyncio.to_thread(lambda: list((tmp_path / "data" / "blobs").rglob(storage_key)))
        verifying = asyncio.create_task(served.call("POST", f"/blobs/{created.json()['blob_id']}/verify"))
        await eventually(lambda: is_open(file))
        verifying.cancel()
        await eventually(lambda: not is_open(file))


async def test_the_reservation_of_an_abandoned_put_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        sending, received = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield DATA
            received.set()
            await sending.wait()

        put = asyncio.create_task(served.call("PUT", "/keys/a", content=slowly(), headers={"content-length": "200000"}))
        await received.wait()
        tenant = served.ingot.default_tenant.id

        async def has_reserved_bytes() -> bool:
            return (await served.ingot.blobs.usage(tenant)).reserved_bytes > 0

        try:
            await eventually(has_reserved_bytes)
            clock.advance(seconds=3600)  # No byte has arrived for this time.
            await served.ingot.garbage_collector.run_once()
            assert (await served.ingot.blobs.usage(tenant)).reserved_bytes == 0
        finally:
            put.cancel()
            await asyncio.gather(put, return_exceptions=True)
