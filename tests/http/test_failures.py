"""Requests that fail are logged with a bound: the first of a kind in full, the others as a number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.http.request import Request
from ingot.http.routes import Authenticated, Route
from ingot.kernel.errors import StoreError
from ingot.kernel.failures import FailureSummaries
from ingot.settings import Settings
from tests.http.serving import Served, serving

REQUESTS = 5


class FailingRoutes:
    """A route that fails with an error of ours, and one that fails with an unexpected error."""

    def routes(self) -> list[Route]:
        return [
            Route(method="GET", path="/refused", handler=self.refused, needs=Authenticated(), tag="test"),
            Route(method="GET", path="/broken", handler=self.broken, needs=Authenticated(), tag="test"),
        ]

    async def refused(self, request: Request) -> None:
        """Refuse the request."""
        raise StoreError("The disk is on fire.\nIn several places.")

    async def broken(self, request: Request) -> None:
        """Fail unexpectedly."""
        raise ValueError("a bug")


@pytest.fixture
async def failing(tmp_path: Path) -> AsyncIterator[Served]:
    settings = Settings(connections_max=3)
    async with serving(tmp_path / "data", settings, extra_routes=FailingRoutes().routes()) as served:
        yield served


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    with capture_logs() as captured:
        yield captured


async def request_repeatedly(served: Served, path: str) -> None:
    for number in range(REQUESTS):
        headers = {"authorization": f"Bearer {served.operator}", "x-request-id": f"r{number}"}
        assert (await served.client.get(path, headers=headers)).status_code >= 500


async def test_a_repeated_refusal_is_logged_once_with_its_detail_and_then_counted(
    failing: Served, logs: list[EventDict]
) -> None:
    await request_repeatedly(failing, "/refused")
    (first,) = logs
    assert (first["event"], first["log_level"], first["route"], first["code"], first["status"], first["detail"]) == (
        "request_refused",
        "warning",
        "/refused",
        "store_failed",
        503,
        "The disk is on fire.",
    )
    await FailureSummaries().run_once()
    (_, summary) = logs
    assert (summary["event"], summary["route"], summary["code"]) == ("request_refused", "/refused", "store_failed")
    assert (summary["repeated"], summary["last_request_id"]) == (REQUESTS - 1, "r4")


async def test_a_repeated_bug_is_logged_once_with_its_traceback_and_then_counted(
    failing: Served, logs: list[EventDict]
) -> None:
    await request_repeatedly(failing, "/broken")
    (first,) = logs
    assert (first["event"], first["log_level"], first["route"]) == ("request_failed", "error", "/broken")
    assert isinstance(first["exc_info"], ValueError)
    await FailureSummaries().run_once()
    (_, summary) = logs
    assert (summary["event"], summary["repeated"], "exc_info" in summary) == ("request_failed", REQUESTS - 1, False)


async def test_rejected_connections_are_logged_once_and_then_counted(failing: Served, logs: list[EventDict]) -> None:
    host, port = failing.url.removeprefix("http://").split(":")
    connections = [await asyncio.open_connection(host, int(port)) for _ in range(3 + REQUESTS)]
    for reader, _ in connections[3:]:
        assert b"503" in await reader.readline()
    await FailureSummaries().stop()
    assert [(line["event"], line.get("repeated")) for line in logs] == [
        ("connection_refused", None),
        ("connection_refused", REQUESTS - 1),
    ]
    for _, writer in connections:
        writer.close()
