"""The time at which a credential or session was last used."""

from __future__ import annotations

from pathlib import Path

from ingot.kernel.clock import ManualClock
from ingot.settings import Settings
from ingot.wiring import services
from tests.http.serving import serving


async def test_the_last_use_of_a_token_is_saved_when_the_server_stops(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        token = await served.token()
        assert (await served.call("GET", "/jobs", token=token)).status_code == 200
    async with services.open(settings=Settings(data=tmp_path)) as ingot:
        (listed,) = (await ingot.credentials.list_tokens(ingot.default_tenant.id)).items
        assert listed.last_used_at is not None


async def test_the_last_use_of_a_session_is_saved_when_the_server_stops(tmp_path: Path) -> None:
    """This holds even if no token was used: otherwise the session would expire early after a restart."""
    clock = ManualClock()
    async with serving(tmp_path, clock=clock) as served:
        headers = await served.link()
        clock.advance(seconds=7100)
        assert (await served.client.get("/api/v1/me", headers=headers)).status_code == 200
    clock.advance(seconds=200)
    async with services.open(settings=Settings(data=tmp_path), clock=clock) as ingot:
        secret = headers["cookie"].partition("=")[2]
        assert (await ingot.authenticator.authenticate_session(secret)).user is not None
