"""Sessions: what a browser may do with its cookie, and when it may no more."""

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
    async with serving(tmp_path / "data", PEOPLE) as one:
        await one.give_groups(makers="member", admins="admin", readers="viewer")
        yield one


async def status(
    served: Served, headers: dict[str, str], method: str = "GET", path: str = "/api/v1/jobs", json: Any = None
) -> int:
    return (await served.client.request(method, path, headers=headers, json=json)).status_code


async def test_a_person_does_what_their_role_allows(served: Served) -> None:
    viewer = await served.sign_in("readers", subject="vera")
    member = await served.sign_in("makers", subject="max")
    admin = await served.sign_in("admins", subject="ann")
    operator = await served.sign_in("operators", subject="otto")
    nobody = await served.sign_in(subject="nele")
    assert [await status(served, one) for one in (viewer, member, admin, operator, nobody)] == [200, 200, 200, 200, 403]
    posted = [
        await status(served, one, "POST", json={"type": "noop"}) for one in (viewer, member, admin, operator, nobody)
    ]
    assert posted == [403, 201, 201, 201, 403]
    tokens = [await status(served, one, path="/api/v1/admin/tokens") for one in (viewer, member, admin, operator)]
    assert tokens == [403, 403, 200, 200]
    made = {"slug": "acme"}
    tenants = [await status(served, one, "POST", "/api/v1/admin/tenants", json=made) for one in (viewer, member, admin)]
    assert tenants == [403, 403, 403]
    assert await status(served, operator, "POST", "/api/v1/admin/tenants", json=made) == 201


async def test_people_and_their_tokens_are_told_who_can_help(served: Served) -> None:
    headers = await served.sign_in("makers", subject="max")
    order = {"description": "script", "grants": [{"action": "jobs.create"}, {"action": "jobs.read"}]}
    token = (await served.client.post("/api/v1/me/tokens", headers=headers, json=order)).json()["token"]
    await served.give_groups(makers="viewer")
    refused = await served.client.post("/api/v1/jobs", headers=headers, json={"type": "noop"})
    assert (refused.status_code, "for another role" in refused.json()["hint"]) == (403, True), refused.text
    refused = await served.call("POST", "/jobs", json={"type": "noop"}, token=token)
    assert (refused.status_code, "/api/v1/me" in refused.json()["hint"]) == (403, True), refused.text


async def test_a_person_with_several_tenants_says_in_which(served: Served) -> None:
    await served.ingot.tenants.create("acme", groups={"makers": "viewer"})
    await served.ingot.tenants.create("other")
    headers = await served.sign_in("makers")
    answer = await served.client.get("/api/v1/jobs", headers=headers)
    assert answer.status_code == 403
    assert "acme" in answer.json()["hint"]
    assert "default" in answer.json()["hint"]
    assert await status(served, {**headers, "ingot-tenant": "acme"}) == 200
    assert await status(served, {**headers, "ingot-tenant": "acme"}, "POST", json={"type": "noop"}) == 403
    assert await status(served, {**headers, "ingot-tenant": "default"}, "POST", json={"type": "noop"}) == 201
    strange = await served.client.get("/api/v1/jobs", headers={**headers, "ingot-tenant": "other"})
    missing = await served.client.get("/api/v1/jobs", headers={**headers, "ingot-tenant": "nowhere"})
    assert strange.status_code == missing.status_code == 403
    assert strange.json() == missing.json()


async def test_a_cookie_that_nobody_was_given_is_refused(served: Served) -> None:
    made = [
        credential_secrets.new_secret(credential_secrets.SESSION_PREFIX),
        credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX),
    ]
    for value in ("", "x", *made, "ingots_" + "A" * 49):
        assert await status(served, {"cookie": f"{SESSION_COOKIE}={value}"}) == 401, value


async def test_a_cookie_is_known_by_its_whole_name_and_must_be_one(served: Served) -> None:
    headers = await served.sign_in("makers")
    name, _, secret = headers["cookie"].partition("=")
    assert name == "__Host-ingot_session"
    assert await status(served, {"cookie": f"theme=dark; {name}={secret}; a=b"}) == 200
    assert await status(served, {"cookie": f"ingot_session={secret}"}) == 401
    assert await status(served, {"cookie": f"{name}={secret}; {name}={secret}"}) == 401
    assert await status(served, {"cookie": f"{name}={secret[:-1]}"}) == 401
    assert await status(served, {"cookie": f"{name}={secret.swapcase()}"}) == 401


async def test_a_token_counts_more_than_a_cookie(served: Served) -> None:
    """Who sends both means the token, which no page of another site can send."""
    headers = await served.sign_in("operators")
    assert await status(served, {**headers, "authorization": "Bearer nobody"}) == 401
    assert await status(served, {**headers, "x-worker-id": "press"}) == 401


async def test_the_secret_of_a_session_is_kept_nowhere(served: Served, tmp_path: Path) -> None:
    headers = await served.sign_in("makers")
    secret = headers["cookie"].partition("=")[2]
    await asyncio.sleep(0)
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes()


async def test_a_new_session_takes_the_place_of_the_one_before(served: Served) -> None:
    old = await served.sign_in("makers")
    person = Person(issuer=ISSUER, subject="ada", groups=("makers",))
    secret = old["cookie"].partition("=")[2]
    made = await served.ingot.sessions.sign_in(person, user_agent=None, old_secret=secret, act=Act())
    assert made.secret != secret
    assert await status(served, old) == 401
    assert await status(served, {"cookie": f"{SESSION_COOKIE}={made.secret}"}) == 200


async def test_a_cookie_fixed_before_the_sign_in_is_not_the_session(served: Served) -> None:
    fixed = credential_secrets.new_secret(credential_secrets.SESSION_PREFIX)
    person = Person(issuer=ISSUER, subject="ada", groups=("makers",))
    made = await served.ingot.sessions.sign_in(person, user_agent=None, old_secret=fixed, act=Act())
    assert made.secret != fixed
    assert await status(served, {"cookie": f"{SESSION_COOKIE}={fixed}"}) == 401


async def test_signing_out_ends_the_session(served: Served) -> None:
    headers, other = await served.sign_in("makers"), await served.sign_in("makers")
    answer = await served.client.post("/auth/logout", headers=headers)
    assert answer.status_code == 303
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert await status(served, headers) == 401
    assert await status(served, other) == 200


async def test_one_signs_out_of_a_session_that_is_too_old_for_anything_else(tmp_path: Path) -> None:
    """Whoever leaves is not led through the provider, which would sign them in again."""
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.sign_in("makers")
        clock.advance(seconds=3601)
        assert (await served.client.get("/api/v1/me", headers=headers)).json()["code"] == "session_stale"
        answer = await served.client.post("/auth/logout", headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/auth/login?next=/me")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        assert (await served.client.get("/api/v1/me", headers=headers)).json()["code"] == "unauthorized"
        ended = (await served.call("GET", "/admin/audit?all=true&action=session.ended")).json()["items"]
        assert [one["who"] for one in ended] == [f"user:{ended[0]['before']['user']}"]
        again = await served.client.post("/auth/logout", headers=headers)
        assert (again.status_code, again.headers["location"]) == (303, "/auth/login?next=/me")


async def test_who_is_led_through_a_sign_in_comes_back_to_a_page(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.sign_in("makers")
        clock.advance(seconds=3601)
        button = f"/me/sessions/{new_id()}/end"
        stale = await served.client.get("/me", headers=headers)
        assert stale.headers["location"] == "/auth/start?silent=true&next=/me"
        pressed = await served.client.post(button, headers=headers)
        assert pressed.status_code == 401, "no form leads to the provider"
        assert "press the button again" in pressed.text
        for method, path in (("GET", "/me"), ("POST", button)):
            gone = await served.client.request(method, path)
            assert gone.headers["location"] == "/auth/login?next=/me"


async def test_a_session_ends_with_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.link()
        for _ in range(11):
            clock.advance(seconds=3600)
            assert await status(served, headers) == 200
        clock.advance(seconds=3601)
        assert await status(served, headers) == 401


async def test_a_session_that_is_not_used_ends(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.link()
        clock.advance(seconds=7100)
        assert await status(served, headers) == 200
        clock.advance(seconds=7201)
        assert await status(served, headers) == 401


async def test_what_the_provider_said_is_not_believed_for_ever(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        await served.give_groups(makers="member")
        headers = await served.sign_in("makers")
        clock.advance(seconds=3599)
        assert await status(served, headers) == 200
        clock.advance(seconds=2)
        answer = await served.client.get("/api/v1/jobs", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "session_stale")
        page = await served.client.get("/me", headers=headers)
        assert (page.status_code, page.headers["location"]) == (303, "/auth/start?silent=true&next=/me")


async def test_who_was_not_renewed_can_still_sign_out(tmp_path: Path) -> None:
    clock = ManualClock()
    async with serving(tmp_path / "data", PEOPLE, clock=clock) as served:
        headers = await served.sign_in("makers")
        user = (await served.client.get("/api/v1/me", headers=headers)).json()["id"]
        clock.advance(seconds=3601)
        answer = await served.client.post("/auth/logout", headers={**headers, "sec-fetch-site": "cross-site"})
        assert answer.status_code == 403
        answer = await served.client.post("/auth/logout", headers=headers)
        assert (answer.status_code, answer.headers["location"]) == (303, "/auth/login?next=/me")
        assert (await served.call("GET", f"/admin/users/{user}/sessions")).json()["items"] == []


async def test_people_of_another_provider_than_there_is_are_out(served: Served, tmp_path: Path) -> None:
    person = Person(issuer="https://old.example", subject="ada", groups=("operators", "makers"))
    made = await served.ingot.sessions.sign_in(person, user_agent=None, old_secret=None, act=Act())
    assert await status(served, {"cookie": f"{SESSION_COOKIE}={made.secret}"}) == 401


# -- requests from elsewhere --------------------------------------------------------------------------------


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


@on_one_server("said", [said for _, said in CROSS])
async def test_a_page_of_another_site_changes_nothing(served: Served, said: dict[str, str]) -> None:
    headers = {"cookie": (await served.sign_in("admins"))["cookie"], **said}
    text = {"content": b'{"type": "noop"}'}
    for more in ({"json": {"type": "noop"}}, text):
        answer = await served.client.post("/api/v1/jobs", headers=headers, **more)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
    assert await status(served, headers, "POST", "/auth/logout") == 403
    assert await status(served, headers) == 200, "what changes nothing may be asked from anywhere"
    assert (await served.call("GET", "/jobs")).json()["items"] == []


@pytest.mark.parametrize("said", [{"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "own"}])
async def test_our_own_pages_change_things(served: Served, said: dict[str, str]) -> None:
    own = {name: served.url if value == "own" else value for name, value in said.items()}
    headers = {"cookie": (await served.sign_in("admins"))["cookie"], **own}
    assert await status(served, headers, "POST", json={"type": "noop"}) == 201


async def test_a_token_needs_no_page(served: Served) -> None:
    answer = await served.call("POST", "/jobs", json={"type": "noop"}, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 201


async def test_nothing_is_changed_with_get(served: Served) -> None:
    headers = await served.sign_in("admins")
    for path in ("/auth/logout", "/api/v1/admin/links", "/api/v1/jobs/actions"):
        assert await status(served, headers, path=path) in (404, 405)
