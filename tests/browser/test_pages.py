"""Every page, as people see it: wide and narrow, light and dark, with the keyboard, and with what others made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Dialog

from ingot.settings import Settings
from tests.browser.accessibility import faults_of
from tests.browser.server_fixture import AWAY, Place, Visitor, World

WIDTHS = (380, 1280)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'&lt;{{7*7}}"
LONG = "W" * 250
KEPT_OUT = [
    "base-uri", "connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem", "style-src-attr"
]  # fmt: skip
INJECTED = """async ([elsewhere, expected]) => {
    const kept = new Set();
    const all = new Promise((done) => {
        setTimeout(done, 3000);
        document.addEventListener("securitypolicyviolation", (event) => {
            kept.add(event.effectiveDirective);
            if (expected.every((one) => kept.has(one))) done();
        });
    });
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    document.body.append(script);
    document.body.insertAdjacentHTML("beforeend", `<img src="${elsewhere}/a.png" onerror="window.ran = true">` +
        `<p style="color: red">x</p><iframe src="${elsewhere}"></iframe><base href="${elsewhere}">`);
    const sent = await fetch(elsewhere).then(() => true, () => false);
    await all;
    return [window.ran ?? false, sent, [...kept].sort()];
}"""
Show = Callable[[Place, Visitor], Awaitable[object]]


async def sign_in_page(place: Place, visitor: Visitor) -> None:
    await visitor.go("/auth/login?next=/me")


async def link_page(place: Place, visitor: Visitor) -> None:
    await visitor.page.goto(await place.link())


async def refusal(place: Place, visitor: Visitor) -> None:
    await visitor.go("/auth/start")
    await visitor.fill_in("eve")


async def error(place: Place, visitor: Visitor) -> None:
    answer = await visitor.go("/auth/link")
    assert answer.status == 422


async def own_page(place: Place, visitor: Visitor) -> None:
    """Of somebody with much to be said of, and two browsers."""
    await place.provider.put_account(
        "bob", name=LONG, email=f"{LONG[:60]}@example.com", groups=["staff", LONG, *(f"group {n}" for n in range(40))]
    )
    for n in range(3):
        await place.served.ingot.tenants.create(f"{n}-{'w' * 40}", groups={"staff": "admin"})
    other = await place.visitor(user_agent=LONG[:200])
    await other.sign_in()
    await visitor.sign_in()


async def operators_page(place: Place, visitor: Visitor) -> None:
    await visitor.sign_in_as_operator()


async def strangers_page(place: Place, visitor: Visitor) -> None:
    await place.served.give_groups()
    await visitor.sign_in()


async def api_page(place: Place, visitor: Visitor) -> None:
    await visitor.go("/docs")


PAGES: list[Show] = [sign_in_page, link_page, refusal, error, own_page, operators_page, strangers_page, api_page]
every_page = pytest.mark.parametrize("show", PAGES, ids=lambda show: show.__name__)


async def expect_good_looks(visitor: Visitor) -> None:
    """The page is good to look at, wide and narrow, light and dark."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            await visitor.page.set_viewport_size({"width": width, "height": 800})
            await visitor.page.emulate_media(color_scheme=scheme)
            assert await faults_of(visitor.page) == [], (width, scheme)


@every_page
async def test_every_page_is_readable_and_usable_with_the_keyboard(place: Place, show: Show) -> None:
    visitor = await place.visitor()
    await show(place, visitor)
    await expect_good_looks(visitor)


async def test_the_sign_in_page_without_a_provider_explains_sign_in_links(world: World, tmp_path: Path) -> None:
    async with world.place(tmp_path, Settings()) as place:
        visitor = await place.visitor()
        await visitor.go("/me")
        assert f"{place.url}/api/v1/admin/links" in await visitor.text()
        await expect_good_looks(visitor)
        place.expect_quiet()


async def test_no_one_can_sign_in_without_https_from_another_machine(place: Place) -> None:
    away = await place.visitor()
    away.loud = True  # The browser says that it trusts no address like this.
    here = place.url.replace("localhost", AWAY)
    for path in ("/auth/login", "/auth/link?code=x"):
        await away.page.goto(here + path)
        assert "set INGOT_PUBLIC_URL" in await away.text()
        assert await away.page.get_by_role("button").count() == 0
        assert await away.page.get_by_role("link").all_inner_texts() == ["Skip to the content"]
        await expect_good_looks(away)
    await away.page.goto(f"{here}/auth/start")
    assert "set INGOT_PUBLIC_URL" in await away.text()
    assert await away.context.cookies() == []


@every_page
async def test_injected_markup_runs_no_script_and_sends_no_request(place: Place, show: Show) -> None:
    visitor = await place.visitor()
    await show(place, visitor)
    visitor.loud = True  # The browser says what it kept from running.
    injected = await visitor.page.evaluate(INJECTED, [place.provider.issuer, KEPT_OUT])
    assert injected == [False, False, KEPT_OUT]
    assert all(url.startswith((place.url, place.provider.issuer)) for url in visitor.asked)


async def test_names_with_markup_are_shown_as_text(place: Place) -> None:
    dialogs: list[str] = []

    def note(dialog: Dialog) -> None:
        dialogs.append(dialog.message)

    await place.provider.put_account("bob", name=MARKUP, groups=["staff", f"{MARKUP} too"])
    other = await place.visitor(user_agent=f"Evil {MARKUP}")
    await other.sign_in()
    bob = await place.visitor()
    bob.page.on("dialog", note)
    await bob.sign_in()
    assert await bob.page.get_by_role("heading", level=1).inner_text() == MARKUP
    text = await bob.text()
    assert f"Groups {MARKUP} too, staff" in text
    assert f"Evil {MARKUP}" in text
    assert await bob.page.locator("img, script, iframe").count() == 0
    assert dialogs == []


async def test_urls_with_markup_are_shown_as_text(place: Place) -> None:
    visitor = await place.visitor()
    for path in (f"/auth/link?code={MARKUP}", f"/auth/login?next=/{MARKUP}", f"/auth/callback?error={MARKUP}&state=x"):
        await visitor.go(path.replace("&lt;", ""))
        assert await visitor.page.locator("img, script, iframe").count() == 0
    link = visitor.page.get_by_role("link", name="Sign in", exact=True)
    assert await link.get_attribute("href") == "/auth/login"
