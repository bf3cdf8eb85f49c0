"""Uploads over HTTP: they go on where they broke off, the last writer writes, and what is kept was read back."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from blake3 import blake3

from ingot.blobs import uploads, verification
from ingot.blobs.garbage_collector import GarbageCollector
from ingot.blobs.model import INLINE_BYTES_MAX, PART_BYTES
from ingot.identity.grants import Grant
from ingot.kernel.clock import ManualClock
from ingot.kernel.ids import new_id
from ingot.wiring import services
from tests.http.bucket_settings import in_bucket
from tests.http.serving import Served, serving
from tests.http.upload_requests import DATA, begin, complete, send
from tests.s3_proxy import proxied


@pytest.fixture(params=["folder", "bucket"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", in_bucket() if request.param == "bucket" else None) as one:
        yield one


async def usage(served: Served) -> tuple[int, int]:
    used = (await served.call("GET", "/usage")).json()
    return used["bytes"], used["reserved_bytes"]


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, len(DATA)])
async def test_what_is_sent_to_the_address_is_the_blob(site: Served, size: int) -> None:
    data = DATA[:size]
    plan = await begin(site, size, sha256=hashlib.sha256(data).hexdigest(), key="a/b.bin")
    assert await usage(site) == (0, size)
    assert (await site.call("GET", "/keys/a/b.bin")).status_code == 404
    assert (await send(plan, data)).is_success
    done = await complete(site, plan)
    assert (done.status_code, done.json()["upload"]["state"]) == (200, "done")
    assert done.json()["key"]["blob_id"] == blake3(data).hexdigest()
    again = await complete(site, plan)
    assert (again.status_code, again.json()) == (200, done.json())
    got = await site.call("GET", "/keys/a/b.bin", follow_redirects=True)
    assert (got.status_code, got.content) == (200, data)
    assert await usage(site) == (size, 0)
    url = (await site.call("GET", f"/blobs/{blake3(data).hexdigest()}/url", params={"name": "b.bin"})).json()["url"]
    async with httpx.AsyncClient(verify=False) as stranger:
        assert (await stranger.get(url)).content == data
        if data:
            assert (await stranger.get(url, headers={"range": "bytes=0-0"})).content == data[:1]


@pytest.mark.parametrize("wrong", ["sha256", "blob_id", "later"])
async def test_bytes_that_were_not_announced_are_not_kept(site: Served, wrong: str) -> None:
    other = bytes(len(DATA))
    announced = {"sha256": hashlib.sha256(other).hexdigest(), "blob_id": blake3(other).hexdigest()}
    at_once: dict[str, Any] = {} if wrong == "later" else {wrong: announced[wrong]}
    plan = await begin(site, key="a", **at_once)
    sent = await send(plan)  # A bucket refuses what has another SHA-256 than it was told.
    if sent.is_success:
        done = await complete(site, plan, **({"blob_id": announced["blob_id"]} if wrong == "later" else {}))
        assert (done.status_code, done.json()["code"]) == (422, "wrong_digest")
        assert (await complete(site, plan)).json()["code"] == "wrong_digest"
    else:
        assert (await complete(site, plan)).json()["code"] == "upload_incomplete"
        await site.call("DELETE", f"/blobs/uploads/{plan['upload']['id']}")
    assert await usage(site) == (0, 0)
    assert (await site.call("GET", "/keys/a")).status_code == 404
    await site.ingot.garbage_collector.run_once()
    assert await places(site) == []


async def places(served: Served) -> list[str]:
    """All objects that are there."""
    return [place async for place, _ in served.ingot.object_store.list_objects()]


async def test_an_upload_that_is_given_up_leaves_nothing(site: Served) -> None:
    plan = await begin(site, key="a")
    assert (await send(plan)).is_success
    assert (await site.call("DELETE", f"/blobs/uploads/{plan['upload']['id']}")).status_code == 204
    assert (await complete(site, plan)).json()["code"] == "upload_not_found"
    assert await usage(site) == (0, 0)
    await site.ingot.garbage_collector.run_once()
    assert await places(site) == []


async def test_what_is_too_short_is_not_complete(site: Served) -> None:
    plan = await begin(site)
    assert (await complete(site, plan)).json()["code"] == "upload_incomplete"
    await send(plan, DATA[:-1])
    assert (await complete(site, plan)).json()["code"] == "upload_incomplete"
    await send(plan, DATA + b"x")
    assert (await complete(site, plan)).json()["code"] in ("upload_incomplete", "wrong_length")


async def test_a_large_one_is_read_back_later(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SYNC_VERIFY_BYTES_MAX", PART_BYTES)
    right, wrong = await begin(site, key="right"), await begin(site, key="wrong", blob_id="0" * 64)
    for plan in (right, wrong):
        assert (await send(plan)).is_success
        assert (await complete(site, plan)).status_code == 202
    states = {}
    async with asyncio.timeout(30):
        for plan in (right, wrong):
            state = "verifying"
            while state == "verifying":
                state = (await site.call("GET", f"/blobs/uploads/{plan['upload']['id']}")).json()["upload"]["state"]
            states[plan["upload"]["key"]] = state
    assert states == {"right": "done", "wrong": "failed"}
    assert (await complete(site, wrong)).json()["code"] == "wrong_digest"
    assert (await site.call("GET", "/keys/right", follow_redirects=True)).content == DATA


@pytest.fixture
async def forgetful(tmp_path: Path) -> AsyncIterator[Served]:
    """A site whose bucket ignores conditions: what clients put there is copied before it is verified."""
    async with proxied() as proxy:
        proxy.ignores_conditions = True
        settings = msgspec.structs.replace(in_bucket(), s3_endpoint=proxy.url)
        async with serving(tmp_path / "forgetful", settings) as one:
            assert one.ingot.bucket is not None
            assert not one.ingot.bucket.conditional_writes
            yield one


async def test_a_large_one_whose_key_is_taken_meanwhile_fails(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await expect_key_taken(site, monkeypatch)


@pytest.mark.s3
async def test_a_copied_one_whose_key_is_taken_meanwhile_fails(
    forgetful: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await expect_key_taken(forgetful, monkeypatch)


async def expect_key_taken(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SYNC_VERIFY_BYTES_MAX", PART_BYTES)
    plan = await begin(site, key="a")
    assert (await send(plan)).is_success
    assert (await site.call("PUT", "/keys/a", content=b"first")).status_code == 201
    assert (await complete(site, plan)).status_code == 202
    path, upload = f"/blobs/uploads/{plan['upload']['id']}", {"state": "verifying"}
    async with asyncio.timeout(30):
        while upload["state"] == "verifying":
            upload = (await site.call("GET", path)).json()["upload"]
    assert (upload["state"], upload["error"]) == ("failed", "key_exists")
    refused = (await complete(site, plan)).json()
    assert (refused["code"], "'a'" in refused["detail"]) == ("key_exists", True)
    assert await usage(site) == (5, 0)
    await site.ingot.uploads.verifier.join()
    await site.ingot.garbage_collector.run_once()
    assert await places(site) == []


async def test_what_is_empty_need_not_be_sent(served: Served) -> None:
    plan = await begin(served, 0, key="a")
    done = await complete(served, plan)
    assert (done.status_code, done.json()["upload"]["state"]) == (200, "done")
    assert (await served.call("GET", "/keys/a")).content == b""


async def test_a_verification_whose_server_died_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "SYNC_VERIFY_BYTES_MAX", PART_BYTES)
    monkeypatch.setattr(verification, "CONCURRENT_VERIFICATIONS_MAX", 0)  # It waits for its turn until the server ends.
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        plan = await begin(served, key="a")
        await send(plan)
        assert (await complete(served, plan)).status_code == 202
    monkeypatch.undo()
    async with services.open(tmp_path / "data", clock=clock, maintenance=False) as ingot:
        verifier, tenant = ingot.uploads.verifier, ingot.default_tenant.id
        assert await verifier.resume_abandoned(clock.micros()) == 0, "it may be under way elsewhere"
        clock.advance(seconds=200)
        assert await verifier.resume_abandoned(clock.micros()) == 1
        await verifier.join()
        assert await (await ingot.blobs.open_key(tenant, "a"))[1].read_all() == DATA


# -- a folder: bytes come to us ---------------------------------------------------------------------------------


async def test_an_upload_goes_on_where_it_broke_off(served: Served) -> None:
    plan = await begin(served, key="a")
    url = plan["url"]
    async with httpx.AsyncClient(timeout=30, verify=False) as stranger:

        async def broken() -> AsyncIterator[bytes]:
            yield DATA[:700_000]
            raise OSError("the line broke")

        with pytest.raises(OSError, match="the line broke"):
            await stranger.patch(url, headers={"upload-offset": "0"}, content=broken())
        offset = int((await stranger.head(url)).headers["upload-offset"])
        assert offset <= 700_000
        some = await stranger.patch(url, headers={"upload-offset": str(offset)}, content=DATA[offset:800_000])
        assert (some.json()["received"], some.json()["state"]) == (800_000, "open")
        offset = int((await stranger.head(url)).headers["upload-offset"])
        wrong = await stranger.patch(url, headers={"upload-offset": str(offset + 1)}, content=b"x")
        assert (wrong.status_code, wrong.json()["offset"]) == (409, offset)
        rest = await stranger.patch(url, headers={"upload-offset": str(offset)}, content=DATA[offset:])
        assert rest.json()["received"] == len(DATA)
    assert (await complete(served, plan)).json()["key"]["blob_id"] == blake3(DATA).hexdigest()


async def test_who_comes_last_writes(served: Served) -> None:
    plan = await begin(served, key="a")
    held, sent = asyncio.Event(), asyncio.Event()

    async def first() -> AsyncIterator[bytes]:
        yield DATA[:PART_BYTES]
        sent.set()
        await held.wait()
        yield b"x" * 1000

    async with httpx.AsyncClient(timeout=30, verify=False) as one, httpx.AsyncClient(timeout=30, verify=False) as two:
        older = asyncio.create_task(one.patch(plan["url"], headers={"upload-offset": "0"}, content=first()))
        await sent.wait()
        offset = int((await two.head(plan["url"])).headers["upload-offset"])
        newer = await two.patch(plan["url"], headers={"upload-offset": str(offset)}, content=DATA[offset:])
        assert newer.json().get("received") == len(DATA), newer.text
        held.set()
        answers = await asyncio.gather(older, return_exceptions=True)
        for answer in answers:
            assert not isinstance(answer, httpx.Response) or answer.json()["code"] == "upload_taken"
    assert (await complete(served, plan)).json()["key"]["blob_id"] == blake3(DATA).hexdigest()


@pytest.mark.parametrize("change", ["signature", "expires", "tenant", "other", "none"])
async def test_an_address_is_good_as_it_was_given_and_not_otherwise(served: Served, change: str) -> None:
    plan, other = await begin(served), await begin(served)
    url = httpx.URL(plan["url"])
    if change == "none":
        altered = url.copy_with(query=b"")
    elif change == "other":
        altered = url.copy_with(raw_path=httpx.URL(other["url"]).path.encode() + b"?" + url.query)
    else:
        altered = url.copy_set_param(change, "1")
    async with httpx.AsyncClient(verify=False) as stranger:
        for method in ("PUT", "PATCH", "HEAD"):
            answer = await stranger.request(method, altered, headers={"upload-offset": "0"})
            assert answer.status_code == 403, method
    assert (await served.call("GET", f"/blobs/uploads/{plan['upload']['id']}")).json()["upload"]["received"] == 0


async def test_an_address_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
        url = (await served.call("GET", f"/blobs/{blob}/url?seconds=60")).json()["url"]
        async with httpx.AsyncClient(verify=False) as stranger:
            assert (await stranger.get(url)).content == DATA
            clock.advance(seconds=61)
            answer = await stranger.get(url)
            assert (answer.status_code, answer.json()["code"]) == (403, "signature_invalid")


async def test_an_address_ends_with_the_last_reference(served: Served) -> None:
    blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
    url = (await served.call("GET", f"/blobs/{blob}/url")).json()["url"]
    await served.call("DELETE", "/keys/a")
    async with httpx.AsyncClient(verify=False) as stranger:
        assert (await stranger.get(url)).json()["code"] == "blob_not_found"


@pytest.mark.parametrize("end", ["done", "failed", "given up"])
async def test_an_upload_that_has_ended_takes_nothing_more(served: Served, end: str) -> None:
    plan = await begin(served, key="a", sha256="0" * 64 if end == "failed" else None)
    path, ended = f"/blobs/uploads/{plan['upload']['id']}", "upload_ended"
    assert (await send(plan)).is_success
    if end == "given up":
        assert (await served.call("DELETE", path)).status_code == 204
        ended = "upload_not_found"
    else:
        assert (await complete(served, plan)).status_code == (200 if end == "done" else 422)
    before = await usage(served)
    async with httpx.AsyncClient(verify=False) as stranger:
        for method in ("PUT", "PATCH"):
            for offset in (0, len(DATA)):
                headers = {"upload-offset": str(offset)}
                answer = await stranger.request(method, plan["url"], headers=headers, content=b"more")
                assert answer.json()["code"] == ended, (method, offset)
        assert (await stranger.head(plan["url"])).status_code == (404 if end == "given up" else 409)
    again = await complete(served, plan)
    if end == "done":
        assert (again.status_code, again.json()["upload"]["state"]) == (200, "done")
        assert (await served.call("DELETE", path)).status_code == 204
        assert (await served.call("GET", path)).json()["upload"]["state"] == "done", "what is done stays"
        assert (await served.call("GET", "/keys/a")).content == DATA
    else:
        assert again.json()["code"] == ("wrong_digest" if end == "failed" else "upload_not_found")
        assert (await served.call("GET", "/keys/a")).status_code == 404
    assert await usage(served) == before == (len(DATA) if end == "done" else 0, 0)
    await served.ingot.garbage_collector.run_once()
    assert len(await places(served)) == (end == "done")


@pytest.mark.parametrize("who", ["another tenant", "a token without grants for it"])
async def test_an_upload_is_nobody_elses(served: Served, who: str) -> None:
    if who == "another tenant":
        token = await served.token(tenant=(await served.ingot.tenants.create("other")).id)
    else:
        token = await served.token(Grant(action="blobs.*", resource="keys/elsewhere"))
    plan = await begin(served, key="a")
    assert (await send(plan)).is_success
    path, nowhere = f"/blobs/uploads/{plan['upload']['id']}", f"/blobs/uploads/{new_id()}"
    parts = {"parts": [{"number": 1, "size": 1, "sha256": "0" * 64}]}
    calls: list[tuple[str, str, Any]] = [("POST", "/complete", {}), ("POST", "/parts", parts)]
    for method, behind, sent in [*calls, ("GET", "", None), ("DELETE", "", None)]:
        answer = await served.call(method, path + behind, token=token, json=sent)
        unknown = await served.call(method, nowhere + behind, token=token, json=sent)
        assert (answer.status_code, answer.json()["code"]) == (unknown.status_code, unknown.json()["code"])
        assert answer.status_code in (403, 404), answer.text
    assert await usage(served) == (0, len(DATA))
    assert (await complete(served, plan)).status_code == 200


@pytest.mark.parametrize("change", ["signature", "expires", "tenant", "name", "type", "other", "cut", "none"])
async def test_an_address_to_read_is_good_as_it_was_given_and_not_otherwise(served: Served, change: str) -> None:
    blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
    other = (await served.call("PUT", "/keys/b", content=DATA[1:])).json()["blob_id"]
    url = httpx.URL((await served.call("GET", f"/blobs/{blob}/url?name=a.txt")).json()["url"])
    match change:
        case "other":
            altered = url.copy_with(raw_path=url.raw_path.replace(blob.encode(), other.encode()))
        case "cut":
            altered = url.copy_set_param("signature", url.params["signature"][:-2])
        case "none":
            altered = url.copy_remove_param("signature")
        case _:
            altered = url.copy_set_param(change, "1")
    async with httpx.AsyncClient(verify=False) as stranger:
        assert (await stranger.get(url)).content == DATA
        answer = await stranger.get(altered)
        assert (answer.status_code, answer.json()["code"]) == (403, "signature_invalid")
        assert (await stranger.put(url, content=b"x")).status_code in (403, 405), "it is for reading"


# -- what is kept, and what goes --------------------------------------------------------------------------------


async def test_what_nothing_refers_to_goes_after_the_grace(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
        await served.call("PUT", "/keys/b", content=DATA)
        collector: GarbageCollector = served.ingot.garbage_collector
        await served.call("DELETE", "/keys/a")
        clock.advance(seconds=5000)
        assert (await collector.run_once()).blobs == 0, "b refers to it"
        assert [
            one["name"] for one in (await served.call("GET", f"/blobs/{blob}/references")).json()["references"]
        ] == ["b"]
        await served.call("DELETE", "/keys/b")
        assert (await collector.run_once()).blobs == 0, "it is too early"
        clock.advance(seconds=5000)
        seen = (await served.call("POST", "/blobs/collect", json={})).json()
        assert (seen["blobs"], seen["bytes"], seen["dry_run"]) == (1, len(DATA), True)
        assert len(await places(served)) >= 1
        done = (await served.call("POST", "/blobs/collect", json={"dry_run": False})).json()
        assert (done["blobs"], done["bytes"]) == (1, len(DATA))
        assert await places(served) == []
        names = [one["name"] for one in (await served.call("GET", "/events?limit=1000")).json()["items"]]
        assert names == ["blob.stored", "blob.stored", "blob.deleted", "blob.deleted"]


async def test_damage_is_told_and_never_served(served: Served, tmp_path: Path) -> None:
    blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
    (place,) = await places(served)
    (file,) = await asyncio.to_thread(lambda: list((tmp_path / "data" / "blobs").rglob(place)))
    flipped = bytearray(await asyncio.to_thread(file.read_bytes))
    flipped[2 * PART_BYTES + 5] ^= 4
    await asyncio.to_thread(file.write_bytes, flipped)
    whole = await served.call("GET", "/keys/a", headers={"range": f"bytes=0-{PART_BYTES}"})
    assert whole.content == DATA[: PART_BYTES + 1]
    with pytest.raises(httpx.HTTPError):  # The connection ends before the bytes do.
        await served.call("GET", "/keys/a")
    async with asyncio.timeout(30):
        while (answer := await served.call("HEAD", "/keys/a")).status_code != 500:
            pass
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await served.call("POST", f"/blobs/{blob}/verify")).json()["whole"] is False
    assert (await served.call("PUT", "/keys/b", content=DATA)).status_code == 201, "the same bytes again"
    assert (await served.call("GET", "/keys/a")).content == DATA
    assert (await served.call("POST", f"/blobs/{blob}/verify")).json()["whole"] is True
