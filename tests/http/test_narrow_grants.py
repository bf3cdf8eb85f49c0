"""A grant on one resource reveals nothing about others: no name, no number, no existence, and no bytes."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from blake3 import blake3

from ingot.http.routes import PREFIX
from ingot.identity.credentials import TokenLimits
from ingot.identity.grants import Grant
from ingot.identity.model import Limits
from ingot.jobs.model import Definition
from ingot.kernel.ids import new_id
from ingot.wire.protocol import PROTOCOL
from tests.http.event_follower import follow_events
from tests.http.serving import Served

JSON = dict[str, Any]
FAR = datetime(2099, 1, 1, tzinfo=UTC)


async def put_key(served: Served, key: str, body: bytes = b"x", token: str | None = None) -> JSON:
    response = await served.call("PUT", f"/keys/{key}", content=body, token=token)
    assert response.status_code == 201
    return msgspec.json.decode(response.content, type=JSON)


async def refusal(served: Served, path: str, token: str | None = None) -> tuple[int, str]:
    response = await served.call("GET", path, token=token)
    return response.status_code, response.json()["code"]


# -- cursors ------------------------------------------------------------------------------------------------


async def test_a_cursor_reveals_nothing_and_cannot_be_forged_or_used_elsewhere(served: Served) -> None:
    for key in ("docs/a", "docs/b", "docs/c"):
        await put_key(served, key)
    reader = await served.token(Grant(action="blobs.read"))
    cursor = (await served.call("GET", "/keys?limit=1", token=reader)).json()["next_cursor"]
    assert b"docs" not in base64.urlsafe_b64decode(cursor + "==")
    rest = (await served.call("GET", f"/keys?cursor={cursor}", token=reader)).json()
    assert [key["key"] for key in rest["items"]] == ["docs/b", "docs/c"]

    other = await served.token(Grant(action="blobs.read"))
    unsealed = base64.urlsafe_b64encode(b'[1,"000000000000","docs/a"]').decode()
    changed = cursor[:20] + ("A" if cursor[20] != "A" else "B") + cursor[21:]
    for text in (changed, cursor[:-4], f"{cursor}AAAA", unsealed, "x", "é"):
        assert await refusal(served, f"/keys?cursor={text}", reader) == (422, "invalid_cursor")
    for path, token in (
        (f"/keys?cursor={cursor}", other),
        (f"/keys?cursor={cursor}", None),
        (f"/keys?prefix=docs&cursor={cursor}", reader),
        (f"/jobs?cursor={cursor}", None),
    ):
        assert await refusal(served, path, token) == (422, "invalid_cursor")


async def test_a_list_of_keys_is_the_same_whatever_keys_the_caller_may_not_see(served: Served) -> None:
    """Names that begin with the same letters are not covered: a grant covers whole segments."""
    token = await served.token(Grant(action="blobs.read", resource="keys/docs"))

    async def pages() -> list[tuple[list[str], bool]]:
        shown: list[tuple[list[str], bool]] = []
        cursor = ""
        while True:
            page = (await served.call("GET", f"/keys?prefix=docs&limit=2{cursor}", token=token)).json()
            shown.append(([key["key"] for key in page["items"]], page["next_cursor"] is None))
            if page["next_cursor"] is None:
                return shown
            cursor = f"&cursor={page['next_cursor']}"

    for key in ("docs", "docs.a", "docs/b", "docs/c", "docs/d"):
        await put_key(served, key)
    before = await pages()
    assert [name for names, _ in before for name in names] == ["docs", "docs.a", "docs/b", "docs/c", "docs/d"]
    for key in ("docs!", "docs-1", "docs0", "docsecret", "docsecret/x", "other"):
        await put_key(served, key)
    assert await pages() == before


# -- events -------------------------------------------------------------------------------------------------


async def test_event_ids_do_not_reveal_how_much_other_tenants_do(served: Served) -> None:
    ids = []
    for _ in range(3):
        ids.append((await served.call("POST", "/events", json={"name": "order.paid"})).json()["id"])
    positions = [event.id for event in await served.ingot.events.read(served.ingot.default_tenant.id)]
    assert len({len(event_id) for event_id in ids}) == 1
    assert all(len(set(zip(ids[0], other, strict=True))) > len(other) / 2 for other in ids[1:])
    for position in positions:
        assert await refusal(served, f"/events?after={position}") == (422, "invalid_cursor")
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    assert await refusal(served, f"/events?after={ids[0]}", token) == (422, "invalid_cursor")
    assert await refusal(served, f"/events/stream?after={ids[0]}", token) == (422, "invalid_cursor")
    page = (await served.call("GET", f"/events?after={ids[0]}")).json()
    assert [event["id"] for event in page["items"]] == ids[1:]


async def test_a_list_of_events_is_the_same_whatever_events_the_caller_may_not_see(served: Served) -> None:
    token = await served.token(Grant(action="events.read", resource="events/order"))

    async def publish(name: str) -> None:
        assert (await served.call("POST", "/events", json={"name": name})).status_code == 201

    async def read(after: str = "") -> JSON:
        page: JSON = (await served.call("GET", f"/events?limit=2{after}", token=token)).json()
        return page

    await publish("order.paid")
    await publish("order.paid")
    first = await read()
    after = f"&after={first['next_cursor']}"
    assert (len(first["items"]), (await read(after))["items"]) == (2, [])
    end = (await read(after))["next_cursor"]
    for _ in range(5):
        await publish("salary.paid")
    assert await read() == first
    assert await read(after) == {"items": [], "next_cursor": end}
    await publish("order.sent")
    assert [event["name"] for event in (await read(after))["items"]] == ["order.sent"]


@pytest.mark.parametrize("reads_keys", [False, True])
async def test_events_of_blobs_are_shown_only_to_callers_that_may_read_them(served: Served, reads_keys: bool) -> None:
    grants = [Grant(action="events.read")]
    if reads_keys:
        grants.append(Grant(action="blobs.read", resource="keys/docs"))
    token = await served.token(*grants)
    async with follow_events(served, token=token) as follower:
        for key in ("salaries/ada", "docs/a"):
            await put_key(served, key, key.encode())
            assert (await served.call("DELETE", f"/keys/{key}")).status_code == 200
        await served.call("POST", "/events", json={"name": "the.end"})
        await follower.until(lambda follower: follower.events and follower.events[-1].event == "the.end")
    expected = [("blob.stored", "docs/a"), ("blob.deleted", "docs/a")] if reads_keys else []
    listed = (await served.call("GET", "/events", token=token)).json()["items"]
    streamed = [frame.data for frame in follower.events]
    for events in (listed, streamed):
        shown = [(event["name"], event["data"]["key"]) for event in events if event["name"].startswith("blob.")]
        assert shown == expected
    assert "salaries" not in str(listed) + str(streamed)


# -- blobs: an ID grants nothing ----------------------------------------------------------------------------

SECRET = b"the salary list"
SECRET_ID = blake3(SECRET).hexdigest()
ABSENT_ID = blake3(b"never stored").hexdigest()


async def outsider(served: Served, *more: Grant) -> str:
    """A token that may create and read jobs of one type, upload and set keys in one folder, and nothing else."""
    return await served.token(
        Grant(action="jobs.create", resource="jobs/thumb"),
        Grant(action="jobs.read", resource="jobs/thumb"),
        Grant(action="blobs.write", resource="keys/public"),
        Grant(action="blobs.read", resource="keys/public"),
        *more,
    )


def order_with(blob_id: str, how: str) -> JSON:
    if how == "input":
        return {"type": "thumb", "inputs": {"a.txt": blob_id}}
    if how == "payload":
        return {"type": "thumb", "payload_blob": blob_id}
    return {"type": "thumb", "uploads": [{"name": "a.txt", "size": len(SECRET), "blob_id": blob_id}]}


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
@pytest.mark.parametrize("how", ["input", "payload"])
async def test_a_job_cannot_refer_to_a_blob_that_its_creator_cannot_read(served: Served, path: str, how: str) -> None:
    await put_key(served, "salaries/all", SECRET)
    token = await outsider(served)
    answers = []
    for blob_id in (SECRET_ID, ABSENT_ID):
        order = order_with(blob_id, how)
        body = order if path == "/jobs" else {"jobs": [order]}
        response = await served.call("POST", path, token=token, json=body)
        answers.append((response.status_code, response.json()["code"], response.json()["hint"]))
        assert response.json()["detail"] == f"there is no blob {blob_id!r} in this tenant"
    assert answers[0] == answers[1]
    assert answers[0][:2] == (404, "blob_not_found")
    reader = await outsider(served, Grant(action="blobs.read", resource="keys/salaries"))
    response = await served.call("POST", "/jobs", token=reader, json=order_with(SECRET_ID, how))
    assert response.status_code == 201


@pytest.mark.parametrize("upload", ["blob", "key", "input"])
async def test_an_upload_needs_the_bytes_if_its_sender_cannot_read_the_blob(served: Served, upload: str) -> None:
    await put_key(served, "salaries/all", SECRET)
    writer = Grant(action="blobs.write")
    token = await outsider(served, *([writer] if upload == "blob" else []))
    plans = []
    for blob_id in (SECRET_ID, ABSENT_ID):
        if upload == "input":
            response = await served.call("POST", "/jobs", token=token, json=order_with(blob_id, "upload"))
            plan = response.json()["uploads"][0]
        else:
            body = {
                "size": len(SECRET),
                "blob_id": blob_id,
                **({"key": f"public/{blob_id}"} if upload == "key" else {}),
            }
            response = await served.call("POST", "/blobs/uploads", token=token, json=body)
            plan = response.json()
        assert response.status_code == 201
        plans.append(plan)
    stored, absent = ({**plan, "upload": {**plan["upload"]}} for plan in plans)
    assert stored["upload"]["state"] == absent["upload"]["state"] == "open"
    assert stored.keys() == absent.keys()

    # Sending the bytes proves that the sender has them, and so the blob can be used.
    response = await served.client.put(plans[0]["url"], content=SECRET)
    assert response.status_code == 200
    done = await served.call("POST", f"/blobs/uploads/{plans[0]['upload']['id']}/complete", token=token, json={})
    assert (done.status_code, done.json()["upload"]["state"]) == (200, "done")
    order = await served.call("POST", "/jobs", token=token, json=order_with(SECRET_ID, "input"))
    assert order.status_code == 201


async def test_a_caller_that_cannot_read_jobs_is_not_answered_with_one_that_has_the_same_file(served: Served) -> None:
    await served.ingot.jobs.define(Definition(type="thumb", reuse=True))
    await put_key(served, "salaries/all", SECRET)
    first = await served.call("POST", "/jobs", json=order_with(SECRET_ID, "input"))
    assert first.status_code == 201
    token = await served.token(Grant(action="jobs.create", resource="jobs/thumb"))
    response = await served.call("POST", "/jobs", token=token, json=order_with(SECRET_ID, "upload"))
    assert (response.status_code, response.json()["status"]) == (201, "blocked")
    data = base64.b64encode(SECRET).decode()
    proven = order_with(SECRET_ID, "upload")
    proven["uploads"][0]["data"] = data
    response = await served.call("POST", "/jobs", token=token, json=proven)
    assert (response.status_code, response.json()["reused"]) == (200, True)


@pytest.mark.parametrize("kind", ["output", "checkpoint", "log"])
@pytest.mark.parametrize("caller", ["worker", "token"])
async def test_an_attempt_can_only_refer_to_files_of_its_job(served: Served, kind: str, caller: str) -> None:
    """Also with a worker whose token may read everything: its handler may be less trusted."""
    await put_key(served, "salaries/all", SECRET)
    job = (await served.call("POST", "/jobs", json={"type": "thumb", "inputs": {}})).json()
    headers: dict[str, str] = {}
    if caller == "worker":
        credential = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "w")
        headers = {"x-worker-id": "w", "x-worker-secret": credential.secret}

    async def post(path: str, body: JSON) -> JSON:
        if caller == "worker":
            response = await served.client.post(f"{PREFIX}{path}", json=body, headers=headers)
        else:
            response = await served.call("POST", path, json=body)
        assert response.status_code in (200, 201), response.text
        answer: JSON = response.json()
        return answer

    (claim,) = (await post("/jobs/claim", {"types": ["thumb"]}))["jobs"]
    assert claim["id"] == job["id"]
    body = {"fence": claim["fence"], "kind": kind, "name": "a.txt", "size": len(SECRET), "blob_id": SECRET_ID}
    plan = await post(f"/jobs/{job['id']}/uploads", body)
    assert plan["upload"]["state"] == "open"
    done = await post(f"/jobs/{job['id']}/uploads", {**body, "data": base64.b64encode(SECRET).decode()})
    assert done["upload"]["state"] == "done"
    if kind == "checkpoint":
        again = await post(f"/jobs/{job['id']}/uploads", {**body, "name": "copy"})
        assert again["upload"]["state"] == "done"


# -- jobs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
async def test_a_repeated_request_reveals_only_the_id_and_the_status_to_a_creator(served: Served, batch: bool) -> None:
    order = {"type": "thumb", "idempotency_key": "k", "payload": 1, "metadata": {"a": 1}, "tags": ["x"], "priority": 1}
    job = (await served.call("POST", "/jobs", json=order)).json()
    claim = (await served.call("POST", "/jobs/claim", json={"types": ["thumb"]})).json()["jobs"][0]
    body = {"fence": claim["fence"], "result": {"salary": 7}}
    assert (await served.call("POST", f"/jobs/{job['id']}/complete", json=body)).status_code == 200
    token = await served.token(Grant(action="jobs.create", resource="jobs/thumb"))
    same = {"type": "thumb", "idempotency_key": "k", "payload": 1}
    if batch:
        response = await served.call("POST", "/jobs/batch", token=token, json={"jobs": [same]})
        shown = response.json()["jobs"][0]["job"]
    else:
        response = await served.call("POST", "/jobs", token=token, json=same)
        shown = response.json()
        assert response.status_code == 200
    assert (shown["id"], shown["status"], shown["payload"]) == (job["id"], "succeeded", 1)
    hidden = ("result", "metadata", "created_by", "idempotency_key", "worker_id", "started_at", "finished_at")
    assert [shown[name] for name in hidden] == [None] * len(hidden)
    assert (shown["tags"], shown["attempts"], shown["fence"], shown["priority"]) == ([], 0, 0, 3)


async def test_a_dedupe_key_does_not_reveal_the_job_that_holds_it(served: Served) -> None:
    holder = (await served.call("POST", "/jobs", json={"type": "payroll", "dedupe_key": "k"})).json()
    token = await outsider(served, Grant(action="jobs.manage", resource="jobs/thumb"))
    order = {"type": "thumb", "dedupe_key": "k"}
    for path, body in (("/jobs", order), ("/jobs/batch", {"jobs": [order]})):
        response = await served.call("POST", path, token=token, json=body)
        assert (response.status_code, response.json()["code"]) == (409, "duplicate_job")
        assert holder["id"] not in response.text
        assert holder["id"] in (await served.call("POST", path, json=body)).text
    own = (await served.call("POST", "/jobs", token=token, json={**order, "dedupe_key": "own"})).json()
    assert own["id"] in (await served.call("POST", "/jobs", token=token, json={**order, "dedupe_key": "own"})).text


async def test_a_job_cannot_wait_for_a_job_that_its_creator_cannot_see(served: Served) -> None:
    hidden = (await served.call("POST", "/jobs", json={"type": "payroll"})).json()["id"]
    token = await outsider(served)
    answers = []
    for parent in (hidden, new_id()):
        body = {"type": "thumb", "after": [parent]}
        response = await served.call("POST", "/jobs", token=token, json=body)
        answers.append(response.json()["detail"].replace(parent, "ID"))
        assert (response.status_code, response.json()["code"]) == (422, "parent_not_found")
        response = await served.call("POST", "/jobs/batch", token=token, json={"jobs": [body]})
        assert (response.status_code, response.json()["code"]) == (422, "parent_not_found")
    assert answers[0] == answers[1]
    creator = await served.token(Grant(action="jobs.create"))
    own = (await served.call("POST", "/jobs", token=creator, json={"type": "payroll"})).json()["id"]
    response = await served.call("POST", "/jobs", token=creator, json={"type": "thumb", "after": [own]})
    assert response.status_code == 201


async def test_the_parents_that_are_checked_for_a_narrow_caller_are_limited(served: Served) -> None:
    token = await served.token(Grant(action="jobs.create", resource="jobs/thumb"))
    orders = [{"type": "thumb", "after": [new_id() for _ in range(101)]} for _ in range(10)]
    response = await served.call("POST", "/jobs/batch", token=token, json={"jobs": orders})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_input")
    assert "1000 other jobs" in response.json()["detail"]


async def test_an_explanation_does_not_reveal_the_state_of_other_jobs(served: Served) -> None:
    tenant = served.ingot.default_tenant.id
    parent = (await served.call("POST", "/jobs", json={"type": "payroll"})).json()["id"]
    child = (await served.call("POST", "/jobs", json={"type": "thumb", "after": [parent]})).json()["id"]
    waiting = (await served.call("POST", "/jobs", json={"type": "thumb"})).json()["id"]
    token = await outsider(served)
    blocked = (await served.call("GET", f"/jobs/{child}/explain", token=token)).json()["reasons"][0]
    assert (blocked["code"], "queued" in blocked["message"]) == ("waits_for", False)
    await served.ingot.tenants.change(tenant, limits=Limits(max_running_jobs=1))
    await served.call("POST", "/jobs/claim", json={"types": ["payroll"]})
    limited = (await served.call("GET", f"/jobs/{waiting}/explain", token=token)).json()["reasons"][0]
    assert (limited["code"], limited["data"]["holders"]) == ("tenant_limit", [])
    assert parent not in str(limited)
    assert parent in (await served.call("GET", f"/jobs/{waiting}/explain")).text


async def test_the_usage_of_the_tenant_needs_a_grant_for_all_blobs(served: Served) -> None:
    token = await served.token(Grant(action="blobs.read", resource="keys/public"))
    assert await refusal(served, "/usage", token) == (403, "forbidden")
    assert (await served.call("GET", "/usage?of=caller", token=token)).status_code == 200


# -- creating credentials -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "status", "expected"),
    [
        ({}, 201, {"rate": 50.0, "burst": 5}),
        ({"burst": 3}, 201, {"rate": 50.0, "burst": 3}),
        ({"rate": 40}, 201, {"rate": 40.0, "burst": 5}),
        ({"rate": 2}, 201, {"rate": 2.0}),
        ({"rate": 2, "burst": 5}, 201, {"rate": 2.0, "burst": 5}),
        ({"rate": 2, "burst": 6}, 403, None),
        ({"burst": 1000}, 403, None),
        ({"rate": 51}, 403, None),
    ],
)
async def test_a_created_token_has_no_larger_burst(
    served: Served, limits: JSON, status: int, expected: JSON | None
) -> None:
    token = await served.token(Grant(action="admin.*"), limits=TokenLimits(rate=50, burst=5))
    body = {"description": "x", "grants": [{"action": "admin.audit"}], "limits": limits}
    response = await served.call("POST", "/admin/tokens", token=token, json=body)
    assert (response.status_code, response.json().get("limits")) == (status, expected)


@pytest.mark.parametrize(
    "bound", [{"limits": TokenLimits(rate=50)}, {"limits": TokenLimits(quota_bytes=9)}, {"expires_at": FAR}]
)
async def test_a_bounded_caller_cannot_create_the_unbounded_secret_of_a_worker(served: Served, bound: JSON) -> None:
    grants = (Grant(action="admin.*"), Grant(action="workers.run"))
    await served.call("POST", "/admin/workers", json={"id": "old"})
    for options, status in ((bound, 403), ({}, 201)):
        token = await served.token(*grants, **options)
        created = await served.call("POST", "/admin/workers", token=token, json={"id": "press"})
        regenerated = await served.call("POST", "/admin/workers/old/regenerate", token=token)
        assert (created.status_code, regenerated.status_code) == (status, 200 if status == 201 else status)


# -- limits and workers -------------------------------------------------------------------------------------


async def test_a_limit_of_the_tenant_does_not_reveal_how_much_of_it_others_use(served: Served) -> None:
    await put_key(served, "salaries/all", SECRET)
    await served.call("POST", "/jobs", json={"type": "payroll"})
    limits = Limits(quota_bytes=len(SECRET) + 1, max_unfinished_jobs=2)
    await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=limits)
    token = await outsider(served)
    answers = []
    for caller in (token, None):
        stored = await served.call("PUT", "/keys/public/a", token=caller, content=b"more than is left")
        created = await served.call("POST", "/jobs/batch", token=caller, json={"jobs": [{"type": "thumb"}] * 2})
        assert (stored.json()["code"], created.json()["code"]) == ("quota_exceeded", "job_limit_exceeded")
        answers.append((stored.json().get("usage_bytes"), "ingot-usage-bytes" in stored.headers, " 1 " in created.text))
        shown = f"{stored.json()['detail']} {created.json()['detail']}"
        assert any(character.isdigit() for character in shown.replace("17 bytes", "")) is (caller is None)
    assert answers == [(None, False, False), (len(SECRET), True, True)]


async def test_a_token_cannot_tell_a_worker_of_another_caller_from_a_missing_one(served: Served) -> None:
    await served.call("POST", "/workers", json={"id": "press", "types": ["thumb"], "protocol": PROTOCOL})
    token = await served.token(Grant(action="workers.run", resource="jobs/thumb"))
    for method, path, body in (("POST", "/heartbeat", {"jobs": []}), ("POST", "/drain", None), ("DELETE", "", None)):
        answers = []
        for name in ("press", "absent"):
            response = await served.call(method, f"/workers/{name}{path}", token=token, json=body)
            answers.append((response.status_code, response.json()["detail"].replace(name, "ID")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 404
