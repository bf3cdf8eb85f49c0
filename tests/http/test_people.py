"""Those who look after people: members, users, groups, links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.identity.people import SignInRefused
from ingot.kernel.pages import encode_cursor
from tests.http.one_server import on_one_server
from tests.http.serving import PEOPLE, Served, serving


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as one:
        await one.give_groups(admins="admin", readers="viewer")
        yield one


async def ask(served: Served, headers: dict[str, str], method: str, path: str, **more: Any) -> httpx.Response:
    return await served.client.request(method, f"/api/v1{path}", headers=headers, **more)


async def id_of(served: Served, headers: dict[str, str]) -> str:
    return str((await ask(served, headers, "GET", "/me")).json()["user"]["id"])


async def test_an_admin_invites_changes_and_removes_members(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    answer = await ask(served, admin, "POST", "/admin/members", json={"email": "Ada@Example.com", "role": "member"})
    assert (answer.status_code, answer.json()["invited"], answer.json()["email"]) == (201, True, "ada@example.com")
    ada = await served.sign_in(email="ada@example.com", email_verified=True)
    assert (await ask(served, ada, "POST", "/jobs", json={"type": "noop"})).status_code == 201
    members = {one["email"]: one for one in (await ask(served, admin, "GET", "/admin/members")).json()["items"]}
    known = members["ada@example.com"]
    assert (known["id"], known["invited"], known["role"]) == (await id_of(served, ada), False, "member")
    changed = await ask(served, admin, "PATCH", f"/admin/members/{known['id']}", json={"role": "viewer"})
    assert changed.json()["role"] == "viewer"
    assert (await ask(served, ada, "POST", "/jobs", json={"type": "noop"})).status_code == 403
    assert (await ask(served, admin, "DELETE", f"/admin/members/{known['id']}")).status_code == 200
    assert (await ask(served, ada, "GET", "/jobs")).status_code == 403
    again = await ask(served, admin, "DELETE", f"/admin/members/{known['id']}")
    assert (again.status_code, again.json()["code"]) == (404, "member_not_found")


async def test_an_email_that_is_not_verified_is_nobodys(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    await ask(served, admin, "POST", "/admin/members", json={"email": "ada@example.com", "role": "admin"})
    ada = await served.sign_in(email="ada@example.com", email_verified=False)
    assert (await ask(served, ada, "GET", "/jobs")).status_code == 403
    assert "does not say that it is verified" in (await served.client.get("/me", headers=ada)).text
    bob = await served.sign_in(email="bob@example.com", email_verified=True, subject="bob")
    assert "does not say" not in (await served.client.get("/me", headers=bob)).text


async def test_a_role_by_a_group_is_not_taken_from_one_person(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    vera = await id_of(served, await served.sign_in("readers", subject="vera"))
    answer = await ask(served, admin, "DELETE", f"/admin/members/{vera}")
    assert (answer.status_code, answer.json()["code"]) == (409, "member_by_group")


async def test_nobody_gives_a_role_that_does_more_than_they_may(served: Served) -> None:
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


async def test_an_admin_maps_groups_of_their_own_tenant_and_changes_nothing_else(served: Served) -> None:
    await served.ingot.tenants.create("acme")
    admin = await served.sign_in("admins", subject="ann")
    groups = {"admins": "admin", "cooks": "member"}
    answer = await ask(served, admin, "PATCH", "/admin/tenants/default", json={"groups": groups})
    assert (answer.status_code, answer.json()["groups"]) == (200, groups)
    assert (await ask(served, await served.sign_in("cooks"), "GET", "/jobs")).status_code == 200
    for change in ({"weight": 5}, {"groups": groups, "limits": {"rate": 1}}, {"slug": "mine"}):
        assert (await ask(served, admin, "PATCH", "/admin/tenants/default", json=change)).status_code == 403
    assert (await ask(served, admin, "PATCH", "/admin/tenants/acme", json={"groups": groups})).status_code == 404
    assert (await served.ingot.tenants.get("default")).weight == 1


async def test_groups_that_are_mapped_are_felt_at_once(served: Served) -> None:
    cook = await served.sign_in("cooks", subject="carl")
    assert (await ask(served, cook, "GET", "/jobs")).status_code == 403
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {"cooks": "viewer"}})
    assert (await ask(served, cook, "GET", "/jobs")).status_code == 200
    await served.call("PATCH", "/admin/tenants/default", json={"groups": {}})
    assert (await ask(served, cook, "GET", "/jobs")).status_code == 403
    await served.call("POST", "/admin/tenants", json={"slug": "kitchen", "groups": {"cooks": "viewer"}})
    assert (await ask(served, cook, "GET", "/jobs")).status_code == 200


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
async def test_a_member_that_cannot_be_is_refused(served: Served, body: dict[str, Any]) -> None:
    answer = await served.call("POST", "/admin/members", json=body)
    assert answer.status_code == 422
    assert answer.json()["hint"]
    assert (await served.call("GET", "/admin/members")).json()["items"] == []


async def test_an_operator_puts_people_out_and_lets_them_in(served: Served) -> None:
    ada = await served.sign_in("readers", email="ada@example.com")
    known = await id_of(served, ada)
    found = (await served.call("GET", "/admin/users", params={"email": "ada@example.com"})).json()["items"]
    assert [one["id"] for one in found] == [known]
    shown = (await served.call("GET", f"/admin/users/{known}")).json()
    assert (shown["operator"], shown["tenants"][0]["role"]) == (False, "viewer")
    assert (await served.call("POST", f"/admin/users/{known}/disable")).json()["enabled"] is False
    assert (await ask(served, ada, "GET", "/me")).status_code == 401
    with pytest.raises(SignInRefused):
        await served.sign_in("readers", email="ada@example.com")
    assert (await served.call("POST", f"/admin/users/{known}/enable")).json()["enabled"] is True
    assert (await ask(served, ada, "GET", "/me")).status_code == 401, "a session that ended stays ended"
    ada = await served.sign_in("readers", email="ada@example.com")
    (session,) = (await served.call("GET", f"/admin/users/{known}/sessions")).json()["items"]
    assert (await served.call("DELETE", f"/admin/users/{known}/sessions/{session['id']}")).status_code == 204
    assert (await ask(served, ada, "GET", "/me")).status_code == 401
    for path in (f"/admin/users/{session['id']}", "/admin/users/nobody"):
        assert (await served.call("GET", path)).json()["code"] == "user_not_found"


async def test_only_an_operator_sees_everybody(served: Served) -> None:
    admin = await served.sign_in("admins", subject="ann")
    known = await id_of(served, admin)
    asked = [("GET", "/admin/users"), ("GET", f"/admin/users/{known}"), ("POST", f"/admin/users/{known}/disable")]
    asked += [("GET", f"/admin/users/{known}/sessions"), ("POST", "/admin/links")]
    for method, path in asked:
        assert (await ask(served, admin, method, path)).status_code == 403, path


async def test_a_link_is_not_made_by_who_may_less_or_goes_away(served: Served) -> None:
    """It makes an operator who may do everything, and stays when the one who made it is put out."""
    order = {"description": "people", "grants": [{"action": "admin.members"}], "operator": True}
    some = (await served.call("POST", "/admin/tokens", json=order)).json()["token"]
    assert (await served.call("GET", "/admin/users", token=some)).status_code == 200
    assert (await served.call("POST", "/admin/links", token=some)).status_code == 403
    otto = await served.sign_in("operators", subject="otto")
    mine = {"description": "mine", "grants": [{"action": "*"}], "operator": True}
    text = (await ask(served, otto, "POST", "/me/tokens", json=mine)).json()["token"]
    assert (await ask(served, otto, "POST", "/admin/links")).status_code == 403
    assert (await served.call("POST", "/admin/links", token=text)).status_code == 403
    assert (await ask(served, await served.link(), "POST", "/admin/links")).status_code == 201


async def test_a_link_signs_the_operator_in_once(served: Served) -> None:
    made = (await served.call("POST", "/admin/links")).json()
    assert made["url"].startswith(f"{served.url}/auth/link?code=ingotl_")
    path = made["url"].removeprefix(served.url)
    shown = await served.client.get(path)
    assert (shown.status_code, shown.headers["referrer-policy"]) == (200, "no-referrer")
    cross = await served.client.post(path, headers={"sec-fetch-site": "cross-site"})
    assert cross.status_code == 403
    used = await served.client.post(path, headers={"sec-fetch-site": "same-origin"})
    assert (used.status_code, used.headers["location"]) == (303, "/me")
    kept = used.headers["set-cookie"]
    assert kept.startswith("__Host-ingot_session=ingots_")
    assert all(part in kept for part in ("Path=/", "Secure", "HttpOnly", "SameSite=Lax"))
    assert "Domain" not in kept
    headers = {"cookie": kept.partition(";")[0]}
    assert (await ask(served, headers, "GET", "/me")).json()["operator"] is True
    again = await served.client.post(path, headers={"sec-fetch-site": "same-origin"})
    assert again.status_code == 401
    assert "/api/v1/admin/links" in again.text
    assert "set-cookie" not in again.headers


async def test_without_https_one_signs_in_on_the_machine_itself_only(served: Served) -> None:
    path = (await served.call("POST", "/admin/links")).json()["url"].removeprefix(served.url)
    for host in ("ingot.example", "192.168.1.7:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[", "[::1"):
        refused = await served.client.post(path, headers={"sec-fetch-site": "same-origin", "host": host})
        assert refused.status_code == 401, host
        assert "warning" in (await served.client.get("/auth/login", headers={"host": host})).text
        assert "https" in refused.text
    for host in ("localhost:8080", "[::1]:8080", "127.0.0.1"):
        assert "warning" not in (await served.client.get("/auth/login", headers={"host": host})).text
    let_in = await served.client.post(path, headers={"sec-fetch-site": "same-origin", "host": "localhost:8080"})
    assert let_in.status_code == 303


@pytest.mark.parametrize(
    ("path", "of"),
    [("/admin/tokens", "tokens"), ("/admin/workers", "worker credentials"), ("/admin/members", "members")],
)
async def test_a_cursor_that_somebody_made_up_is_told(served: Served, path: str, of: str) -> None:
    cursor = encode_cursor("\x00", bound_to=(of, served.ingot.default_tenant.id))
    answer = await served.call("GET", f"{path}?cursor={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_cursor")
