"""A server that is stopped while its database is down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.settings import Settings
from tests.faults.postgres_cluster import open_cluster
from tests.http.serving import serving
from tests.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("leftovers")]


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """Capture what is logged while the database is down."""
    with capture_logs() as captured:
        yield captured


async def test_requests_that_wait_for_the_database_get_an_error_when_the_server_stops(
    tmp_path: Path, logs: list[EventDict], caplog: pytest.LogCaptureFixture
) -> None:
    async with open_cluster() as cluster, serving(tmp_path, Settings(database_url=cluster.url)) as served:
        claim_request = {"worker_id": "w", "types": ["noop"], "wait_seconds": 60}
        claim = asyncio.create_task(served.call("POST", "/jobs/claim", json=claim_request))
        await eventually(lambda: served.ingot.jobs.waiting_claims == 1)
        await asyncio.to_thread(cluster.server.stop, "immediate")  # It stays down until the end.
        post = asyncio.create_task(served.call("POST", "/jobs", json={"type": "noop"}))
        get = asyncio.create_task(served.call("GET", "/jobs"))
        await eventually(lambda: any(line["event"] == "database_lost" for line in logs))
        await eventually(lambda: len(served.server.server_state.tasks) == 3)
        served.server.stop()
        answers = await asyncio.gather(post, get)
        assert (await claim).status_code in (204, 503)  # 503 if it had to query the database again.
    for answer in answers:
        assert answer.status_code == 503, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] in ("store_failed", "outcome_unknown")
    assert [record.message for record in caplog.records if record.name == "uvicorn.error" and record.exc_info] == []
