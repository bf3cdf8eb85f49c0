"""The bounded log of failures: the first of a kind in full, then counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.kernel import failures as of_failures
from ingot.kernel.failures import SUMMARY_SECONDS, FailureLog
from ingot.kernel.logs import context_fields

ROUTE = {"code": "store_failed", "route": "/jobs"}


class Timer:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def failures(timer: Timer) -> FailureLog:
    return FailureLog(timer)


@pytest.fixture
def logs() -> Iterator[list[EventDict]]:
    with capture_logs() as captured:
        yield captured


def fail(failures: FailureLog, times: int = 1, **fields: str) -> None:
    for number in range(times):
        context_fields.set({"request_id": f"r{number}"})
        failures.log("refused", level="warning", identity=ROUTE | fields, detail=f"failure {number}")
    context_fields.set(None)


def test_only_the_first_failure_of_a_kind_is_logged(failures: FailureLog, logs: list[EventDict]) -> None:
    fail(failures, 3)
    fail(failures, 2, route="/keys")
    assert logs == [
        {"event": "refused", "log_level": "warning", "detail": "failure 0", **ROUTE},
        {"event": "refused", "log_level": "warning", "detail": "failure 0", **ROUTE, "route": "/keys"},
    ]


def test_repeated_failures_are_summarized_in_one_line_per_kind(
    failures: FailureLog, timer: Timer, logs: list[EventDict]
) -> None:
    fail(failures, 4)
    fail(failures, 1, route="/keys")
    logs.clear()
    timer.seconds += 20
    for _ in range(2):
        failures.summarize()
    summary = {"repeated": 3, "seconds": 20, "last_request_id": "r3"}
    assert logs == [{"event": "refused", "log_level": "warning", **ROUTE, **summary}]


def test_a_log_that_reports_failures_itself_does_not_block(
    failures: FailureLog, timer: Timer, logs: list[EventDict]
) -> None:
    events: list[str] = []

    def write(_: object, __: str, entry: EventDict) -> EventDict:
        events.append(f"{entry['event']} {entry.get('repeated', 'first')}")
        if entry["event"] == "refused":
            failures.log("log_failed")
        return entry

    structlog.get_config()["processors"].insert(0, write)  # `capture_logs` restores the processors.
    fail(failures, 3)
    timer.seconds += SUMMARY_SECONDS
    failures.summarize()
    assert events == ["refused first", "log_failed first", "refused 2", "log_failed first"]


def test_a_failure_after_a_minute_without_one_is_logged_in_full(
    failures: FailureLog, timer: Timer, logs: list[EventDict]
) -> None:
    fail(failures, 2)
    timer.seconds += SUMMARY_SECONDS
    fail(failures)
    assert [(line.get("detail"), line.get("repeated")) for line in logs] == [
        ("failure 0", None),
        (None, 1),
        ("failure 0", None),
    ]


def test_a_continuing_failure_is_counted_once_a_minute_without_a_loop(
    failures: FailureLog, timer: Timer, logs: list[EventDict]
) -> None:
    for _ in range(300):
        fail(failures)
        timer.seconds += 1
    assert [line.get("repeated") for line in logs] == [None, 60, 60, 60, 60]


def test_errors_from_different_places_are_of_different_kinds(failures: FailureLog, logs: list[EventDict]) -> None:
    for number in range(4):
        try:
            if number % 2:
                raise ValueError(number)
            raise ValueError(number)
        except ValueError as error:
            failures.log("failed", error)
    assert [str(line["exc_info"]) for line in logs] == ["0", "1"]


def test_the_number_of_kinds_is_limited(
    failures: FailureLog, logs: list[EventDict], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_failures, "KINDS_MAX", 3)
    for number in range(10):
        fail(failures, route=f"/{number}")
    failures.summarize()
    assert [line.get("repeated") for line in logs] == [None, None, None, None, 6]


def test_a_forgotten_kind_is_logged_in_full(failures: FailureLog, timer: Timer, logs: list[EventDict]) -> None:
    fail(failures)
    timer.seconds += SUMMARY_SECONDS
    failures.summarize()
    fail(failures)
    assert [line["detail"] for line in logs] == ["failure 0"] * 2
