"""Removing a tenant over HTTP: its callers are out, what they wait for ends, and nobody gets its work."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ingot.engines.sqlite.connection import open_reader
from ingot.engines.sqlite.store_folder import FILE_NAME
from tests.http.event_follower import following
from tests.http.serving import Served
from tests.waiting import eventually

GONE = "/admin/tenants/acme"


async def acme(served: Served) -> dict[str, Any]:
    answer = await served.call("POST", "/admin/tenants", json={"slug": "acme"})
    assert answer.status_code == 201
    made: dict[str, Any] = answer.json()
    return made


async def test_a_removed_tenant_is_answered_once(served: Served) -> None:
    made = await acme(served)
    answer = await served.call("DELETE", GONE)
    assert (answer.status_code, answer.json()) == (200, made)
    again = await served.call("DELETE", GONE)
    assert (again.status_code, again.json()["code"]) == (404, "tenant_not_found")
    assert (await served.call("GET", GONE)).status_code == 404
    listed = (await served.call("GET", "/admin/tenants")).json()["items"]
    assert [tenant["slug"] for tenant in listed] == ["default"]
    assert (await acme(served))["id"] != made["id"]


async def test_only_an_operator_removes_tenants_and_never_the_default(served: Served) -> None:
    made = await acme(served)
    for name in ("acme", "default"):
        token = await served.token(tenant=made["id"])
        assert (await served.call("DELETE", f"/admin/tenants/{name}", token=token)).status_code == 403
    refused = await served.call("DELETE", "/admin/tenants/default")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    assert "default" in refused.json()["detail"]
    assert (await served.call("GET", GONE)).json() == made


async def test_its_credentials_are_refused_at_once(served: Served) -> None:
    made = await acme(served)
    token = await served.token(tenant=made["id"])
    worker = await served.ingot.credentials.create_worker_credential(made["id"], "press")
    headers = {"x-worker-id": "press", "x-worker-secret": worker.secret}
    assert (await served.call("GET", "/jobs", token=token)).status_code == 200
    claim = {"types": ["noop"]}
    assert (await served.client.post("/api/v1/jobs/claim", headers=headers, json=claim)).status_code == 204
    await served.call("DELETE", GONE)
    assert (await served.call("GET", "/jobs", token=token)).status_code == 401
    assert (await served.client.post("/api/v1/jobs/claim", headers=headers, json=claim)).status_code == 401


@pytest.mark.parametrize("who", ["token", "operator"])
async def test_an_open_stream_ends_with_its_tenant(served: Served, who: str) -> None:
    made = await acme(served)
    token = await served.token(tenant=made["id"]) if who == "token" else None
    reason = "unauthorized" if who == "token" else "tenant_not_found"
    with capture_logs() as logs:
        async with following(served, token=token, tenant="acme") as follower:
            await served.call("DELETE", GONE)
            served.ingot.feeds.notify(made["id"])  # Of an event that was written before.
            async with asyncio.timeout(30):
                await follower.until(lambda one: one.frames and one.frames[-1].event == "end")
        await eventually(lambda: len(served.ingot.feeds) == 0)
    assert follower.frames[-1].data == {"reason": reason}
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []


@pytest.mark.parametrize("who", ["token", "worker", "operator"])
async def test_a_waiting_claim_ends_with_its_tenant(served: Served, who: str) -> None:
    made = await acme(served)
    headers = {"authorization": f"Bearer {served.operator}", "ingot-tenant": "acme"}
    if who == "token":
        headers = {"authorization": f"Bearer {await served.token(tenant=made['id'])}"}
    if who == "worker":
        worker = await served.ingot.credentials.create_worker_credential(made["id"], "press")
        headers = {"x-worker-id": "press", "x-worker-secret": worker.secret}
    body = {"types": ["noop"], "wait_seconds": 60, **({} if who == "worker" else {"worker_id": "w"})}
    waiting = asyncio.create_task(served.client.post("/api/v1/jobs/claim", headers=headers, json=body))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    await served.call("DELETE", GONE)
    async with asyncio.timeout(30):
        answer = await waiting
    assert answer.status_code in (401, 404)


async def test_a_waiting_heartbeat_ends_with_its_tenant(served: Served) -> None:
    token = await served.token(tenant=(await acme(served))["id"])
    assert (await served.call("POST", "/workers", token=token, json={"id": "w", "types": ["noop"]})).status_code == 201
    beat = served.call("POST", "/workers/w/heartbeat", token=token, json={"jobs": [], "wait_seconds": 60})
    waiting = asyncio.create_task(beat)
    await eventually(lambda: served.ingot.workers.waiting_heartbeats == 1)
    await served.call("DELETE", GONE)
    async with asyncio.timeout(30):
        assert (await waiting).status_code == 401


async def test_a_shared_worker_gets_nothing_of_it(served: Served) -> None:
    await acme(served)
    worker = (await served.call("POST", "/admin/workers", json={"id": "all", "shared": True})).json()
    headers = {"x-worker-id": "all", "x-worker-secret": worker["secret"]}
    for _ in range(3):
        made = await served.call("POST", "/jobs", headers={"ingot-tenant": "acme"}, json={"type": "noop"})
        assert made.status_code == 201
    body = {"types": ["noop"], "limit": 1}
    held = (await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)).json()["jobs"][0]
    await served.call("DELETE", GONE)
    own = await served.make_job()
    body["limit"] = 10
    got = (await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)).json()["jobs"]
    assert [job["id"] for job in got] == [own["id"]]
    done = await served.client.post(
        f"/api/v1/jobs/{held['id']}/fail", headers=headers, json={"fence": held["fence"], "error": "stopped"}
    )
    assert done.status_code == 200
    assert (await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)).status_code == 204


async def test_its_slug_can_be_used_anew_at_once(served: Served) -> None:
    in_acme = {"ingot-tenant": "acme"}
    for _ in range(3):
        made = await acme(served)
        job = (await served.call("POST", "/jobs", headers=in_acme, json={"type": "noop"})).json()
        assert job["tenant"] == made["id"]
        listed = (await served.call("GET", "/jobs", headers=in_acme)).json()["items"]
        assert [one["id"] for one in listed] == [job["id"]]
        await served.call("DELETE", GONE)
        assert (await served.call("GET", "/jobs", headers=in_acme)).status_code == 404


async def test_what_it_held_goes_away_by_itself(served: Served, tmp_path: Path) -> None:
    await acme(served)
    await served.call("POST", "/jobs", headers={"ingot-tenant": "acme"}, json={"type": "noop"})
    await served.call("DELETE", GONE)
    with closing(open_reader(tmp_path / "data" / FILE_NAME)) as reader:
        own = (served.ingot.default_tenant.id,)
        await eventually(lambda: reader.execute("SELECT id FROM tenants").fetchall() == [own])
