"""Uploads over HTTP: they can be resumed, the last writer wins, and every blob is verified before it is visible."""

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
from tests.http.bucket_settings import bucket_settings
from tests.http.serving import Served, serving
from tests.http.upload_requests import DATA, begin, complete, send
from tests.s3_proxy import proxied


@pytest.fixture(params=["folder", "bucket"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", bucket_settings() if request.param == "bucket" else None) as server:
        yield server


async def usage(served: Served) -> tuple[int, int]:
    response = (await served.call("GET", "/usage")).json()
    return response["bytes"], response["reserved_bytes"]


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, len(DATA)])
async def test_bytes_sent_to_the_upload_url_become_the_blob(site: Served, size: int) -> None:
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
    response = await site.call("GET", "/keys/a/b.bin", follow_redirects=True)
    assert (response.status_code, response.content) == (200, data)
    assert await usage(site) == (size, 0)
    url = (await site.call("GET", f"/blobs/{blake3(data).hexdigest()}/url", params={"name": "b.bin"})).json()["url"]
    async with httpx.AsyncClient(verify=False) as client:
        assert (await client.get(url)).content == data
        if data:
            assert (await client.get(url, headers={"range": "bytes=0-0"})).content == data[:1]


@pytest.mark.parametrize("wrong", ["sha256", "blob_id", "later"])
async def test_bytes_that_differ_from_the_announced_digest_are_not_stored(site: Served, wrong: str) -> None:
    other = bytes(len(DATA))
    announced = {"sha256": hashlib.sha256(other).hexdigest(), "blob_id": blake3(other).hexdigest()}
    in_plan: dict[str, Any] = {} if wrong == "later" else {wrong: announced[wrong]}
    plan = await begin(site, key="a", **in_plan)
    sent = await send(plan)  # A bucket checks the announced SHA-256 itself.
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
    assert await stored_objects(site) == []


async def stored_objects(served: Served) -> list[str]:
    """The storage keys of all objects."""
    return [storage_key async for storage_key, _ in served.ingot.object_store.list_objects()]


async def test_an_aborted_upload_leaves_nothing(site: Served) -> None:
    plan = await begin(site, key="a")
    assert (await send(plan)).is_success
    assert (await site.call("DELETE", f"/blobs/uploads/{plan['upload']['id']}")).status_code == 204
    assert (await complete(site, plan)).json()["code"] == "upload_not_found"
    assert await usage(site) == (0, 0)
    await site.ingot.garbage_collector.run_once()
    assert await stored_objects(site) == []


async def test_an_upload_with_a_wrong_length_cannot_be_completed(site: Served) -> None:
    plan = await begin(site)
    assert (await complete(site, plan)).json()["code"] == "upload_incomplete"
    await send(plan, DATA[:-1])
    assert (await complete(site, plan)).json()["code"] == "upload_incomplete"
    await send(plan, DATA + b"x")
    assert (await complete(site, plan)).json()["code"] in ("upload_incomplete", "wrong_length")


async def test_a_large_upload_is_verified_in_the_background(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def unconditional(tmp_path: Path) -> AsyncIterator[Served]:
    """A server whose bucket ignores conditions, so that uploaded objects are copied before they are verified."""
    async with proxied() as proxy:
        proxy.ignores_conditions = True
        settings = msgspec.structs.replace(bucket_settings(), s3_endpoint=proxy.url)
        async with serving(tmp_path / "unconditional", settings) as server:
            assert server.ingot.bucket is not None
            assert not server.ingot.bucket.conditional_writes
            yield server


async def test_a_large_upload_fails_if_its_key_is_created_meanwhile(
    site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await expect_key_taken(site, monkeypatch)


@pytest.mark.s3
async def test_a_copied_upload_fails_if_its_key_is_created_meanwhile(
    unconditional: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await expect_key_taken(unconditional, monkeypatch)


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
    problem = (await complete(site, plan)).json()
    assert (problem["code"], "'a'" in problem["detail"]) == ("key_exists", True)
    assert await usage(site) == (5, 0)
    await site.ingot.uploads.verifier.join()
    await site.ingot.garbage_collector.run_once()
    assert await stored_objects(site) == []


async def test_an_empty_upload_can_be_completed_without_bytes(served: Served) -> None:
    plan = await begin(served, 0, key="a")
    done = await complete(served, plan)
    assert (done.status_code, done.json()["upload"]["state"]) == (200, "done")
    assert (await served.call("GET", "/keys/a")).content == b""


async def test_a_verification_is_resumed_after_its_server_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "SYNC_VERIFY_BYTES_MAX", PART_BYTES)
    monkeypatch.setattr(
        verification, "CONCURRENT_VERIFICATIONS_MAX", 0
    )  # The verification waits until the server stops.
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        plan = await begin(served, key="a")
        await send(plan)
        assert (await complete(served, plan)).status_code == 202
    monkeypatch.undo()
    async with services.open(tmp_path / "data", clock=clock, maintenance=False) as ingot:
        verifier, tenant = ingot.uploads.verifier, ingot.default_tenant.id
        assert await verifier.resume_abandoned(clock.micros()) == 0, "another server may be verifying it"
        clock.advance(seconds=200)
        assert await verifier.resume_abandoned(clock.micros()) == 1
        await verifier.join()
        assert await (await ingot.blobs.open_key(tenant, "a"))[1].read_all() == DATA


# -- uploads to a folder ----------------------------------------------------------------------------------------


async def test_an_upload_can_be_resumed_at_its_offset(served: Served) -> None:
    plan = await begin(served, key="a")
    url = plan["url"]
    async with httpx.AsyncClient(timeout=30, verify=False) as client:

        async def interrupted() -> AsyncIterator[bytes]:
            yield DATA[:700_000]
            raise OSError("the connection broke")

        with pytest.raises(OSError, match="the connection broke"):
            await client.patch(url, headers={"upload-offset": "0"}, content=interrupted())
        offset = int((await client.head(url)).headers["upload-offset"])
        assert offset <= 700_000
        some = await client.patch(url, headers={"upload-offset": str(offset)}, content=DATA[offset:800_000])
        assert (some.json()["received"], some.json()["state"]) == (800_000, "open")
        offset = int((await client.head(url)).headers["upload-offset"])
        wrong = await client.patch(url, headers={"upload-offset": str(offset + 1)}, content=b"x")
        assert (wrong.status_code, wrong.json()["offset"]) == (409, offset)
        rest = await client.patch(url, headers={"upload-offset": str(offset)}, content=DATA[offset:])
        assert rest.json()["received"] == len(DATA)
    assert (await complete(served, plan)).json()["key"]["blob_id"] == blake3(DATA).hexdigest()


async def test_the_last_writer_of_an_upload_wins(served: Served) -> None:
    plan = await begin(served, key="a")
    resume, sent = asyncio.Event(), asyncio.Event()

    async def first() -> AsyncIterator[bytes]:
        yield DATA[:PART_BYTES]
        sent.set()
        await resume.wait()
        yield b"x" * 1000

    async with (
        httpx.AsyncClient(timeout=30, verify=False) as first_client,
        httpx.AsyncClient(timeout=30, verify=False) as second_client,
    ):
        older = asyncio.create_task(first_client.patch(plan["url"], headers={"upload-offset": "0"}, content=first()))
        await sent.wait()
        offset = int((await second_client.head(plan["url"])).headers["upload-offset"])
        newer = await second_client.patch(plan["url"], headers={"upload-offset": str(offset)}, content=DATA[offset:])
        assert newer.json().get("received") == len(DATA), newer.text
        resume.set()
        responses = await asyncio.gather(older, return_exceptions=True)
        for response in responses:
            assert not isinstance(response, httpx.Response) or response.json()["code"] == "upload_taken"
    assert (await complete(served, plan)).json()["key"]["blob_id"] == blake3(DATA).hexdigest()


@pytest.mark.parametrize("change", ["signature", "expires", "tenant", "other", "none"])
async def test_an_altered_upload_url_is_rejected(served: Served, change: str) -> None:
    plan, other = await begin(served), await begin(served)
    url = httpx.URL(plan["url"])
    if change == "none":
        altered = url.copy_with(query=b"")
    elif change == "other":
        altered = url.copy_with(raw_path=httpx.URL(other["url"]).path.encode() + b"?" + url.query)
    else:
        altered = url.copy_set_param(change, "1")
    async with httpx.AsyncClient(verify=False) as client:
        for method in ("PUT", "PATCH", "HEAD"):
            response = await client.request(method, altered, headers={"upload-offset": "0"})
            assert response.status_code == 403, method
    assert (await served.call("GET", f"/blobs/uploads/{plan['upload']['id']}")).json()["upload"]["received"] == 0


async def test_a_signed_url_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
        url = (await served.call("GET", f"/blobs/{blob}/url?seconds=60")).json()["url"]
        async with httpx.AsyncClient(verify=False) as client:
            assert (await client.get(url)).content == DATA
            clock.advance(seconds=61)
            response = await client.get(url)
            assert (response.status_code, response.json()["code"]) == (403, "signature_invalid")


async def test_a_signed_url_ends_with_the_last_reference_of_its_blob(served: Served) -> None:
    blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
    url = (await served.call("GET", f"/blobs/{blob}/url")).json()["url"]
    await served.call("DELETE", "/keys/a")
    async with httpx.AsyncClient(verify=False) as client:
        assert (await client.get(url)).json()["code"] == "blob_not_found"


@pytest.mark.parametrize("end", ["done", "failed", "aborted"])
async def test_an_ended_upload_accepts_no_more_bytes(served: Served, end: str) -> None:
    plan = await begin(served, key="a", sha256="0" * 64 if end == "failed" else None)
    path, ended = f"/blobs/uploads/{plan['upload']['id']}", "upload_ended"
    assert (await send(plan)).is_success
    if end == "aborted":
        assert (await served.call("DELETE", path)).status_code == 204
        ended = "upload_not_found"
    else:
        assert (await complete(served, plan)).status_code == (200 if end == "done" else 422)
    before = await usage(served)
    async with httpx.AsyncClient(verify=False) as client:
        for method in ("PUT", "PATCH"):
            for offset in (0, len(DATA)):
                headers = {"upload-offset": str(offset)}
                response = await client.request(method, plan["url"], headers=headers, content=b"more")
                assert response.json()["code"] == ended, (method, offset)
        assert (await client.head(plan["url"])).status_code == (404 if end == "aborted" else 409)
    again = await complete(served, plan)
    if end == "done":
        assert (again.status_code, again.json()["upload"]["state"]) == (200, "done")
        assert (await served.call("DELETE", path)).status_code == 204
        assert (await served.call("GET", path)).json()["upload"]["state"] == "done", (
            "a completed upload cannot be aborted"
        )
        assert (await served.call("GET", "/keys/a")).content == DATA
    else:
        assert again.json()["code"] == ("wrong_digest" if end == "failed" else "upload_not_found")
        assert (await served.call("GET", "/keys/a")).status_code == 404
    assert await usage(served) == before == (len(DATA) if end == "done" else 0, 0)
    await served.ingot.garbage_collector.run_once()
    assert len(await stored_objects(served)) == (end == "done")


@pytest.mark.parametrize("caller", ["another tenant", "a token without grants for it"])
async def test_an_upload_is_hidden_from_other_callers(served: Served, caller: str) -> None:
    if caller == "another tenant":
        token = await served.token(tenant=(await served.ingot.tenants.create("other")).id)
    else:
        token = await served.token(Grant(action="blobs.*", resource="keys/elsewhere"))
    plan = await begin(served, key="a")
    assert (await send(plan)).is_success
    path, nowhere = f"/blobs/uploads/{plan['upload']['id']}", f"/blobs/uploads/{new_id()}"
    parts = {"parts": [{"number": 1, "size": 1, "sha256": "0" * 64}]}
    calls: list[tuple[str, str, Any]] = [("POST", "/complete", {}), ("POST", "/parts", parts)]
    for method, suffix, body in [*calls, ("GET", "", None), ("DELETE", "", None)]:
        response = await served.call(method, path + suffix, token=token, json=body)
        unknown = await served.call(method, nowhere + suffix, token=token, json=body)
        assert (response.status_code, response.json()["code"]) == (unknown.status_code, unknown.json()["code"])
        assert response.status_code in (403, 404), response.text
    assert await usage(served) == (0, len(DATA))
    assert (await complete(served, plan)).status_code == 200


@pytest.mark.parametrize("change", ["signature", "expires", "tenant", "name", "type", "other", "cut", "none"])
async def test_an_altered_download_url_is_rejected(served: Served, change: str) -> None:
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
    async with httpx.AsyncClient(verify=False) as client:
        assert (await client.get(url)).content == DATA
        response = await client.get(altered)
        assert (response.status_code, response.json()["code"]) == (403, "signature_invalid")
        assert (await client.put(url, content=b"x")).status_code in (403, 405), "a download URL permits only reading"


# -- garbage and damage -----------------------------------------------------------------------------------------


async def test_a_blob_without_references_is_deleted_after_the_grace_period(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
        await served.call("PUT", "/keys/b", content=DATA)
        collector: GarbageCollector = served.ingot.garbage_collector
        await served.call("DELETE", "/keys/a")
        clock.advance(seconds=5000)
        assert (await collector.run_once()).blobs == 0, "key b still refers to the blob"
        assert [
            reference["name"]
            for reference in (await served.call("GET", f"/blobs/{blob}/references")).json()["references"]
        ] == ["b"]
        await served.call("DELETE", "/keys/b")
        assert (await collector.run_once()).blobs == 0, "the grace period has not passed"
        clock.advance(seconds=5000)
        preview = (await served.call("POST", "/blobs/collect", json={})).json()
        assert (preview["blobs"], preview["bytes"], preview["dry_run"]) == (1, len(DATA), True)
        assert len(await stored_objects(served)) >= 1
        done = (await served.call("POST", "/blobs/collect", json={"dry_run": False})).json()
        assert (done["blobs"], done["bytes"]) == (1, len(DATA))
        assert await stored_objects(served) == []
        names = [event["name"] for event in (await served.call("GET", "/events?limit=1000")).json()["items"]]
        assert names == ["blob.stored", "blob.stored", "blob.deleted", "blob.deleted"]


async def test_a_damaged_blob_is_reported_and_not_served(served: Served, tmp_path: Path) -> None:
    blob = (await served.call("PUT", "/keys/a", content=DATA)).json()["blob_id"]
    (storage_key,) = await stored_objects(served)
    (file,) = await asyncio.to_thread(lambda: list((tmp_path / "data" / "blobs").rglob(storage_key)))
    flipped = bytearray(await asyncio.to_thread(file.read_bytes))
    flipped[2 * PART_BYTES + 5] ^= 4
    await asyncio.to_thread(file.write_bytes, flipped)
    whole = await served.call("GET", "/keys/a", headers={"range": f"bytes=0-{PART_BYTES}"})
    assert whole.content == DATA[: PART_BYTES + 1]
    with pytest.raises(httpx.HTTPError):  # The connection is closed before the damaged part.
        await served.call("GET", "/keys/a")
    async with asyncio.timeout(30):
        while (response := await served.call("HEAD", "/keys/a")).status_code != 500:
            pass
    assert response.headers["content-type"] == "application/problem+json"
    assert (await served.call("POST", f"/blobs/{blob}/verify")).json()["whole"] is False
    assert (await served.call("PUT", "/keys/b", content=DATA)).status_code == 201, (
        "storing the same bytes again repairs the blob"
    )
    assert (await served.call("GET", "/keys/a")).content == DATA
    assert (await served.call("POST", f"/blobs/{blob}/verify")).json()["whole"] is True
