"""Workers over HTTP: registration, heartbeats, draining, and which caller may use which worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.api.ops import VERSION
from ingot.http.routes import PREFIX
from ingot.identity.grants import Grant
from ingot.kernel.clock import ManualClock
from ingot.wire.protocol import OLDEST_PROTOCOL, PROTOCOL
from tests.http.one_server import on_one_server
from tests.http.serving import Served, serving
from tests.waiting import eventually

RUN, MANAGE, READ = Grant(action="workers.run"), Grant(action="workers.manage"), Grant(action="workers.read")
BODY = {"id": "press/host-1", "types": ["noop"], "hostname": "h", "version": "1", "metadata": {"slots": 4}}
PATH = "/workers/press%2Fhost-1"


class WorkerClient:
    """A client with a worker credential."""

    def __init__(self, served: Served, name: str, secret: str) -> None:
        self._client = served.client
        self._headers = {"x-worker-id": name, "x-worker-secret": secret}

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self._client.request(method, PREFIX + path, headers=self._headers, **more)


async def worker_client(served: Served, name: str = "press", *, shared: bool = False, **options: Any) -> WorkerClient:
    tenant = None if shared else served.ingot.default_tenant.id
    created = await served.ingot.credentials.create_worker_credential(tenant, name, **options)
    return WorkerClient(served, name, created.secret)


async def until_waiting(served: Served, count: int) -> None:
    """Wait until this number of heartbeats is waiting."""
    await eventually(lambda: served.ingot.workers.waiting_heartbeats == count)


async def test_a_worker_registers_sends_heartbeats_drains_and_leaves(served: Served) -> None:
    press = await worker_client(served)
    created = await press.call("POST", "/workers", json=BODY)
    assert (created.status_code, created.json()) == (
        201,
        {"id": "press/host-1", "heartbeat_seconds": 7.5, "protocol": PROTOCOL},
    )
    assert created.headers["location"] == PREFIX + PATH
    registered = (await press.call("GET", PATH)).json()
    assert registered == {
        **BODY,
        "tenant": served.ingot.default_tenant.id,
        "status": "online",
        "protocol": 1,
        "registered_at": registered["registered_at"],
        "seen_at": registered["seen_at"],
        "registered_by": "worker:press",
    }
    assert (await press.call("GET", "/workers")).json() == {"items": [registered], "next_cursor": None}
    job = await served.make_job()
    claimed = await press.call("POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"]})
    (own,) = claimed.json()["jobs"]
    entry = {"id": job["id"], "fence": own["fence"], "progress": {"percent": 40, "stage": "reading"}, "log": "line\n"}
    heartbeat = await press.call("POST", f"{PATH}/heartbeat", json={"jobs": [entry, {"id": "nobody", "fence": 1}]})
    assert heartbeat.status_code == 200
    running, lost = heartbeat.json()["jobs"]
    assert (running["id"], running["cancel_requested"], running["lost"]) == (job["id"], False, False)
    assert running["lease_expires_at"] >= own["lease_expires_at"]
    assert lost == {"id": "nobody", "lease_expires_at": None, "cancel_requested": False, "lost": True}
    assert heartbeat.json()["drain"] is False
    assert (await served.call("GET", f"/jobs/{job['id']}")).json()["progress"]["percent"] == 40
    assert (await served.call("GET", f"/jobs/{job['id']}/log")).json()["text"] == "line\n"
    drained = await press.call("POST", f"{PATH}/drain")
    assert (drained.status_code, drained.json()["status"]) == (200, "draining")
    empty = await press.call(
        "POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"], "wait_seconds": 30}
    )
    assert empty.status_code == 204
    assert (await press.call("DELETE", PATH)).status_code == 204
    assert (await served.call("GET", f"/jobs/{job['id']}")).json()["status"] == "queued"
    rejected = await press.call("POST", f"{PATH}/heartbeat", json={})
    assert (rejected.status_code, rejected.json()["code"]) == (404, "worker_not_found")
    names = [event["name"] for event in (await served.call("GET", "/events")).json()["items"]]
    assert [name for name in names if name.startswith("worker.")] == ["worker.online", "worker.offline"]


async def test_a_worker_that_sends_nothing_is_silent_and_loses_its_job(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", clock=clock) as served:
        clock.advance(seconds=60)  # Nothing is swept right after the start.
        press = await worker_client(served)
        await press.call("POST", "/workers", json=BODY)
        job = await served.make_job()
        await press.call("POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"]})
        clock.advance(seconds=15)
        listed = (await served.call("GET", "/workers")).json()["items"]
        assert [(worker["id"], worker["status"]) for worker in listed] == [("press/host-1", "silent")]
        assert (await served.call("GET", "/workers/press%2Fhost-1")).json() == listed[0]
        clock.advance(seconds=15)
        await served.ingot.jobs.maintain()
        clock.advance(seconds=5)
        assert (await served.claim(worker_id="other"))["id"] == job["id"]


async def test_a_worker_with_a_protocol_that_the_server_does_not_support_is_rejected(served: Served) -> None:
    press = await worker_client(served)
    for protocol in (OLDEST_PROTOCOL, PROTOCOL):
        assert (await press.call("POST", "/workers", json={**BODY, "protocol": protocol})).status_code == 201
        assert (await press.call("GET", PATH)).json()["protocol"] == protocol
    rejected = await press.call("POST", "/workers", json={**BODY, "id": "press/late", "protocol": PROTOCOL + 1})
    assert (rejected.status_code, rejected.json()["code"]) == (409, "protocol_mismatch")
    for part in (f"(version 1) uses worker protocol {PROTOCOL + 1}", f"(version {VERSION}) supports {PROTOCOL}"):
        assert part in rejected.json()["detail"]
    assert (await press.call("GET", "/workers/press%2Flate")).status_code == 404
    for wrong in (0, -1, 1.5, "1", None):
        assert (await press.call("POST", "/workers", json={**BODY, "protocol": wrong})).status_code == 422
    status = (await served.client.get("/status", headers={"authorization": f"Bearer {served.operator}"})).json()
    assert (status["version"], status["oldest_protocol"], status["protocol"]) == (VERSION, OLDEST_PROTOCOL, PROTOCOL)


async def test_a_worker_credential_uses_only_its_own_workers(served: Served) -> None:
    press, other = await worker_client(served), await worker_client(served, "other")
    for name in ("other", "press2", "press-1/x", "press2/1"):
        response = await press.call("POST", "/workers", json={**BODY, "id": name})
        assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    for name in ("press", "press/1"):
        assert (await press.call("POST", "/workers", json={**BODY, "id": name})).status_code == 201
    for method, path in (("POST", "/heartbeat"), ("POST", "/drain"), ("DELETE", "")):
        response = await other.call(method, f"/workers/press%2F1{path}", json={} if path == "/heartbeat" else None)
        assert (response.status_code, response.json()["code"]) == (403, "forbidden"), path
    assert (await press.call("GET", "/workers/press%2F1")).json()["status"] == "online"
    limited = await worker_client(served, "bound", types=["noop"])
    assert (await limited.call("POST", "/workers", json={"types": ["noop", "pdf"]})).status_code == 403
    assert (await limited.call("POST", "/workers", json={"types": ["noop"]})).json()["id"] == "bound"


async def test_a_shared_worker_belongs_to_no_tenant(served: Served) -> None:
    shared = await worker_client(served, shared=True)
    assert (await shared.call("POST", "/workers", json=BODY)).status_code == 201
    assert (await shared.call("GET", PATH)).json()["tenant"] is None
    assert (await served.call("GET", PATH)).status_code == 404
    assert (await served.call("GET", "/workers")).json()["items"] == []
    (registered,) = (await served.call("GET", "/workers?shared=true")).json()["items"]
    assert registered["id"] == "press/host-1"
    tenant = await served.token()
    for method, path in (("GET", ""), ("POST", "/drain"), ("DELETE", "")):
        assert (await served.call(method, f"{PATH}{path}?shared=true", token=tenant)).status_code == 403
    assert (await served.call("GET", "/workers?shared=true", token=tenant)).status_code == 403
    assert (await served.call("POST", f"{PATH}/drain?shared=true")).json()["status"] == "draining"
    assert (await shared.call("POST", f"{PATH}/heartbeat", json={})).json()["drain"] is True
    assert (await served.call("GET", "/events")).json()["items"] == []


async def test_a_token_without_workers_manage_manages_only_its_own_workers(served: Served) -> None:
    running, other, managing = [await served.token(*grants) for grants in ((RUN,), (RUN,), (MANAGE,))]
    for name in ("a", "b"):
        assert (await served.call("POST", "/workers", token=running, json={**BODY, "id": name})).status_code == 201
    for method, path in (("POST", "/workers/a/drain"), ("DELETE", "/workers/a")):
        assert (await served.call(method, path, token=other)).status_code == 404
    for token, name in ((running, "a"), (managing, "b")):
        assert (await served.call("POST", f"/workers/{name}/drain", token=token)).json()["status"] == "draining"
        assert (await served.call("DELETE", f"/workers/{name}", token=token)).status_code == 204
    reading = await served.token(READ)
    assert (await served.call("POST", "/workers/a/drain", token=reading)).status_code == 403
    assert (await served.call("POST", "/workers", token=managing, json=BODY)).status_code == 403


async def test_a_token_registers_workers_only_for_types_of_its_grants(served: Served) -> None:
    token = await served.token(Grant(action="workers.run", resource="jobs/noop"))
    assert (await served.call("POST", "/workers", token=token, json=BODY)).status_code == 201
    assert (await served.call("POST", "/workers", token=token, json={**BODY, "types": ["pdf"]})).status_code == 403


async def test_a_heartbeat_reports_jobs_of_types_outside_the_grants_as_lost(served: Served) -> None:
    token = await served.token(Grant(action="workers.run", resource="jobs/noop"))
    await served.call("POST", "/workers", token=token, json={**BODY, "id": "bound"})
    jobs = [await served.make_job(type=type) for type in ("noop", "pdf")]
    claims = [await served.claim(types=[job["type"]], worker_id="bound") for job in jobs]
    entries = [{"id": claim["id"], "fence": claim["fence"]} for claim in claims]
    heartbeat = await served.call("POST", "/workers/bound/heartbeat", token=token, json={"jobs": entries})
    assert [job["lost"] for job in heartbeat.json()["jobs"]] == [False, True]


async def test_a_heartbeat_reports_jobs_that_another_worker_claimed_as_lost(served: Served) -> None:
    press = await worker_client(served, "press")
    await press.call("POST", "/workers", json=BODY)
    jobs = [await served.make_job() for _ in range(2)]
    own = await press.call("POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"]})
    claims = [own.json()["jobs"][0], await served.claim(worker_id="press-2")]
    entries = [{"id": claim["id"], "fence": claim["fence"], "log": "mine\n"} for claim in claims]
    heartbeat = await press.call("POST", f"{PATH}/heartbeat", json={"jobs": entries})
    assert [job["lost"] for job in heartbeat.json()["jobs"]] == [False, True]
    logs = [(await served.call("GET", f"/jobs/{job['id']}/log")).json()["text"] for job in jobs]
    assert logs == ["mine\n", ""]


async def test_workers_of_a_disabled_credential_have_the_status_disabled(served: Served) -> None:
    press = await worker_client(served)
    await press.call("POST", "/workers", json=BODY)
    await served.call("POST", "/admin/workers/press/disable")
    assert (await served.call("GET", PATH)).json()["status"] == "disabled"
    assert (await press.call("POST", f"{PATH}/heartbeat", json={})).status_code == 401


@pytest.mark.parametrize("cause", ["cancel", "drain", "lost", "stop"])
async def test_a_waiting_heartbeat_returns_when_something_changes(served: Served, cause: str) -> None:
    press = await worker_client(served)
    await press.call("POST", "/workers", json=BODY)
    job = await served.make_job()
    (own,) = (await press.call("POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"]})).json()[
        "jobs"
    ]
    entry = {"id": job["id"], "fence": own["fence"]}
    waiting = asyncio.create_task(press.call("POST", f"{PATH}/heartbeat", json={"jobs": [entry], "wait_seconds": 60}))
    await until_waiting(served, 1)
    if cause == "cancel":
        await served.call("POST", f"/jobs/{job['id']}/cancel")
    elif cause == "drain":
        await served.call("POST", f"{PATH}/drain")
    elif cause == "lost":
        await press.call("POST", f"/jobs/{job['id']}/release", json={"fence": own["fence"]})
    else:
        served.server.stop()
    async with asyncio.timeout(30):
        response = (await waiting).json()
    (job_status,) = response["jobs"]
    assert (job_status["cancel_requested"], response["drain"], job_status["lost"]) == (
        cause == "cancel",
        cause == "drain",
        cause == "lost",
    )


async def test_a_waiting_heartbeat_ends_when_its_client_disconnects(served: Served) -> None:
    await served.call("POST", "/workers", json=BODY)
    waiting = asyncio.create_task(served.call("POST", f"{PATH}/heartbeat", json={"wait_seconds": 60}))
    await until_waiting(served, 1)
    waiting.cancel()
    await until_waiting(served, 0)


@on_one_server(
    ("body", "status"),
    [
        ({"jobs": [{"id": "a", "fence": 1, "log": "x" * 65536}]}, 200),
        ({"jobs": [{"id": "a", "fence": 1, "log": "x" * 65537}]}, 422),
        ({"jobs": [{"id": "a", "fence": 1, "log": "é" * 65536}]}, 200),
        ({"jobs": [{"id": "a", "fence": 1}, {"id": "a", "fence": 1}]}, 422),
        ({"jobs": [{"id": "a", "fence": 0}]}, 422),
        ({"jobs": [{"id": "a"}]}, 422),
        ({"jobs": [{"id": "a", "fence": 1, "progress": {"percent": 101}}]}, 422),
        ({"wait_seconds": -1}, 422),
        ({"wait_seconds": 61}, 422),
        ({"job": []}, 422),
    ],
)
async def test_an_invalid_heartbeat_is_rejected(served: Served, body: dict[str, Any], status: int) -> None:
    await served.call("POST", "/workers", json=BODY)
    assert (await served.call("POST", f"{PATH}/heartbeat", json=body)).status_code == status


@on_one_server("invalid", [{"id": "a/b/c"}, {"types": []}, {"types": "noop"}, {"metadata": "x" * 17000}])
async def test_an_invalid_registration_is_rejected(served: Served, invalid: dict[str, Any]) -> None:
    response = await served.call("POST", "/workers", json={**BODY, **invalid})
    assert response.status_code in (413, 422), response.text
    assert (await served.call("GET", "/workers")).json()["items"] == []


async def test_a_cursor_continues_the_list_of_workers(served: Served) -> None:
    for name in ("b", "a/1", "c"):
        await served.call("POST", "/workers", json={**BODY, "id": name})
    first = (await served.call("GET", "/workers?limit=2")).json()
    second = (await served.call("GET", f"/workers?limit=2&cursor={first['next_cursor']}")).json()
    assert [worker["id"] for worker in [*first["items"], *second["items"]]] == ["a/1", "b", "c"]
