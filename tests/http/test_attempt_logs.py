"""The log lines of a worker about its attempts: one for each, whatever the outcome."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from ingot import NoRetry, Worker, WorkerJob, testing
from tests.http import isolated_handlers

worker = Worker()
SECRET = "canary-7d1c"


@worker.handler("succeed")
def succeed(job: WorkerJob) -> str:
    return "done"


def look_up(data: dict[str, str]) -> str:
    return data["name"]


@worker.handler("fail")
def fail(job: WorkerJob) -> str:
    return look_up(job.payload)


@worker.handler("fail.async")
async def fail_async(job: WorkerJob) -> str:
    return look_up(job.payload)


@worker.handler("fail.chained")
def fail_chained(job: WorkerJob) -> None:
    try:
        look_up(job.payload)
    except KeyError as error:
        raise ValueError(f"no name\nin {job.payload}") from error


@worker.handler("give.up")
def give_up(job: WorkerJob) -> None:
    raise NoRetry("never")


@worker.handler("snooze")
def snooze(job: WorkerJob) -> None:
    if job.attempt == 1:
        job.snooze("1h")
    raise ValueError("second attempt")


@worker.handler("no.argument")
def no_argument() -> None:
    pass


@worker.handler("slow", timeout="50ms")
def slow(job: WorkerJob) -> None:
    job.wait("60s")


worker.handler("isolated", isolate=True)(isolated_handlers.fail_with_payload)


def attempt_lines(*jobs: tuple[str, Any], drains: int = 1, max_attempts: int = 2) -> list[dict[str, Any]]:
    """Run these jobs with this number of drains, and return what the worker logged about their attempts."""
    with testing.start(worker) as ingot, capture_logs() as entries:
        for type, payload in jobs:
            ingot.client.submit(type, payload, max_attempts=max_attempts)
        for _ in range(drains):
            ingot.drain()
            ingot.clock.advance(days=1)
    return [dict(entry) for entry in entries if entry["event"].startswith("job_")]


def test_a_successful_attempt_is_logged_with_its_duration() -> None:
    (line,) = attempt_lines(("succeed", None))
    assert (line["event"], line["log_level"], line["outcome"]) == ("job_succeeded", "info", "succeeded")
    assert (line["job_type"], line["attempt_no"], line["max_attempts"]) == ("succeed", 1, 2)
    assert len(line["job_id"]) == 36
    assert line["duration_ms"] > 0


@pytest.mark.parametrize(
    ("type", "frames"),
    [
        ("fail", ["in fail", "in look_up"]),
        ("fail.async", ["in fail_async", "in look_up"]),
        ("isolated", ["in fail_with_payload", "in look_up"]),
    ],
)
def test_a_failed_attempt_and_a_dead_job_are_logged_with_a_traceback(type: str, frames: list[str]) -> None:
    failed, dead = attempt_lines((type, {"password": SECRET}), drains=2)
    assert (failed["event"], failed["log_level"], failed["attempt_no"]) == ("job_failed", "warning", 1)
    assert (dead["event"], dead["log_level"], dead["attempt_no"]) == ("job_dead", "error", 2)
    assert "next_try" in failed
    assert "next_try" not in dead
    for line in (failed, dead):
        assert (line["error"], line["outcome"], line["max_attempts"]) == ("KeyError: 'name'", "failed", 2)
        lines = line["traceback"].splitlines()
        assert [row.rpartition(", ")[2] for row in lines if row.startswith("  File")] == frames
        assert lines[0].startswith("  File")
        assert lines[-1] == "KeyError: 'name'"
        assert SECRET not in str(line)


def test_a_traceback_has_the_causes_and_the_first_line_of_each_message() -> None:
    (line,) = attempt_lines(("fail.chained", {"password": SECRET}))
    assert line["error"] == "ValueError: no name"
    assert "KeyError: 'name'\nwhich led to:\n" in line["traceback"]
    assert "execution.py" not in line["traceback"]
    assert SECRET not in str(line)


def test_a_handler_that_gives_up_is_logged_as_dead() -> None:
    (line,) = attempt_lines(("give.up", None))
    assert (line["event"], line["error"]) == ("job_dead", "never")
    assert "in give_up" in line["traceback"]


def test_a_handler_without_a_parameter_is_logged_without_frames_of_the_worker() -> None:
    (line,) = attempt_lines(("no.argument", None))
    assert line["traceback"].startswith("TypeError: no_argument() takes 0 positional arguments")


def test_a_timeout_is_logged_as_a_failure() -> None:
    (line,) = attempt_lines(("slow", None))
    assert (line["event"], line["error"]) == ("job_failed", "the handler took longer than 0.05 seconds")
    assert "traceback" not in line


def test_a_snoozed_attempt_does_not_count_as_a_failure() -> None:
    snoozed, failed = attempt_lines(("snooze", None), drains=2)
    assert (snoozed["event"], snoozed["log_level"], snoozed["outcome"]) == ("job_snoozed", "info", "snoozed")
    assert "(attempt 2, failure 1 of 2, next try" in failed["text"]


def test_the_log_of_a_job_has_the_whole_message_and_no_frames_of_the_worker() -> None:
    with testing.start(worker) as ingot:
        jobs = [ingot.client.submit(type, {"password": SECRET}) for type in ("fail.chained", "isolated")]
        ingot.drain()
        chained, isolated = (job.log() for job in jobs)
    assert f"ValueError: no name\nin {{'password': '{SECRET}'}}" in chained
    for log in (chained, isolated):
        assert "Traceback (most recent call last):\n" in log
        assert "execution.py" not in log.rpartition("Traceback")[2]
        assert "child.py" not in log
    assert isolated.endswith("KeyError: 'name'\n")
    assert isolated.count("Traceback") == 1
