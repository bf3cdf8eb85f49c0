"""When a credential was last used, as those who look after credentials see it."""

from __future__ import annotations

from pathlib import Path

from ingot.kernel.clock import ManualClock
from ingot.settings import Settings
from ingot.wiring import services
from tests.http.serving import serving


async def test_what_was_used_before_a_stop_is_shown_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        token = await served.token()
        assert (await served.call("GET", "/jobs", token=token)).status_code == 200
    async with services.open(settings=Settings(data=tmp_path)) as ingot:
        (listed,) = (await ingot.credentials.list_tokens(ingot.default_tenant.id)).items
        assert listed.last_used_at is not None


async def test_a_session_in_use_does_not_end_with_the_server(tmp_path: Path) -> None:
    """Also when nobody but people has called: what is not written down is not known after a restart."""
    clock = ManualClock()
    async with serving(tmp_path, clock=clock) as served:
        headers = await served.link()
        clock.advance(seconds=7100)
        assert (await served.client.get("/api/v1/me", headers=headers)).status_code == 200
    clock.advance(seconds=200)
    async with services.open(settings=Settings(data=tmp_path), clock=clock) as ingot:
        secret = headers["cookie"].partition("=")[2]
        assert (await ingot.authenticator.authenticate_session(secret)).user is not None
