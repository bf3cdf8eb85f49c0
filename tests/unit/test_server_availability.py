"""A worker logs once that its server is unavailable, and once that it is available again."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from structlog.testing import capture_logs

from ingot.client.errors import ServerUnreachable
from ingot.jobs.errors import LeaseLost
from ingot.kernel.errors import IngotError
from ingot.worker.server_availability import ServerAvailability


def make_request(status: ServerAvailability, error: IngotError | None = None) -> None:
    with suppress(IngotError), status.request():
        if error is not None:
            raise error


def events(entries: Any) -> list[str]:
    return [entry["event"] for entry in entries]


def test_an_outage_is_logged_once_however_many_requests_fail() -> None:
    status = ServerAvailability()
    with capture_logs() as entries:
        make_request(status)
        for _ in range(5):
            make_request(status, ServerUnreachable())
        for _ in range(3):
            make_request(status)
        make_request(status, ServerUnreachable())
    assert events(entries) == ["server_lost", "server_back", "server_lost"]
    assert [entry["log_level"] for entry in entries[:2]] == ["warning", "info"]


def test_a_server_that_rejects_a_request_is_available() -> None:
    status = ServerAvailability()
    with capture_logs() as entries:
        make_request(status, LeaseLost())
        make_request(status, ServerUnreachable())
        make_request(status, LeaseLost())
    assert events(entries) == ["server_lost", "server_back"]


def test_a_request_that_began_before_a_change_reports_nothing() -> None:
    status = ServerAvailability()
    with capture_logs() as entries:
        early_request = status.request()
        make_request(status, ServerUnreachable())
        with early_request:
            pass
        assert events(entries) == ["server_lost"]
        late_request = status.request()
        make_request(status)
        with suppress(IngotError), late_request:
            raise ServerUnreachable
    assert events(entries) == ["server_lost", "server_back"]
