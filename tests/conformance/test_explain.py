"""Explanations of why a job does not run: each reason is reported when it applies, and only then."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ingot.identity import Limits
from ingot.jobs import Backoff, Definition, Job, JobNotFound, Jobs, JobStatus, OnDead
from ingot.jobs.bulk_actions import Actions
from ingot.jobs.explanation import CLAIM_INTERVAL_SECONDS_MAX, REMEDIES
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Explanation, Reason
from ingot.jobs.worker_model import WorkerStatus, silent_seconds
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.job_endings import end
from tests.conformance.snapshots import snapshot
from tests.factories import LEASE_SECONDS, Bench, open_bench, open_store

KEYED = Definition(type="noop", limit_key="{key}", max_running_per_key=2)


async def explain(bench: Bench, job: Job) -> Explanation:
    return await bench.jobs.explain(job.tenant, job.id)


async def codes(bench: Bench, job: Job) -> list[str]:
    return [reason.code for reason in (await explain(bench, job)).reasons]


async def reason(bench: Bench, job: Job, code: str) -> Reason:
    """The only reason with this code."""
    (matching,) = [reason for reason in (await explain(bench, job)).reasons if reason.code == code]
    return matching


async def claim_and_release(bench: Bench, *types: str, tenant: str | None = None) -> None:
    """Claim jobs of these types as a worker, and release them."""
    for claim in await bench.jobs.claim("asking", types or ["noop"], limit=1000, tenant=tenant):
        await bench.jobs.release(claim)


async def start_jobs(bench: Bench, jobs: int, payload: object = None, type: str = "noop", **options: Any) -> list[str]:
    """Make and claim this many jobs, and return their IDs."""
    tenant = options.pop("tenant", bench.tenant)
    await bench.jobs.enqueue_many([new_job(tenant, type, payload, **options) for _ in range(jobs)])
    claims = await bench.jobs.claim("worker", [type], limit=jobs, tenant=tenant)
    assert len(claims) == jobs
    return [claim.job.id for claim in claims]


# -- finished and running jobs ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED])
async def test_a_finished_job_has_the_reason_finished(bench: Bench, status: JobStatus) -> None:
    job = await bench.make_job_in(status)
    explanation = await explain(bench, job)
    assert (explanation.job_id, explanation.status) == (job.id, status)
    assert [(reason.code, reason.data) for reason in explanation.reasons] == [
        ("finished", {"finished_at": job.finished_at})
    ]


async def test_a_running_job_names_its_worker(bench: Bench) -> None:
    claim = await bench.make_claim(worker="w-1")
    (explained,) = (await explain(bench, claim.job)).reasons
    assert explained.code == "running"
    assert "worker w-1 (attempt 1)" in explained.message
    assert explained.data == {
        "worker_id": "w-1",
        "started_at": claim.job.started_at,
        "lease_expires_at": claim.lease_expires_at,
    }
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    assert "Cancellation" in (await reason(bench, claim.job, "running")).message


async def test_an_explanation_changes_nothing(bench: Bench) -> None:
    parent = await bench.make_job()
    jobs = [parent, await bench.make_job(after=[parent.id]), await bench.make_job(delay=60)]
    before = await snapshot(bench)
    for job in jobs:
        assert await explain(bench, job) == await explain(bench, job)
    assert await snapshot(bench) == before


async def test_a_job_of_another_tenant_is_not_found(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    job = await bench.make_job()
    for tenant, job_id in [
        (other, job.id),
        (bench.tenant, new_id()),
        (new_id(), job.id),
        ("nobody", job.id),
        (bench.tenant, "no id"),
    ]:
        with pytest.raises(JobNotFound):
            await bench.jobs.explain(tenant, job_id)


@pytest.mark.parametrize("job_id", [None, 5, b"id"])
async def test_a_job_id_that_is_not_a_string_is_refused(bench: Bench, job_id: Any) -> None:
    with pytest.raises(InvalidInput):
        await bench.jobs.explain(bench.tenant, job_id)


async def test_a_removed_job_is_not_found(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", retention_seconds=1.0))
    job = await bench.make_job_in(JobStatus.SUCCEEDED)
    bench.clock.advance(seconds=2)
    await bench.jobs.collect()
    with pytest.raises(JobNotFound):
        await explain(bench, job)


# -- blocked jobs -------------------------------------------------------------------------------------------


async def test_a_blocked_job_names_its_unfinished_parents(bench: Bench) -> None:
    running = await bench.make_claim("running")
    queued, done = await bench.make_job("queued"), await bench.make_job("done")
    child = await bench.make_job(after=[running.job.id, queued.id, done.id])
    await end(bench, done)
    (explained,) = (await explain(bench, child)).reasons
    first, second = sorted([(running.job.id, "running"), (queued.id, "queued")])
    assert explained.code == "waits_for"
    assert f" {first[0]} ({first[1]}), {second[0]} ({second[1]}) " in explained.message
    assert explained.data == {"after": [first[0], second[0]]}
    await bench.jobs.complete(running)
    await end(bench, queued)
    assert "waits_for" not in await codes(bench, child)


async def test_at_most_100_parents_are_named(bench: Bench) -> None:
    parents = await bench.jobs.enqueue_many([new_job(bench.tenant, "first") for _ in range(150)])
    child = await bench.make_job(after=[parent.job.id for parent in parents])
    explained = await reason(bench, child, "waits_for")
    assert explained.data["after"] == sorted(parent.job.id for parent in parents)[:100]


# -- time ---------------------------------------------------------------------------------------------------


async def test_the_reason_of_a_scheduled_job_contains_run_at(bench: Bench) -> None:
    job = await bench.make_job(delay=60)
    await claim_and_release(bench)
    assert await codes(bench, job) == ["scheduled"]
    assert (await reason(bench, job, "scheduled")).data == {"run_at": job.run_at}
    bench.clock.advance(seconds=60)
    assert await codes(bench, job) == ["in_line"]


async def test_a_snoozed_job_has_the_reason_scheduled(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.snooze(claim, 60)
    assert await codes(bench, claim.job) == ["scheduled"]


async def test_the_reason_of_a_failed_job_contains_the_time_of_its_retry(bench: Bench) -> None:
    await bench.jobs.define(Definition(type="noop", backoff=Backoff(first_seconds=60.0)))
    claim = await bench.make_claim()
    settled = await bench.jobs.fail(claim, "no")
    assert await codes(bench, claim.job) == ["retrying"]
    assert (await reason(bench, claim.job, "retrying")).data == {"run_at": settled.run_at}
    bench.clock.advance(seconds=60)
    assert await codes(bench, claim.job) == ["in_line"]


# -- pauses and limits --------------------------------------------------------------------------------------


async def test_the_reason_of_a_paused_job_contains_who_paused_it_and_when(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await claim_and_release(bench, "noop", "free")
    paused, free = await bench.make_job(), await bench.make_job("free")
    other_job = await bench.make_job(tenant=other)
    pause = await bench.jobs.pause(bench.tenant, "noop", by="ada")
    assert await codes(bench, paused) == ["paused", "in_line"]
    explained = await reason(bench, paused, "paused")
    assert "paused by ada since" in explained.message
    assert explained.data == {"type": "noop", "since": pause.since}
    assert await codes(bench, free) == await codes(bench, other_job) == ["in_line"]
    await bench.jobs.resume(bench.tenant, "noop")
    assert await codes(bench, paused) == ["in_line"]


@pytest.mark.parametrize("scope", ["tenant", "type", "key"])
async def test_a_reached_limit_names_the_jobs_that_run_under_it(bench: Bench, scope: str) -> None:
    if scope == "tenant":
        await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=2))
    else:
        await bench.jobs.define(KEYED if scope == "key" else Definition(type="noop", max_running=2))
    holders = await start_jobs(bench, 1, {"key": "k"})
    job = await bench.make_job(payload={"key": "k"})
    assert await codes(bench, job) == ["in_line"]
    holders += await start_jobs(bench, 1, {"key": "k"}, priority=1)
    assert await codes(bench, job) == [f"{scope}_limit", "in_line"]
    data = (await reason(bench, job, f"{scope}_limit")).data
    assert (data["most"], data["running"], sorted(data["holders"])) == (2, 2, sorted(holders))


async def test_only_jobs_that_a_limit_covers_count_toward_it(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await bench.jobs.define(Definition(type="noop", limit_key="{key}", max_running_per_key=1, max_running=3))
    await start_jobs(bench, 2, None, "else")
    for index, key in enumerate(("k", "l")):
        await start_jobs(bench, 1, {"key": key}, tenant=other)
        if index:
            await start_jobs(bench, 1, {"key": key})
    job = await bench.make_job(payload={"key": "k"})
    full = await bench.make_job(payload={"key": "l"})
    free = await bench.make_job(payload={})
    assert [await codes(bench, each) for each in (job, full, free)] == [
        ["in_line"],
        ["key_limit", "in_line"],
        ["in_line"],
    ]
    await start_jobs(bench, 2, {})
    assert await codes(bench, full) == ["type_limit", "key_limit", "in_line"]
    await bench.tenants.change(bench.tenant, limits=Limits(max_running_jobs=5))
    assert await codes(bench, full) == ["tenant_limit", "type_limit", "key_limit", "in_line"]
    assert (await reason(bench, full, "tenant_limit")).data["running"] == 5


async def test_a_limit_below_the_number_of_running_jobs_reports_both_numbers(bench: Bench) -> None:
    holders = await start_jobs(bench, 12)
    await bench.jobs.define(Definition(type="noop", max_running=5))
    explained = await reason(bench, await bench.make_job(), "type_limit")
    assert (explained.data["most"], explained.data["running"]) == (5, 12)
    assert len(set(explained.data["holders"])) == 10
    assert set(explained.data["holders"]) <= set(holders)
    assert "jobs of type noop is reached (12 of 5): " in explained.message
    assert " and others." in explained.message


# -- workers ------------------------------------------------------------------------------------------------


async def test_a_type_that_no_worker_claims_has_the_reason_no_worker(bench: Bench) -> None:
    job = await bench.make_job()
    await claim_and_release(bench, "other")
    assert await codes(bench, job) == ["no_worker", "in_line"]
    assert (await reason(bench, job, "no_worker")).data == {"type": "noop", "asked_at": None}
    asked_at = bench.clock.now()
    await claim_and_release(bench, "more", "noop")
    assert await codes(bench, job) == ["in_line"]
    bench.clock.advance(seconds=CLAIM_INTERVAL_SECONDS_MAX)
    assert await codes(bench, job) == ["in_line"]
    bench.clock.advance(seconds=1)
    assert await codes(bench, job) == ["no_worker", "in_line"]
    explained = await reason(bench, job, "no_worker")
    assert abs(explained.data["asked_at"] - asked_at) < timedelta(seconds=1)
    await claim_and_release(bench)
    assert await codes(bench, job) == ["in_line"]


async def test_a_worker_of_one_tenant_does_not_count_for_another(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    job, other_job = await bench.make_job(), await bench.make_job(tenant=other)
    await claim_and_release(bench, tenant=other)
    assert await codes(bench, job) == ["no_worker", "in_line"]
    assert await codes(bench, other_job) == ["in_line"]
    await bench.jobs.maintain()
    assert await codes(bench, job) == ["no_worker", "in_line"]
    await claim_and_release(bench)
    assert await codes(bench, job) == ["in_line"]


async def test_the_latest_claim_of_any_worker_counts(bench: Bench) -> None:
    job = await bench.make_job()
    await claim_and_release(bench)
    bench.clock.advance(seconds=CLAIM_INTERVAL_SECONDS_MAX)
    await claim_and_release(bench, tenant=bench.tenant)
    bench.clock.advance(seconds=CLAIM_INTERVAL_SECONDS_MAX)
    assert await codes(bench, job) == ["in_line"]
    await claim_and_release(bench)
    bench.clock.advance(seconds=CLAIM_INTERVAL_SECONDS_MAX)
    assert await codes(bench, job) == ["in_line"]


async def registered(bench: Bench, name: str, *types: str, tenant: str | None = None, shared: bool = False) -> None:
    """Register a worker of the tenant, of another one, or a shared one."""
    await bench.workers.register(None if shared else tenant or bench.tenant, name, types or ["noop"])


@pytest.mark.parametrize("shared", [False, True])
async def test_a_silent_worker_is_named_with_its_last_sign_of_life(bench: Bench, shared: bool) -> None:
    await registered(bench, "press/1", shared=shared)
    await claim_and_release(bench, tenant=None if shared else bench.tenant)
    job = await bench.make_job()
    assert await codes(bench, job) == ["in_line"]
    seen_at = bench.clock.now()
    bench.clock.advance(seconds=silent_seconds(LEASE_SECONDS))
    if shared:
        assert "press" not in str(await explain(bench, job))  # Only operators see shared workers.
    explained = (await bench.jobs.explain(job.tenant, job.id, all_tenants=shared)).reasons[0]
    assert explained.message.startswith("No worker for jobs of type noop is online: press/1 has been silent since ")
    assert explained.message.endswith(REMEDIES[WorkerStatus.SILENT])
    assert explained.data["workers"] == [{"id": "press/1", "status": WorkerStatus.SILENT, "seen_at": seen_at}]
    await bench.workers.heartbeat(None if shared else bench.tenant, "press/1")
    assert await codes(bench, job) == ["in_line"]


async def test_a_worker_that_claims_nothing_because_it_is_busy_counts(bench: Bench) -> None:
    await registered(bench, "press/1")
    job = await bench.make_job()
    await claim_and_release(bench)
    bench.clock.advance(seconds=CLAIM_INTERVAL_SECONDS_MAX + 1)
    await bench.workers.heartbeat(bench.tenant, "press/1")
    assert await codes(bench, job) == ["in_line"]
    assert "1 worker is online for this type." in (await reason(bench, job, "in_line")).message


async def test_a_job_on_a_silent_worker_says_so(bench: Bench) -> None:
    await registered(bench, "press/1")
    claim = await bench.make_claim(worker="press/1")
    assert (await reason(bench, claim.job, "running")).data["worker_status"] == WorkerStatus.ONLINE
    bench.clock.advance(seconds=silent_seconds(LEASE_SECONDS))
    explained = await reason(bench, claim.job, "running")
    assert "which has been silent since" in explained.message
    assert explained.data["worker_status"] == WorkerStatus.SILENT


async def test_other_types_of_the_tenant_are_named(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await registered(bench, "press/1", "pdf", "ocr")
    await registered(bench, "press/2", "secret", tenant=other)
    job = await bench.make_job("pdv")
    assert (await reason(bench, job, "no_worker")).data["other_types"] == ["ocr", "pdf"]


async def test_only_an_explanation_for_all_tenants_depends_on_their_workers(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    job = await bench.make_job()
    alone = await explain(bench, job)
    await registered(bench, "press/1", tenant=other.id)
    assert await explain(bench, job) == alone
    everything = await bench.jobs.explain(bench.tenant, job.id, all_tenants=True)
    assert everything.reasons[0].data["elsewhere"] == [{"id": "press/1", "tenant": "other"}]


# -- canceled jobs ------------------------------------------------------------------------------------------


async def test_a_canceled_job_names_the_caller_until_it_is_canceled_again(bench: Bench) -> None:
    job, claim = await bench.make_job("waits"), await bench.make_claim()
    for canceled in (job, claim.job):
        await bench.jobs.cancel(bench.tenant, canceled.id, by="token:ada")
    assert "Cancellation was requested by token:ada;" in (await reason(bench, claim.job, "running")).message
    await bench.jobs.release(claim)
    for canceled in (job, claim.job):
        assert (await reason(bench, canceled, "finished")).data["canceled_by"] == "token:ada"
    await bench.jobs.retry(bench.tenant, job.id)
    assert await codes(bench, job) == ["no_worker", "in_line"]
    await bench.jobs.cancel(bench.tenant, job.id)
    assert "canceled_by" not in (await reason(bench, job, "finished")).data


async def test_a_bulk_cancel_stores_its_caller(bench: Bench) -> None:
    job = await bench.make_job()
    await Actions(bench.jobs).cancel(bench.tenant, by="token:ada", all_jobs=True)
    assert (await reason(bench, job, "finished")).data["canceled_by"] == "token:ada"


async def test_a_job_canceled_because_of_a_parent_names_it(bench: Bench) -> None:
    dead, done = await bench.make_job("dead"), await bench.make_job("done")
    child = await bench.make_job(after=[dead.id, done.id])
    runs_anyway = await bench.make_job(after=[dead.id], on_dead=OnDead.RUN)
    await end(bench, done)
    (claim,) = await bench.jobs.claim("worker", ["dead"])
    await bench.jobs.fail(claim, "broken", retry=False)
    await bench.jobs.maintain()
    explained = await reason(bench, child, "finished")
    assert f"because it waited for {dead.id} (dead)." in explained.message
    assert explained.data["after"] == [dead.id]
    await bench.jobs.cancel(bench.tenant, runs_anyway.id)
    assert "after" not in (await reason(bench, runs_anyway, "finished")).data


# -- the position in the queue ------------------------------------------------------------------------------


async def count_ahead(bench: Bench, *jobs: Job) -> list[int]:
    """How many jobs run before each of these."""
    return [(await reason(bench, job, "in_line")).data["ahead"] for job in jobs]


async def test_the_number_of_jobs_ahead_follows_priority_then_time(bench: Bench) -> None:
    jobs: list[Job] = []
    for priority in (3, 5, 1, 3):
        jobs.append(await bench.make_job(priority=priority))
        bench.clock.advance(seconds=1)
    assert await count_ahead(bench, *jobs) == [1, 3, 0, 2]
    (claim,) = await bench.jobs.claim("worker", ["noop"])
    assert claim.job.id == jobs[2].id
    assert await count_ahead(bench, jobs[0], jobs[1], jobs[3]) == [0, 2, 1]
    await bench.jobs.reschedule(bench.tenant, jobs[1].id, priority=1)
    assert await count_ahead(bench, jobs[0], jobs[1], jobs[3]) == [1, 0, 2]


async def test_only_ready_jobs_of_the_same_tenant_type_and_key_are_ahead(bench: Bench) -> None:
    other = (await bench.tenants.create("other")).id
    await bench.jobs.define(KEYED)
    parent = await bench.make_job("else", priority=1)
    await bench.make_job(tenant=other, payload={"key": "k"}, priority=1)
    await bench.make_job(payload={"key": "l"}, priority=1)
    await bench.make_job(payload={"key": "k"}, priority=1, delay=60)
    await bench.make_job(payload={"key": "k"}, priority=1, after=[parent.id])
    first, second = [await bench.make_job(payload={"key": "k"}) for _ in range(2)]
    assert await count_ahead(bench, first, second) == [0, 1]
    explained = await reason(bench, second, "in_line")
    assert "1 job of the same type and limit key" in explained.message


# -- restarts -----------------------------------------------------------------------------------------------


async def test_a_worker_that_was_online_before_a_restart_counts_after_it(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await registered(bench, "press/1")
        job = await bench.make_job()
    store = await open_store(engine, tmp_path / "data", clock)
    try:
        explanation = await Jobs(store, lease_seconds=LEASE_SECONDS).explain(job.tenant, job.id)
        assert [reason.code for reason in explanation.reasons] == ["in_line"]
    finally:
        await store.close()


async def test_reasons_are_reported_after_a_restart(engine: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        await bench.jobs.define(Definition(type="noop", max_running=1))
        running = await bench.make_claim()
        await bench.jobs.pause(bench.tenant, "noop", by="ada")
        job = await bench.make_job()
        child = await bench.make_job(after=[job.id])
    clock.advance(seconds=LEASE_SECONDS)
    async with open_bench(engine, tmp_path / "data", clock) as bench:
        assert [code for code in await codes(bench, job) if code != "no_worker"] == ["paused", "type_limit", "in_line"]
        assert (await reason(bench, job, "type_limit")).data["holders"] == [running.job.id]
        assert (await reason(bench, child, "waits_for")).data == {"after": [job.id]}
