"""The routes `/me`: the caller, its sessions and its tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingot.kernel.clock import ManualClock
from tests.http.serving import PEOPLE, Served, serving

READ = {"action": "jobs.read"}
CREATE = {"action": "jobs.create"}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as server:
        await server.give_groups(makers="member", admins="admin", readers="viewer")
        yield server


async def test_me_describes_the_caller(served: Served) -> None:
    headers = await served.sign_in("makers", "cooks", email="ada@example.com", email_verified=True, name="Ada")
    me = (await served.client.get("/api/v1/me", headers=headers)).json()
    assert (me["kind"], me["operator"], me["slug"]) == ("user", False, "default")
    assert me["tenants"] == [{"tenant": served.ingot.default_tenant.id, "slug": "default", "role": "member"}]
    assert (me["user"]["email"], me["user"]["groups"]) == ("ada@example.com", ["cooks", "makers"])
    assert {grant["action"] for grant in me["grants"]} == {
        "jobs.read", "jobs.create", "workers.read", "events.read", "blobs.read", "blobs.write", "blobs.delete"
    }  # fmt: skip
    operator = (await served.client.get("/api/v1/me", headers=await served.sign_in("operators", subject="otto"))).json()
    assert (operator["operator"], operator["grants"]) == (True, [{"action": "*", "resource": "*"}])
    stranger = (await served.client.get("/api/v1/me", headers=await served.sign_in(subject="nele"))).json()
    assert (stranger["tenant"], stranger["tenants"], stranger["grants"]) == (None, [], [])
    token = (await served.call("GET", "/me")).json()
    assert (token["kind"], token["operator"], token["user"], token["slug"]) == ("token", True, None, "default")
    worker = await served.ingot.credentials.create_worker_credential(served.ingot.default_tenant.id, "press")
    headers = {"x-worker-id": "press/1", "x-worker-secret": worker.secret}
    assert (await served.client.get("/api/v1/me", headers=headers)).json()["kind"] == "worker"


async def test_people_list_and_end_only_their_own_sessions(served: Served) -> None:
    headers, other_browser = await served.sign_in("makers"), await served.sign_in("makers")
    other_person = await served.sign_in("admins", subject="ann")
    sessions = (await served.client.get("/api/v1/me/sessions", headers=headers)).json()["items"]
    assert [session["current"] for session in sessions] == [False, True]
    other_sessions = (await served.client.get("/api/v1/me/sessions", headers=other_person)).json()["items"]
    assert len(other_sessions) == 1
    for id in (other_sessions[0]["id"], "nothing", sessions[0]["user"]):
        response = await served.client.delete(f"/api/v1/me/sessions/{id}", headers=headers)
        assert (response.status_code, response.json()["code"]) == (404, "session_not_found")
    assert (await served.client.delete(f"/api/v1/me/sessions/{sessions[0]['id']}", headers=headers)).status_code == 204
    assert (await served.client.get("/api/v1/me", headers=other_browser)).status_code == 401
    assert (await served.client.get("/api/v1/me", headers=other_person)).status_code == 200
    assert "ingots_" not in str(sessions)


async def test_programs_have_no_sessions(served: Served) -> None:
    for path in ("/me/sessions", "/me/tokens"):
        assert (await served.call("GET", path)).status_code == 403
    order = {"description": "mine", "grants": [READ]}
    assert (await served.call("POST", "/me/tokens", json=order)).status_code == 403


async def test_a_token_of_a_person_cannot_manage_sessions_and_tokens(served: Served) -> None:
    """A stolen token cannot create tokens that survive its revocation, and cannot sign its owner out."""
    headers = await served.sign_in("admins")
    order = {"description": "mine", "grants": [READ]}
    created = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    (session,) = (await served.client.get("/api/v1/me/sessions", headers=headers)).json()["items"]
    for method, path in (
        ("POST", "/me/tokens"),
        ("GET", "/me/tokens"),
        ("DELETE", f"/me/tokens/{created['id']}"),
        ("GET", "/me/sessions"),
        ("DELETE", f"/me/sessions/{session['id']}"),
    ):
        more = {"json": order} if method == "POST" else {}
        assert (await served.call(method, path, token=created["token"], **more)).status_code == 403, path
    page = await served.client.post(
        f"/me/sessions/{session['id']}/end", headers={"authorization": f"Bearer {created['token']}"}
    )
    assert page.status_code == 403
    assert (await served.client.get("/api/v1/me", headers=headers)).status_code == 200


async def test_a_token_of_a_person_never_exceeds_the_grants_of_the_person(served: Served) -> None:
    headers = await served.sign_in("makers")
    for grants in ([{"action": "*"}], [{"action": "jobs.*"}], [READ, {"action": "admin.tokens"}]):
        order = {"description": "too much", "grants": grants}
        assert (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).status_code == 403
    order = {"description": "mine", "grants": [READ, CREATE]}
    created = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    assert (await served.call("POST", "/jobs", json={"type": "noop"}, token=created["token"])).status_code == 201
    await served.give_groups(makers="viewer")
    assert (await served.call("POST", "/jobs", json={"type": "noop"}, token=created["token"])).status_code == 403
    assert (await served.call("GET", "/jobs", token=created["token"])).status_code == 200
    await served.give_groups(admins="admin")
    assert (await served.call("GET", "/jobs", token=created["token"])).status_code == 401


async def test_a_token_created_with_a_token_of_a_person_belongs_to_that_person(served: Served) -> None:
    headers = await served.sign_in("admins")
    order = {"description": "first", "grants": [{"action": "admin.tokens"}, READ]}
    first = (await served.client.post("/api/v1/admin/tokens", headers=headers, json=order)).json()
    second = (
        await served.call("POST", "/admin/tokens", json={"description": "x", "grants": [READ]}, token=first["token"])
    ).json()
    me = (await served.client.get("/api/v1/me", headers=headers)).json()["user"]["id"]
    assert first["user"] == second["user"] == me
    await served.call("POST", f"/admin/users/{me}/disable")
    for token in (first["token"], second["token"]):
        assert (await served.call("GET", "/jobs", token=token)).status_code == 401


async def test_an_operator_token_ends_when_its_owner_is_no_longer_an_operator(served: Served) -> None:
    headers = await served.sign_in("operators")
    order = {"description": "for all", "grants": [{"action": "*"}], "operator": True}
    created = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    assert (await served.call("GET", "/admin/tenants", token=created["token"])).status_code == 200
    assert (await served.call("GET", "/admin/users", token=created["token"])).status_code == 200
    await served.sign_in("makers")  # The same person, now without the group of operators.
    assert (await served.call("GET", "/admin/users", token=created["token"])).status_code == 401


async def test_a_token_is_invalid_while_its_owner_has_not_signed_in_for_90_days(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "away", PEOPLE, clock=clock) as served:
        await served.give_groups(makers="member")
        headers = await served.sign_in("makers")
        order = {"description": "mine", "grants": [READ]}
        created = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
        clock.advance(days=90)
        assert (await served.call("GET", "/jobs", token=created["token"])).status_code == 200
        clock.advance(seconds=3)
        assert (await served.call("GET", "/jobs", token=created["token"])).status_code == 401
        await served.sign_in("makers")
        assert (await served.call("GET", "/jobs", token=created["token"])).status_code == 200


async def test_people_list_and_revoke_only_their_own_tokens(served: Served) -> None:
    headers, other_person = await served.sign_in("makers"), await served.sign_in("admins", subject="ann")
    order = {"description": "mine", "grants": [READ]}
    created = [(await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json() for _ in range(3)]
    page = (await served.client.get("/api/v1/me/tokens?limit=2", headers=headers)).json()
    cursor = page["next_cursor"]
    last_page = (await served.client.get(f"/api/v1/me/tokens?limit=2&cursor={cursor}", headers=headers)).json()
    listed = [token["id"] for token in page["items"] + last_page["items"]]
    assert listed == [token["id"] for token in reversed(created)]
    assert (await served.client.get("/api/v1/me/tokens", headers=other_person)).json()["items"] == []
    assert (
        await served.client.delete(f"/api/v1/me/tokens/{created[0]['id']}", headers=other_person)
    ).status_code == 404
    assert (await served.call("GET", "/jobs", token=created[0]["token"])).status_code == 200
    assert (await served.client.delete(f"/api/v1/me/tokens/{created[0]['id']}", headers=headers)).status_code == 200
    assert (await served.call("GET", "/jobs", token=created[0]["token"])).status_code == 401
