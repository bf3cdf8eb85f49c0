"""Signing in and out in a real browser, by way of a real provider."""

from __future__ import annotations

from ingot.http.cookies import SESSION_COOKIE
from tests.browser.server_fixture import Place


async def test_a_person_signs_in_sees_their_account_and_signs_out(place: Place) -> None:
    bob = await place.visitor()
    await bob.go("/auth/login")
    assert "your account at 127.0.0.1" in await bob.text()
    await bob.press("Sign in", role="link")
    assert bob.page.url.startswith(place.provider.issuer)
    await bob.fill_in("bob")
    assert bob.path == "/me"
    assert await bob.page.get_by_role("heading", level=1).inner_text() == "Bob"
    text = await bob.text()
    assert "Email bob@example.com" in text
    assert "Groups staff" in text
    assert "default member" in text
    assert f"Provider {place.provider.issuer}" in text
    (user,) = await place.users()
    (session,) = await place.sessions(user["id"])
    assert (user["subject"], session["address"]) == ("bob", "127.0.0.1")
    assert f"ID {user['id']}" in text
    await bob.press("Sign out")
    assert bob.path == "/auth/login?next=/me"
    assert await bob.secret() is None
    assert await place.sessions(user["id"]) == []
    await bob.page.go_back()
    assert bob.path == "/auth/login?next=/me"
    assert "bob@example.com" not in await bob.page.content()


async def test_sign_in_leads_to_the_requested_page(place: Place) -> None:
    bob = await place.visitor()
    await bob.go("/me")
    assert bob.path == "/auth/login?next=/me"
    await bob.press("Sign in", role="link")
    await bob.fill_in("bob")
    assert bob.path == "/me"
    ada = await place.visitor()
    await ada.go("/auth/login?next=/docs")
    await ada.press("Sign in", role="link")
    await ada.fill_in("ada")
    assert ada.path == "/docs"
    await ada.go("/me")
    assert "You are an operator" in await ada.text()


async def test_the_session_cookie_is_bound_to_the_host_and_hidden_from_scripts(place: Place) -> None:
    bob = await place.visitor()
    await bob.sign_in()
    (kept,) = await bob.context.cookies(place.url)
    assert kept["name"] == SESSION_COOKIE == "__Host-ingot_session"
    assert (kept["domain"], kept["path"]) == ("localhost", "/")
    assert (kept["secure"], kept["httpOnly"], kept["sameSite"]) == (True, True, "Lax")
    assert kept["expires"] == -1
    assert await bob.page.evaluate("document.cookie") == ""
    assert kept["value"] not in await bob.page.content()


async def test_each_sign_in_replaces_the_session(place: Place) -> None:
    bob = await place.visitor()
    await bob.sign_in()
    first = await bob.secret()
    await bob.go("/auth/start")
    assert bob.path == "/me"
    assert await bob.secret() != first
    (user,) = await place.users()
    assert len(await place.sessions(user["id"])) == 1


async def test_a_person_without_an_allowed_group_is_refused(place: Place) -> None:
    eve = await place.visitor()
    await eve.go("/auth/start")
    await eve.fill_in("eve")
    assert await eve.page.get_by_role("heading", level=1).inner_text() == "You are not signed in"
    assert "allowed groups" in await eve.text()
    assert await eve.secret() is None
    assert await eve.status() == 401
    assert await place.users() == []
    await eve.go("/me")
    assert eve.path == "/auth/login?next=/me"


async def test_a_disabled_user_is_signed_out_and_cannot_sign_in_again(place: Place) -> None:
    bob = await place.visitor()
    await bob.sign_in()
    (user,) = await place.users()
    assert (await place.served.call("POST", f"/admin/users/{user['id']}/disable")).status_code == 200
    await bob.page.reload()
    assert bob.path == "/auth/login?next=/me"
    assert await bob.status() == 401
    await bob.press("Sign in", role="link")
    assert await bob.page.get_by_role("heading", level=1).inner_text() == "You are not signed in"
    assert await bob.status() == 401
    assert await place.sessions(user["id"]) == []


async def test_a_sign_in_link_asks_for_confirmation_and_works_once(place: Place) -> None:
    link = await place.link()
    for _ in range(3):
        assert (await place.served.client.get(link)).status_code == 200  # As programs do that look at links in mail.
    operator = await place.visitor()
    await operator.page.goto(link)
    assert await operator.secret() is None
    assert "This link signs you in once" in await operator.text()
    await operator.press("Sign in")
    assert operator.path == "/me"
    assert "You are an operator" in await operator.text()
    other = await place.visitor()
    await other.page.goto(link)
    await other.press("Sign in")
    assert "used before" in await other.text()
    assert await other.secret() is None
    assert await operator.status() == 200


async def test_a_session_of_another_browser_is_listed_and_can_be_ended(place: Place) -> None:
    here, there = await place.visitor(user_agent="Desk/1.0"), await place.visitor(user_agent="Pocket/2.0")
    await here.sign_in()
    await there.sign_in()
    await here.page.reload()
    listed = here.page.locator(".sessions li")
    assert await listed.count() == 2
    own, other = listed.filter(has_text="Desk/1.0"), listed.filter(has_text="Pocket/2.0")
    assert "Current session" in await own.inner_text()
    assert await own.get_by_role("button").count() == 0
    assert "from 127.0.0.1" in await other.inner_text()
    await here.press("End")
    assert here.path == "/me"
    assert await listed.count() == 1
    await there.page.reload()
    assert there.path == "/auth/login?next=/me"
    assert await here.status() == 200
    (user,) = await place.users()
    assert [one["agent"] for one in await place.sessions(user["id"])] == ["Desk/1.0"]
