"""Pages of other sites cannot use a visitor's session, tested in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.browser.other_site import CROSS_SITE, SAME_SITE, OtherSite, open_other_site
from tests.browser.server_fixture import Site, Visitor

JOB = '{"type": "noop", "metadata": {"a": "=b"}}'
TOKEN = '{"description": "evil=", "grants": [{"action": "*"}]}'
TARGETS = {"/auth/logout": "a=b", "/api/v1/jobs": JOB, "/api/v1/admin/tokens": TOKEN, "/api/v1/admin/links": "{}"}
FETCH = """async ([url, text, media, mode]) => {
    const headers = media === null ? {} : {"content-type": media};
    try {
        const answer = await fetch(url, {method: text === null ? "GET" : "POST", credentials: "include", mode, headers,
            ...(text === null ? {} : {body: text})});
        return [answer.type, answer.status, await answer.text()];
    } catch (error) {
        return [error.name, 0, ""];
    }
}"""
both_hosts = pytest.mark.parametrize("host", [SAME_SITE, CROSS_SITE])


@pytest.fixture
async def other_site() -> AsyncIterator[OtherSite]:
    async with open_other_site() as one:
        yield one


@pytest.fixture
async def ada(site: Site) -> Visitor:
    """An operator who is signed in, and opens pages of other sites."""
    visitor = await site.visitor()
    visitor.expects_errors = True
    await visitor.sign_in("ada")
    return visitor


async def state_of(site: Site, visitor: Visitor) -> list[Any]:
    """Return everything that an attack could change."""
    (user,) = await site.users()
    return [
        await visitor.session_cookie(),
        [one["id"] for one in await site.sessions(user["id"])],
        (await site.served.call("GET", "/jobs")).json()["items"],
        len((await site.served.call("GET", "/admin/tokens")).json()["items"]),
        [one["action"] for one in (await site.served.call("GET", "/admin/audit?all=true")).json()["items"]],
    ]


@both_hosts
async def test_a_form_of_another_site_changes_nothing(
    site: Site, other_site: OtherSite, ada: Visitor, host: str
) -> None:
    before = await state_of(site, ada)
    for path, text in TARGETS.items():
        other_site.post(site.url + path, text)
        async with ada.page.expect_response(site.url + path) as response_info:
            await ada.page.goto(other_site.url(host))
        response = await response_info.value
        assert response.request.method == "POST"
        headers = await response.request.all_headers()
        assert headers["sec-fetch-site"] == ("same-site" if host == SAME_SITE else "cross-site")
        assert ("cookie" in headers) == (host == SAME_SITE), "only requests of the same site carry the cookie"
        assert response.status in ((403,) if host == SAME_SITE else (401, 403)), path
    assert await state_of(site, ada) == before
    await ada.go("/me")
    assert "Ada Lovelace" in await ada.text()


@both_hosts
async def test_a_script_of_another_site_changes_nothing_and_reads_nothing(
    site: Site, other_site: OtherSite, ada: Visitor, host: str
) -> None:
    before = await state_of(site, ada)
    await ada.page.goto(other_site.url(host))
    for path, text in TARGETS.items():
        result = await ada.page.evaluate(FETCH, [site.url + path, text, "text/plain", "no-cors"])
        assert result in (["opaque", 0, ""], ["TypeError", 0, ""])
        for media in ("text/plain", "application/json"):
            assert await ada.page.evaluate(FETCH, [site.url + path, text, media, "cors"]) == ["TypeError", 0, ""]
    for path in ("/me", "/api/v1/me", "/api/v1/me/sessions", "/api/v1/admin/tokens"):
        assert await ada.page.evaluate(FETCH, [site.url + path, None, None, "cors"]) == ["TypeError", 0, ""]
        assert await ada.page.evaluate(FETCH, [site.url + path, None, None, "no-cors"]) == ["opaque", 0, ""]
    assert await state_of(site, ada) == before


@both_hosts
async def test_pages_cannot_be_embedded_in_another_site(
    site: Site, other_site: OtherSite, ada: Visitor, host: str
) -> None:
    paths = ["/me", "/auth/login", "/auth/link?code=x", "/auth/callback", "/docs"]
    other_site.body = "".join(f'<iframe src="{site.url}{path}"></iframe>' for path in paths)
    other_site.body += "".join(f'<img src="{site.url}{path}">' for path in ["/me", "/auth/logout"])
    before = await state_of(site, ada)
    await ada.page.goto(other_site.url(host))
    frames = ada.page.main_frame.child_frames
    assert len(frames) == len(paths)
    for frame in frames:
        await frame.wait_for_url("chrome-error://chromewebdata/")
    assert await ada.page.evaluate("[...document.images].map(one => one.naturalWidth)") == [0, 0]
    assert await state_of(site, ada) == before


async def test_a_link_on_another_site_opens_the_own_page(site: Site, other_site: OtherSite, ada: Visitor) -> None:
    other_site.body = f'<a href="{site.url}/me">Go</a>'
    await ada.page.goto(other_site.url(CROSS_SITE))
    await ada.press("Go", role="link")
    assert "Ada Lovelace" in await ada.text()


async def callback_url_of(site: Site, login: str) -> str:
    """Sign in at the provider with another client, and return the callback URL without opening it."""
    start = await site.served.client.get("/auth/start")
    callback_query = await site.provider.sign_in(start.headers["location"], login)
    return f"{site.url}/auth/callback?{httpx.QueryParams(callback_query)}"


async def test_the_callback_url_of_another_person_signs_no_one_in(site: Site) -> None:
    bob = await site.visitor()
    await bob.page.goto(await callback_url_of(site, "ada"))
    assert "another browser" in await bob.text()
    assert await bob.session_cookie() is None
    await bob.go("/auth/start")  # He has started to sign in when he opens the URL.
    await bob.page.goto(await callback_url_of(site, "ada"))
    assert "another browser" in await bob.text()
    assert await bob.session_cookie() is None
    assert await site.users() == []


async def test_the_callback_url_of_another_person_does_not_change_a_session(site: Site) -> None:
    bob = await site.visitor()
    await bob.sign_in()
    session_cookie = await bob.session_cookie()
    await bob.page.goto(await callback_url_of(site, "ada"))
    assert "You are not signed in" in await bob.text()
    await bob.go("/me")
    assert "bob@example.com" in await bob.text()
    assert await bob.session_cookie() == session_cookie


@both_hosts
async def test_another_site_cannot_sign_a_visitor_in_with_a_link(site: Site, other_site: OtherSite, host: str) -> None:
    link = await site.link()
    bob = await site.visitor()
    bob.expects_errors = True
    other_site.post(link, "a=b")
    async with bob.page.expect_response(link) as response_info:
        await bob.page.goto(other_site.url(host))
    assert (await response_info.value).status == 403
    assert await bob.session_cookie() is None
    operator = await site.visitor()
    await operator.page.goto(link)
    await operator.press("Sign in")
    assert operator.path == "/me", "the attack used up the link"
