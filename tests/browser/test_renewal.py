"""What a provider said of somebody grows old: how a browser has it said anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ingot.kernel.clock import ManualClock
from tests.browser.server_fixture import GROUPS, Place, World

RENEW_SECONDS = 30.0
BEHIND = timedelta(seconds=20)  # Clocks of a server and a provider may differ by a minute: one test has this long.


class Aging:
    """A place whose sessions grow old when they are told to."""

    def __init__(self, place: Place, clock: ManualClock) -> None:
        self.place = place
        self._clock = clock

    def grow_old(self) -> None:
        """What the provider said before is too old now."""
        self._clock.advance(seconds=RENEW_SECONDS + 1)


@pytest.fixture
async def aging(world: World, tmp_path: Path) -> AsyncIterator[Aging]:
    clock = ManualClock(datetime.now(UTC) - BEHIND)
    async with world.place(tmp_path, clock=clock, session_renew_seconds=RENEW_SECONDS, **GROUPS) as place:
        await place.served.give_groups(staff="member")
        yield Aging(place, clock)
        place.expect_quiet()


async def test_a_page_renews_an_expired_session_without_interaction(aging: Aging) -> None:
    bob = await aging.place.visitor()
    await bob.sign_in()
    old = await bob.secret()
    await aging.place.provider.put_account("bob", name="Robert", groups=["staff", "ops"])
    aging.grow_old()
    assert await bob.status() == 401
    await bob.page.reload()
    assert bob.path == "/me"
    text = await bob.text()
    assert "Robert" in text
    assert "Groups ops, staff" in text
    assert "You are an operator" in text
    assert await bob.secret() != old
    (user,) = await aging.place.users()
    assert len(await aging.place.sessions(user["id"])) == 1


async def test_a_removed_group_takes_effect_when_the_session_is_renewed(aging: Aging) -> None:
    bob = await aging.place.visitor()
    await bob.sign_in()
    await aging.place.provider.put_account("bob", groups=["visitors"])
    aging.grow_old()
    await bob.page.reload()
    assert "allowed groups" in await bob.text()
    assert await bob.status() == 401


async def test_a_renewal_without_a_provider_session_asks_for_a_sign_in(aging: Aging) -> None:
    bob = await aging.place.visitor()
    await bob.sign_in()
    await bob.context.clear_cookies(domain="127.0.0.1")
    aging.grow_old()
    await bob.page.reload()
    assert bob.path == "/auth/login?next=/me"
    assert await bob.status() == 401
    await bob.press("Sign in", role="link")
    await bob.fill_in("bob")
    assert bob.path == "/me"
    assert await bob.status() == 200


async def test_a_renewal_of_a_removed_account_asks_for_a_sign_in(aging: Aging) -> None:
    bob = await aging.place.visitor()
    await bob.sign_in()
    await aging.place.provider.remove_account("bob")
    aging.grow_old()
    await bob.page.reload()
    assert bob.path == "/auth/login?next=/me"
    await bob.press("Sign in", role="link")
    await bob.fill_in("bob")
    assert "There is no such account." in await bob.text()


async def test_an_expired_session_can_be_signed_out(aging: Aging) -> None:
    bob = await aging.place.visitor()
    await bob.sign_in()
    (user,) = await aging.place.users()
    aging.grow_old()
    await bob.press("Sign out")
    assert bob.path == "/auth/login?next=/me"
    assert await bob.secret() is None
    assert await aging.place.sessions(user["id"]) == []


async def test_a_button_on_a_page_with_an_expired_session_leads_back_to_the_page(aging: Aging) -> None:
    here, there = await aging.place.visitor(), await aging.place.visitor()
    await there.sign_in()
    await here.sign_in()
    aging.grow_old()
    await here.press("End")
    assert "press the button again" in await here.text()
    await here.press("Back", role="link")
    assert here.path == "/me"
    assert await here.status() == 200


async def test_a_button_on_a_page_of_an_ended_session_leads_to_the_sign_in(aging: Aging) -> None:
    here, there = await aging.place.visitor(), await aging.place.visitor()
    await there.sign_in()
    await here.sign_in()
    (user,) = await aging.place.users()
    for one in await aging.place.sessions(user["id"]):
        await aging.place.served.call("DELETE", f"/admin/users/{user['id']}/sessions/{one['id']}")
    await here.press("End")
    assert here.path == "/auth/login?next=/me"
    await here.press("Sign in", role="link")
    assert here.path == "/me"
