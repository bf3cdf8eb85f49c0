"""A prefilled store is as good as one that did the work itself."""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec
import pytest

from benchmarks.queue.prefill import EVERY, JOBS_PER_EVENT_ROW, PAYLOAD, prefill
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity import TenantNotFound
from ingot.jobs import AttemptOutcome, JobStatus
from ingot.jobs.model import JobEventData
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StoreLocked
from ingot.kernel.ids import is_id
from tests.factories import Bench, open_bench
from tests.faults.sqlite_rules import broken_rules

FINISHED, QUEUED = 2 * JOBS_PER_EVENT_ROW + 7, JOBS_PER_EVENT_ROW + 3


async def made(folder: Path) -> ManualClock:
    """A closed store with nothing but prefilled jobs, and the clock it was made with."""
    clock = ManualClock()
    async with open_bench("sqlite", folder, clock):
        pass
    prefill(folder, finished=FINISHED, queued=QUEUED, tenant="default", type="noop")
    return clock


async def test_a_prefilled_store_breaks_no_rule(tmp_path: Path) -> None:
    await made(tmp_path)
    connection = apsw.Connection(str(tmp_path / FILE_NAME))
    assert broken_rules(connection) == []
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


async def test_prefilled_jobs_are_counted_listed_and_claimed_in_order(tmp_path: Path) -> None:
    clock = await made(tmp_path)
    async with open_bench("sqlite", tmp_path, clock) as bench:
        counts = (await bench.jobs.summary(bench.tenant)).counts
        assert (counts[JobStatus.SUCCEEDED], counts[JobStatus.QUEUED]) == (FINISHED, QUEUED)
        new = await bench.make_job(priority=5)
        page = await bench.jobs.list(bench.tenant, limit=1000)
        ids = [job.id for job in page.items]
        assert ids[0] == new.id
        assert len(ids) == len(set(ids)) == FINISHED + QUEUED + 1
        assert ids == sorted(ids, reverse=True)
        assert all(is_id(id) and id[14] == "7" and id[19] in "89ab" for id in ids)
        claims = await bench.jobs.claim("w", ["noop"], limit=1000)
        assert [claim.job.id for claim in claims] == [*ids[QUEUED:0:-1], new.id]


async def test_a_prefilled_job_has_its_keys_its_attempt_and_can_run_again(tmp_path: Path) -> None:
    clock = await made(tmp_path)
    async with open_bench("sqlite", tmp_path, clock) as bench:
        again = await bench.jobs.enqueue(bench.tenant, "noop", PAYLOAD, idempotency_key=f"prefilled-{EVERY}")
        assert (again.created, again.job.status) == (False, JobStatus.SUCCEEDED)
        (attempt,) = await bench.jobs.attempts(bench.tenant, again.job.id)
        assert (attempt.fence, attempt.outcome) == (again.job.fence, AttemptOutcome.SUCCEEDED)
        await bench.jobs.retry(bench.tenant, again.job.id, priority=1)
        (claim,) = await bench.jobs.claim("w", ["noop"])
        assert claim.job.id == again.job.id
        assert claim.fence > again.job.fence


async def test_prefilled_events_lead_to_where_the_jobs_stand(tmp_path: Path) -> None:
    clock = await made(tmp_path)
    async with open_bench("sqlite", tmp_path, clock) as bench:
        told = await _last_news(bench)
        for job in (await bench.jobs.list(bench.tenant, limit=1000)).items:
            news = told[job.id]
            assert (news.status, news.attempts, news.fence) == (job.status, job.attempts, job.fence)


async def _last_news(bench: Bench) -> dict[str, JobEventData]:
    told: dict[str, JobEventData] = {}
    after: str | None = None
    while events := await bench.events.read(bench.tenant, after=after, limit=1000):
        after = events[-1].id
        for event in events:
            news = msgspec.json.decode(event.data, type=JobEventData)
            told[news.id] = news
    return told


async def test_an_open_store_and_an_unknown_tenant_are_refused(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path):
        with pytest.raises(StoreLocked):
            prefill(tmp_path, finished=1, queued=0, tenant="default", type="noop")
    with pytest.raises(TenantNotFound):
        prefill(tmp_path, finished=1, queued=0, tenant="nobody", type="noop")
