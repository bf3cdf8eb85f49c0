"""Job files over HTTP: inputs, outputs and checkpoints, and requests about them that are rejected."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from blake3 import blake3

from ingot.api.downloads import Downloads
from ingot.blobs.hashing import inline_content
from ingot.blobs.model import PART_BYTES, TrashedObject
from ingot.identity.grants import Grant
from ingot.jobs.files import CHECKPOINT_BYTES_MAX, INPUTS_MAX
from tests.http.bucket_settings import bucket_settings
from tests.http.job_files import Json, expect_refusal, list_files, post, put_key
from tests.http.one_server import on_one_server
from tests.http.serving import Served, serving
from tests.http.upload_requests import send

DATA = random.Random(7).randbytes(PART_BYTES + 11)
BLOB = blake3(DATA).hexdigest()
SMALL = b"small"
SMALL_BLOB = blake3(SMALL).hexdigest()
UNKNOWN_ID = "01a00000-0000-7000-8000-000000000001"
BIG = 64 * 1024 * 1024 + 1


@pytest.fixture(params=["folder", "bucket"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", bucket_settings() if request.param == "bucket" else None) as first:
        yield first


async def upload_output(served: Served, job: Json, name: str, data: bytes, **order: Any) -> Json:
    """Upload an output or another file of a claimed job, and complete the upload."""
    fence, uploads = {"fence": job["fence"]}, f"/jobs/{job['id']}/uploads"
    plan = await post(served, uploads, {**fence, "name": name, "size": len(data), **order}, expect=201)
    assert (await send(plan, data)).is_success
    return await post(served, f"{uploads}/{plan['upload']['id']}/complete", fence)


async def read(url: str) -> bytes:
    """The content at a signed URL, requested without credentials."""
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        response = await client.get(url)
        assert response.status_code == 200, response.text
        return response.content


async def collect_garbage(served: Served) -> None:
    await served.ingot.garbage_collector.run_once()


# -- whole lives of files -----------------------------------------------------------------------------------


async def test_a_job_runs_after_the_upload_of_its_input_and_its_output_is_readable(site: Served) -> None:
    order = {"type": "noop", "uploads": [{"name": "in.bin", "size": len(DATA), "content_type": "image/png"}]}
    job = await post(site, "/jobs", order, expect=201)
    (plan,) = job["uploads"]
    assert (job["status"], job["inputs"], plan["upload"]["state"]) == ("blocked", {}, "open")
    assert (plan["upload"]["job_id"], plan["upload"]["file"], plan["upload"]["name"]) == (job["id"], "input", "in.bin")
    assert (await site.call("POST", "/jobs/claim", json={"types": ["noop"]})).status_code == 204
    explanation = (await site.call("GET", f"/jobs/{job['id']}/explain")).json()
    assert explanation["reasons"][0]["code"] == "waits_for_uploads"
    assert (await send(plan, DATA)).is_success
    done = await post(site, f"/blobs/uploads/{plan['upload']['id']}/complete", {"blob_id": BLOB})
    assert done["upload"]["state"] == "done"
    assert await list_files(site, job) == [("input", "in.bin", BLOB)]

    claimed = await site.claim()
    assert (claimed["id"], claimed["inputs"]) == (job["id"], {"in.bin": BLOB})
    assert "http" not in str({**claimed, "payload": None})
    query = {"fence": claimed["fence"], "name": "in.bin", "kind": "input"}
    download = await post(site, f"/jobs/{job['id']}/downloads", query)
    assert download["expires_in"] > 0
    assert await read(download["url"]) == DATA

    created = await upload_output(site, claimed, "out.txt", SMALL)
    blob = created["upload"]["blob_id"]
    assert created["upload"]["state"] == "done"
    assert await list_files(site, job) == [("input", "in.bin", BLOB)]
    assert (await site.call("GET", f"/blobs/{blob}")).status_code == 404
    result = {"fence": claimed["fence"], "result": 1, "outputs": ["out.txt"]}
    assert (await post(site, f"/jobs/{job['id']}/complete", result))["status"] == "succeeded"
    assert await list_files(site, job) == [("input", "in.bin", BLOB), ("output", "out.txt", blob)]
    response = await site.client.get(
        f"/api/v1/blobs/{blob}", headers={"authorization": f"Bearer {site.operator}"}, follow_redirects=True
    )
    assert response.content == SMALL


async def test_an_attempt_reads_a_payload_that_is_a_blob(site: Served) -> None:
    blob = await put_key(site, "payload", DATA)
    job = await site.make_job(payload_blob=blob)
    assert (job["payload"], job["payload_blob"]) == (None, blob)
    claimed = await site.claim()
    download = await post(site, f"/jobs/{job['id']}/downloads", {"fence": claimed["fence"], "kind": "payload"})
    assert await read(download["url"]) == DATA
    assert await list_files(site, job) == [("payload", "payload", blob)]


async def test_the_log_file_of_an_attempt_is_named_after_its_number(served: Served) -> None:
    job = await served.make_job()
    claimed = await served.claim()
    order = {"fence": claimed["fence"], "kind": "log", "size": 5}
    plan = await post(served, f"/jobs/{job['id']}/uploads", order, expect=201)
    await send(plan, SMALL)
    path = f"/jobs/{job['id']}/uploads/{plan['upload']['id']}/complete"
    done = await post(served, path, {"fence": claimed["fence"]})
    assert done["upload"]["content_type"] == "text/plain"
    assert await list_files(served, job) == [("log", "1", blake3(SMALL).hexdigest())]


async def test_a_checkpoint_is_read_by_the_next_attempt_and_deleted_after_success(site: Served) -> None:
    job = await site.make_job()
    path, first = f"/jobs/{job['id']}", await site.claim()
    for data in (SMALL, DATA):
        await upload_output(site, first, "state", data, kind="checkpoint")
    assert await list_files(site, job) == [("checkpoint", "state", BLOB)]
    assert (await post(site, f"{path}/release", {"fence": first["fence"]}))["status"] == "queued"
    second = await site.claim()
    checkpoint = {"kind": "checkpoint", "name": "state"}
    download = await post(site, f"{path}/downloads", {"fence": second["fence"], **checkpoint})
    assert (download["blob_id"], download["size"]) == (BLOB, len(DATA))
    assert await read(download["url"]) == DATA
    references = (await site.call("GET", f"/blobs/{BLOB}/references")).json()["references"]
    assert [(reference["kind"], reference["name"], reference["job_id"]) for reference in references] == [
        ("checkpoint", "state", job["id"])
    ]
    order = {"kind": "checkpoint", "name": "state", "size": 5, "fence": first["fence"]}
    for step, body in (("uploads", order), ("downloads", {"fence": first["fence"], **checkpoint})):
        await expect_refusal(site, f"{path}/{step}", body, 409, "lease_lost")
    await post(site, f"{path}/complete", {"fence": second["fence"]})
    assert await list_files(site, job) == []
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (0, 0)


async def test_a_file_that_the_tenant_has_already_need_not_be_sent(served: Served) -> None:
    await put_key(served, "here", DATA)
    upload = {"name": "in.bin", "size": len(DATA), "blob_id": BLOB}
    job = await post(served, "/jobs", {"type": "noop", "uploads": [upload]}, expect=201)
    assert (job["status"], job["inputs"]) == ("queued", {"in.bin": BLOB})
    (plan,) = job["uploads"]
    assert (plan["upload"]["state"], plan["url"]) == ("done", None)
    claimed = await served.claim()
    order = {"fence": claimed["fence"], "name": "out", "size": len(DATA), "blob_id": BLOB}
    done = await post(served, f"/jobs/{job['id']}/uploads", order, expect=201)
    assert done["upload"]["state"] == "done"
    await post(served, f"/jobs/{job['id']}/complete", {"fence": claimed["fence"], "outputs": ["out"]})
    assert await list_files(served, job) == [("input", "in.bin", BLOB), ("output", "out", BLOB)]


async def test_a_small_output_can_be_sent_with_its_announcement(site: Served) -> None:
    await site.make_job()
    claimed = await site.claim()
    path, fence = f"/jobs/{claimed['id']}", {"fence": claimed["fence"]}
    order = {**fence, "name": "out.txt", "size": len(SMALL), "data": b64encode(SMALL).decode()}
    done = await post(site, f"{path}/uploads", order, expect=201)
    assert (done["upload"]["state"], done["upload"]["blob_id"], done["url"]) == ("done", SMALL_BLOB, None)
    assert await list_files(site, claimed) == [], "the output is visible only after the attempt has succeeded"
    again = await post(site, f"{path}/uploads/{done['upload']['id']}/complete", fence)
    assert again["upload"]["state"] == "done"
    await post(site, f"{path}/complete", {**fence, "outputs": ["out.txt"]})
    assert await list_files(site, claimed) == [("output", "out.txt", SMALL_BLOB)]
    assert (await site.call("GET", f"/blobs/{SMALL_BLOB}")).content == SMALL
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (len(SMALL), 0)
    await site.make_job()
    other = await site.claim()
    wrong = {"fence": other["fence"], "name": "a", "size": len(SMALL), "blob_id": SMALL_BLOB, "data": "AAAA"}
    await expect_refusal(site, f"/jobs/{other['id']}/uploads", wrong, 422, "wrong_length")


async def test_a_small_input_can_be_sent_with_its_job(site: Served) -> None:
    upload = {"name": "in.txt", "size": len(SMALL), "data": b64encode(SMALL).decode()}
    job = await post(site, "/jobs", {"type": "noop", "uploads": [upload]}, expect=201)
    assert (job["status"], job["inputs"]) == ("queued", {"in.txt": SMALL_BLOB})
    assert [(plan["upload"]["state"], plan["url"]) for plan in job["uploads"]] == [("done", None)]
    claimed = await site.claim()
    download = await post(site, f"/jobs/{job['id']}/downloads", {"fence": claimed["fence"], "name": "in.txt"})
    assert (download["blob_id"], b64decode(download["data"])) == (SMALL_BLOB, SMALL)
    assert await read(download["url"]) == SMALL
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (len(SMALL), 0)


async def test_the_download_of_a_large_file_has_only_a_url(site: Served) -> None:
    blob = await put_key(site, "k", DATA)
    await post(site, "/jobs", {"type": "noop", "inputs": {"in.bin": blob}}, expect=201)
    claimed = await site.claim()
    download = await post(site, f"/jobs/{claimed['id']}/downloads", {"fence": claimed["fence"], "name": "in.bin"})
    assert download["data"] is None
    assert await read(download["url"]) == DATA


async def test_submitting_again_returns_the_open_uploads(site: Served) -> None:
    uploads = [{"name": "a", "size": 5}, {"name": "b", "size": 5}]
    order = {"type": "noop", "uploads": uploads, "idempotency_key": "once"}
    first = await post(site, "/jobs", order, expect=201)
    again = await post(site, "/jobs", order)
    assert again["id"] == first["id"]
    assert [plan["upload"]["id"] for plan in again["uploads"]] == [plan["upload"]["id"] for plan in first["uploads"]]
    for plan in again["uploads"]:
        assert (await send(plan, SMALL)).is_success
        await post(site, f"/blobs/uploads/{plan['upload']['id']}/complete", {})
    assert (await site.call("GET", f"/jobs/{first['id']}")).json()["status"] == "queued"
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (10, 0)


async def test_the_response_to_a_job_without_uploads_omits_them(served: Served) -> None:
    assert "uploads" not in await served.make_job()
    created = await post(served, "/jobs/batch", {"jobs": [{"type": "noop"}]}, expect=201)
    assert "uploads" not in created["jobs"][0]["job"]
    batch = {"jobs": [{"type": "noop", "uploads": [{"name": "a", "size": 1}]}]}
    await expect_refusal(served, "/jobs/batch", batch, 422, "invalid_input")


async def test_jobs_of_a_batch_can_name_stored_blobs_only(served: Served) -> None:
    blob = await put_key(served, "k", SMALL)
    jobs: list[Json] = [{"type": "noop", "inputs": {"a": blob}}, {"type": "noop", "payload_blob": blob}]
    created = await post(served, "/jobs/batch", {"jobs": jobs}, expect=201)
    assert [item["job"]["inputs"] for item in created["jobs"]] == [{"a": blob}, {}]
    jobs[1]["payload_blob"] = "0" * 64
    await expect_refusal(served, "/jobs/batch", {"jobs": jobs}, 404, "blob_not_found")


@pytest.mark.s3
async def test_large_outputs_go_to_a_bucket_in_parts(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", bucket_settings()) as site:
        job = await site.make_job()
        claimed = await site.claim()
        order = {"fence": claimed["fence"], "name": "big", "size": BIG}
        plan = await post(site, f"/jobs/{job['id']}/uploads", order, expect=201)
        assert plan["part_bytes"]
        path = f"/jobs/{job['id']}/uploads/{plan['upload']['id']}"
        parts = [{"number": 1, "size": plan["part_bytes"], "sha256": "0" * 64}]
        signed = await post(site, f"{path}/parts", {"fence": claimed["fence"], "parts": parts})
        assert [part["number"] for part in signed["parts"]] == [1]
        await expect_refusal(site, f"{path}/parts", {"fence": claimed["fence"] + 1, "parts": parts}, 409, "lease_lost")
        await expect_refusal(site, f"{path}/complete", {"fence": claimed["fence"]}, 409, "upload_incomplete")
        await post(site, f"/jobs/{job['id']}/release", {"fence": claimed["fence"]})
        await expect_refusal(site, f"{path}/parts", {"fence": claimed["fence"], "parts": parts}, 409, "lease_lost")


# -- stale fences -------------------------------------------------------------------------------------------


async def test_a_stale_fence_is_rejected_at_every_step_and_leaves_nothing(site: Served) -> None:
    blob = await put_key(site, "k", SMALL)
    job = await site.make_job(inputs={"in": blob})
    old = await site.claim()
    path, fence = f"/jobs/{job['id']}", {"fence": old["fence"]}
    plan = await post(site, f"{path}/uploads", {**fence, "name": "late", "size": len(DATA)}, expect=201)
    assert (await send(plan, DATA)).is_success
    done = await upload_output(site, old, "done", b"done")
    await post(site, f"{path}/release", fence)
    new = await site.claim()
    complete = f"{path}/uploads/{plan['upload']['id']}/complete"
    steps = [
        (f"{path}/downloads", {**fence, "name": "in"}),
        (f"{path}/uploads", {**fence, "name": "x", "size": 1}),
        (f"{path}/uploads", {**fence, "name": "x", "size": 1, "data": "eA=="}),
        (f"{path}/uploads/{plan['upload']['id']}/parts", {**fence, "parts": [part()]}),
        (complete, fence),
        (f"{path}/complete", {**fence, "outputs": ["done"]}),
    ]
    for step, body in steps:
        await expect_refusal(site, step, body, 409, "lease_lost")
    await expect_refusal(site, complete, {"fence": new["fence"]}, 404, "upload_not_found")
    missing = {"fence": new["fence"], "outputs": ["done"]}
    await expect_refusal(site, f"{path}/complete", missing, 409, "output_missing")
    await post(site, f"{path}/complete", {"fence": new["fence"]})
    assert await list_files(site, job) == [("input", "in", blob)]
    await collect_garbage(site)
    usage = (await site.call("GET", "/usage")).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (2 * len(SMALL), 0)
    assert (await site.call("GET", f"/blobs/{done['upload']['blob_id']}")).status_code == 404
    assert (await site.ingot.blobs.metrics()).uploads == 0
    await expect_refusal(site, complete, fence, 409, "lease_lost")


def part() -> Json:
    return {"number": 1, "size": 1, "sha256": "0" * 64}


# -- permissions --------------------------------------------------------------------------------------------


async def test_files_of_a_job_are_not_found_for_another_tenant(served: Served) -> None:
    blob = await put_key(served, "k", SMALL)
    job = await served.make_job(inputs={"in": blob}, uploads=[{"name": "up", "size": 5}])
    other = (await served.ingot.tenants.create("other")).id
    stranger = await served.token(Grant(action="*"), tenant=other)
    upload = job["uploads"][0]["upload"]["id"]
    assert (await served.call("GET", f"/jobs/{job['id']}/files", token=stranger)).status_code == 404
    await expect_refusal(
        served, "/jobs", {"type": "noop", "inputs": {"a": blob}}, 404, "blob_not_found", token=stranger
    )
    await expect_refusal(served, "/jobs", {"type": "noop", "payload_blob": blob}, 404, "blob_not_found", token=stranger)
    await expect_refusal(served, f"/blobs/uploads/{upload}/complete", {}, 404, "upload_not_found", token=stranger)
    await send(job["uploads"][0], SMALL)
    await post(served, f"/blobs/uploads/{upload}/complete", {})
    claimed = await served.claim()
    path, fence = f"/jobs/{job['id']}", {"fence": claimed["fence"]}
    await expect_refusal(served, f"{path}/downloads", {**fence, "name": "in"}, 404, "job_not_found", token=stranger)
    begin = {**fence, "name": "x", "size": 1}
    await expect_refusal(served, f"{path}/uploads", begin, 404, "job_not_found", token=stranger)
    plan = await post(served, f"{path}/uploads", begin, expect=201)
    for step in ("complete", "parts"):
        body = {**fence, **({"parts": [part()]} if step == "parts" else {})}
        step_path = f"{path}/uploads/{plan['upload']['id']}/{step}"
        await expect_refusal(served, step_path, body, 404, "job_not_found", token=stranger)


async def test_only_the_token_that_created_a_job_completes_the_upload_of_its_input(served: Served) -> None:
    creator = await served.token(Grant(action="jobs.create", resource="jobs/noop"))
    other = await served.token(Grant(action="jobs.create", resource="jobs/noop"))
    order = {"type": "noop", "uploads": [{"name": "a", "size": 5}]}
    job = await post(served, "/jobs", order, expect=201, token=creator)
    (plan,) = job["uploads"]
    path = f"/blobs/uploads/{plan['upload']['id']}"
    assert (await send(plan, SMALL)).is_success
    await expect_refusal(served, f"{path}/complete", {}, 404, "upload_not_found", token=other)
    assert (await served.call("GET", path, token=creator)).json()["upload"]["received"] == 5
    await post(served, f"{path}/complete", {}, token=creator)
    assert (await served.call("GET", f"/jobs/{job['id']}")).json()["status"] == "queued"


async def test_an_output_is_readable_with_a_grant_for_jobs_of_its_type(served: Served) -> None:
    job = await served.make_job()
    claimed = await served.claim()
    blob = (await upload_output(served, claimed, "out", SMALL))["upload"]["blob_id"]
    await post(served, f"/jobs/{job['id']}/complete", {"fence": claimed["fence"]})
    reader = await served.token(Grant(action="jobs.read", resource="jobs/noop"))
    assert (await served.call("GET", f"/blobs/{blob}", token=reader)).content == SMALL
    assert await list_files(served, job, token=reader) == [("output", "out", blob)]
    for grant in (Grant(action="jobs.read", resource="jobs/other"), Grant(action="blobs.read", resource="keys/x")):
        stranger = await served.token(grant)
        assert (await served.call("GET", f"/blobs/{blob}", token=stranger)).status_code == 404
        assert (await served.call("GET", f"/jobs/{job['id']}/files", token=stranger)).status_code in (403, 404)


async def test_a_shared_worker_reads_and_writes_files_of_every_tenant(served: Served) -> None:
    other = (await served.ingot.tenants.create("other")).id
    token = await served.token(Grant(action="*"), tenant=other)
    await served.call("PUT", "/keys/k", content=SMALL, token=token)
    blob = blake3(SMALL).hexdigest()
    job = await post(served, "/jobs", {"type": "noop", "inputs": {"in": blob}}, expect=201, token=token)
    created = await served.ingot.credentials.create_worker_credential(None, "press")
    press = {"x-worker-id": "press", "x-worker-secret": created.secret}
    response = await served.client.post("/api/v1/jobs/claim", headers=press, json={"types": ["noop"]})
    (claimed,) = response.json()["jobs"]
    path, fence = f"/api/v1/jobs/{job['id']}", {"fence": claimed["fence"]}
    download = await served.client.post(f"{path}/downloads", headers=press, json={**fence, "name": "in"})
    assert await read(download.json()["url"]) == SMALL
    plan = await served.client.post(f"{path}/uploads", headers=press, json={**fence, "name": "out", "size": 4})
    assert plan.status_code == 201, plan.text
    assert (await send(plan.json(), b"made")).is_success
    complete = f"{path}/uploads/{plan.json()['upload']['id']}/complete"
    assert (await served.client.post(complete, headers=press, json=fence)).status_code == 200
    await served.client.post(f"{path}/complete", headers=press, json={**fence, "outputs": ["out"]})
    assert [file[:2] for file in await list_files(served, job, token=token)] == [("input", "in"), ("output", "out")]


async def test_a_worker_cannot_use_files_of_a_job_that_another_worker_runs(served: Served) -> None:
    await served.make_job()
    claimed = await served.claim()
    created = await served.ingot.credentials.create_worker_credential(None, "other")
    headers = {"x-worker-id": "other", "x-worker-secret": created.secret}
    for step, body in (("downloads", {"name": "in"}), ("uploads", {"name": "x", "size": 1})):
        response = await served.client.post(
            f"/api/v1/jobs/{claimed['id']}/{step}", headers=headers, json={"fence": claimed["fence"], **body}
        )
        assert (response.status_code, response.json()["code"]) == (409, "lease_lost")


# -- invalid requests ---------------------------------------------------------------------------------------

WRONG_ORDERS: list[tuple[Json, int, str]] = [
    ({"inputs": ["x"]}, 422, "invalid_input"),
    ({"inputs": {"a": "x"}}, 422, "invalid_input"),
    ({"inputs": {"a/b": "0" * 64}}, 422, "invalid_input"),
    ({"inputs": {"": "0" * 64}}, 422, "invalid_input"),
    ({"inputs": {"x" * 256: "0" * 64}}, 422, "invalid_input"),
    ({"inputs": {f"{n}": "0" * 64 for n in range(INPUTS_MAX + 1)}}, 422, "invalid_input"),
    ({"inputs": {"a": "0" * 64}}, 404, "blob_not_found"),
    ({"payload_blob": "x"}, 422, "invalid_input"),
    ({"payload_blob": "0" * 64, "payload": 1}, 422, "invalid_input"),
    ({"uploads": [{"name": "a"}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a", "size": -1}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a", "size": 2**62}]}, 413, "blob_too_large"),
    ({"uploads": [{"name": "..", "size": 1}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a\x00", "size": 1}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a", "size": 1, "blob_id": "x"}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a", "size": 1, "sha256": "x"}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a", "size": 1, "key": "x"}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a", "size": 1, "data": "not base64"}]}, 422, "invalid_input"),
    ({"uploads": [{"name": "a", "size": 1, "data": "AAAA"}]}, 422, "wrong_length"),
    ({"uploads": [{"name": "a", "size": 3, "data": "AAAA", "blob_id": "0" * 64}]}, 422, "wrong_digest"),
    ({"uploads": [{"name": "a", "size": 3, "data": "AAAA", "sha256": "0" * 64}]}, 422, "wrong_digest"),
    ({"uploads": [{"name": "a", "size": 3 * 2**13, "data": "AAAA" * 2**13}]}, 422, "invalid_input"),
    (
        {"uploads": [{"name": "a", "size": 3, "data": "AAAA"}, {"name": "b", "size": 1, "data": "AAAA"}]},
        422,
        "wrong_length",
    ),
    ({"uploads": [{"name": "a", "size": 1}, {"name": "a", "size": 1}]}, 422, "invalid_input"),
    ({"uploads": [{"name": f"{n}", "size": 1} for n in range(INPUTS_MAX + 1)]}, 422, "invalid_input"),
]


@on_one_server(("order", "status", "code"), WRONG_ORDERS)
async def test_an_invalid_order_is_rejected_and_leaves_nothing(
    served: Served, order: Json, status: int, code: str
) -> None:
    await expect_refusal(served, "/jobs", {"type": "noop", **order}, status, code)
    assert (await served.call("GET", "/jobs")).json()["items"] == []
    assert (await served.ingot.blobs.metrics()).uploads == 0


WRONG_STEPS: list[tuple[str, Json, int, str]] = [
    ("downloads", {"name": "other"}, 404, "file_not_found"),
    ("downloads", {"kind": "payload"}, 404, "file_not_found"),
    ("downloads", {"kind": "output", "name": "in"}, 422, "invalid_input"),
    ("downloads", {"kind": "checkpoint", "name": "in"}, 404, "file_not_found"),
    ("uploads", {"size": 1}, 422, "invalid_input"),
    ("uploads", {"size": 1, "name": "a/b"}, 422, "invalid_input"),
    ("uploads", {"size": 1, "name": "a", "kind": "input"}, 422, "invalid_input"),
    ("uploads", {"size": 2**62, "name": "a"}, 413, "blob_too_large"),
    ("uploads", {"size": 1, "kind": "checkpoint"}, 422, "invalid_input"),
    ("uploads", {"size": CHECKPOINT_BYTES_MAX + 1, "name": "a", "kind": "checkpoint"}, 422, "invalid_input"),
    ("uploads", {"name": "a"}, 422, "invalid_input"),
    ("uploads", {"name": "a", "size": 2, "data": "eA=="}, 422, "wrong_length"),
    ("uploads", {"name": "a", "size": 1, "data": "eA==", "blob_id": "0" * 64}, 422, "wrong_digest"),
    ("uploads", {"name": "a", "size": 1, "data": "no base64"}, 422, "invalid_input"),
    ("uploads", {"name": "a", "size": 16385, "data": "AAAA" * 5461 + "AAA="}, 422, "invalid_input"),
    ("uploads/x/complete", {}, 404, "upload_not_found"),
    (f"uploads/{UNKNOWN_ID}/complete", {}, 404, "upload_not_found"),
    (f"uploads/{UNKNOWN_ID}/parts", {"parts": [part()]}, 404, "upload_not_found"),
    ("complete", {"outputs": ["a/b"]}, 422, "invalid_input"),
    ("complete", {"outputs": ["never"]}, 409, "output_missing"),
]


@pytest.mark.parametrize(("step", "body", "status", "code"), WRONG_STEPS)
async def test_an_invalid_file_request_is_rejected(
    served: Served, step: str, body: Json, status: int, code: str
) -> None:
    blob = await put_key(served, "k", SMALL)
    job = await served.make_job(inputs={"in": blob})
    claimed = await served.claim()
    await expect_refusal(served, f"/jobs/{job['id']}/{step}", {"fence": claimed["fence"], **body}, status, code)
    assert (await served.call("GET", f"/jobs/{job['id']}")).json()["status"] == "running"
    assert (await served.ingot.blobs.metrics()).uploads == 0


async def test_an_input_with_a_wrong_digest_cancels_its_job(served: Served) -> None:
    upload = {"name": "in.bin", "size": 5, "blob_id": "0" * 64}
    job = await served.make_job(uploads=[upload])
    (plan,) = job["uploads"]
    await send(plan, SMALL)
    await expect_refusal(served, f"/blobs/uploads/{plan['upload']['id']}/complete", {}, 422, "wrong_digest")
    canceled = (await served.call("GET", f"/jobs/{job['id']}")).json()
    assert canceled["status"] == "canceled"
    assert "in.bin" in canceled["last_error"]
    await expect_refusal(served, f"/jobs/{job['id']}/retry", {}, 404, "file_not_found")


async def test_an_upload_cannot_be_completed_for_another_job(served: Served) -> None:
    await served.make_job()
    await served.make_job()
    first, second = await served.claim(), await served.claim()
    order = {"fence": first["fence"], "name": "x", "size": 5}
    plan = await post(served, f"/jobs/{first['id']}/uploads", order, expect=201)
    path = f"/jobs/{second['id']}/uploads/{plan['upload']['id']}/complete"
    await expect_refusal(served, path, {"fence": second["fence"]}, 404, "upload_not_found")


async def test_a_settle_entry_fails_if_its_output_is_missing(served: Served) -> None:
    await asyncio.gather(served.make_job(), served.make_job())
    first, second = await served.claim(), await served.claim()
    await upload_output(served, first, "out", SMALL)
    entries = [
        {"id": job["id"], "fence": job["fence"], "outcome": "succeeded", "outputs": ["out"]} for job in (first, second)
    ]
    responses = (await post(served, "/jobs/settle", {"jobs": entries}))["jobs"]
    assert [response.get("status") or response["code"] for response in responses] == ["succeeded", "output_missing"]


async def test_inline_bytes_that_are_damaged_are_not_returned(served: Served) -> None:
    downloads = Downloads(served.ingot.signer, None, served.ingot.blobs.counters, public_url=None)
    content = inline_content(SMALL)
    assert downloads.inline_bytes(content) == SMALL
    assert downloads.inline_bytes(msgspec.structs.replace(content, inline=b"rotten")) is None
    assert downloads.inline_bytes(msgspec.structs.replace(content, inline=None)) is None


async def test_a_damaged_input_gets_no_signed_url(served: Served) -> None:
    blob = await put_key(served, "k", DATA)
    job = await served.make_job(inputs={"in": blob})
    claimed = await served.claim()
    opened, _ = await served.ingot.blobs.open_blob(served.ingot.default_tenant.id, blob)
    await served.ingot.object_store.delete(TrashedObject(storage_key=opened.content.storage_key or ""))
    assert (await served.call("POST", f"/blobs/{blob}/verify")).json()["whole"] is False
    query = {"fence": claimed["fence"], "name": "in"}
    await expect_refusal(served, f"/jobs/{job['id']}/downloads", query, 500, "blob_damaged")
    assert (await served.call("GET", f"/blobs/{blob}/url")).json()["code"] == "blob_damaged"
