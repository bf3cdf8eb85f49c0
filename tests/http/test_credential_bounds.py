"""Limits of credentials: they cannot grant more than they have, act after their end, or block others."""

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


async def create_token(served: Served, token: str, **order: Any) -> tuple[int, dict[str, Any]]:
    """Create a token with another token."""
    body = {"description": "x", "grants": [{"action": "jobs.read"}], **order}
    response = await served.call("POST", "/admin/tokens", token=token, json=body)
    return response.status_code, response.json()


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
async def test_a_grant_for_one_type_administers_only_that_type(served: Served, method: str, path: str) -> None:
    token = await served.token(Grant(action="*", resource="jobs/greet"))
    response = await served.call(method, path, token=token, json={"id": "press"} if method == "POST" else {})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden"), response.text
    own = await served.call("PUT", "/admin/definitions/greet", token=token, json={"max_attempts": 2})
    assert own.status_code == 200, own.text


async def test_a_token_cannot_create_a_token_with_more_rights_or_a_later_expiry(served: Served) -> None:
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
    status, created = await create_token(served, bounded)
    assert (status, created["limits"]) == (201, {"rate": 50.0, "burst": 50})
    assert datetime.fromisoformat(created["expires_at"]) == datetime.fromisoformat(SOON)
    for more in ({"limits": {"rate": 51}}, {"expires_at": "2099-01-01T00:00:00Z"}):
        assert (await create_token(served, bounded, **more))[0] == 403
    worker = await served.call("POST", "/admin/workers", token=bounded, json={"id": "press"})
    assert (worker.status_code, worker.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("kind", ["token", "worker"])
async def test_a_waiting_claim_ends_with_its_credential(served: Served, kind: str) -> None:
    if kind == "worker":
        created = (await served.call("POST", "/admin/workers", json={"id": "press"})).json()
        headers = {"x-worker-id": "press", "x-worker-secret": created["secret"]}
        end = ("POST", "/admin/workers/press/disable")
    else:
        _, created = await create_token(served, served.operator, grants=[{"action": "workers.run"}])
        headers = {"authorization": f"Bearer {created['token']}"}
        end = ("DELETE", f"/admin/tokens/{created['id']}")
    body = {"types": ["noop"], "wait_seconds": 60}
    waiting = asyncio.create_task(served.client.post("/api/v1/jobs/claim", headers=headers, json=body))
    await eventually(lambda: served.ingot.jobs.waiting_claims)
    await served.call(*end)
    job = await served.make_job()
    assert (await waiting).status_code == 401
    unclaimed = (await served.call("GET", f"/jobs/{job['id']}")).json()
    assert (unclaimed["status"], unclaimed["failures"], unclaimed["crashes"]) == ("queued", 0, 0)


async def test_a_token_cannot_use_the_id_of_a_worker_credential(served: Served) -> None:
    await served.call("POST", "/admin/workers", json={"id": "press"})
    await served.make_job()
    for worker_id in ("press", "press/host-1"):
        for path, body in (("/jobs/claim", {"worker_id": worker_id}), ("/workers", {"id": worker_id})):
            response = await served.call("POST", path, json={**body, "types": ["noop"]})
            assert (response.status_code, response.json()["code"]) == (403, "forbidden"), response.text
    assert (await served.claim(worker_id="press-2"))["worker_id"] == "press-2"


async def test_a_token_cannot_send_heartbeats_for_a_worker_of_another_token(served: Served) -> None:
    owner, other = [await served.token(Grant(action="workers.run")) for _ in range(2)]
    assert (await served.call("POST", "/workers", token=owner, json={"id": "w", "types": ["noop"]})).status_code == 201
    for path, body, status in (("/workers", {"id": "w", "types": ["noop"]}, 403), ("/workers/w/heartbeat", {}, 404)):
        assert (await served.call("POST", path, token=other, json=body)).status_code == status
        assert (await served.call("POST", path, token=owner, json=body)).status_code in (200, 201)


@pytest.mark.parametrize("name", ["Ingot-Tenant", "Idempotency-Key", "Last-Event-ID"])
async def test_a_repeated_header_is_rejected(served: Served, name: str) -> None:
    headers = [("authorization", f"Bearer {served.operator}"), (name, "default"), (name, "default")]
    response = await served.client.post("/api/v1/jobs", headers=headers, json={"type": "noop"})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_input")
    assert (await served.call("GET", "/jobs")).json()["items"] == []


async def test_an_invalid_settle_entry_does_not_stop_the_others(served: Served) -> None:
    jobs = [await served.make_job() for _ in range(2)]
    claims = [await served.claim() for _ in jobs]
    entries = [{"id": claim["id"], "fence": claim["fence"], "outcome": "succeeded"} for claim in claims]
    entries[0]["result"] = "x" * 70_000
    response = await served.call("POST", "/jobs/settle", json={"jobs": [*entries, {**entries[1], "id": "nobody"}]})
    assert [result.get("code") for result in response.json()["jobs"]] == ["payload_too_large", None, "job_not_found"]


async def test_a_page_of_large_jobs_is_short_and_has_a_cursor(served: Served) -> None:
    order = {"jobs": [{"type": "noop", "payload": "x" * 60_000} for _ in range(150)]}
    assert (await served.call("POST", "/jobs/batch", json=order)).status_code == 201
    listed_ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await served.call("GET", "/jobs", params={"limit": 1000, **cursor})
        assert len(page.content) < 6_000_000
        listed_ids += [job["id"] for job in page.json()["items"]]
        if (more := page.json()["next_cursor"]) is None:
            break
        cursor = {"cursor": more}
    assert len(listed_ids) == len(set(listed_ids)) == 150


async def test_one_tenant_cannot_hold_all_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, Settings(connections_max=8)) as served:
        await served.ingot.tenants.create("other")
        streams = [
            served.client.stream(
                "GET", "/api/v1/events/stream", headers={"authorization": f"Bearer {await served.token()}"}
            )
            for _ in range(5)
        ]
        responses = [await stream.__aenter__() for stream in streams]
        try:
            assert [response.status_code for response in responses] == [200] * 4 + [429]
            await responses[4].aread()
            assert responses[4].json()["code"] == "too_many_waiting"
        finally:
            for stream in streams:
                await stream.__aexit__(None, None, None)


async def test_an_invalid_event_cursor_is_rejected(served: Served) -> None:
    await served.make_job()
    for after in ("ffffffffffffffff", "0000000000 10000", "x"):
        response = await served.call("GET", "/events", params={"after": after})
        assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor"), after


async def test_the_tenant_of_others_and_an_unknown_tenant_get_the_same_response(served: Served) -> None:
    await served.ingot.tenants.create("other")
    token = await served.token()
    responses = [
        await served.call("GET", "/jobs", token=token, headers={"ingot-tenant": slug}) for slug in ("other", "nobody")
    ]
    assert [response.status_code for response in responses] == [403, 403]
    first, second = ({**response.json(), "request_id": None} for response in responses)
    assert first == second


async def test_a_shared_worker_credential_cannot_select_a_tenant(served: Served) -> None:
    created = (await served.call("POST", "/admin/workers", json={"id": "press", "shared": True})).json()
    headers = {"x-worker-id": "press", "x-worker-secret": created["secret"], "ingot-tenant": "default"}
    response = await served.client.post("/api/v1/jobs/claim", headers=headers, json={"types": ["noop"]})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
