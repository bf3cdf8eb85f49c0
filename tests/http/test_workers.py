"""Workers over HTTP: who may speak for whom, and what they are told."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from ingot.http.routes import PREFIX
from ingot.identity.grants import Grant
from tests.http.one_server import on_one_server
from tests.http.serving import Served
from tests.waiting import eventually

RUN, MANAGE, READ = Grant(action="workers.run"), Grant(action="workers.manage"), Grant(action="workers.read")
BODY = {"id": "press/host-1", "types": ["noop"], "hostname": "h", "version": "1", "metadata": {"slots": 4}}
PATH = "/workers/press%2Fhost-1"


class Credential:
    """A worker with its credential."""

    def __init__(self, served: Served, name: str, secret: str) -> None:
        self._client = served.client
        self._headers = {"x-worker-id": name, "x-worker-secret": secret}

    async def call(self, method: str, path: str, **more: Any) -> httpx.Response:
        return await self._client.request(method, PREFIX + path, headers=self._headers, **more)


async def credential(served: Served, name: str = "press", *, shared: bool = False, **options: Any) -> Credential:
    tenant = None if shared else served.ingot.default_tenant.id
    made = await served.ingot.credentials.create_worker_credential(tenant, name, **options)
    return Credential(served, name, made.secret)


async def waits(served: Served, count: int) -> None:
    """Return when so many heartbeats are under way."""
    await eventually(lambda: served.ingot.workers.waiting_heartbeats == count)


async def test_a_worker_registers_beats_drains_and_goes(served: Served) -> None:
    press = await credential(served)
    made = await press.call("POST", "/workers", json=BODY)
    assert (made.status_code, made.json()) == (201, {"id": "press/host-1", "heartbeat_seconds": 60.0})
    assert made.headers["location"] == PREFIX + PATH
    known = (await press.call("GET", PATH)).json()
    assert known == {
        **BODY,
        "tenant": served.ingot.default_tenant.id,
        "status": "online",
        "registered_at": known["registered_at"],
        "seen_at": known["seen_at"],
        "registered_by": "worker:press",
    }
    assert (await press.call("GET", "/workers")).json() == {"items": [known], "next_cursor": None}
    job = await served.make_job()
    claimed = await press.call("POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"]})
    (own,) = claimed.json()["jobs"]
    entry = {"id": job["id"], "fence": own["fence"], "progress": {"percent": 40, "stage": "reading"}, "log": "line\n"}
    beat = await press.call("POST", f"{PATH}/heartbeat", json={"jobs": [entry, {"id": "nobody", "fence": 1}]})
    assert beat.status_code == 200
    held, lost = beat.json()["jobs"]
    assert (held["id"], held["cancel_requested"], held["lost"]) == (job["id"], False, False)
    assert held["lease_expires_at"] >= own["lease_expires_at"]
    assert lost == {"id": "nobody", "lease_expires_at": None, "cancel_requested": False, "lost": True}
    assert beat.json()["drain"] is False
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
    gone = await press.call("POST", f"{PATH}/heartbeat", json={})
    assert (gone.status_code, gone.json()["code"]) == (404, "worker_not_found")
    names = [event["name"] for event in (await served.call("GET", "/events")).json()["items"]]
    assert [name for name in names if name.startswith("worker.")] == ["worker.online", "worker.offline"]


async def test_a_credential_speaks_for_its_own_workers_only(served: Served) -> None:
    press, other = await credential(served), await credential(served, "other")
    for name in ("other", "press2", "press-1/x", "press2/1"):
        answer = await press.call("POST", "/workers", json={**BODY, "id": name})
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    for name in ("press", "press/1"):
        assert (await press.call("POST", "/workers", json={**BODY, "id": name})).status_code == 201
    for method, path in (("POST", "/heartbeat"), ("POST", "/drain"), ("DELETE", "")):
        answer = await other.call(method, f"/workers/press%2F1{path}", json={} if path == "/heartbeat" else None)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), path
    assert (await press.call("GET", "/workers/press%2F1")).json()["status"] == "online"
    bound = await credential(served, "bound", types=["noop"])
    assert (await bound.call("POST", "/workers", json={"types": ["noop", "pdf"]})).status_code == 403
    assert (await bound.call("POST", "/workers", json={"types": ["noop"]})).json()["id"] == "bound"


async def test_a_shared_worker_is_of_no_tenant(served: Served) -> None:
    shared = await credential(served, shared=True)
    assert (await shared.call("POST", "/workers", json=BODY)).status_code == 201
    assert (await shared.call("GET", PATH)).json()["tenant"] is None
    assert (await served.call("GET", PATH)).status_code == 404
    assert (await served.call("GET", "/workers")).json()["items"] == []
    (known,) = (await served.call("GET", "/workers?shared=true")).json()["items"]
    assert known["id"] == "press/host-1"
    tenant = await served.token()
    for method, path in (("GET", ""), ("POST", "/drain"), ("DELETE", "")):
        assert (await served.call(method, f"{PATH}{path}?shared=true", token=tenant)).status_code == 403
    assert (await served.call("GET", "/workers?shared=true", token=tenant)).status_code == 403
    assert (await served.call("POST", f"{PATH}/drain?shared=true")).json()["status"] == "draining"
    assert (await shared.call("POST", f"{PATH}/heartbeat", json={})).json()["drain"] is True
    assert (await served.call("GET", "/events")).json()["items"] == []


async def test_who_may_not_manage_workers_has_a_say_in_its_own(served: Served) -> None:
    running, other, managing = [await served.token(*grants) for grants in ((RUN,), (RUN,), (MANAGE,))]
    for name in ("a", "b"):
        assert (await served.call("POST", "/workers", token=running, json={**BODY, "id": name})).status_code == 201
    for method, path in (("POST", "/workers/a/drain"), ("DELETE", "/workers/a")):
        assert (await served.call(method, path, token=other)).status_code == 403
    for token, name in ((running, "a"), (managing, "b")):
        assert (await served.call("POST", f"/workers/{name}/drain", token=token)).json()["status"] == "draining"
        assert (await served.call("DELETE", f"/workers/{name}", token=token)).status_code == 204
    reading = await served.token(READ)
    assert (await served.call("POST", "/workers/a/drain", token=reading)).status_code == 403
    assert (await served.call("POST", "/workers", token=managing, json=BODY)).status_code == 403


async def test_a_token_for_some_types_registers_no_others(served: Served) -> None:
    token = await served.token(Grant(action="workers.run", resource="jobs/noop"))
    assert (await served.call("POST", "/workers", token=token, json=BODY)).status_code == 201
    assert (await served.call("POST", "/workers", token=token, json={**BODY, "types": ["pdf"]})).status_code == 403


async def test_jobs_of_types_that_a_token_does_not_run_are_lost_for_it(served: Served) -> None:
    token = await served.token(Grant(action="workers.run", resource="jobs/noop"))
    await served.call("POST", "/workers", token=token, json={**BODY, "id": "bound"})
    jobs = [await served.make_job(type=type) for type in ("noop", "pdf")]
    claims = [await served.claim(types=[job["type"]], worker_id="bound") for job in jobs]
    entries = [{"id": claim["id"], "fence": claim["fence"]} for claim in claims]
    beat = await served.call("POST", "/workers/bound/heartbeat", token=token, json={"jobs": entries})
    assert [job["lost"] for job in beat.json()["jobs"]] == [False, True]


async def test_jobs_that_another_worker_claimed_are_lost_for_a_credential(served: Served) -> None:
    press = await credential(served, "press")
    await press.call("POST", "/workers", json=BODY)
    jobs = [await served.make_job() for _ in range(2)]
    own = await press.call("POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"]})
    claims = [own.json()["jobs"][0], await served.claim(worker_id="press-2")]
    entries = [{"id": claim["id"], "fence": claim["fence"], "log": "mine\n"} for claim in claims]
    beat = await press.call("POST", f"{PATH}/heartbeat", json={"jobs": entries})
    assert [job["lost"] for job in beat.json()["jobs"]] == [False, True]
    logs = [(await served.call("GET", f"/jobs/{job['id']}/log")).json()["text"] for job in jobs]
    assert logs == ["mine\n", ""]


async def test_a_disabled_credential_shows_in_its_workers(served: Served) -> None:
    press = await credential(served)
    await press.call("POST", "/workers", json=BODY)
    await served.call("POST", "/admin/workers/press/disable")
    assert (await served.call("GET", PATH)).json()["status"] == "disabled"
    assert (await press.call("POST", f"{PATH}/heartbeat", json={})).status_code == 401


@pytest.mark.parametrize("what", ["cancel", "drain", "lost", "stop"])
async def test_a_waiting_heartbeat_is_told(served: Served, what: str) -> None:
    press = await credential(served)
    await press.call("POST", "/workers", json=BODY)
    job = await served.make_job()
    (own,) = (await press.call("POST", "/jobs/claim", json={"worker_id": "press/host-1", "types": ["noop"]})).json()[
        "jobs"
    ]
    entry = {"id": job["id"], "fence": own["fence"]}
    waiting = asyncio.create_task(press.call("POST", f"{PATH}/heartbeat", json={"jobs": [entry], "wait_seconds": 60}))
    await waits(served, 1)
    if what == "cancel":
        await served.call("POST", f"/jobs/{job['id']}/cancel")
    elif what == "drain":
        await served.call("POST", f"{PATH}/drain")
    elif what == "lost":
        await press.call("POST", f"/jobs/{job['id']}/release", json={"fence": own["fence"]})
    else:
        served.server.stop()
    async with asyncio.timeout(30):
        told = (await waiting).json()
    (held,) = told["jobs"]
    assert (held["cancel_requested"], told["drain"], held["lost"]) == (
        what == "cancel",
        what == "drain",
        what == "lost",
    )


async def test_nothing_is_left_of_a_heartbeat_whose_caller_went_away(served: Served) -> None:
    await served.call("POST", "/workers", json=BODY)
    waiting = asyncio.create_task(served.call("POST", f"{PATH}/heartbeat", json={"wait_seconds": 60}))
    await waits(served, 1)
    waiting.cancel()
    await waits(served, 0)


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
async def test_a_bad_heartbeat_is_refused(served: Served, body: dict[str, Any], status: int) -> None:
    await served.call("POST", "/workers", json=BODY)
    assert (await served.call("POST", f"{PATH}/heartbeat", json=body)).status_code == status


@on_one_server("bad", [{"id": "a/b/c"}, {"types": []}, {"types": "noop"}, {"metadata": "x" * 17000}])
async def test_a_bad_registration_is_refused(served: Served, bad: dict[str, Any]) -> None:
    answer = await served.call("POST", "/workers", json={**BODY, **bad})
    assert answer.status_code in (413, 422), answer.text
    assert (await served.call("GET", "/workers")).json()["items"] == []


async def test_pages_of_workers_go_on_where_they_ended(served: Served) -> None:
    for name in ("b", "a/1", "c"):
        await served.call("POST", "/workers", json={**BODY, "id": name})
    first = (await served.call("GET", "/workers?limit=2")).json()
    rest = (await served.call("GET", f"/workers?limit=2&cursor={first['next_cursor']}")).json()
    assert [worker["id"] for worker in [*first["items"], *rest["items"]]] == ["a/1", "b", "c"]
