"""Explanations of waiting jobs: every reason, as text and as data."""

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


def wait_state(*, changes: dict[str, Any] | None = None, **state: Any) -> WaitState:
    """A job and what it waits for. By default a worker has just sent a claim."""
    job = msgspec.structs.replace(JOB, **(changes or {}))
    return WaitState(**{"job": job, "now": NOW, "last_claim_at": NOW, **state})


def reasons(*, changes: dict[str, Any] | None = None, **state: Any) -> list[Reason]:
    return explain(wait_state(changes=changes, **state)).reasons


def codes(*, changes: dict[str, Any] | None = None, **state: Any) -> list[str]:
    return [reason.code for reason in reasons(changes=changes, **state)]


@pytest.mark.parametrize("status", JobStatus)
def test_an_explanation_has_the_id_and_status_of_its_job(status: JobStatus) -> None:
    explanation = explain(wait_state(changes={"status": status}))
    assert (explanation.job_id, explanation.status) == ("job", status)
    assert explanation.reasons


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED])
def test_a_finished_job_has_only_the_reason_finished(status: JobStatus) -> None:
    full = LimitUsage(scope="type", maximum=1, running=1, holders=["a"])
    pause = Pause(type="resize", since=BEFORE)
    (reason,) = reasons(
        changes={"status": status, "finished_at": BEFORE, "run_at": LATER},
        limits=[full],
        pause=pause,
        last_claim_at=None,
    )
    assert (reason.code, reason.data) == ("finished", {"finished_at": BEFORE})
    assert "2026-03-04T05:05:37Z" in reason.message


def test_the_reason_of_a_running_job_names_its_worker_and_lease() -> None:
    changes = {"status": JobStatus.RUNNING, "worker_id": "w-1", "attempts": 2, "started_at": BEFORE}
    changes |= {"lease_expires_at": LATER}
    (reason,) = reasons(changes=changes, last_claim_at=None)
    data = {"worker_id": "w-1", "started_at": BEFORE, "lease_expires_at": LATER}
    assert (reason.code, reason.data) == ("running", data)
    assert "worker w-1 (attempt 2)" in reason.message
    assert "2026-03-04T05:07:07Z" in reason.message
    assert "Cancellation" not in reason.message
    (late,) = reasons(changes=changes | {"lease_expires_at": BEFORE})
    assert "2026-03-04T05:05:37Z" in late.message
    (canceled,) = reasons(changes=changes | {"cancel_requested": True})
    assert (canceled.code, canceled.data) == ("running", data)
    assert "Cancellation" in canceled.message


@pytest.mark.parametrize(
    ("parents", "names"),
    [
        (0, ""),
        (1, " p0 (queued) "),
        (3, " p0 (queued), p1 (running), p2 (blocked) "),
        (4, " p0 (queued), p1 (running), p2 (blocked) and 1 more "),
        (100, " p0 (queued), p1 (running), p2 (blocked) and 97 more "),
    ],
)
def test_the_reason_of_a_blocked_job_names_some_of_its_parents(parents: int, names: str) -> None:
    statuses = [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.BLOCKED]
    waited_for = [(f"p{n}", statuses[n % 3]) for n in range(parents)]
    (reason,) = reasons(changes={"status": JobStatus.BLOCKED, "run_at": LATER}, parents=waited_for, last_claim_at=None)
    assert (reason.code, reason.data) == ("waits_for", {"after": [job_id for job_id, _ in waited_for]})
    assert names in reason.message


def test_the_reason_of_a_scheduled_job_has_its_time() -> None:
    (reason,) = reasons(changes={"run_at": LATER})
    assert (reason.code, reason.data) == ("scheduled", {"run_at": LATER})
    assert "2026-03-04T05:07:07Z" in reason.message


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"failures": 1}, "1 failure and 0 crashes"),
        ({"crashes": 1}, "0 failures and 1 crash"),
        ({"failures": 2, "crashes": 1}, "2 failures and 1 crash"),
    ],
)
def test_the_reason_of_a_retried_job_has_the_time_of_the_next_attempt(changes: dict[str, int], counts: str) -> None:
    (reason,) = reasons(changes={"run_at": LATER, "attempts": 3, **changes})
    assert (reason.code, reason.data) == ("retrying", {"run_at": LATER})
    assert f"2026-03-04T05:07:07Z, after {counts}." in reason.message


def test_a_job_that_is_due_now_is_not_scheduled() -> None:
    assert codes(changes={"run_at": NOW}) == codes(changes={"run_at": NOW, "failures": 1}) == ["in_line"]


@pytest.mark.parametrize(("by", "author"), [(None, ""), ("ada", " by ada")])
def test_the_reason_of_a_paused_type_has_its_author_and_time(by: str | None, author: str) -> None:
    first, second = reasons(pause=Pause(type="resize", since=BEFORE, by=by))
    assert (first.code, first.data) == ("paused", {"type": "resize", "since": BEFORE})
    assert f"paused{author} since 2026-03-04T05:05:37Z" in first.message
    assert second.code == "in_line"


@pytest.mark.parametrize(
    ("scope", "setting"),
    [("tenant", "max_running_jobs"), ("type", "max_running"), ("key", "max_running_per_key")],
)
@pytest.mark.parametrize(
    ("running", "most", "shown"),
    [(1, 1, "h0"), (3, 3, "h0, h1, h2"), (4, 4, "h0, h1, h2 and others"), (20, 5, "h0, h1, h2 and others")],
)
def test_the_reason_of_a_full_limit_names_its_setting_and_some_running_jobs(
    scope: Any, setting: str, running: int, most: int, shown: str
) -> None:
    holders = [f"h{n}" for n in range(min(running, 10))]
    first, second = reasons(limits=[LimitUsage(scope=scope, maximum=most, running=running, holders=holders)])
    assert first.code == f"{scope}_limit"
    assert first.data == {"most": most, "running": running, "holders": holders}
    assert f"({running} of {most}): {shown}." in first.message
    assert f" {setting} " in first.message
    assert second.code == "in_line"


def test_a_limit_that_is_not_full_is_no_reason() -> None:
    assert codes(limits=[LimitUsage(scope="type", maximum=2, running=1, holders=["a"])]) == ["in_line"]


def test_a_type_that_was_never_claimed_has_no_worker() -> None:
    first, second = reasons(last_claim_at=None)
    assert (first.code, first.data) == ("no_worker", {"type": "resize", "asked_at": None})
    assert "jobs of type resize" in first.message
    assert second.code == "in_line"


def test_a_type_that_was_not_claimed_for_long_has_no_worker() -> None:
    first, _ = reasons(last_claim_at=LONG_AGO)
    assert (first.code, first.data) == ("no_worker", {"type": "resize", "asked_at": LONG_AGO})
    assert "jobs of type resize since 2026-03-04T05:04:37Z" in first.message
    assert codes(last_claim_at=NOW - timedelta(seconds=CLAIM_INTERVAL_SECONDS_MAX)) == ["in_line"]


@pytest.mark.parametrize(
    ("ahead", "position"),
    [
        (0, "next among the jobs of the same type"),
        (1, "behind 1 job of the same type"),
        (2, "behind 2 jobs of the same type"),
        (JOBS_AHEAD_MAX - 1, f"behind {JOBS_AHEAD_MAX - 1} jobs of the same type"),
        (JOBS_AHEAD_MAX, f"behind at least {JOBS_AHEAD_MAX} jobs of the same type"),
    ],
)
def test_the_reason_of_a_ready_job_has_the_number_of_jobs_before_it(ahead: int, position: str) -> None:
    (reason,) = reasons(jobs_ahead=ahead)
    assert (reason.code, reason.data) == ("in_line", {"ahead": ahead})
    assert position in reason.message
    assert reason.message.endswith(" at 2026-03-04T05:06:07Z.")
    _, without_claim = reasons(jobs_ahead=ahead, last_claim_at=LONG_AGO)
    assert position in without_claim.message
    assert "2026-" not in without_claim.message


def test_reasons_are_in_the_order_in_which_they_must_change() -> None:
    scopes: list[Any] = ["tenant", "type", "key"]
    state: dict[str, Any] = {
        "pause": Pause(type="resize", since=BEFORE),
        "limits": [LimitUsage(scope=scope, maximum=1, running=1, holders=["a"]) for scope in scopes],
        "last_claim_at": None,
        "jobs_ahead": 7,
    }
    between = ["paused", "tenant_limit", "type_limit", "key_limit", "no_worker"]
    assert codes(**state) == [*between, "in_line"]
    assert codes(changes={"run_at": LATER}, **state) == ["scheduled", *between]
    assert codes(changes={"run_at": LATER, "crashes": 1}, **state) == ["retrying", *between]


def test_an_explanation_can_be_encoded_as_json() -> None:
    explanation = explain(
        wait_state(changes={"run_at": LATER}, last_claim_at=None, pause=Pause(type="resize", since=BEFORE))
    )
    assert len(msgspec.json.decode(msgspec.json.encode(explanation))["reasons"]) == 3
