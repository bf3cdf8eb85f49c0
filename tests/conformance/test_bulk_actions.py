"""Bulk actions: every matching job is judged by itself, and a caller repeats the action until no job is left."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from ingot.identity import Limits
from ingot.jobs import Claim, Job, Jobs, JobStatus, Source, bulk_actions
from ingot.jobs.bulk_actions import Actions, BulkActionResult
from ingot.jobs.job_options import new_job
from ingot.jobs.ports import JobStore, ListJobs
from ingot.kernel.commands import Command
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import InvalidCursor
from tests.conformance.snapshots import refuses_each, snapshot
from tests.factories import LEASE_SECONDS, Bench

ALL = {"all_jobs": True}

A = TypeVar("A")


async def run_to_end(bench: Bench, name: str, **options: Any) -> list[BulkActionResult]:
    """The results of all steps of an action."""
    action = getattr(Actions(bench.jobs), name)
    steps: list[BulkActionResult] = []
    cursor = None
    for _ in range(1000):
        steps.append(await action(bench.tenant, cursor=cursor, **options))
        cursor = steps[-1].next_cursor
        if cursor is None:
            return steps
    raise AssertionError("the action has no end")


async def make_job_in_every_status(bench: Bench) -> dict[JobStatus, Job]:
    """Make one job in every status."""
    jobs = {}
    for status in (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED, JobStatus.RUNNING):
        jobs[status] = await bench.make_job_in(status)
    jobs[JobStatus.QUEUED] = await bench.make_job()
    jobs[JobStatus.BLOCKED] = await bench.make_job(after=[jobs[JobStatus.QUEUED].id])
    return jobs


async def changed_statuses(bench: Bench, jobs: dict[JobStatus, Job]) -> dict[JobStatus, JobStatus]:
    """The new status of each job whose status has changed."""
    now = {before: (await bench.reload(job)).status for before, job in jobs.items()}
    return {before: after for before, after in now.items() if before is not after}


async def test_cancel_ends_waiting_jobs_and_requests_running_jobs_to_stop(bench: Bench) -> None:
    jobs = await make_job_in_every_status(bench)
    (step,) = await run_to_end(bench, "cancel", **ALL)
    assert step == BulkActionResult(matched=3, changed=3, failed=[])
    assert await changed_statuses(bench, jobs) == {
        JobStatus.QUEUED: JobStatus.CANCELED,
        JobStatus.BLOCKED: JobStatus.CANCELED,
    }
    assert (await bench.reload(jobs[JobStatus.RUNNING])).cancel_requested
    assert await run_to_end(bench, "cancel", **ALL) == [BulkActionResult(matched=1, changed=0, failed=[])]


@pytest.mark.parametrize("status", [None, JobStatus.DEAD, JobStatus.CANCELED, JobStatus.SUCCEEDED])
async def test_retry_restarts_dead_jobs_or_jobs_in_the_given_status(bench: Bench, status: JobStatus | None) -> None:
    jobs = await make_job_in_every_status(bench)
    options = ALL if status is None else {"status": status}
    assert await run_to_end(bench, "retry", priority=1, **options) == [
        BulkActionResult(matched=1, changed=1, failed=[])
    ]
    named = status or JobStatus.DEAD
    assert await changed_statuses(bench, jobs) == {named: JobStatus.QUEUED}
    assert (await bench.reload(jobs[named])).priority == 1


async def test_change_sets_the_priority_of_waiting_jobs_only(bench: Bench) -> None:
    jobs = await make_job_in_every_status(bench)
    await bench.make_job(priority=5)
    assert await run_to_end(bench, "change", priority=5, **ALL) == [BulkActionResult(matched=3, changed=2, failed=[])]
    changed = {status for status, job in jobs.items() if (await bench.reload(job)).priority == 5}
    assert changed == {JobStatus.QUEUED, JobStatus.BLOCKED}


@pytest.mark.parametrize("name", ["cancel", "retry", "change"])
async def test_a_dry_run_reports_the_same_counts_and_changes_nothing(bench: Bench, name: str) -> None:
    await make_job_in_every_status(bench)
    before = await snapshot(bench)
    options: dict[str, Any] = {**ALL, **({"priority": 1} if name == "change" else {})}
    previewed = await run_to_end(bench, name, dry_run=True, **options)
    assert await snapshot(bench) == before
    assert await run_to_end(bench, name, **options) == previewed
    assert previewed[0].changed > 0


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({"type": "a"}, {2, 3}),
        ({"tag": "red"}, {1, 3}),
        ({"source": Source.SCHEDULE}, {0, 1, 2}),
        ({"type": "b", "tag": "red"}, {0, 1, 3}),
        ({"type": "none"}, {0, 1, 2, 3}),
    ],
)
async def test_an_action_changes_only_jobs_that_match_every_filter(
    bench: Bench, filters: dict[str, Any], left: set[int]
) -> None:
    jobs = [
        await bench.make_job("a", tags=["red"]),
        await bench.make_job("a"),
        await bench.make_job("b", tags=["red"]),
        await bench.make_job("b", source=Source.SCHEDULE),
    ]
    (step,) = await run_to_end(bench, "cancel", **filters)
    assert (step.matched, step.changed) == (4 - len(left), 4 - len(left))
    now = [(await bench.reload(job)).status for job in jobs]
    assert {index for index, status in enumerate(now) if status is JobStatus.QUEUED} == left


async def test_an_action_changes_only_jobs_created_between_two_times(bench: Bench) -> None:
    jobs = []
    for _ in range(3):
        jobs.append(await bench.make_job())
        bench.clock.advance(seconds=10)
    await run_to_end(bench, "cancel", created_after=jobs[1].created_at, created_before=jobs[2].created_at)
    now = [(await bench.reload(job)).status for job in jobs]
    assert now == [JobStatus.QUEUED, JobStatus.CANCELED, JobStatus.QUEUED]


async def test_an_action_does_not_change_jobs_of_another_tenant(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    job = await bench.make_job(tenant=other)
    assert await run_to_end(bench, "cancel", **ALL) == [BulkActionResult(matched=0, changed=0, failed=[])]
    assert (await bench.reload(job)).status is JobStatus.QUEUED


@pytest.mark.parametrize("limit", [1, 7, 150])
async def test_all_steps_together_change_every_job_once(bench: Bench, limit: int) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", n, delay=n % 2) for n in range(260)])
    parents = [await bench.make_job("parent") for _ in range(3)]
    await bench.jobs.enqueue_many([new_job(bench.tenant, "child", after=[parent.id]) for parent in parents])
    previewed = await run_to_end(bench, "cancel", limit=limit, dry_run=True, **ALL)
    assert sum(step.matched for step in previewed) == sum(step.changed for step in previewed) == 266
    steps = await run_to_end(bench, "cancel", limit=limit, **ALL)
    assert all(step.matched <= limit for step in steps)
    assert sum(step.matched for step in steps) == sum(step.changed for step in steps) == 266
    assert [step.failed for step in steps if step.failed] == []
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.CANCELED] == 266
    assert (await bench.event_names()).count("job.canceled") == 266


async def test_a_step_that_exceeds_its_time_limit_ends_early(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "STEP_SECONDS_MAX", 1e-6)
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", n) for n in range(250)])
    steps = await run_to_end(bench, "cancel", type="noop")
    assert all(step.matched <= bulk_actions.BATCH_JOBS for step in steps)
    assert sum(step.changed for step in steps) == 250


async def test_a_job_that_cannot_be_changed_is_reported_and_stops_no_other_change(bench: Bench) -> None:
    dead = [await bench.make_job_in(JobStatus.DEAD, dedupe_key=f"key-{n}") for n in range(3)]
    await bench.make_job("other", dedupe_key="key-1")
    (step,) = await run_to_end(bench, "retry", type="noop")
    assert (step.matched, step.changed) == (3, 2)
    assert [(refusal.id, refusal.code) for refusal in step.failed] == [(dead[1].id, "duplicate_job")]
    await bench.tenants.change(bench.tenant, limits=Limits(max_unfinished_jobs=1))
    (step,) = await run_to_end(bench, "retry", type="noop")
    assert [refusal.code for refusal in step.failed] in (["duplicate_job"], ["job_limit_exceeded"])


class CompletingStore:
    """A store in which a running job completes as soon as it is listed."""

    def __init__(self, bench: Bench, claim: Claim) -> None:
        self._store, self._jobs, self._claim = bench.store, bench.jobs, claim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def run(self, command: Command[A]) -> A:
        answer = await self._store.run(command)
        if isinstance(command, ListJobs) and command.where.status is JobStatus.RUNNING:
            await self._jobs.complete(self._claim)
        return answer


async def test_a_job_that_ends_during_the_action_is_neither_an_error_nor_counted(bench: Bench) -> None:
    for _ in range(5):
        await bench.make_job()
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    bench.jobs = Jobs(cast("JobStore", CompletingStore(bench, claim)), lease_seconds=LEASE_SECONDS)
    assert await run_to_end(bench, "cancel", type="noop") == [BulkActionResult(matched=5, changed=4, failed=[])]
    assert (await bench.reload(claim)).status is JobStatus.SUCCEEDED


async def test_two_identical_actions_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "noop", n) for n in range(150)])
    both = await asyncio.gather(*(run_to_end(bench, "cancel", type="noop") for _ in range(2)))
    assert [step.failed for steps in both for step in steps if step.failed] == []
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.CANCELED] == 150
    assert (await bench.event_names()).count("job.canceled") == 150


@pytest.mark.parametrize("name", ["cancel", "retry", "change"])
async def test_an_action_without_a_filter_or_all_jobs_is_refused(bench: Bench, name: str) -> None:
    job = await bench.make_job()
    options = {"priority": 1} if name == "change" else {}
    with pytest.raises(InvalidInput, match="no filter") as refused:
        await run_to_end(bench, name, **options)
    assert "all" in refused.value.hint
    assert await bench.reload(job) == job


BAD_ACTIONS: list[tuple[str, dict[str, Any]]] = [
    ("cancel", {"status": JobStatus.DEAD}),
    ("cancel", {"status": "broken"}),
    ("retry", {"status": JobStatus.QUEUED}),
    ("retry", {"priority": 6, **ALL}),
    ("retry", {"max_attempts": 0, **ALL}),
    ("retry", {"run_at": "now", **ALL}),
    ("change", {"priority": 0, **ALL}),
    ("change", {"priority": None, **ALL}),
    ("change", {"status": JobStatus.RUNNING, "priority": 1}),
    ("cancel", {"limit": 0, **ALL}),
    ("cancel", {"limit": 1001, **ALL}),
    ("cancel", {"dry_run": "yes", **ALL}),
    ("cancel", {"all_jobs": 1}),
    ("cancel", {"type": 5}),
]


async def test_bad_actions_are_refused(bench: Bench) -> None:
    await make_job_in_every_status(bench)
    calls = {f"{name} {wrong}": partial(run_to_end, bench, name, **wrong) for name, wrong in BAD_ACTIONS}
    assert len(calls) == len(BAD_ACTIONS)
    await refuses_each(bench, InvalidInput, calls)


async def test_a_cursor_is_valid_only_for_the_action_and_filter_that_created_it(bench: Bench) -> None:
    for _ in range(3):
        await bench.make_job()
    actions = Actions(bench.jobs)
    cursor = (await actions.cancel(bench.tenant, type="noop", limit=1)).next_cursor
    with pytest.raises(InvalidCursor):
        await actions.cancel(bench.tenant, type="other", cursor=cursor)
    with pytest.raises(InvalidCursor):
        await actions.change(bench.tenant, type="noop", priority=1, cursor=cursor)
    with pytest.raises(InvalidCursor):
        await actions.cancel(bench.tenant, type="noop", cursor="nonsense")
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.CANCELED] == 1
