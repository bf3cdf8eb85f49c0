"""Removing a tenant over HTTP: its credentials, streams and waiting requests end, and no worker gets its jobs."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from ingot.engines.sqlite.connection import open_reader
from ingot.engines.sqlite.store_folder import FILE_NAME
from tests.http.event_follower import follow_events
from tests.http.serving import Served
from tests.waiting import eventually

ACME = "/admin/tenants/acme"


async def create_acme(served: Served) -> dict[str, Any]:
    response = await served.call("POST", "/admin/tenants", json={"slug": "acme"})
    assert response.status_code == 201
    tenant: dict[str, Any] = response.json()
    return tenant


async def test_a_tenant_can_be_removed_once(served: Served) -> None:
    tenant = await create_acme(served)
    response = await served.call("DELETE", ACME)
    assert (response.status_code, response.json()) == (200, tenant)
    again = await served.call("DELETE", ACME)
    assert (again.status_code, again.json()["code"]) == (404, "tenant_not_found")
    assert (await served.call("GET", ACME)).status_code == 404
    listed = (await served.call("GET", "/admin/tenants")).json()["items"]
    assert [tenant["slug"] for tenant in listed] == ["default"]
    assert (await create_acme(served))["id"] != tenant["id"]


async def test_only_an_operator_removes_tenants_except_the_default(served: Served) -> None:
    tenant = await create_acme(served)
    for name in ("acme", "default"):
        token = await served.token(tenant=tenant["id"])
        assert (await served.call("DELETE", f"/admin/tenants/{name}", token=token)).status_code == 403
    rejected = await served.call("DELETE", "/admin/tenants/default")
    assert (rejected.status_code, rejected.json()["code"]) == (422, "invalid_input")
    assert "default" in rejected.json()["detail"]
    assert (await served.call("GET", ACME)).json() == tenant


async def test_credentials_of_a_removed_tenant_are_rejected_at_once(served: Served) -> None:
    tenant = await create_acme(served)
    token = await served.token(tenant=tenant["id"])
    worker = await served.ingot.credentials.create_worker_credential(tenant["id"], "press")
    headers = {"x-worker-id": "press", "x-worker-secret": worker.secret}
    assert (await served.call("GET", "/jobs", token=token)).status_code == 200
    claim = {"types": ["noop"]}
    assert (await served.client.post("/api/v1/jobs/claim", headers=headers, json=claim)).status_code == 204
    await served.call("DELETE", ACME)
    assert (await served.call("GET", "/jobs", token=token)).status_code == 401
    assert (await served.client.post("/api/v1/jobs/claim", headers=headers, json=claim)).status_code == 401


@pytest.mark.parametrize("caller", ["token", "operator"])
async def test_an_open_stream_ends_with_its_tenant(served: Served, caller: str) -> None:
    tenant = await create_acme(served)
    token = await served.token(tenant=tenant["id"]) if caller == "token" else None
    reason = "unauthorized" if caller == "token" else "tenant_not_found"
    with capture_logs() as logs:
        async with follow_events(served, token=token, tenant="acme") as follower:
            await served.call("DELETE", ACME)
            served.ingot.feeds.notify(tenant["id"])  # Notifies of an event written before the removal.
            async with asyncio.timeout(30):
                await follower.until(lambda each: each.frames and each.frames[-1].event == "end")
        await eventually(lambda: len(served.ingot.feeds) == 0)
    assert follower.frames[-1].data == {"reason": reason}
    assert [line["event"] for line in logs if line["log_level"] == "error"] == []


@pytest.mark.parametrize("caller", ["token", "worker", "operator"])
async def test_a_waiting_claim_ends_with_its_tenant(served: Served, caller: str) -> None:
    tenant = await create_acme(served)
    headers = {"authorization": f"Bearer {served.operator}", "ingot-tenant": "acme"}
    if caller == "token":
        headers = {"authorization": f"Bearer {await served.token(tenant=tenant['id'])}"}
    if caller == "worker":
        worker = await served.ingot.credentials.create_worker_credential(tenant["id"], "press")
        headers = {"x-worker-id": "press", "x-worker-secret": worker.secret}
    body = {"types": ["noop"], "wait_seconds": 60, **({} if caller == "worker" else {"worker_id": "w"})}
    waiting = asyncio.create_task(served.client.post("/api/v1/jobs/claim", headers=headers, json=body))
    await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
    await served.call("DELETE", ACME)
    async with asyncio.timeout(30):
        response = await waiting
    assert response.status_code in (401, 404)


async def test_a_waiting_heartbeat_ends_with_its_tenant(served: Served) -> None:
    token = await served.token(tenant=(await create_acme(served))["id"])
    assert (await served.call("POST", "/workers", token=token, json={"id": "w", "types": ["noop"]})).status_code == 201
    heartbeat = served.call("POST", "/workers/w/heartbeat", token=token, json={"jobs": [], "wait_seconds": 60})
    waiting = asyncio.create_task(heartbeat)
    await eventually(lambda: served.ingot.workers.waiting_heartbeats == 1)
    await served.call("DELETE", ACME)
    async with asyncio.timeout(30):
        assert (await waiting).status_code == 401


async def test_a_shared_worker_gets_no_job_of_a_removed_tenant(served: Served) -> None:
    await create_acme(served)
    worker = (await served.call("POST", "/admin/workers", json={"id": "all", "shared": True})).json()
    headers = {"x-worker-id": "all", "x-worker-secret": worker["secret"]}
    for _ in range(3):
        tenant = await served.call("POST", "/jobs", headers={"ingot-tenant": "acme"}, json={"type": "noop"})
        assert tenant.status_code == 201
    body = {"types": ["noop"], "limit": 1}
    claimed = (await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)).json()["jobs"][0]
    await served.call("DELETE", ACME)
    own = await served.make_job()
    body["limit"] = 10
    jobs = (await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)).json()["jobs"]
    assert [job["id"] for job in jobs] == [own["id"]]
    done = await served.client.post(
        f"/api/v1/jobs/{claimed['id']}/fail", headers=headers, json={"fence": claimed["fence"], "error": "stopped"}
    )
    assert done.status_code == 200
    assert (await served.client.post("/api/v1/jobs/claim", headers=headers, json=body)).status_code == 204


async def test_the_slug_of_a_removed_tenant_can_be_reused_at_once(served: Served) -> None:
    in_acme = {"ingot-tenant": "acme"}
    for _ in range(3):
        tenant = await create_acme(served)
        job = (await served.call("POST", "/jobs", headers=in_acme, json={"type": "noop"})).json()
        assert job["tenant"] == tenant["id"]
        listed = (await served.call("GET", "/jobs", headers=in_acme)).json()["items"]
        assert [each["id"] for each in listed] == [job["id"]]
        await served.call("DELETE", ACME)
        assert (await served.call("GET", "/jobs", headers=in_acme)).status_code == 404


async def test_rows_of_a_removed_tenant_are_deleted_in_the_background(served: Served, tmp_path: Path) -> None:
    await create_acme(served)
    await served.call("POST", "/jobs", headers={"ingot-tenant": "acme"}, json={"type": "noop"})
    await served.call("DELETE", ACME)
    with closing(open_reader(tmp_path / "data" / FILE_NAME)) as reader:
        own = (served.ingot.default_tenant.id,)
        await eventually(lambda: reader.execute("SELECT id FROM tenants").fetchall() == [own])
