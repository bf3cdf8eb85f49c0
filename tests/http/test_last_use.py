"""When a credential was last used, as those who look after credentials see it."""

from __future__ import annotations

from pathlib import Path

from ingot import wiring
from ingot.settings import Settings
from tests.http.serving import serving


async def test_what_was_used_before_a_stop_is_shown_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        token = await served.token()
        assert (await served.call("GET", "/jobs", token=token)).status_code == 200
    async with wiring.open(settings=Settings(data=tmp_path)) as ingot:
        (listed,) = (await ingot.credentials.list_tokens(ingot.default_tenant.id)).items
        assert listed.last_used_at is not None
