"""What a credential may not do: give more than it has, act when it has ended, or stand in the way of others."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ingot.identity.grants import Grant
from ingot.settings import Settings
from tests.http.serving import Served, serving
from tests.waiting import eventually

SOON = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


async def mint(served: Served, token: str, **order: Any) -> tuple[int, dict[str, Any]]:
    """A token made with another."""
    body = {"description": "x", "grants": [{"action": "jobs.read"}], **order}
    answer = await served.call("POST", "/admin/tokens", token=token, json=body)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/tokens"),
        ("POST", "/admin/workers"),
        ("GET", "/admin/tenants"),
        ("PUT", "/admin/definitions/other"),
        ("GET", "/admin/definitions/other"),
    ],
)
async def test_a_grant_for_one_type_administers_no_more(served: Served, method: str, path: str) -> None:
    token = await served.token(Grant(action="*", resource="jobs/greet"))
    answer = await served.call(method, path, token=token, json={"id": "press"} if method == "POST" else {})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    own = await served.call("PUT", "/admin/definitions/greet", token=token, json={"max_attempts": 2})
    assert own.status_code == 200, own.text


async def test_a_token_gives_no_more_and_no_longer_than_it_has(served: Served) -> None:
    grants = (Grant(action="admin.*"), Grant(action="jobs.read"))
    bounded = (
        await served.call(
            "POST",
            "/admin/tokens",
            json={
                "description": "x",
                "grants": [{"action": grant.action} for grant in grants],
                "expires_at": SOON,
                "limits": {"rate": 50, "burst": 50},
            },
        )
    ).json()["token"]
    status, made = await mint(served, bounded)
    assert (status, made["limits"]) == (201, {"rate": 50.0, "burst": 50})
    assert datetime.fromisoformat(made["expires_at"]) == datetime.fromisoformat(SOON)
    for more in ({"limits": {"rate": 51}}, {"expires_at": "2099-01-01T00:00:00Z"}):
        assert (await mint(served, bounded, **more))[0] == 403
    worker = await served.call("POST", "/admin/workers", token=bounded, json={"id": "press"})
    assert (worker.status_code, worker.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("kind", ["token", "worker"])
async def test_a_waiting_claim_ends_with_its_credential(served: Served, kind: str) -> None:
    if kind == "worker":
        made = (await served.call("POST", "/admin/workers", json={"id": "press"})).json()
        headers = {"x-worker-id": "press", "x-worker-secret": made["secret"]}
        end = ("POST", "/admin/workers/press/disable")
    else:
        _, made = await mint(served, served.operator, grants=[{"action": "workers.run"}])
        headers = {"authorization": f"Bearer {made['token']}"}
        end = ("DELETE", f"/admin/tokens/{made['id']}")
    body = {"types": ["noop"], "wait_seconds": 60}
    waiting = asyncio.create_task(served.client.post("/api/v1/jobs/claim", headers=headers, json=body))
    await eventually(lambda: served.ingot.jobs.waiting_claims)
    await served.call(*end)
    job = await served.make_job()
    assert (await waiting).status_code == 401
    back = (await served.call("GET", f"/jobs/{job['id']}")).json()
    assert (back["status"], back["failures"], back["crashes"]) == ("queued", 0, 0)


async def test_a_token_does_not_speak_as_a_worker_credential(served: Served) -> None:
    await served.call("POST", "/admin/workers", json={"id": "press"})
    await served.make_job()
    for worker_id in ("press", "press/host-1"):
        for path, body in (("/jobs/claim", {"worker_id": worker_id}), ("/workers", {"id": worker_id})):
            answer = await served.call("POST", path, json={**body, "types": ["noop"]})
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    assert (await served.claim(worker_id="press-2"))["worker_id"] == "press-2"


async def test_a_token_beats_for_no_worker_of_another(served: Served) -> None:
    one, other = [await served.token(Grant(action="workers.run")) for _ in range(2)]
    assert (await served.call("POST", "/workers", token=one, json={"id": "w", "types": ["noop"]})).status_code == 201
    for path, body in (("/workers", {"id": "w", "types": ["noop"]}), ("/workers/w/heartbeat", {})):
        assert (await served.call("POST", path, token=other, json=body)).status_code == 403
        assert (await served.call("POST", path, token=one, json=body)).status_code in (200, 201)


@pytest.mark.parametrize("name", ["Ingot-Tenant", "Idempotency-Key", "Last-Event-ID"])
async def test_a_header_that_was_sent_twice_is_refused(served: Served, name: str) -> None:
    headers = [("authorization", f"Bearer {served.operator}"), (name, "default"), (name, "default")]
    answer = await served.client.post("/api/v1/jobs", headers=headers, json={"type": "noop"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert (await served.call("GET", "/jobs")).json()["items"] == []


async def test_one_entry_that_is_wrong_stops_no_other(served: Served) -> None:
    jobs = [await served.make_job() for _ in range(2)]
    claims = [await served.claim() for _ in jobs]
    entries = [{"id": claim["id"], "fence": claim["fence"], "outcome": "succeeded"} for claim in claims]
    entries[0]["result"] = "x" * 70_000
    told = await served.call("POST", "/jobs/settle", json={"jobs": [*entries, {**entries[1], "id": "nobody"}]})
    assert [one.get("code") for one in told.json()["jobs"]] == ["payload_too_large", None, "job_not_found"]


async def test_a_page_of_large_jobs_is_short_and_goes_on(served: Served) -> None:
    order = {"jobs": [{"type": "noop", "payload": "x" * 60_000} for _ in range(150)]}
    assert (await served.call("POST", "/jobs/batch", json=order)).status_code == 201
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await served.call("GET", "/jobs", params={"limit": 1000, **cursor})
        assert len(page.content) < 6_000_000
        seen += [job["id"] for job in page.json()["items"]]
        if (more := page.json()["next_cursor"]) is None:
            break
        cursor = {"cursor": more}
    assert len(seen) == len(set(seen)) == 150


async def test_one_tenant_does_not_hold_all_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, Settings(connections_max=8)) as served:
        await served.ingot.tenants.create("other")
        streams = [
            served.client.stream(
                "GET", "/api/v1/events/stream", headers={"authorization": f"Bearer {await served.token()}"}
            )
            for _ in range(5)
        ]
        answers = [await stream.__aenter__() for stream in streams]
        try:
            assert [answer.status_code for answer in answers] == [200] * 4 + [429]
            await answers[4].aread()
            assert answers[4].json()["code"] == "too_many_waiting"
        finally:
            for stream in streams:
                await stream.__aexit__(None, None, None)


async def test_a_cursor_of_events_that_is_none_is_refused(served: Served) -> None:
    await served.make_job()
    for after in ("ffffffffffffffff", "0000000000 10000", "x"):
        answer = await served.call("GET", "/events", params={"after": after})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor"), after


async def test_another_tenant_cannot_be_told_from_none(served: Served) -> None:
    await served.ingot.tenants.create("other")
    token = await served.token()
    answers = [
        await served.call("GET", "/jobs", token=token, headers={"ingot-tenant": slug}) for slug in ("other", "nobody")
    ]
    assert [answer.status_code for answer in answers] == [403, 403]
    first, second = ({**answer.json(), "request_id": None} for answer in answers)
    assert first == second


async def test_a_shared_worker_names_no_tenant(served: Served) -> None:
    made = (await served.call("POST", "/admin/workers", json={"id": "press", "shared": True})).json()
    headers = {"x-worker-id": "press", "x-worker-secret": made["secret"], "ingot-tenant": "default"}
    answer = await served.client.post("/api/v1/jobs/claim", headers=headers, json={"types": ["noop"]})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
