"""Jobs over HTTP: creating, claiming, settling, listing and counting them."""

from __future__ import annotations

import asyncio

import pytest

from ingot.identity.grants import Grant
from tests.http.serving import Served
from tests.waiting import eventually


async def test_a_job_is_created_claimed_and_completed(served: Served) -> None:
    created = await served.make_job(payload={"a": [1, 2.5]}, tags=["red"], priority=1)
    assert (created["status"], created["payload"], created["tags"], created["priority"]) == (
        "queued",
        {"a": [1, 2.5]},
        ["red"],
        1,
    )
    claimed = await served.claim()
    assert (claimed["id"], claimed["status"], claimed["timeout_seconds"]) == (created["id"], "running", 3600)
    assert claimed["lease_expires_at"]
    heartbeat = await served.call(
        "POST",
        f"/jobs/{created['id']}/heartbeat",
        json={"fence": claimed["fence"], "progress": {"percent": 40, "stage": "reading"}},
    )
    assert heartbeat.json()["cancel_requested"] is False
    done = await served.call(
        "POST", f"/jobs/{created['id']}/complete", json={"fence": claimed["fence"], "result": {"pages": 3}}
    )
    assert (done.status_code, done.json()["status"], done.json()["result"]) == (200, "succeeded", {"pages": 3})
    (attempt,) = (await served.call("GET", f"/jobs/{created['id']}/attempts")).json()["items"]
    assert (attempt["outcome"], attempt["worker_id"]) == ("succeeded", "w")
    names = [event["name"] for event in (await served.call("GET", "/events")).json()["items"]]
    assert names == ["job.created", "job.started", "job.updated", "job.completed"]


async def test_the_idempotency_key_can_be_in_the_header_or_the_body_but_not_differ(served: Served) -> None:
    body = {"type": "noop", "payload": 1}
    headers = {"idempotency-key": "once"}
    first = await served.call("POST", "/jobs", json=body, headers=headers)
    again = await served.call("POST", "/jobs", json={**body, "idempotency_key": "once"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = await served.call("POST", "/jobs", json={**body, "payload": 2}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    both = await served.call("POST", "/jobs", json={**body, "idempotency_key": "twice"}, headers=headers)
    assert both.status_code == 422


async def test_a_batch_is_created_whole_or_not_at_all(served: Served) -> None:
    jobs = [{"type": "noop", "payload": n, "batch": "b"} for n in range(5)]
    created = await served.call("POST", "/jobs/batch", json={"jobs": jobs})
    assert created.status_code == 201
    assert [item["job"]["payload"] for item in created.json()["jobs"]] == [0, 1, 2, 3, 4]
    bad = await served.call("POST", "/jobs/batch", json={"jobs": [*jobs, {"type": ""}]})
    assert bad.status_code == 422
    assert (await served.call("GET", "/batches/b")).json()["total"] == 5


async def test_a_job_is_changed_canceled_and_retried(served: Served) -> None:
    job = await served.make_job()
    changed = await served.call("PATCH", f"/jobs/{job['id']}", json={"priority": 5, "tags": ["late"]})
    assert (changed.json()["priority"], changed.json()["tags"]) == (5, ["late"])
    assert (await served.call("POST", f"/jobs/{job['id']}/cancel")).json()["status"] == "canceled"
    again = await served.call("POST", f"/jobs/{job['id']}/retry", json={"priority": 2})
    assert (again.json()["status"], again.json()["priority"]) == ("queued", 2)
    explanation = (await served.call("GET", f"/jobs/{job['id']}/explain")).json()
    assert explanation["reasons"][0]["message"]


async def test_a_cursor_continues_the_list_and_fits_only_its_filter(served: Served) -> None:
    created = [(await served.make_job(payload=n))["id"] for n in range(5)]
    first = (await served.call("GET", "/jobs", params={"limit": 3})).json()
    second = (await served.call("GET", "/jobs", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [job["id"] for job in [*first["items"], *second["items"]]] == created[::-1]
    assert second["next_cursor"] is None
    bad = await served.call("GET", "/jobs", params={"status": "queued", "cursor": first["next_cursor"]})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_cursor")


async def test_each_settle_entry_has_its_own_result(served: Served) -> None:
    for _ in range(4):
        await served.make_job()
    response = await served.call("POST", "/jobs/claim", json={"worker_id": "w", "types": ["noop"], "limit": 4})
    first, second, third, fourth = response.json()["jobs"]
    settled = await served.call(
        "POST",
        "/jobs/settle",
        json={
            "jobs": [
                {"outcome": "succeeded", "id": first["id"], "fence": first["fence"], "result": 7},
                {"outcome": "failed", "id": second["id"], "fence": second["fence"], "error": "broken", "retry": False},
                {"outcome": "snoozed", "id": third["id"], "fence": third["fence"], "seconds": 60},
                {"outcome": "released", "id": fourth["id"], "fence": fourth["fence"]},
                {"outcome": "released", "id": fourth["id"], "fence": fourth["fence"] + 1},
            ]
        },
    )
    results = [result.get("status") or result["code"] for result in settled.json()["jobs"]]
    assert results == ["succeeded", "dead", "queued", "queued", "lease_lost"]


async def test_a_failure_can_be_reported_as_a_timeout(served: Served) -> None:
    for path in ("fail", "settle"):
        job = await served.make_job()
        claimed = await served.claim()
        failure = {"fence": claimed["fence"], "error": "too slow", "timed_out": True}
        if path == "fail":
            await served.call("POST", f"/jobs/{job['id']}/fail", json=failure)
        else:
            entry = {"outcome": "failed", "id": job["id"], **failure}
            await served.call("POST", "/jobs/settle", json={"jobs": [entry]})
        (attempt,) = (await served.call("GET", f"/jobs/{job['id']}/attempts")).json()["items"]
        assert (attempt["outcome"], attempt["status_after"]) == ("timed_out", "queued")
        await served.call("POST", f"/jobs/{job['id']}/cancel")


async def test_an_explanation_names_the_caller_that_canceled_a_job(served: Served) -> None:
    job = await served.make_job()
    token = await served.token(Grant(action="jobs.*"))
    created_by = (await served.call("POST", "/jobs", json={"type": "noop"}, token=token)).json()["created_by"]
    await served.call("POST", f"/jobs/{job['id']}/cancel", token=token)
    (reason,) = (await served.call("GET", f"/jobs/{job['id']}/explain", token=token)).json()["reasons"]
    assert (reason["code"], reason["data"]["canceled_by"]) == ("finished", created_by)


async def test_an_explanation_names_only_workers_that_the_caller_may_see(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    await served.ingot.workers.register(served.ingot.default_tenant.id, "press/1", ["pdf"])
    await served.ingot.workers.register(other.id, "press/2", ["noop"])
    job = await served.make_job()
    readers = {
        "narrow": await served.token(Grant(action="jobs.read", resource="jobs/noop")),
        "tenant": await served.token(Grant(action="jobs.read"), Grant(action="workers.read")),
        "operator": served.operator,
    }
    names = {}
    for reader, token in readers.items():
        text = (await served.call("GET", f"/jobs/{job['id']}/explain", token=token)).text
        names[reader] = [name for name in ("pdf", "press/1", "press/2") if name in text]
    assert names == {"narrow": [], "tenant": ["pdf"], "operator": ["pdf", "press/2"]}


async def test_an_invalid_settle_entry_does_not_affect_the_others(served: Served) -> None:
    await served.make_job()
    claimed = await served.claim()
    mine = {"id": claimed["id"], "fence": claimed["fence"]}
    entries = [
        {**mine, "outcome": "released", "fence": 0},
        {**mine, "outcome": "released", "fence": 2**70},
        {**mine, "outcome": "succeeded", "outputs": [f"{number}.txt" for number in range(1001)]},
        {**mine, "outcome": "snoozed", "seconds": -1},
        {**mine, "outcome": "succeeded"},
    ]
    results = (await served.call("POST", "/jobs/settle", json={"jobs": entries})).json()["jobs"]
    codes = ["lease_lost", "lease_lost", "invalid_input", "invalid_input", "succeeded"]
    assert [result.get("status") or result["code"] for result in results] == codes


async def test_a_request_with_a_stale_fence_changes_nothing(served: Served) -> None:
    await served.make_job()
    claimed = await served.claim()
    for path, more in (("complete", {}), ("fail", {"error": "x"}), ("release", {}), ("snooze", {"seconds": 1})):
        response = await served.call(
            "POST", f"/jobs/{claimed['id']}/{path}", json={"fence": claimed["fence"] + 1, **more}
        )
        assert (response.status_code, response.json()["code"]) == (409, "lease_lost")
    assert (await served.call("GET", f"/jobs/{claimed['id']}")).json()["status"] == "running"


async def test_a_waiting_claim_is_woken_by_a_job(served: Served) -> None:
    waiting = asyncio.create_task(served.claim(wait_seconds=60))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    job = await served.make_job()
    async with asyncio.timeout(30):
        assert (await waiting)["id"] == job["id"]
    nothing = await served.call("POST", "/jobs/claim", json={"worker_id": "w", "types": ["noop"], "wait_seconds": 0.05})
    assert (nothing.status_code, nothing.content) == (204, b"")


async def test_a_waiting_claim_whose_client_disconnects_takes_no_job(served: Served) -> None:
    waiting = asyncio.create_task(served.claim(wait_seconds=60))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await eventually(lambda: served.ingot.jobs.waiting_claims == 0)
    job = await served.make_job()
    assert (await served.claim())["id"] == job["id"]
    assert (await served.call("GET", f"/jobs/{job['id']}")).json()["attempts"] == 1


async def test_waiting_claims_get_an_empty_response_when_the_server_stops(served: Served) -> None:
    claim = {"worker_id": "w", "types": ["noop"], "wait_seconds": 60}
    waiting = [asyncio.create_task(served.call("POST", "/jobs/claim", json=claim)) for _ in range(3)]
    await eventually(lambda: served.ingot.jobs.waiting_claims == 3)
    served.server.stop()
    async with asyncio.timeout(30):
        assert [(await claiming).status_code for claiming in waiting] == [204] * 3


async def test_a_grant_for_one_type_hides_jobs_of_other_types(served: Served) -> None:
    token = await served.token(
        Grant(action="jobs.*", resource="jobs/pdf"), Grant(action="workers.run", resource="jobs/pdf")
    )
    own = (await served.call("POST", "/jobs", token=token, json={"type": "pdf"})).json()
    other = await served.make_job()
    assert (await served.call("POST", "/jobs", token=token, json={"type": "noop"})).status_code == 403
    assert (await served.call("GET", f"/jobs/{own['id']}", token=token)).status_code == 200
    for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/attempts"), ("GET", "/explain")):
        hidden = await served.call(method, f"/jobs/{other['id']}{path}", token=token)
        assert (hidden.status_code, hidden.json()["code"]) == (404, "job_not_found")
    assert (await served.call("GET", "/jobs", token=token)).status_code == 403
    assert len((await served.call("GET", "/jobs", token=token, params={"type": "pdf"})).json()["items"]) == 1
    claim = {"worker_id": "w", "types": ["noop"]}
    assert (await served.call("POST", "/jobs/claim", token=token, json=claim)).status_code == 403


@pytest.mark.parametrize("kind", ["tenant", "shared"])
async def test_a_worker_credential_claims_and_completes_jobs_until_it_is_disabled(served: Served, kind: str) -> None:
    created = await served.call(
        "POST", "/admin/workers", json={"id": "press", "types": ["noop"], "shared": kind == "shared"}
    )
    assert created.status_code == 201, created.text
    headers = {"x-worker-id": "press/host-1", "x-worker-secret": created.json()["secret"]}
    tenant = {"ingot-tenant": "other" if kind == "shared" else "default"}
    await served.call("POST", "/admin/tenants", json={"slug": "other"})
    job = (await served.call("POST", "/jobs", json={"type": "noop"}, headers=tenant)).json()
    client = served.client
    claimed = await client.post("/api/v1/jobs/claim", headers=headers, json={"types": ["noop"]})
    (own,) = claimed.json()["jobs"]
    assert (own["id"], own["worker_id"]) == (job["id"], "press/host-1")
    done = await client.post(f"/api/v1/jobs/{job['id']}/complete", headers=headers, json={"fence": own["fence"]})
    assert done.json()["status"] == "succeeded"
    for body in ({"types": ["other"]}, {"types": ["noop"], "worker_id": "other"}):
        assert (await client.post("/api/v1/jobs/claim", headers=headers, json=body)).status_code == 403
    assert (await client.get("/api/v1/jobs", headers=headers)).status_code == 403
    again = (await served.call("POST", "/jobs", json={"type": "noop"}, headers=tenant)).json()
    (running,) = (await client.post("/api/v1/jobs/claim", headers=headers, json={"types": ["noop"]})).json()["jobs"]
    await served.call("POST", "/admin/workers/press/disable")
    released = (await served.call("GET", f"/jobs/{again['id']}", headers=tenant)).json()
    assert (running["id"], released["status"], released["failures"], released["crashes"]) == (
        again["id"],
        "queued",
        0,
        0,
    )
    rejected = await client.post("/api/v1/jobs/claim", headers=headers, json={"types": ["noop"]})
    assert rejected.status_code == 401


async def test_a_worker_settles_only_jobs_that_it_claimed_itself(served: Served) -> None:
    workers = {}
    for name in ("press", "other"):
        created = await served.call("POST", "/admin/workers", json={"id": name, "shared": True})
        workers[name] = {"x-worker-id": f"{name}/1", "x-worker-secret": created.json()["secret"]}
    job = await served.make_job()
    post = served.client.post
    (own,) = (await post("/api/v1/jobs/claim", headers=workers["press"], json={"types": ["noop"]})).json()["jobs"]
    for path, body in (
        ("heartbeat", {}),
        ("complete", {}),
        ("fail", {"error": "x"}),
        ("release", {}),
        ("snooze", {"seconds": 1}),
    ):
        response = await post(
            f"/api/v1/jobs/{job['id']}/{path}", headers=workers["other"], json={"fence": own["fence"], **body}
        )
        assert (response.status_code, response.json()["code"]) == (409, "lease_lost")
    entry = {"id": job["id"], "fence": own["fence"], "outcome": "succeeded"}
    results = (await post("/api/v1/jobs/settle", headers=workers["other"], json={"jobs": [entry]})).json()["jobs"]
    assert [result.get("code") for result in results] == ["lease_lost"]
    done = await post(f"/api/v1/jobs/{job['id']}/complete", headers=workers["press"], json={"fence": own["fence"]})
    assert done.json()["status"] == "succeeded"


async def test_a_summary_has_the_filters_of_a_list(served: Served) -> None:
    for type, tags in (("a", ["red"]), ("a", []), ("b", ["red"])):
        await served.make_job(type=type, tags=tags)
    for query, jobs in (({}, 3), ({"type": "a"}, 2), ({"tag": "red"}, 2), ({"type": "a", "tag": "red"}, 1)):
        response = (await served.call("GET", "/jobs/summary", params=query)).json()
        assert (response["counts"]["queued"], response["more"]) == (jobs, False), query
    early = {"created_before": "2020-01-01T00:00:00Z", "status": "queued", "source": "manual"}
    assert (await served.call("GET", "/jobs/summary", params=early)).json()["counts"] == {"queued": 0}
    assert (await served.call("GET", "/jobs/summary", params={"cursor": "x"})).status_code == 422


async def test_a_summary_of_one_type_needs_a_grant_for_it(served: Served) -> None:
    await served.make_job(type="a")
    token = await served.token(Grant(action="jobs.read", resource="jobs/a"))
    own = await served.call("GET", "/jobs/summary", token=token, params={"type": "a"})
    assert own.json()["counts"]["queued"] == 1
    for query in ({}, {"type": "b"}, {"tag": "red"}):
        assert (await served.call("GET", "/jobs/summary", token=token, params=query)).status_code == 403
