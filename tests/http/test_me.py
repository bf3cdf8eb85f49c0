"""One's own things: who one is, where one is signed in, and the tokens one made."""

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
    async with serving(tmp_path / "data", PEOPLE) as one:
        await one.give_groups(makers="member", admins="admin", readers="viewer")
        yield one


async def test_who_one_is(served: Served) -> None:
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
    asked = {"x-worker-id": "press/1", "x-worker-secret": worker.secret}
    assert (await served.client.get("/api/v1/me", headers=asked)).json()["kind"] == "worker"


async def test_one_sees_and_ends_sessions_of_ones_own(served: Served) -> None:
    here, there = await served.sign_in("makers"), await served.sign_in("makers")
    other = await served.sign_in("admins", subject="ann")
    found = (await served.client.get("/api/v1/me/sessions", headers=here)).json()["items"]
    assert [one["current"] for one in found] == [False, True]
    theirs = (await served.client.get("/api/v1/me/sessions", headers=other)).json()["items"]
    assert len(theirs) == 1
    for id in (theirs[0]["id"], "nothing", found[0]["user"]):
        answer = await served.client.delete(f"/api/v1/me/sessions/{id}", headers=here)
        assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")
    assert (await served.client.delete(f"/api/v1/me/sessions/{found[0]['id']}", headers=here)).status_code == 204
    assert (await served.client.get("/api/v1/me", headers=there)).status_code == 401
    assert (await served.client.get("/api/v1/me", headers=other)).status_code == 200
    assert "ingots_" not in str(found)


async def test_programs_have_no_sessions(served: Served) -> None:
    for path in ("/me/sessions", "/me/tokens"):
        assert (await served.call("GET", path)).status_code == 403
    order = {"description": "mine", "grants": [READ]}
    assert (await served.call("POST", "/me/tokens", json=order)).status_code == 403


async def test_a_token_of_a_person_is_not_the_person(served: Served) -> None:
    """One that got lost makes no others, which would stay when it is revoked, and ends none, and no sessions."""
    headers = await served.sign_in("admins")
    order = {"description": "mine", "grants": [READ]}
    made = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    (session,) = (await served.client.get("/api/v1/me/sessions", headers=headers)).json()["items"]
    for method, path in (
        ("POST", "/me/tokens"),
        ("GET", "/me/tokens"),
        ("DELETE", f"/me/tokens/{made['id']}"),
        ("GET", "/me/sessions"),
        ("DELETE", f"/me/sessions/{session['id']}"),
    ):
        more = {"json": order} if method == "POST" else {}
        assert (await served.call(method, path, token=made["token"], **more)).status_code == 403, path
    page = await served.client.post(
        f"/me/sessions/{session['id']}/end", headers={"authorization": f"Bearer {made['token']}"}
    )
    assert page.status_code == 403
    assert (await served.client.get("/api/v1/me", headers=headers)).status_code == 200


async def test_a_token_of_a_person_does_no_more_than_they_may(served: Served) -> None:
    headers = await served.sign_in("makers")
    for grants in ([{"action": "*"}], [{"action": "jobs.*"}], [READ, {"action": "admin.tokens"}]):
        order = {"description": "too much", "grants": grants}
        assert (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).status_code == 403
    order = {"description": "mine", "grants": [READ, CREATE]}
    made = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    assert (await served.call("POST", "/jobs", json={"type": "noop"}, token=made["token"])).status_code == 201
    await served.give_groups(makers="viewer")
    assert (await served.call("POST", "/jobs", json={"type": "noop"}, token=made["token"])).status_code == 403
    assert (await served.call("GET", "/jobs", token=made["token"])).status_code == 200
    await served.give_groups(admins="admin")
    assert (await served.call("GET", "/jobs", token=made["token"])).status_code == 401


async def test_a_token_made_with_a_persons_token_is_theirs_too(served: Served) -> None:
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


async def test_an_operators_token_ends_with_their_being_one(served: Served) -> None:
    headers = await served.sign_in("operators")
    order = {"description": "for all", "grants": [{"action": "*"}], "operator": True}
    made = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
    assert (await served.call("GET", "/admin/tenants", token=made["token"])).status_code == 200
    assert (await served.call("GET", "/admin/users", token=made["token"])).status_code == 200
    await served.sign_in("makers")  # The same person, whom the provider now says less of.
    assert (await served.call("GET", "/admin/users", token=made["token"])).status_code == 401


async def test_a_token_of_who_stays_away_holds_no_more(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "away", PEOPLE, clock=clock) as served:
        await served.give_groups(makers="member")
        headers = await served.sign_in("makers")
        order = {"description": "mine", "grants": [READ]}
        made = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()
        clock.advance(days=90)
        assert (await served.call("GET", "/jobs", token=made["token"])).status_code == 200
        clock.advance(seconds=3)
        assert (await served.call("GET", "/jobs", token=made["token"])).status_code == 401
        await served.sign_in("makers")
        assert (await served.call("GET", "/jobs", token=made["token"])).status_code == 200


async def test_one_lists_and_ends_tokens_of_ones_own(served: Served) -> None:
    headers, other = await served.sign_in("makers"), await served.sign_in("admins", subject="ann")
    order = {"description": "mine", "grants": [READ]}
    made = [(await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json() for _ in range(3)]
    page = (await served.client.get("/api/v1/me/tokens?limit=2", headers=headers)).json()
    rest = (await served.client.get(f"/api/v1/me/tokens?limit=2&cursor={page['next_cursor']}", headers=headers)).json()
    assert [one["id"] for one in page["items"] + rest["items"]] == [one["id"] for one in reversed(made)]
    assert (await served.client.get("/api/v1/me/tokens", headers=other)).json()["items"] == []
    assert (await served.client.delete(f"/api/v1/me/tokens/{made[0]['id']}", headers=other)).status_code == 404
    assert (await served.call("GET", "/jobs", token=made[0]["token"])).status_code == 200
    assert (await served.client.delete(f"/api/v1/me/tokens/{made[0]['id']}", headers=headers)).status_code == 200
    assert (await served.call("GET", "/jobs", token=made[0]["token"])).status_code == 401
