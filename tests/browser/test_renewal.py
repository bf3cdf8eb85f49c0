"""Renewal of sessions in a browser when the data of the provider has become too old."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ingot.kernel.clock import ManualClock
from tests.browser.server_fixture import GROUPS, SharedBrowser, Site

RENEW_SECONDS = 30.0
BEHIND = timedelta(
    seconds=20
)  # The clocks of server and provider may differ by a minute, which leaves one test this long.


class AgingSite:
    """A site with a clock that a test can move."""

    def __init__(self, site: Site, clock: ManualClock) -> None:
        self.site = site
        self._clock = clock

    def expire_sessions(self) -> None:
        """Let the data of the provider become too old in all sessions."""
        self._clock.advance(seconds=RENEW_SECONDS + 1)


@pytest.fixture
async def aging(shared_browser: SharedBrowser, tmp_path: Path) -> AsyncIterator[AgingSite]:
    clock = ManualClock(datetime.now(UTC) - BEHIND)
    async with shared_browser.site(tmp_path, clock=clock, session_renew_seconds=RENEW_SECONDS, **GROUPS) as site:
        await site.served.give_groups(staff="member")
        yield AgingSite(site, clock)
        site.expect_no_problems()


async def test_a_page_renews_an_expired_session_without_interaction(aging: AgingSite) -> None:
    bob = await aging.site.visitor()
    await bob.sign_in()
    old = await bob.session_cookie()
    await aging.site.provider.put_account("bob", name="Robert", groups=["staff", "ops"])
    aging.expire_sessions()
    assert await bob.status_of() == 401
    await bob.page.reload()
    assert bob.path == "/me"
    text = await bob.text()
    assert "Robert" in text
    assert "Groups ops, staff" in text
    assert "You are an operator" in text
    assert await bob.session_cookie() != old
    (user,) = await aging.site.users()
    assert len(await aging.site.sessions(user["id"])) == 1


async def test_a_removed_group_takes_effect_when_the_session_is_renewed(aging: AgingSite) -> None:
    bob = await aging.site.visitor()
    await bob.sign_in()
    await aging.site.provider.put_account("bob", groups=["visitors"])
    aging.expire_sessions()
    await bob.page.reload()
    assert "allowed groups" in await bob.text()
    assert await bob.status_of() == 401


async def test_a_renewal_without_a_provider_session_asks_for_a_sign_in(aging: AgingSite) -> None:
    bob = await aging.site.visitor()
    await bob.sign_in()
    await bob.context.clear_cookies(domain="127.0.0.1")
    aging.expire_sessions()
    await bob.page.reload()
    assert bob.path == "/auth/login?next=/me"
    assert await bob.status_of() == 401
    await bob.press("Sign in", role="link")
    await bob.fill_in("bob")
    assert bob.path == "/me"
    assert await bob.status_of() == 200


async def test_a_renewal_of_a_removed_account_asks_for_a_sign_in(aging: AgingSite) -> None:
    bob = await aging.site.visitor()
    await bob.sign_in()
    await aging.site.provider.remove_account("bob")
    aging.expire_sessions()
    await bob.page.reload()
    assert bob.path == "/auth/login?next=/me"
    await bob.press("Sign in", role="link")
    await bob.fill_in("bob")
    assert "There is no such account." in await bob.text()


async def test_an_expired_session_can_be_signed_out(aging: AgingSite) -> None:
    bob = await aging.site.visitor()
    await bob.sign_in()
    (user,) = await aging.site.users()
    aging.expire_sessions()
    await bob.press("Sign out")
    assert bob.path == "/auth/login?next=/me"
    assert await bob.session_cookie() is None
    assert await aging.site.sessions(user["id"]) == []


async def test_a_button_on_a_page_with_an_expired_session_leads_back_to_the_page(aging: AgingSite) -> None:
    here, there = await aging.site.visitor(), await aging.site.visitor()
    await there.sign_in()
    await here.sign_in()
    aging.expire_sessions()
    await here.press("End")
    assert "press the button again" in await here.text()
    await here.press("Back", role="link")
    assert here.path == "/me"
    assert await here.status_of() == 200


async def test_a_button_on_a_page_of_an_ended_session_leads_to_the_sign_in(aging: AgingSite) -> None:
    here, there = await aging.site.visitor(), await aging.site.visitor()
    await there.sign_in()
    await here.sign_in()
    (user,) = await aging.site.users()
    for one in await aging.site.sessions(user["id"]):
        await aging.site.served.call("DELETE", f"/admin/users/{user['id']}/sessions/{one['id']}")
    await here.press("End")
    assert here.path == "/auth/login?next=/me"
    await here.press("Sign in", role="link")
    assert here.path == "/me"
