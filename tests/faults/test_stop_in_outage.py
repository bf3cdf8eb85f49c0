"""A server that is asked to stop while its database is away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.settings import Settings
from tests.faults.postgres_environment import open_world
from tests.http.serving import serving
from tests.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("leftovers")]


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What is logged while the database is away."""
    with capture_logs() as captured:
        yield captured


async def test_who_waits_for_the_database_is_told_when_the_server_stops(
    tmp_path: Path, logs: list[EventDict], caplog: pytest.LogCaptureFixture
) -> None:
    async with open_world() as world, serving(tmp_path, Settings(database_url=world.url)) as served:
        given = {"worker_id": "w", "types": ["noop"], "wait_seconds": 60}
        claim = asyncio.create_task(served.call("POST", "/jobs/claim", json=given))
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
        await asyncio.to_thread(world.server.stop, "immediate")  # And it stays away until the end.
        post = asyncio.create_task(served.call("POST", "/jobs", json={"type": "noop"}))
        get = asyncio.create_task(served.call("GET", "/jobs"))
        await eventually(lambda: any(line["event"] == "server_away" for line in logs))
        await eventually(lambda: len(served.server.server_state.tasks) == 3)
        served.server.stop()
        answers = await asyncio.gather(post, get)
        assert (await claim).status_code in (204, 503)  # As it has to ask the database once more, or not.
    for answer in answers:
        assert answer.status_code == 503, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] in ("store_failed", "outcome_unknown")
    assert [record.message for record in caplog.records if record.name == "uvicorn.error" and record.exc_info] == []
