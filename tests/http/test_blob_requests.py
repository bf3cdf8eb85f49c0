"""What a client may get wrong about blobs: conditions, parts of files, types, offsets."""

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
    async with serving(tmp_path / "data") as one:
        yield one


async def ask(served: Served, method: str, path: str, headers: list[tuple[str, str]], **more: Any) -> httpx.Response:
    """A request whose headers may come twice."""
    whole = [("authorization", f"Bearer {served.operator}"), *headers]
    return await served.client.request(method, f"/api/v1{path}", headers=whole, **more)


async def test_a_condition_that_was_sent_twice_deletes_nothing(site: Served) -> None:
    await site.call("PUT", "/keys/a", content=b"one")
    other = f'"{"0" * 64}"'
    for headers in ([("if-match", other), ("if-match", other)], [("if-none-match", "*")]):
        assert (await ask(site, "DELETE", "/keys/a", headers)).status_code == 422
    put = await ask(site, "PUT", "/keys/b", [("if-match", other), ("if-match", other)], content=b"two")
    assert put.status_code == 422
    assert [key["key"] for key in (await site.call("GET", "/keys")).json()["items"]] == ["a"]


async def test_a_part_of_a_file_is_not_taken_for_the_file(site: Served) -> None:
    rest = {"content-range": "bytes 3-5/6"}  # So `curl -C - -T` goes on with what it takes for an upload.
    assert (await site.call("PUT", "/keys/a", content=b"def", headers=rest)).status_code == 422
    plan = await begin(site, size=3)
    async with httpx.AsyncClient(verify=False) as stranger:
        assert (await stranger.put(plan["url"], content=b"def", headers=rest)).status_code == 422
    assert (await site.call("GET", "/keys/a")).status_code == 404


async def test_bytes_that_are_encoded_are_not_stored_without_a_word(site: Served) -> None:
    zipped = await site.call("PUT", "/keys/a", content=b"zipped", headers={"content-encoding": "gzip"})
    assert (zipped.status_code, zipped.json()["code"]) == (415, "unsupported_media_type")
    assert (await site.call("PUT", "/keys/a", content=b"a", headers={"content-encoding": "identity"})).is_success


@pytest.mark.parametrize("offsets", [[""], ["0", "0"], ["", "7"]])
async def test_an_offset_is_told_once_and_in_digits(site: Served, offsets: list[str]) -> None:
    plan = await begin(site, size=10)
    async with httpx.AsyncClient(verify=False) as stranger:
        headers = [("upload-offset", offset) for offset in offsets]
        assert (await stranger.patch(plan["url"], content=b"abc", headers=headers)).status_code == 422
        assert (await stranger.head(plan["url"])).headers["upload-offset"] == "0"


@pytest.mark.parametrize("written", [f"{SVG} ;a=b", f"{SVG}\t; a=b", "text/xml ;charset=utf-8", f"{SVG};a=b"])
async def test_a_blank_before_the_parameters_makes_no_type_harmless(site: Served, written: str) -> None:
    made = await site.call("PUT", "/keys/a", content=b"<svg/>", headers={"content-type": written})
    assert made.status_code == 201, made.text
    assert (await site.call("GET", "/keys/a")).headers["content-type"] == "application/octet-stream"
    signed = await site.call("GET", f"/blobs/{made.json()['blob_id']}/url", params={"content_type": written})
    async with httpx.AsyncClient(verify=False) as stranger:
        assert (await stranger.get(signed.json()["url"])).headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("written", ["a/b\n;c=d", "a/b;\rc=d", "a/" + "b" * 8000, "no type"])
async def test_what_is_no_type_is_refused_wherever_one_is_told(site: Served, written: str) -> None:
    made = await site.call("PUT", "/keys/a", content=b"a")
    begun = await site.call("POST", "/blobs/uploads", json={"size": 1, "content_type": written})
    signed = await site.call("GET", f"/blobs/{made.json()['blob_id']}/url", params={"content_type": written})
    assert (begun.status_code, signed.status_code) == (422, 422)


def is_open(file: Path) -> bool:
    """Whether this process has a file open."""
    return any(one.resolve() == file for one in Path("/proc/self/fd").iterdir())


async def test_a_blob_is_read_whole_only_as_long_as_somebody_waits_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", Settings(scrub_bytes_per_second=1)) as served:
        made = await served.call("PUT", "/keys/a", content=DATA)
        (place,) = [place async for place, _ in served.ingot.object_store.list_objects()]
        (file,) = await asyncio.to_thread(lambda: list((tmp_path / "data" / "blobs").rglob(place)))
        asking = asyncio.create_task(served.call("POST", f"/blobs/{made.json()['blob_id']}/verify"))
        await eventually(lambda: is_open(file))
        asking.cancel()
        await eventually(lambda: not is_open(file))


async def test_what_a_call_had_set_aside_when_the_server_died_is_free_soon(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        sending, got = asyncio.Event(), asyncio.Event()

        async def slowly() -> AsyncIterator[bytes]:
            yield DATA
            got.set()
            await sending.wait()

        put = asyncio.create_task(served.call("PUT", "/keys/a", content=slowly(), headers={"content-length": "200000"}))
        await got.wait()
        tenant = served.ingot.default_tenant.id

        async def has_reserved_bytes() -> bool:
            return (await served.ingot.blobs.usage(tenant)).reserved_bytes > 0

        try:
            await eventually(has_reserved_bytes)
            clock.advance(seconds=3600)  # So long nothing was heard of it.
            await served.ingot.garbage_collector.run_once()
            assert (await served.ingot.blobs.usage(tenant)).reserved_bytes == 0
        finally:
            put.cancel()
            await asyncio.gather(put, return_exceptions=True)
