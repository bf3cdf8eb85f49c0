"""Explanations of waiting jobs: every reason, as text and as data."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from ingot.jobs import JobStatus
from ingot.jobs.explanation import CLAIM_INTERVAL_SECONDS_MAX, REMEDIES, KnownWorkers, explain
from ingot.jobs.model import JOBS_AHEAD_MAX, NULL, Job, LimitUsage, Pause, Reason, Source, WaitState
from ingot.jobs.worker_model import RegisteredWorker, WorkerStatus

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


def test_a_job_with_files_waits_for_a_worker_with_access_to_files() -> None:
    without_files = {"last_claim_at": None, "last_claim_without_files_at": NOW}
    reason, _ = reasons(changes={"inputs": {"a.txt": "blob"}}, **without_files)
    assert (reason.code, reason.data) == ("no_worker", {"type": "resize", "asked_at": None})
    assert "only workers without access to files" in reason.message
    reason, _ = reasons(changes={"payload_blob": "blob"}, **without_files | {"last_claim_without_files_at": LONG_AGO})
    assert "No worker has requested jobs of type resize so far." in reason.message


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


# -- workers ------------------------------------------------------------------------------------------------


def worker(status: WorkerStatus, id: str = "press", *, types: tuple[str, ...] = ("resize",)) -> RegisteredWorker:
    return RegisteredWorker(id=id, tenant="tenant", status=status, types=types, registered_at=BEFORE, seen_at=BEFORE)


def worker_reasons(workers: KnownWorkers, *, named: bool = True, **state: Any) -> list[Reason]:
    return explain(wait_state(**{"last_claim_at": None, **state}), workers, named=named).reasons


@pytest.mark.parametrize("status", REMEDIES)
@pytest.mark.parametrize("last_claim_at", [None, LONG_AGO, BEFORE])
def test_a_job_whose_workers_are_not_online_names_them_and_what_to_do(
    status: WorkerStatus, last_claim_at: datetime | None
) -> None:
    workers = KnownWorkers(silent_seconds=15, of_type=[worker(status, f"press/{n}") for n in range(5)])
    first, second = worker_reasons(workers, last_claim_at=last_claim_at)
    since = " since 2026-03-04T05:05:37Z" if status in (WorkerStatus.SILENT, WorkerStatus.OFFLINE) else ""
    verb = "has been" if since else "is"
    assert (first.code, second.code) == ("no_worker", "in_line")
    assert first.message.startswith(f"No worker for jobs of type resize is online: press/0 {verb} {status}{since}, ")
    assert first.message.endswith(f" and 2 more. {REMEDIES[status]}")
    assert first.data["workers"][4] == {"id": "press/4", "status": status, "seen_at": BEFORE}


def test_the_remedy_is_that_of_the_worker_that_is_easiest_to_bring_back() -> None:
    workers = KnownWorkers(of_type=[worker(status) for status in reversed(REMEDIES)])
    assert REMEDIES[WorkerStatus.SILENT] in worker_reasons(workers)[0].message


def test_a_worker_that_is_online_is_enough_however_long_ago_it_claimed() -> None:
    workers = KnownWorkers(of_type=[worker(WorkerStatus.SILENT), worker(WorkerStatus.ONLINE)])
    for last_claim_at in (None, LONG_AGO):
        (reason,) = worker_reasons(workers, last_claim_at=last_claim_at)
        assert reason.code == "in_line"
        assert "1 worker is online for this type." in reason.message


def test_a_claim_after_the_last_heartbeat_of_all_workers_is_that_of_another_worker() -> None:
    workers = KnownWorkers(silent_seconds=15, of_type=[worker(WorkerStatus.SILENT)])
    codes_by_claim = [
        [reason.code for reason in worker_reasons(workers, last_claim_at=BEFORE + timedelta(seconds=seconds))]
        for seconds in (15, 16)
    ]
    assert codes_by_claim == [["no_worker", "in_line"], ["in_line"]]


def test_a_job_without_a_worker_names_the_other_types_of_the_tenant() -> None:
    others = [worker(WorkerStatus.ONLINE, types=("b", "a")), worker(WorkerStatus.OFFLINE, types=("c",))]
    first, _ = worker_reasons(KnownWorkers(of_tenant=others), last_claim_at=None)
    assert "The workers of this tenant that are online run other types: a, b." in first.message
    assert first.data["other_types"] == ["a", "b"]
    assert first.message.endswith("Workers of other tenants do not run jobs of this tenant.")


def test_workers_of_other_tenants_are_named_if_they_are_known() -> None:
    first, _ = worker_reasons(KnownWorkers(elsewhere=[("acme", "press")]), last_claim_at=None)
    assert first.message.endswith("only for their own tenant: press of acme.")
    assert first.data["elsewhere"] == [{"id": "press", "tenant": "acme"}]


def test_a_reader_who_may_not_see_workers_gets_no_names() -> None:
    silent = KnownWorkers(of_type=[worker(WorkerStatus.SILENT)])
    first, _ = worker_reasons(silent, named=False)
    assert "online: a worker has been silent since" in first.message
    other = KnownWorkers(of_tenant=[worker(WorkerStatus.ONLINE, types=("other",))])
    second, _ = worker_reasons(other, named=False, last_claim_at=None)
    assert not any("press" in str(reason) or "other_types" in reason.data for reason in (first, second))


def test_a_reader_who_may_see_only_the_workers_of_the_tenant_gets_no_names_of_shared_ones() -> None:
    shared = msgspec.structs.replace(worker(WorkerStatus.SILENT, "shared"), tenant=None)
    workers = KnownWorkers(of_type=[shared, worker(WorkerStatus.SILENT)])
    first, _ = explain(wait_state(last_claim_at=None), workers, shared_named=False).reasons
    assert "online: a worker has been silent since" in first.message
    assert [each["id"] for each in first.data["workers"]] == ["press"]
    assert "shared" not in str(first)


def test_a_job_on_a_silent_worker_has_its_last_sign_of_life() -> None:
    changes = {"status": JobStatus.RUNNING, "worker_id": "press", "lease_expires_at": LATER}
    (reason,) = worker_reasons(KnownWorkers(of_type=[worker(WorkerStatus.SILENT)]), changes=changes)
    assert "worker press (attempt 0), which has been silent since 2026-03-04T05:05:37Z." in reason.message
    assert reason.message.endswith(REMEDIES[WorkerStatus.SILENT])
    assert (reason.data["worker_status"], reason.data["seen_at"]) == (WorkerStatus.SILENT, BEFORE)


# -- canceled jobs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({}, {"canceled_by": "token:ada", "parents": [("p", JobStatus.DEAD)]}, "canceled by token:ada at 2026"),
        ({}, {"parents": [("p", JobStatus.DEAD)]}, "Z because it waited for p (dead)."),
        ({"last_error": "the upload failed"}, {}, "Z: the upload failed."),
        ({"last_error": "broken", "failures": 1}, {}, "To run it, retry it."),
    ],
)
def test_a_canceled_job_names_its_cause(changes: dict[str, Any], state: dict[str, Any], text: str) -> None:
    (reason,) = reasons(changes={"status": JobStatus.CANCELED, "finished_at": BEFORE, **changes}, **state)
    assert text in reason.message


def test_a_running_job_names_the_caller_that_requested_its_cancellation() -> None:
    changes = {"status": JobStatus.RUNNING, "worker_id": "press", "cancel_requested": True}
    (reason,) = reasons(changes=changes, canceled_by="token:ada")
    assert "Cancellation was requested by token:ada;" in reason.message


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
