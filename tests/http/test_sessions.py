"""Sessions: what a browser can do with its cookie, when sessions end, and cross-site requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ingot.events.audit import Act
from ingot.http.cookies import SESSION_COOKIE
from ingot.identity import credential_secrets
from ingot.identity.people import Person
from ingot.kernel.clock import MICROS, ManualClock
from ingot.kernel.ids import new_id
from tests.http.one_server import on_one_server
from tests.http.serving import ISSUER, PEOPLE, Served, serving

HOUR = 3600 * MICROS


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", PEOPLE) as server:
        await server.give_groups(makers="member", admins="admin", readers="viewer")
        yield server


async def status(
    served: Served, headers: dict[str, str], method: str = "GET", path: str = "/api/v1/jobs", json: Any = None
) -> int:
    return (await served.client.request(method, path, headers=headers, json=json)).status_code


async def test_a_person_can_do_what_their_role_allows(served: Served) -> None:
    viewer = await served.sign_in("readers", subject="vera")
    member = await served.sign_in("makers", subject="max")
    admin = await served.sign_in("admins", subject="ann")
    operator = await served.sign_in("operators", subject="otto")
    without_role = await served.sign_in(subject="nele")
    assert [await status(served, headers) for headers in (viewer, member, admin, operator, without_role)] == [
        200,
        200,
        200,
        200,
        403,
    ]
    posted = [
        await status(served, headers, "POST", json={"type": "noop"})
        for headers in (viewer, member, admin, operator, without_role)
    ]
    assert posted == [403, 201, 201, 201, 403]
    tokens = [
        await status(served, headers, path="/api/v1/admin/tokens") for headers in (viewer, member, admin, operator)
    ]
    assert tokens == [403, 403, 200, 200]
    path, body = "/api/v1/admin/tenants", {"slug": "acme"}
    tenants = [await status(served, headers, "POST", path, json=body) for headers in (viewer, member, admin)]
    assert tenants == [403, 403, 403]
    assert await status(served, operator, "POST", path, json=body) == 201


async def test_the_hint_for_a_missing_grant_says_where_to_get_it(served: Served) -> None:
    headers = await served.sign_in("makers", subject="max")
    order = {"description": "script", "grants": [{"action": "jobs.create"}, {"action": "jobs.read"}]}
    token = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()["token"]
    await served.give_groups(makers="viewer")
    rejected = await served.client.post("/api/v1/jobs", headers=headers, json={"type": "noop"})
    assert (rejected.status_code, "for another role" in rejected.json()["hint"]) == (403, True), rejected.text
    rejected = await served.call("POST", "/jobs", json={"type": "noop"}, token=token)
    assert (rejected.status_code, "/api/v1/me" in rejected.json()["hint"]) == (403, True), rejected.text


async def test_a_person_with_several_tenants_must_select_one(served: Served) -> None:
    await served.ingot.tenants.create("acme", groups={"makers": "viewer"})
    await served.ingot.tenants.create("other")
    headers = await served.sign_in("makers")
    response = await served.client.get("/api/v1/jobs", headers=headers)
    assert response.status_code == 403
    assert "acme" in response.json()["hint"]
    assert "default" in response.json()["hint"]
    assert await status(served, {**headers, "ingot-tenant": "acme"}) == 200
    assert await status(served, {**headers, "ingot-tenant": "acme"}, "POST", json={"type": "noop"}) == 403
    assert await status(served, {**headers, "ingot-tenant": "default"}, "POST", json={"type": "noop"}) == 201
    foreign = await served.client.get("/api/v1/jobs", headers={**headers, "ingot-tenant": "other"})
    missing = await served.client.get("/api/v1/jobs", headers={**headers, "ingot-tenant": "nowhere"})
    assert foreign.status_code == missing.status_code == 403
    assert foreign.json() == missing.json()


async def test_an_unknown_session_cookie_is_rejected(served: Served) -> None:
    unknown = [
        credential_secrets.new_secret(credential_secrets.SESSION_PREFIX),
        credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX),
    ]
    for value in ("", "x", *unknown, "ingots_" + "A" * 49):
        assert await status(served, {"cookie": f"{SESSION_COOKIE}={value}"}) == 401, value


async def test_a_session_cookie_must_be_exact_and_single(served: Served) -> None:
    headers = await served.sign_in("makers")
    name, _, secret = headers["cookie"].partition("=")
    assert name == "__Host-ingot_session"
    assert await status(served, {"cookie": f"theme=dark; {name}={secret}; a=b"}) == 200
    assert await status(served, {"cookie": f"ingot_session={secret}"}) == 401
    assert await status(served, {"cookie": f"{name}={secret}; {name}={secret}"}) == 401
    assert await status(served, {"cookie": f"{name}={secret[:-1]}"}) == 401
    assert await status(served, {"cookie": f"{name}={secret.swapcase()}"}) == 401


async def test_an_invalid_token_is_rejected_despite_a_valid_cookie(served: Served) -> None:
    """The token takes precedence, because pages of other sites cannot send it."""
    headers = await served.sign_in("operators")
    assert await status(served, {**headers, "authorization": "Bearer nobody"}) == 401
    assert await status(served, {**headers, "x-worker-id": "press"}) == 401


async def test_the_secret_of_a_session_is_in_no_file(served: Served, tmp_path: Path) -> None:
    headers = await served.sign_in("makers")
    secret = headers["cookie"].partition("=")[2]
    await asyncio.sleep(0)
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()


async def test_signing_in_again_ends_the_previous_session_of_the_browser(served: Served) -> None:
    old = await served.sign_in("makers")
    person = Person(issuer=ISSUER, subject="ada", groups=("makers",))
    secret = old["cookie"].partition("=")[2]
    session = await served.ingot.sessions.sign_in(person, user_agent=None, old_secret=secret, act=Act())
    assert session.secret != secret
    assert await status(served, old) == 401
    assert await status(served, {"cookie": f"{SESSION_COOKIE}={session.secret}"}) == 200


async def test_a_cookie_set_before_the_sign_in_does_not_become_the_session(served: Served) -> None:
    fixed = credential_secrets.new_secret(credential_secrets.SESSION_PREFIX)
    person = Person(issuer=ISSUER, subject="ada", groups=("makers",))
    session = await served.ingot.sessions.sign_in(person, user_agent=None, old_secret=fixed, act=Act())
    assert session.secret != fixed
    assert await status(served, {"cookie": f"{SESSION_COOKIE}={fixed}"}) == 401


async def test_signing_out_ends_the_session(served: Served) -> None:
    headers, other = await served.sign_in("makers"), await served.sign_in("makers")
    response = await served.client.post("/auth/logout", headers=headers)
    assert response.status_code == 303
    assert "Max-Age=0" in response.headers["set-cookie"]
    assert await status(served, headers) == 401
    assert await status(served, other) == 200


async def test_a_stale_session_can_still_be_signed_out(tmp_path: Path) -> None:
    """Signing out does not redirect to the provider, which would sign the person in again."""
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.sign_in("makers")
        clock.advance(seconds=3601)
        assert (await served.client.get("/api/v1/me", headers=headers)).json()["code"] == "session_stale"
        response = await served.client.post("/auth/logout", headers=headers)
        assert (response.status_code, response.headers["location"]) == (303, "/auth/login?next=/me")
        assert "Max-Age=0" in response.headers["set-cookie"]
        assert (await served.client.get("/api/v1/me", headers=headers)).json()["code"] == "unauthorized"
        ended = (await served.call("GET", "/admin/audit?all=true&action=session.ended")).json()["items"]
        assert [entry["who"] for entry in ended] == [f"user:{ended[0]['before']['user']}"]
        again = await served.client.post("/auth/logout", headers=headers)
        assert (again.status_code, again.headers["location"]) == (303, "/auth/login?next=/me")


async def test_a_stale_page_is_renewed_by_the_provider_and_a_stale_form_is_not(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.sign_in("makers")
        clock.advance(seconds=3601)
        button = f"/me/sessions/{new_id()}/end"
        stale = await served.client.get("/me", headers=headers)
        assert stale.headers["location"] == "/auth/start?silent=true&next=/me"
        posted = await served.client.post(button, headers=headers)
        assert posted.status_code == 401, "a form must not redirect to the provider"
        assert "press the button again" in posted.text
        for method, path in (("GET", "/me"), ("POST", button)):
            redirect = await served.client.request(method, path)
            assert redirect.headers["location"] == "/auth/login?next=/me"


async def test_a_session_ends_after_its_maximum_age(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.link()
        for _ in range(11):
            clock.advance(seconds=3600)
            assert await status(served, headers) == 200
        clock.advance(seconds=3601)
        assert await status(served, headers) == 401


async def test_an_idle_session_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.link()
        clock.advance(seconds=7100)
        assert await status(served, headers) == 200
        clock.advance(seconds=7201)
        assert await status(served, headers) == 401


async def test_a_session_becomes_stale_after_an_hour(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        await served.give_groups(makers="member")
        headers = await served.sign_in("makers")
        clock.advance(seconds=3599)
        assert await status(served, headers) == 200
        clock.advance(seconds=2)
        response = await served.client.get("/api/v1/jobs", headers=headers)
        assert (response.status_code, response.json()["code"]) == (401, "session_stale")
        page = await served.client.get("/me", headers=headers)
        assert (page.status_code, page.headers["location"]) == (303, "/auth/start?silent=true&next=/me")


async def test_signing_out_of_a_stale_session_needs_a_page_of_our_own(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.sign_in("makers")
        user = (await served.client.get("/api/v1/me", headers=headers)).json()["id"]
        clock.advance(seconds=3601)
        response = await served.client.post("/auth/logout", headers={**headers, "sec-fetch-site": "cross-site"})
        assert response.status_code == 403
        response = await served.client.post("/auth/logout", headers=headers)
        assert (response.status_code, response.headers["location"]) == (303, "/auth/login?next=/me")
        assert (await served.call("GET", f"/admin/users/{user}/sessions")).json()["items"] == []


async def test_a_session_of_another_provider_is_rejected(served: Served, tmp_path: Path) -> None:
    person = Person(issuer="https://old.example", subject="ada", groups=("operators", "makers"))
    session = await served.ingot.sessions.sign_in(person, user_agent=None, old_secret=None, act=Act())
    assert await status(served, {"cookie": f"{SESSION_COOKIE}={session.secret}"}) == 401


# -- cross-site requests ------------------------------------------------------------------------------------


CROSS: list[tuple[str, dict[str, str]]] = [
    ("cross-site", {"sec-fetch-site": "cross-site"}),
    ("same-site", {"sec-fetch-site": "same-site"}),
    ("none and a foreign origin", {"sec-fetch-site": "none", "origin": "https://evil.example"}),
    ("a foreign origin", {"origin": "https://evil.example"}),
    ("no origin", {"origin": "null"}),
    ("our name with another port", {"origin": "http://127.0.0.1:1"}),
    ("an origin that cannot be read", {"origin": "http://["}),
    ("no origin and no host", {"origin": "null", "host": ""}),
    ("neither", {}),
    ("only htmx", {"hx-request": "true"}),
    ("nonsense", {"sec-fetch-site": "same-origin, cross-site"}),
]


@on_one_server("site_headers", [site_headers for _, site_headers in CROSS])
async def test_a_request_of_another_site_changes_nothing(served: Served, site_headers: dict[str, str]) -> None:
    headers = {"cookie": (await served.sign_in("admins"))["cookie"], **site_headers}
    text = {"content": b'{"type": "noop"}'}
    for more in ({"json": {"type": "noop"}}, text):
        response = await served.client.post("/api/v1/jobs", headers=headers, **more)
        assert (response.status_code, response.json()["code"]) == (403, "cross_site")
    assert await status(served, headers, "POST", "/auth/logout") == 403
    assert await status(served, headers) == 200, "requests that change nothing are allowed from any site"
    assert (await served.call("GET", "/jobs")).json()["items"] == []


@pytest.mark.parametrize(
    "site_headers", [{"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "own"}]
)
async def test_requests_of_our_own_pages_are_accepted(served: Served, site_headers: dict[str, str]) -> None:
    own = {name: served.url if value == "own" else value for name, value in site_headers.items()}
    headers = {"cookie": (await served.sign_in("admins"))["cookie"], **own}
    assert await status(served, headers, "POST", json={"type": "noop"}) == 201


async def test_a_cross_site_request_with_a_token_is_accepted(served: Served) -> None:
    response = await served.call("POST", "/jobs", json={"type": "noop"}, headers={"sec-fetch-site": "cross-site"})
    assert response.status_code == 201


async def test_get_changes_nothing(served: Served) -> None:
    headers = await served.sign_in("admins")
    for path in ("/auth/logout", "/api/v1/admin/links", "/api/v1/jobs/actions"):
        assert await status(served, headers, path=path) in (404, 405)
