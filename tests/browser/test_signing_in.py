"""Sign-in and sign-out in a real browser with a real provider."""

from __future__ import annotations

from ingot.events.audit import Act
from ingot.http.cookies import BROWSER_COOKIE, SESSION_COOKIE
from tests.browser.server_fixture import Site


async def test_a_person_signs_in_sees_their_account_and_signs_out(site: Site) -> None:
    bob = await site.visitor()
    await bob.go("/auth/login")
    assert "your account at 127.0.0.1" in await bob.text()
    await bob.press("Sign in", role="link")
    assert bob.page.url.startswith(site.provider.issuer)
    await bob.fill_in("bob")
    assert bob.path == "/me"
    assert await bob.page.get_by_role("heading", level=1).inner_text() == "Bob"
    text = await bob.text()
    assert "Email bob@example.com" in text
    assert "Groups staff" in text
    assert "default (chosen) member" in text
    assert f"Provider {site.provider.issuer}" in text
    (user,) = await site.users()
    (session,) = await site.sessions(user["id"])
    assert (user["subject"], session["address"]) == ("bob", "127.0.0.1")
    assert f"ID {user['id']}" in text
    await bob.press("Sign out")
    assert bob.path == "/auth/login?next=/me"
    assert await bob.session_cookie() is None
    assert await site.sessions(user["id"]) == []
    await bob.page.go_back()
    assert bob.path == "/auth/login?next=/me"
    assert "bob@example.com" not in await bob.page.content()


async def test_sign_in_leads_to_the_requested_page(site: Site) -> None:
    bob = await site.visitor()
    await bob.go("/me")
    assert bob.path == "/auth/login?next=/me"
    await bob.press("Sign in", role="link")
    await bob.fill_in("bob")
    assert bob.path == "/me"
    ada = await site.visitor()
    await ada.go("/auth/login?next=/docs")
    await ada.press("Sign in", role="link")
    await ada.fill_in("ada")
    assert ada.path == "/docs"
    await ada.go("/me")
    assert "You are an operator" in await ada.text()


async def test_the_session_cookie_is_bound_to_the_host_and_hidden_from_scripts(site: Site) -> None:
    bob = await site.visitor()
    await bob.sign_in()
    cookies = {cookie["name"]: cookie for cookie in await bob.context.cookies(site.url)}
    assert set(cookies) == {SESSION_COOKIE, BROWSER_COOKIE}
    assert SESSION_COOKIE == "__Host-ingot_session"
    cookie = cookies[SESSION_COOKIE]
    assert (cookie["domain"], cookie["path"]) == ("localhost", "/")
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Lax")
    assert cookie["expires"] == -1
    assert await bob.page.evaluate("document.cookie") == ""
    assert cookie["value"] not in await bob.page.content()


async def test_each_sign_in_replaces_the_session(site: Site) -> None:
    bob = await site.visitor()
    await bob.sign_in()
    first = await bob.session_cookie()
    await bob.go("/auth/start")
    assert bob.path == "/me"
    assert await bob.session_cookie() != first
    (user,) = await site.users()
    assert len(await site.sessions(user["id"])) == 1


async def test_a_person_without_an_allowed_group_is_refused(site: Site) -> None:
    eve = await site.visitor()
    await eve.go("/auth/start")
    await eve.fill_in("eve")
    assert await eve.page.get_by_role("heading", level=1).inner_text() == "You are not signed in"
    assert "allowed groups" in await eve.text()
    assert await eve.session_cookie() is None
    assert await eve.status_of() == 401
    assert await site.users() == []
    await eve.go("/me")
    assert eve.path == "/auth/login?next=/me"


async def test_a_disabled_user_is_signed_out_and_cannot_sign_in_again(site: Site) -> None:
    bob = await site.visitor()
    await bob.sign_in()
    (user,) = await site.users()
    assert (await site.served.call("POST", f"/admin/users/{user['id']}/disable")).status_code == 200
    await bob.page.reload()
    assert bob.path == "/auth/login?next=/me"
    assert await bob.status_of() == 401
    await bob.press("Sign in", role="link")
    assert await bob.page.get_by_role("heading", level=1).inner_text() == "You are not signed in"
    assert await bob.status_of() == 401
    assert await site.sessions(user["id"]) == []


async def test_a_sign_in_link_asks_for_confirmation_and_works_once(site: Site) -> None:
    link = await site.link()
    for _ in range(3):
        assert (await site.served.client.get(link)).status_code == 200  # As programs that check links in mail do.
    operator = await site.visitor()
    await operator.page.goto(link)
    assert await operator.session_cookie() is None
    assert "This link signs you in once" in await operator.text()
    await operator.press("Sign in")
    assert operator.path == "/me"
    assert "You are an operator" in await operator.text()
    other = await site.visitor()
    await other.page.goto(link)
    await other.press("Sign in")
    assert "used before" in await other.text()
    assert await other.session_cookie() is None
    assert await operator.status_of() == 200


async def test_a_session_of_another_browser_is_listed_and_can_be_ended(site: Site) -> None:
    here, there = await site.visitor(user_agent="Desk/1.0"), await site.visitor(user_agent="Pocket/2.0")
    await here.sign_in()
    await there.sign_in()
    await here.page.reload()
    sessions_shown = here.page.locator(".sessions li")
    assert await sessions_shown.count() == 2
    own, other = sessions_shown.filter(has_text="Desk/1.0"), sessions_shown.filter(has_text="Pocket/2.0")
    assert "Current session" in await own.inner_text()
    assert await own.get_by_role("button").count() == 0
    assert "from 127.0.0.1" in await other.inner_text()
    await here.press("End")
    assert here.path == "/me"
    assert await sessions_shown.count() == 1
    await there.page.reload()
    assert there.path == "/auth/login?next=/me"
    assert await here.status_of() == 200
    (user,) = await site.users()
    assert [one["agent"] for one in await site.sessions(user["id"])] == ["Desk/1.0"]


async def test_back_shows_no_data_after_signing_out(site: Site) -> None:
    """The browser is not the one of other tests: it keeps pages in memory for Back, as people's browsers do."""
    async with site.open_browser_with_page_cache() as bob:
        await bob.sign_in()
        await bob.go("/api/v1/me")
        assert "bob@example.com" in await bob.text()
        await bob.go("/me")
        await bob.press("Sign out")
        for _ in range(3):
            await bob.page.go_back()
            assert "bob@example.com" not in await bob.page.content(), bob.path


async def test_a_person_accepts_an_invitation_and_changes_and_leaves_tenants(site: Site) -> None:
    bob = await site.visitor()
    await bob.sign_in()
    acme = (await site.served.ingot.tenants.create("acme")).id
    beta = (await site.served.ingot.tenants.create("beta")).id
    for tenant in (acme, beta):
        await site.served.ingot.members.put(tenant, role="admin", email="bob@example.com", act=Act())
    await bob.page.reload()
    assert "default (chosen) member" in await bob.text()
    assert "acme as admin" in await bob.text()
    await bob.press("Accept the invitation to acme")
    assert "acme admin" in await bob.text()
    assert "default (chosen) member" in await bob.text()
    await bob.press("Decline the invitation to beta")
    assert "Your invitations" not in await bob.text()
    await bob.press("Choose acme")
    assert "acme (chosen) admin" in await bob.text()
    await bob.press("Leave acme")
    assert "No tenant is chosen" in await bob.text()
    await bob.press("Choose default")
    assert "default (chosen) member" in await bob.text()
    assert await bob.status_of("/api/v1/jobs") == 200
