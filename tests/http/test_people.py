"""Administration of people: members, users, groups and sign-in links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.events.audit import Act
from ingot.identity.grants import Grant
from ingot.identity.people import SignInRefused
from ingot.kernel.ids import new_id
from ingot.kernel.pages import encode_cursor
from tests.http.one_server import on_one_server
from tests.http.serving import PEOPLE, Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as server:
        await server.give_groups(admins="admin", readers="viewer")
        yield server


async def request(served: Served, headers: dict[str, str], method: str, path: str, **more: Any) -> httpx.Response:
    return await served.client.request(method, f"/api/v1{path}", headers=headers, **more)


async def id_of(served: Served, headers: dict[str, str]) -> str:
    return str((await request(served, headers, "GET", "/me")).json()["user"]["id"])


async def accept_all(served: Served, headers: dict[str, str]) -> None:
    """Accept all invitations of a signed-in person."""
    for invitation in (await request(served, headers, "GET", "/me/invitations")).json()["items"]:
        response = await request(served, headers, "POST", f"/me/invitations/{invitation['id']}/accept")
        assert (response.status_code, response.json()["invited"]) == (200, False)


async def test_an_admin_invites_changes_and_removes_members(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    response = await request(
        served, admin, "POST", "/admin/members", json={"email": "Ada@Example.com", "role": "member"}
    )
    assert (response.status_code, response.json()["invited"], response.json()["email"]) == (
        201,
        True,
        "ada@example.com",
    )
    ada = await served.sign_in(email="ada@example.com", email_verified=True)
    refused = await request(served, ada, "POST", "/jobs", json={"type": "noop"})
    assert (refused.status_code, "accept" in refused.json()["hint"]) == (403, True)
    await accept_all(served, ada)
    await request(served, ada, "POST", "/me/tenants/default/choose")
    assert (await request(served, ada, "POST", "/jobs", json={"type": "noop"})).status_code == 201
    members = {
        member["email"]: member for member in (await request(served, admin, "GET", "/admin/members")).json()["items"]
    }
    ada_member = members["ada@example.com"]
    assert (ada_member["id"], ada_member["invited"], ada_member["role"]) == (await id_of(served, ada), False, "member")
    changed = await request(served, admin, "PATCH", f"/admin/members/{ada_member['id']}", json={"role": "viewer"})
    assert changed.json()["role"] == "viewer"
    assert (await request(served, ada, "POST", "/jobs", json={"type": "noop"})).status_code == 403
    assert (await request(served, admin, "DELETE", f"/admin/members/{ada_member['id']}")).status_code == 200
    assert (await request(served, ada, "GET", "/jobs")).status_code == 403
    again = await request(served, admin, "DELETE", f"/admin/members/{ada_member['id']}")
    assert (again.status_code, again.json()["code"]) == (404, "member_not_found")


async def test_a_foreign_invitation_or_group_does_not_change_what_a_session_does(served: Served) -> None:
    """An admin of another tenant cannot make a live session ambiguous, and cannot redirect its requests."""
    await served.call("POST", "/admin/tenants", json={"slug": "evil"})
    evil = (await served.ingot.tenants.get("evil")).id
    admin = await served.sign_in("admins", subject="ann")
    own_tenant: dict[str, Any] = {"email": "ada@example.com", "email_verified": True}
    ada = await served.sign_in("readers", **own_tenant)
    ada_id = await id_of(served, ada)
    for target in ({"email": "ada@example.com"}, {"user": ada_id}):
        invited = await served.ingot.members.put(evil, role="admin", act=Act(), **target)
        assert (await request(served, ada, "GET", "/jobs")).status_code == 200
        assert (invited.name, invited.email) == (None, target.get("email"))
    await served.call("PATCH", "/admin/tenants/evil", json={"groups": {"readers": "admin"}})
    assert (await request(served, ada, "GET", "/me")).json()["slug"] == "default"
    await accept_all(served, ada)
    assert (await request(served, ada, "GET", "/me")).json()["slug"] == "default"
    assert (await request(served, ada, "POST", "/jobs", json={"type": "noop"})).status_code == 403
    assert (
        await request(served, admin, "PATCH", "/admin/tenants/default", json={"groups": {"admins": "admin"}})
    ).is_success
    for headers in (ada, await served.sign_in("readers", **own_tenant)):
        refused = await request(served, headers, "POST", "/jobs", json={"type": "noop"})
        assert (refused.status_code, refused.json()["code"]) == (403, "tenant_not_chosen")
        assert "/api/v1/me/tenants/{tenant}/choose" in refused.json()["hint"]
        assert refused.json()["hint"].endswith("Your tenants: evil.")
        tokens = await request(
            served, headers, "POST", "/me/tokens", json={"description": "x", "grants": [{"action": "jobs.read"}]}
        )
        assert (tokens.status_code, tokens.json()["code"]) == (403, "tenant_not_chosen")
    assert (await request(served, ada, "POST", "/me/tenants/default/choose")).status_code == 403
    chosen = await request(served, ada, "POST", "/me/tenants/evil/choose")
    assert (chosen.status_code, chosen.json()) == (200, {"tenant": evil, "slug": "evil", "role": "admin"})
    assert (await request(served, ada, "POST", "/jobs", json={"type": "noop"})).status_code == 201
    assert (await request(served, headers, "POST", "/jobs", json={"type": "noop"})).status_code == 403
    left = await request(served, ada, "POST", "/me/tenants/evil/leave")
    assert (left.status_code, left.json()["role"]) == (200, "admin")
    assert (await request(served, ada, "GET", "/jobs")).json()["code"] == "forbidden"
    assert (await request(served, ada, "GET", "/me")).json()["tenants"] == []


async def test_a_token_cannot_answer_invitations_or_leave_a_tenant(served: Served) -> None:
    ann = await served.sign_in("admins", subject="ann")
    order = {"description": "x", "grants": [{"action": "admin.*"}]}
    token = (await request(served, ann, "POST", "/me/tokens", json=order)).json()["token"]
    invited = await served.ingot.members.put(
        served.ingot.default_tenant.id, role="viewer", user=await id_of(served, ann), act=Act()
    )
    paths = [f"/me/invitations/{invited.id}/accept", f"/me/invitations/{invited.id}/decline"]
    for path in (*paths, "/me/tenants/default/choose", "/me/tenants/default/leave"):
        assert (await served.call("POST", path, token=token)).status_code == 403, path
        cross = await request(served, {**ann, "sec-fetch-site": "cross-site"}, "POST", path)
        assert (cross.status_code, cross.json()["code"]) == (403, "cross_site"), path
    assert (await served.call("GET", "/me/invitations", token=token)).status_code == 403


async def test_an_unverified_email_does_not_match_an_invitation(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    await request(served, admin, "POST", "/admin/members", json={"email": "ada@example.com", "role": "admin"})
    ada = await served.sign_in(email="ada@example.com", email_verified=False)
    assert (await request(served, ada, "GET", "/jobs")).status_code == 403
    assert "not verified by the provider" in (await served.client.get("/me", headers=ada)).text
    bob = await served.sign_in(email="bob@example.com", email_verified=True, subject="bob")
    assert "not verified" not in (await served.client.get("/me", headers=bob)).text


async def test_a_role_from_a_group_cannot_be_removed_from_one_member(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    vera = await id_of(served, await served.sign_in("readers", subject="vera"))
    response = await request(served, admin, "DELETE", f"/admin/members/{vera}")
    assert (response.status_code, response.json()["code"]) == (409, "member_by_group")


async def test_a_caller_cannot_give_a_role_that_exceeds_its_own_grants(served: Served) -> None:
    token = (
        await served.call(
            "POST",
            "/admin/tokens",
            json={"description": "hr", "grants": [{"action": "admin.members"}, {"action": "jobs.read"}]},
        )
    ).json()["token"]
    for role in ("admin", "member", "viewer"):
        order = {"email": "eve@example.com", "role": role}
        assert (await served.call("POST", "/admin/members", json=order, token=token)).status_code == 403
    change = {"groups": {"everybody": "admin"}}
    assert (await served.call("PATCH", "/admin/tenants/default", json=change, token=token)).status_code == 403


async def test_a_caller_cannot_take_a_role_that_it_could_not_give(served: Served) -> None:
    vera = await served.sign_in("readers", subject="vera")
    tenant = served.ingot.default_tenant.id
    await served.ingot.members.put(tenant, role="admin", user=await id_of(served, vera), act=Act())
    await accept_all(served, vera)
    await served.ingot.members.put(tenant, role="viewer", email="vic@example.com", act=Act())
    before = [member["id"] for member in (await served.call("GET", "/admin/members")).json()["items"]]
    hr = await served.token(Grant(action="admin.members"), Grant(action="admin.tenants"))
    viewers = await served.token(
        Grant(action="admin.members"),
        Grant(action="admin.tenants"),
        *(Grant(action=f"{name}.read") for name in ("jobs", "workers", "events", "blobs")),
    )
    for token in (hr, viewers):
        for groups in ({}, {"admins": "admin"}, {"readers": "viewer"}, {"admins": "viewer", "readers": "viewer"}):
            change = await served.call("PATCH", "/admin/tenants/default", json={"groups": groups}, token=token)
            assert change.status_code == (403 if token == hr or groups.get("admins") != "admin" else 200), groups
        for member in (await served.call("GET", "/admin/members")).json()["items"]:
            if member["role"] == "admin" or token == hr:
                path = f"/admin/members/{member['id']}"
                assert (await served.call("PATCH", path, json={"role": "viewer"}, token=token)).status_code == 403
                assert (await served.call("DELETE", path, token=token)).status_code == 403
    assert (await served.ingot.tenants.get("default")).groups == {"admins": "admin"}
    assert [member["id"] for member in (await served.call("GET", "/admin/members")).json()["items"]] == before


async def test_a_caller_cannot_replace_an_invitation_to_a_role_that_it_could_not_give(served: Served) -> None:
    viewers = await served.token(
        Grant(action="admin.members"),
        *(Grant(action=f"{name}.read") for name in ("jobs", "workers", "events", "blobs")),
    )
    for person in ({"email": "Boss@example.com"}, {"user": new_id()}):
        invited = await served.call("POST", "/admin/members", json={**person, "role": "admin"})
        assert invited.status_code == 201, invited.text
        order = {**person, "role": "viewer"}
        assert (await served.call("POST", "/admin/members", json=order, token=viewers)).status_code == 403
        assert (await served.call("GET", f"/admin/members/{invited.json()['id']}")).json()["role"] == "admin"


async def test_an_admin_changes_only_the_groups_of_its_own_tenant(served: Served) -> None:
    await served.ingot.tenants.create("acme")
    admin = await served.sign_in("admins", subject="ann")
    groups = {"admins": "admin", "cooks": "member"}
    response = await request(served, admin, "PATCH", "/admin/tenants/default", json={"groups": groups})
    assert (response.status_code, response.json()["groups"]) == (200, groups)
    assert (await request(served, await served.sign_in("cooks"), "GET", "/jobs")).status_code == 200
    for change in ({"weight": 5}, {"groups": groups, "limits": {"rate": 1}}, {"slug": "mine"}):
        assert (await request(served, admin, "PATCH", "/admin/tenants/default", json=change)).status_code == 403
    assert (await request(served, admin, "PATCH", "/admin/tenants/acme", json={"groups": groups})).status_code == 404
    assert (await served.ingot.tenants.get("default")).weight == 1


async def test_a_change_of_group_roles_takes_effect_at_once(served: Served) -> None:
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {"cooks": "viewer"}})
    cook = await served.sign_in("cooks", subject="carl")
    assert (await request(served, cook, "GET", "/jobs")).status_code == 200
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {}})
    assert (await request(served, cook, "GET", "/jobs")).status_code == 403
    await served.call("POST", "/admin/tenants", json={"slug": "kitchen", "groups": {"cooks": "viewer"}})
    refused = await request(served, cook, "GET", "/jobs")
    assert (refused.status_code, refused.json()["code"]) == (403, "tenant_not_chosen"), "the session keeps its tenant"
    kitchen = {**cook, "ingot-tenant": "kitchen"}
    assert (await request(served, kitchen, "GET", "/jobs")).status_code == 200


@on_one_server(
    "body",
    [
        {"role": "member"},
        {"role": "owner", "email": "a@b.c"},
        {"role": "member", "email": "nobody"},
        {"role": "member", "email": "a@b.c", "user": "x"},
        {"role": "member", "email": ""},
        {"role": "member", "email": "a@b\u0000.c"},
        {"email": "a@b.c"},
    ],
)
async def test_an_invalid_member_is_rejected(served: Served, body: dict[str, Any]) -> None:
    response = await served.call("POST", "/admin/members", json=body)
    assert response.status_code == 422
    assert response.json()["hint"]
    assert (await served.call("GET", "/admin/members")).json()["items"] == []


async def test_an_operator_disables_and_enables_users(served: Served) -> None:
    ada = await served.sign_in("readers", email="ada@example.com")
    user_id = await id_of(served, ada)
    users = (await served.call("GET", "/admin/users", params={"email": "ada@example.com"})).json()["items"]
    assert [user["id"] for user in users] == [user_id]
    shown = (await served.call("GET", f"/admin/users/{user_id}")).json()
    assert (shown["operator"], shown["tenants"][0]["role"]) == (False, "viewer")
    assert (await served.call("POST", f"/admin/users/{user_id}/disable")).json()["enabled"] is False
    assert (await request(served, ada, "GET", "/me")).status_code == 401
    with pytest.raises(SignInRefused):
        await served.sign_in("readers", email="ada@example.com")
    assert (await served.call("POST", f"/admin/users/{user_id}/enable")).json()["enabled"] is True
    assert (await request(served, ada, "GET", "/me")).status_code == 401, "a session that ended stays ended"
    ada = await served.sign_in("readers", email="ada@example.com")
    (session,) = (await served.call("GET", f"/admin/users/{user_id}/sessions")).json()["items"]
    assert (await served.call("DELETE", f"/admin/users/{user_id}/sessions/{session['id']}")).status_code == 204
    assert (await request(served, ada, "GET", "/me")).status_code == 401
    for path in (f"/admin/users/{session['id']}", "/admin/users/nobody"):
        assert (await served.call("GET", path)).json()["code"] == "user_not_found"


async def test_only_an_operator_reads_and_manages_users(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    user_id = await id_of(served, admin)
    requests = [
        ("GET", "/admin/users"),
        ("GET", f"/admin/users/{user_id}"),
        ("POST", f"/admin/users/{user_id}/disable"),
    ]
    requests += [("GET", f"/admin/users/{user_id}/sessions"), ("POST", "/admin/links")]
    for method, path in requests:
        assert (await request(served, admin, method, path)).status_code == 403, path


async def test_a_sign_in_link_is_created_only_by_the_local_operator(served: Served) -> None:
    """A link gives full rights, and remains valid after its creator was disabled."""
    order = {"description": "people", "grants": [{"action": "admin.members"}], "operator": True}
    limited = (await served.call("POST", "/admin/tokens", json=order)).json()["token"]
    assert (await served.call("GET", "/admin/users", token=limited)).status_code == 200
    assert (await served.call("POST", "/admin/links", token=limited)).status_code == 403
    otto = await served.sign_in("operators", subject="otto")
    mine = {"description": "mine", "grants": [{"action": "*"}], "operator": True}
    own_token = (await request(served, otto, "POST", "/me/tokens", json=mine)).json()["token"]
    assert (await request(served, otto, "POST", "/admin/links")).status_code == 403
    assert (await served.call("POST", "/admin/links", token=own_token)).status_code == 403
    assert (await request(served, await served.link(), "POST", "/admin/links")).status_code == 201


async def test_a_sign_in_link_works_once(served: Served) -> None:
    link = (await served.call("POST", "/admin/links")).json()
    assert link["url"].startswith(f"{served.url}/auth/link?code=ingotl_")
    path = link["url"].removeprefix(served.url)
    shown = await served.client.get(path)
    assert (shown.status_code, shown.headers["referrer-policy"]) == (200, "no-referrer")
    cross = await served.client.post(path, headers={"sec-fetch-site": "cross-site"})
    assert cross.status_code == 403
    used = await served.client.post(path, headers={"sec-fetch-site": "same-origin"})
    assert (used.status_code, used.headers["location"]) == (303, "/me")
    set_cookie = used.headers["set-cookie"]
    assert set_cookie.startswith("__Host-ingot_session=ingots_")
    assert all(part in set_cookie for part in ("Path=/", "Secure", "HttpOnly", "SameSite=Lax"))
    assert "Domain" not in set_cookie
    headers = {"cookie": set_cookie.partition(";")[0]}
    assert (await request(served, headers, "GET", "/me")).json()["operator"] is True
    again = await served.client.post(path, headers={"sec-fetch-site": "same-origin"})
    assert again.status_code == 401
    assert "/api/v1/admin/links" in again.text
    assert "set-cookie" not in again.headers


async def test_sign_in_without_https_is_possible_only_on_the_machine_itself(served: Served) -> None:
    path = (await served.call("POST", "/admin/links")).json()["url"].removeprefix(served.url)
    for host in ("ingot.example", "192.168.1.7:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[", "[::1"):
        rejected = await served.client.post(path, headers={"sec-fetch-site": "same-origin", "host": host})
        assert rejected.status_code == 401, host
        assert "warning" in (await served.client.get("/auth/login", headers={"host": host})).text
        assert "HTTPS" in rejected.text
    for host in ("localhost:8080", "[::1]:8080", "127.0.0.1"):
        assert "warning" not in (await served.client.get("/auth/login", headers={"host": host})).text
    accepted = await served.client.post(path, headers={"sec-fetch-site": "same-origin", "host": "localhost:8080"})
    assert accepted.status_code == 303


@pytest.mark.parametrize(
    ("path", "list_name"),
    [("/admin/tokens", "tokens"), ("/admin/workers", "worker credentials"), ("/admin/members", "members")],
)
async def test_a_forged_cursor_is_rejected(served: Served, path: str, list_name: str) -> None:
    cursor = encode_cursor("\x00", bound_to=(list_name, served.ingot.default_tenant.id))
    response = await served.call("GET", f"{path}?cursor={cursor}")
    assert (response.status_code, response.json()["code"]) == (422, "invalid_cursor")
