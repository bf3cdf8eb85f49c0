"""Every page in a browser: wide and narrow, light and dark, with the keyboard, and with injected markup."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Dialog

from ingot.settings import Settings
from tests.browser.accessibility import accessibility_problems
from tests.browser.server_fixture import OTHER_HOST, SharedBrowser, Site, Visitor

WIDTHS = (380, 1280)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'&lt;{{7*7}}"
LONG = "W" * 250
BLOCKED_DIRECTIVES = [
    "base-uri", "connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem", "style-src-attr"
]  # fmt: skip
INJECT_MARKUP = """async ([elsewhere, expected]) => {
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
Show = Callable[[Site, Visitor], Awaitable[object]]


async def sign_in_page(site: Site, visitor: Visitor) -> None:
    await visitor.go("/auth/login?next=/me")


async def link_page(site: Site, visitor: Visitor) -> None:
    await visitor.page.goto(await site.link())


async def refusal(site: Site, visitor: Visitor) -> None:
    await visitor.go("/auth/start")
    await visitor.fill_in("eve")


async def error(site: Site, visitor: Visitor) -> None:
    response = await visitor.go("/auth/link")
    assert response.status == 422


async def own_page(site: Site, visitor: Visitor) -> None:
    """The page of a person with long names, many groups and two sessions."""
    await site.provider.put_account(
        "bob", name=LONG, email=f"{LONG[:60]}@example.com", groups=["staff", LONG, *(f"group {n}" for n in range(40))]
    )
    for n in range(3):
        await site.served.ingot.tenants.create(f"{n}-{'w' * 40}", groups={"staff": "admin"})
    other = await site.visitor(user_agent=LONG[:200])
    await other.sign_in()
    await visitor.sign_in()


async def operators_page(site: Site, visitor: Visitor) -> None:
    await visitor.sign_in_as_operator()


async def strangers_page(site: Site, visitor: Visitor) -> None:
    await site.served.give_groups()
    await visitor.sign_in()


async def api_page(site: Site, visitor: Visitor) -> None:
    await visitor.go("/docs")


PAGES: list[Show] = [sign_in_page, link_page, refusal, error, own_page, operators_page, strangers_page, api_page]
every_page = pytest.mark.parametrize("show", PAGES, ids=lambda show: show.__name__)


async def check_accessibility(visitor: Visitor) -> None:
    """Check the accessibility of the page in both widths and color schemes."""
    for width in WIDTHS:
        for scheme in SCHEMES:
            await visitor.page.set_viewport_size({"width": width, "height": 800})
            await visitor.page.emulate_media(color_scheme=scheme)
            assert await accessibility_problems(visitor.page) == [], (width, scheme)


@every_page
async def test_every_page_is_readable_and_usable_with_the_keyboard(site: Site, show: Show) -> None:
    visitor = await site.visitor()
    await show(site, visitor)
    await check_accessibility(visitor)


async def test_the_sign_in_page_without_a_provider_explains_sign_in_links(
    shared_browser: SharedBrowser, tmp_path: Path
) -> None:
    async with shared_browser.site(tmp_path, Settings()) as site:
        visitor = await site.visitor()
        await visitor.go("/me")
        assert f"{site.url}/api/v1/admin/links" in await visitor.text()
        await check_accessibility(visitor)
        site.expect_no_problems()


async def test_no_one_can_sign_in_without_https_from_another_machine(site: Site) -> None:
    visitor = await site.visitor()
    visitor.expects_errors = True  # The browser warns of an origin without HTTPS.
    remote_url = site.url.replace("localhost", OTHER_HOST)
    for path in ("/auth/login", "/auth/link?code=x"):
        await visitor.page.goto(remote_url + path)
        assert "set INGOT_PUBLIC_URL" in await visitor.text()
        assert await visitor.page.get_by_role("button").count() == 0
        assert await visitor.page.get_by_role("link").all_inner_texts() == ["Skip to the content"]
        await check_accessibility(visitor)
    await visitor.page.goto(f"{remote_url}/auth/start")
    assert "set INGOT_PUBLIC_URL" in await visitor.text()
    assert await visitor.context.cookies() == []


@every_page
async def test_injected_markup_runs_no_script_and_sends_no_request(site: Site, show: Show) -> None:
    visitor = await site.visitor()
    await show(site, visitor)
    visitor.expects_errors = True  # The browser reports what it has blocked.
    injected = await visitor.page.evaluate(INJECT_MARKUP, [site.provider.issuer, BLOCKED_DIRECTIVES])
    assert injected == [False, False, BLOCKED_DIRECTIVES]
    assert all(url.startswith((site.url, site.provider.issuer)) for url in visitor.requested_urls)


async def test_names_with_markup_are_shown_as_text(site: Site) -> None:
    dialogs: list[str] = []

    def note(dialog: Dialog) -> None:
        dialogs.append(dialog.message)

    await site.provider.put_account("bob", name=MARKUP, groups=["staff", f"{MARKUP} too"])
    other = await site.visitor(user_agent=f"Evil {MARKUP}")
    await other.sign_in()
    bob = await site.visitor()
    bob.page.on("dialog", note)
    await bob.sign_in()
    assert await bob.page.get_by_role("heading", level=1).inner_text() == MARKUP
    text = await bob.text()
    assert f"Groups {MARKUP} too, staff" in text
    assert f"Evil {MARKUP}" in text
    assert await bob.page.locator("img, script, iframe").count() == 0
    assert dialogs == []


async def test_urls_with_markup_are_shown_as_text(site: Site) -> None:
    visitor = await site.visitor()
    for path in (f"/auth/link?code={MARKUP}", f"/auth/login?next=/{MARKUP}", f"/auth/callback?error={MARKUP}&state=x"):
        await visitor.go(path.replace("&lt;", ""))
        assert await visitor.page.locator("img, script, iframe").count() == 0
    link = visitor.page.get_by_role("link", name="Sign in", exact=True)
    assert await link.get_attribute("href") == "/auth/login"
