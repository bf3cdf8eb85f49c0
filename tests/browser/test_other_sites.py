"""What pages of other sites can do with somebody's session, tried in a real browser: nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.browser.other_site import CROSS_SITE, SAME_SITE, Elsewhere, another_site
from tests.browser.server_fixture import Place, Visitor

JOB = '{"type": "noop", "metadata": {"a": "=b"}}'
TOKEN = '{"description": "evil=", "grants": [{"action": "*"}]}'
TARGETS = {"/auth/logout": "a=b", "/api/v1/jobs": JOB, "/api/v1/admin/tokens": TOKEN, "/api/v1/admin/links": "{}"}
ASKED = """async ([url, text, media, mode]) => {
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
async def elsewhere() -> AsyncIterator[Elsewhere]:
    async with another_site() as one:
        yield one


@pytest.fixture
async def ada(place: Place) -> Visitor:
    """An operator who is signed in, and opens whatever she is sent."""
    visitor = await place.visitor()
    visitor.loud = True
    await visitor.sign_in("ada")
    return visitor


async def state_of(place: Place, visitor: Visitor) -> list[Any]:
    """All that an attack could have changed."""
    (user,) = await place.users()
    return [
        await visitor.secret(),
        [one["id"] for one in await place.sessions(user["id"])],
        (await place.served.call("GET", "/jobs")).json()["items"],
        len((await place.served.call("GET", "/admin/tokens")).json()["items"]),
        [one["action"] for one in (await place.served.call("GET", "/admin/audit?all=true")).json()["items"]],
    ]


@both_hosts
async def test_a_form_of_another_site_changes_nothing(
    place: Place, elsewhere: Elsewhere, ada: Visitor, host: str
) -> None:
    before = await state_of(place, ada)
    for path, text in TARGETS.items():
        elsewhere.post(place.url + path, text)
        async with ada.page.expect_response(place.url + path) as answered:
            await ada.page.goto(elsewhere.url(host))
        answer = await answered.value
        assert answer.request.method == "POST"
        headers = await answer.request.all_headers()
        assert headers["sec-fetch-site"] == ("same-site" if host == SAME_SITE else "cross-site")
        assert ("cookie" in headers) == (host == SAME_SITE), "what is not of our site comes without"
        assert answer.status in ((403,) if host == SAME_SITE else (401, 403)), path
    assert await state_of(place, ada) == before
    await ada.go("/me")
    assert "Ada Lovelace" in await ada.text()


@both_hosts
async def test_a_script_of_another_site_changes_nothing_and_reads_nothing(
    place: Place, elsewhere: Elsewhere, ada: Visitor, host: str
) -> None:
    before = await state_of(place, ada)
    await ada.page.goto(elsewhere.url(host))
    for path, text in TARGETS.items():
        plain = await ada.page.evaluate(ASKED, [place.url + path, text, "text/plain", "no-cors"])
        assert plain in (["opaque", 0, ""], ["TypeError", 0, ""])
        for media in ("text/plain", "application/json"):
            assert await ada.page.evaluate(ASKED, [place.url + path, text, media, "cors"]) == ["TypeError", 0, ""]
    for path in ("/me", "/api/v1/me", "/api/v1/me/sessions", "/api/v1/admin/tokens"):
        assert await ada.page.evaluate(ASKED, [place.url + path, None, None, "cors"]) == ["TypeError", 0, ""]
        assert await ada.page.evaluate(ASKED, [place.url + path, None, None, "no-cors"]) == ["opaque", 0, ""]
    assert await state_of(place, ada) == before


@both_hosts
async def test_pages_cannot_be_embedded_in_another_site(
    place: Place, elsewhere: Elsewhere, ada: Visitor, host: str
) -> None:
    paths = ["/me", "/auth/login", "/auth/link?code=x", "/auth/callback", "/docs"]
    elsewhere.body = "".join(f'<iframe src="{place.url}{path}"></iframe>' for path in paths)
    elsewhere.body += "".join(f'<img src="{place.url}{path}">' for path in ["/me", "/auth/logout"])
    before = await state_of(place, ada)
    await ada.page.goto(elsewhere.url(host))
    frames = ada.page.main_frame.child_frames
    assert len(frames) == len(paths)
    for frame in frames:
        await frame.wait_for_url("chrome-error://chromewebdata/")
    assert await ada.page.evaluate("[...document.images].map(one => one.naturalWidth)") == [0, 0]
    assert await state_of(place, ada) == before


async def test_a_link_on_another_site_opens_the_own_page(place: Place, elsewhere: Elsewhere, ada: Visitor) -> None:
    elsewhere.body = f'<a href="{place.url}/me">Go</a>'
    await ada.page.goto(elsewhere.url(CROSS_SITE))
    await ada.press("Go", role="link")
    assert "Ada Lovelace" in await ada.text()


async def answer_for(place: Place, login: str) -> str:
    """Where the provider sends somebody who signs in, in a browser of their own that stops there."""
    start = await place.served.client.get("/auth/start")
    sent = await place.provider.sign_in(start.headers["location"], login)
    return f"{place.url}/auth/callback?{httpx.QueryParams(sent)}"


async def test_the_callback_url_of_another_person_signs_no_one_in(place: Place) -> None:
    bob = await place.visitor()
    await bob.page.goto(await answer_for(place, "ada"))
    assert "another browser" in await bob.text()
    assert await bob.secret() is None
    await bob.go("/auth/start")  # He has begun, and is at the provider, when he is sent elsewhere.
    await bob.page.goto(await answer_for(place, "ada"))
    assert "another browser" in await bob.text()
    assert await bob.secret() is None
    assert await place.users() == []


async def test_the_callback_url_of_another_person_does_not_change_a_session(place: Place) -> None:
    bob = await place.visitor()
    await bob.sign_in()
    secret = await bob.secret()
    await bob.page.goto(await answer_for(place, "ada"))
    assert "You are not signed in" in await bob.text()
    await bob.go("/me")
    assert "bob@example.com" in await bob.text()
    assert await bob.secret() == secret


@both_hosts
async def test_another_site_cannot_sign_a_visitor_in_with_a_link(place: Place, elsewhere: Elsewhere, host: str) -> None:
    link = await place.link()
    bob = await place.visitor()
    bob.loud = True
    elsewhere.post(link, "a=b")
    async with bob.page.expect_response(link) as answered:
        await bob.page.goto(elsewhere.url(host))
    assert (await answered.value).status == 403
    assert await bob.secret() is None
    operator = await place.visitor()
    await operator.page.goto(link)
    await operator.press("Sign in")
    assert operator.path == "/me", "it was not used up"
