"""Explanations: every reason there is, in words and as data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ingot.jobs import JobStatus
from ingot.jobs.explanation import CLAIM_INTERVAL_SECONDS_MAX, explain
from ingot.jobs.model import JOBS_AHEAD_MAX, NULL, Job, LimitUsage, Pause, Reason, Source, WaitState

NOW = datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=UTC)
BEFORE = NOW - timedelta(seconds=30)
LATER = NOW + timedelta(minutes=1)
LONG_AGO = NOW - timedelta(seconds=CLAIM_INTERVAL_SECONDS_MAX, microseconds=1)
JOB = Job(
    id="job",
    tenant="tenant",
    type="resize",
    status=JobStatus.QUEUED,
    priority=3,
    payload=NULL,
    run_at=BEFORE,
    attempts=0,
    failures=0,
    crashes=0,
    max_attempts=5,
    fence=0,
    source=Source.MANUAL,
    depth=0,
    created_at=BEFORE,
)


def waiting(*, of: dict[str, Any] | None = None, **found: Any) -> WaitState:
    """A job, and what is in its way; a worker asked for it just now."""
    job = msgspec.structs.replace(JOB, **(of or {}))
    return WaitState(**{"job": job, "now": NOW, "last_claim_at": NOW, **found})


def reasons(*, of: dict[str, Any] | None = None, **found: Any) -> list[Reason]:
    return explain(waiting(of=of, **found)).reasons


def codes(*, of: dict[str, Any] | None = None, **found: Any) -> list[str]:
    return [reason.code for reason in reasons(of=of, **found)]


@pytest.mark.parametrize("status", JobStatus)
def test_an_explanation_names_its_job_and_where_it_stands(status: JobStatus) -> None:
    explanation = explain(waiting(of={"status": status}))
    assert (explanation.job_id, explanation.status) == ("job", status)
    assert explanation.reasons


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED])
def test_a_finished_job_is_finished_and_nothing_else(status: JobStatus) -> None:
    full = LimitUsage(scope="type", maximum=1, running=1, holders=["a"])
    pause = Pause(type="resize", since=BEFORE)
    (reason,) = reasons(
        of={"status": status, "finished_at": BEFORE, "run_at": LATER}, limits=[full], pause=pause, last_claim_at=None
    )
    assert reason == Reason(code="finished", message=f"It is {status}.", data={"finished_at": BEFORE})


def test_a_running_job_says_where_it_runs() -> None:
    of = {"status": JobStatus.RUNNING, "worker_id": "w-1", "attempts": 2, "started_at": BEFORE}
    of |= {"lease_expires_at": LATER}
    (reason,) = reasons(of=of, last_claim_at=None)
    data = {"worker_id": "w-1", "started_at": BEFORE, "lease_expires_at": LATER}
    lost = "Unless that worker is heard of before, it loses the job at 2026-03-04T05:07:07Z."
    assert reason == Reason(code="running", message=f"It runs at worker w-1, attempt 2. {lost}", data=data)
    (late,) = reasons(of=of | {"lease_expires_at": BEFORE})
    assert late.message.endswith(" Nothing was heard of that worker in time; it loses the job in a moment.")
    (asked,) = reasons(of=of | {"cancel_requested": True})
    assert (asked.code, asked.data) == ("running", data)
    assert asked.message == f"It runs at worker w-1, attempt 2. It was asked to stop. {lost}"


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        (0, "All it waited for has ended; it goes on in a moment."),
        (1, "It waits for p0 (queued)."),
        (3, "It waits for p0 (queued), p1 (running), p2 (blocked)."),
        (4, "It waits for p0 (queued), p1 (running), p2 (blocked) and 1 more."),
        (100, "It waits for p0 (queued), p1 (running), p2 (blocked) and 97 more."),
    ],
)
def test_a_blocked_job_names_some_of_those_it_waits_for(parents: int, message: str) -> None:
    ways = [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.BLOCKED]
    known = [(f"p{n}", ways[n % 3]) for n in range(parents)]
    (reason,) = reasons(of={"status": JobStatus.BLOCKED, "run_at": LATER}, parents=known, last_claim_at=None)
    assert reason == Reason(code="waits_for", message=message, data={"after": [job_id for job_id, _ in known]})


def test_a_scheduled_job_says_when() -> None:
    (reason,) = reasons(of={"run_at": LATER})
    message = "It is scheduled for 2026-03-04T05:07:07Z."
    assert reason == Reason(code="scheduled", message=message, data={"run_at": LATER})


@pytest.mark.parametrize("of", [{"failures": 1}, {"crashes": 1}, {"failures": 2, "crashes": 1}])
def test_a_job_that_failed_or_crashed_says_when_it_is_tried_next(of: dict[str, int]) -> None:
    (reason,) = reasons(of={"run_at": LATER, "attempts": 3, **of})
    message = "Its next try is 2026-03-04T05:07:07Z."
    assert reason == Reason(code="retrying", message=message, data={"run_at": LATER})


def test_a_job_whose_time_is_now_is_not_scheduled() -> None:
    assert codes(of={"run_at": NOW}) == codes(of={"run_at": NOW, "failures": 1}) == ["in_line"]


@pytest.mark.parametrize(("by", "words"), [(None, ""), ("ada", " by ada")])
def test_a_paused_type_says_who_and_since_when(by: str | None, words: str) -> None:
    first, second = reasons(pause=Pause(type="resize", since=BEFORE, by=by))
    message = f"The type resize is paused{words} since 2026-03-04T05:05:37Z."
    assert first == Reason(code="paused", message=message, data={"type": "resize", "since": BEFORE})
    assert second.code == "in_line"


@pytest.mark.parametrize(
    ("scope", "whose"),
    [("tenant", "of the tenant"), ("type", "of the type resize"), ("key", "of the type resize with its key")],
)
@pytest.mark.parametrize(
    ("running", "most", "shown"),
    [(1, 1, "h0"), (3, 3, "h0, h1, h2"), (4, 4, "h0, h1, h2 and others"), (20, 5, "h0, h1, h2 and others")],
)
def test_a_full_limit_names_some_of_those_that_run(scope: Any, whose: str, running: int, most: int, shown: str) -> None:
    holders = [f"h{n}" for n in range(min(running, 10))]
    first, second = reasons(limits=[LimitUsage(scope=scope, maximum=most, running=running, holders=holders)])
    message = f"{running} of {most} jobs {whose} that may run at once are running: {shown}."
    data = {"most": most, "running": running, "holders": holders}
    assert first == Reason(code=f"{scope}_limit", message=message, data=data)
    assert second.code == "in_line"


def test_a_limit_with_room_is_no_reason() -> None:
    assert codes(limits=[LimitUsage(scope="type", maximum=2, running=1, holders=["a"])]) == ["in_line"]


def test_a_type_that_nobody_ever_asked_for_has_no_worker() -> None:
    first, second = reasons(last_claim_at=None)
    message = "No worker has asked for jobs of the type resize yet."
    assert first == Reason(code="no_worker", message=message, data={"type": "resize", "asked_at": None})
    assert second.code == "in_line"


def test_a_type_that_nobody_asked_for_in_a_long_time_has_no_worker() -> None:
    first, _ = reasons(last_claim_at=LONG_AGO)
    message = "No worker has asked for jobs of the type resize since 2026-03-04T05:04:37Z."
    assert first == Reason(code="no_worker", message=message, data={"type": "resize", "asked_at": LONG_AGO})
    assert codes(last_claim_at=NOW - timedelta(seconds=CLAIM_INTERVAL_SECONDS_MAX)) == ["in_line"]


@pytest.mark.parametrize(
    ("ahead", "message"),
    [
        (0, "It is the next of its type, and waits for a worker with a free place."),
        (1, "1 job of its type goes before it."),
        (2, "2 jobs of its type go before it."),
        (JOBS_AHEAD_MAX - 1, f"{JOBS_AHEAD_MAX - 1} jobs of its type go before it."),
        (JOBS_AHEAD_MAX, f"At least {JOBS_AHEAD_MAX} jobs of its type go before it."),
    ],
)
def test_a_job_in_line_says_how_many_go_before_it(ahead: int, message: str) -> None:
    (reason,) = reasons(jobs_ahead=ahead)
    asked = " A worker last asked for such jobs at 2026-03-04T05:06:07Z."
    assert reason == Reason(code="in_line", message=message + asked, data={"ahead": ahead})
    _, told_before = reasons(jobs_ahead=ahead, last_claim_at=LONG_AGO)
    assert told_before.message == message


def test_what_must_change_first_comes_first() -> None:
    scopes: list[Any] = ["tenant", "type", "key"]
    found: dict[str, Any] = {
        "pause": Pause(type="resize", since=BEFORE),
        "limits": [LimitUsage(scope=scope, maximum=1, running=1, holders=["a"]) for scope in scopes],
        "last_claim_at": None,
        "jobs_ahead": 7,
    }
    between = ["paused", "tenant_limit", "type_limit", "key_limit", "no_worker"]
    assert codes(**found) == [*between, "in_line"]
    assert codes(of={"run_at": LATER}, **found) == ["scheduled", *between]
    assert codes(of={"run_at": LATER, "crashes": 1}, **found) == ["retrying", *between]


def test_an_explanation_can_be_told_as_json() -> None:
    explanation = explain(waiting(of={"run_at": LATER}, last_claim_at=None, pause=Pause(type="resize", since=BEFORE)))
    assert len(msgspec.json.decode(msgspec.json.encode(explanation))["reasons"]) == 3
