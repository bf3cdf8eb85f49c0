"""Jobs over HTTP: what a request says is what the room does."""

from __future__ import annotations

import asyncio

import pytest

from ingot.identity.grants import Grant
from tests.http.serving import Served
from tests.waiting import eventually


async def test_a_job_is_made_run_and_seen(served: Served) -> None:
    made = await served.make_job(payload={"a": [1, 2.5]}, tags=["red"], priority=1)
    assert (made["status"], made["payload"], made["tags"], made["priority"]) == ("queued", {"a": [1, 2.5]}, ["red"], 1)
    claimed = await served.claim()
    assert (claimed["id"], claimed["status"], claimed["timeout_seconds"]) == (made["id"], "running", 3600)
    assert claimed["lease_expires_at"]
    beat = await served.call(
        "POST",
        f"/jobs/{made['id']}/heartbeat",
        json={"fence": claimed["fence"], "progress": {"percent": 40, "stage": "reading"}},
    )
    assert beat.json()["cancel_requested"] is False
    done = await served.call(
        "POST", f"/jobs/{made['id']}/complete", json={"fence": claimed["fence"], "result": {"pages": 3}}
    )
    assert (done.status_code, done.json()["status"], done.json()["result"]) == (200, "succeeded", {"pages": 3})
    (attempt,) = (await served.call("GET", f"/jobs/{made['id']}/attempts")).json()["items"]
    assert (attempt["outcome"], attempt["worker_id"]) == ("succeeded", "w")
    names = [event["name"] for event in (await served.call("GET", "/events")).json()["items"]]
    assert names == ["job.created", "job.started", "job.updated", "job.completed"]


async def test_the_idempotency_key_of_the_header_means_that_of_the_body(served: Served) -> None:
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


async def test_a_batch_is_made_whole_or_not_at_all(served: Served) -> None:
    jobs = [{"type": "noop", "payload": n, "batch": "b"} for n in range(5)]
    made = await served.call("POST", "/jobs/batch", json={"jobs": jobs})
    assert made.status_code == 201
    assert [one["job"]["payload"] for one in made.json()["jobs"]] == [0, 1, 2, 3, 4]
    bad = await served.call("POST", "/jobs/batch", json={"jobs": [*jobs, {"type": ""}]})
    assert bad.status_code == 422
    assert (await served.call("GET", "/batches/b")).json()["total"] == 5


async def test_a_job_is_changed_canceled_and_run_again(served: Served) -> None:
    job = await served.make_job()
    changed = await served.call("PATCH", f"/jobs/{job['id']}", json={"priority": 5, "tags": ["late"]})
    assert (changed.json()["priority"], changed.json()["tags"]) == (5, ["late"])
    assert (await served.call("POST", f"/jobs/{job['id']}/cancel")).json()["status"] == "canceled"
    again = await served.call("POST", f"/jobs/{job['id']}/retry", json={"priority": 2})
    assert (again.json()["status"], again.json()["priority"]) == ("queued", 2)
    why = (await served.call("GET", f"/jobs/{job['id']}/explain")).json()
    assert why["reasons"][0]["message"]


async def test_pages_go_on_where_they_ended(served: Served) -> None:
    made = [(await served.make_job(payload=n))["id"] for n in range(5)]
    first = (await served.call("GET", "/jobs", params={"limit": 3})).json()
    rest = (await served.call("GET", "/jobs", params={"limit": 3, "cursor": first["next_cursor"]})).json()
    assert [job["id"] for job in [*first["items"], *rest["items"]]] == made[::-1]
    assert rest["next_cursor"] is None
    bad = await served.call("GET", "/jobs", params={"status": "queued", "cursor": first["next_cursor"]})
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_cursor")


async def test_settles_have_an_answer_each(served: Served) -> None:
    for _ in range(4):
        await served.make_job()
    answer = await served.call("POST", "/jobs/claim", json={"worker_id": "w", "types": ["noop"], "limit": 4})
    first, second, third, fourth = answer.json()["jobs"]
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
    told = settled.json()["jobs"]
    assert [one.get("status") or one["code"] for one in told] == ["succeeded", "dead", "queued", "queued", "lease_lost"]


async def test_a_settle_that_is_out_of_bounds_refuses_no_other(served: Served) -> None:
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
    answers = (await served.call("POST", "/jobs/settle", json={"jobs": entries})).json()["jobs"]
    codes = ["lease_lost", "lease_lost", "invalid_input", "invalid_input", "succeeded"]
    assert [one.get("status") or one["code"] for one in answers] == codes


async def test_a_stale_fence_changes_nothing(served: Served) -> None:
    await served.make_job()
    claimed = await served.claim()
    for path, more in (("complete", {}), ("fail", {"error": "x"}), ("release", {}), ("snooze", {"seconds": 1})):
        answer = await served.call(
            "POST", f"/jobs/{claimed['id']}/{path}", json={"fence": claimed["fence"] + 1, **more}
        )
        assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
    assert (await served.call("GET", f"/jobs/{claimed['id']}")).json()["status"] == "running"


async def test_a_waiting_claim_is_woken_by_a_job(served: Served) -> None:
    waiting = asyncio.create_task(served.claim(wait_seconds=60))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    job = await served.make_job()
    async with asyncio.timeout(30):
        assert (await waiting)["id"] == job["id"]
    nothing = await served.call("POST", "/jobs/claim", json={"worker_id": "w", "types": ["noop"], "wait_seconds": 0.05})
    assert (nothing.status_code, nothing.content) == (204, b"")


async def test_a_waiter_that_goes_away_takes_no_job_with_it(served: Served) -> None:
    waiting = asyncio.create_task(served.claim(wait_seconds=60))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await eventually(lambda: served.ingot.jobs.waiting_claims == 0)
    job = await served.make_job()
    assert (await served.claim())["id"] == job["id"]
    assert (await served.call("GET", f"/jobs/{job['id']}")).json()["attempts"] == 1


async def test_claims_that_wait_are_answered_when_the_server_ends(served: Served) -> None:
    claim = {"worker_id": "w", "types": ["noop"], "wait_seconds": 60}
    waiting = [asyncio.create_task(served.call("POST", "/jobs/claim", json=claim)) for _ in range(3)]
    await eventually(lambda: served.ingot.jobs.waiting_claims == 3)
    served.server.stop()
    async with asyncio.timeout(30):
        assert [(await one).status_code for one in waiting] == [204] * 3


async def test_a_grant_for_one_type_shows_no_other(served: Served) -> None:
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
async def test_a_worker_runs_jobs_with_its_credential(served: Served, kind: str) -> None:
    made = await served.call(
        "POST", "/admin/workers", json={"id": "press", "types": ["noop"], "shared": kind == "shared"}
    )
    assert made.status_code == 201, made.text
    headers = {"x-worker-id": "press/host-1", "x-worker-secret": made.json()["secret"]}
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
    (held,) = (await client.post("/api/v1/jobs/claim", headers=headers, json={"types": ["noop"]})).json()["jobs"]
    await served.call("POST", "/admin/workers/press/disable")
    back = (await served.call("GET", f"/jobs/{again['id']}", headers=tenant)).json()
    assert (held["id"], back["status"], back["failures"], back["crashes"]) == (again["id"], "queued", 0, 0)
    out = await client.post("/api/v1/jobs/claim", headers=headers, json={"types": ["noop"]})
    assert out.status_code == 401


async def test_a_worker_ends_only_what_it_claimed_itself(served: Served) -> None:
    workers = {}
    for name in ("press", "other"):
        made = await served.call("POST", "/admin/workers", json={"id": name, "shared": True})
        workers[name] = {"x-worker-id": f"{name}/1", "x-worker-secret": made.json()["secret"]}
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
        answer = await post(
            f"/api/v1/jobs/{job['id']}/{path}", headers=workers["other"], json={"fence": own["fence"], **body}
        )
        assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
    entry = {"id": job["id"], "fence": own["fence"], "outcome": "succeeded"}
    told = (await post("/api/v1/jobs/settle", headers=workers["other"], json={"jobs": [entry]})).json()["jobs"]
    assert [one.get("code") for one in told] == ["lease_lost"]
    done = await post(f"/api/v1/jobs/{job['id']}/complete", headers=workers["press"], json={"fence": own["fence"]})
    assert done.json()["status"] == "succeeded"


async def test_a_summary_takes_the_filters_of_a_list(served: Served) -> None:
    for type, tags in (("a", ["red"]), ("a", []), ("b", ["red"])):
        await served.make_job(type=type, tags=tags)
    for query, jobs in (({}, 3), ({"type": "a"}, 2), ({"tag": "red"}, 2), ({"type": "a", "tag": "red"}, 1)):
        answer = (await served.call("GET", "/jobs/summary", params=query)).json()
        assert (answer["counts"]["queued"], answer["more"]) == (jobs, False), query
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
