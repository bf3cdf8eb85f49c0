"""A prefilled store is equivalent to one that ran the jobs itself."""

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


async def make_prefilled_store(folder: Path) -> ManualClock:
    """Make a closed store with only prefilled jobs, and return its clock."""
    clock = ManualClock()
    async with open_bench("sqlite", folder, clock):
        pass
    prefill(folder, finished=FINISHED, queued=QUEUED, tenant="default", type="noop")
    return clock


async def test_a_prefilled_store_is_consistent(tmp_path: Path) -> None:
    await make_prefilled_store(tmp_path)
    connection = apsw.Connection(str(tmp_path / FILE_NAME))
    assert broken_rules(connection) == []
    assert connection.execute("PRAGMA integrity_check").get == "ok"
    assert connection.pragma("journal_mode") == "wal"
    connection.close()


async def test_prefilled_jobs_are_counted_listed_and_claimed_in_order(tmp_path: Path) -> None:
    clock = await make_prefilled_store(tmp_path)
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


async def test_a_prefilled_job_has_keys_and_an_attempt_and_can_be_retried(tmp_path: Path) -> None:
    clock = await make_prefilled_store(tmp_path)
    async with open_bench("sqlite", tmp_path, clock) as bench:
        again = await bench.jobs.enqueue(bench.tenant, "noop", PAYLOAD, idempotency_key=f"prefilled-{EVERY}")
        assert (again.created, again.job.status) == (False, JobStatus.SUCCEEDED)
        (attempt,) = await bench.jobs.attempts(bench.tenant, again.job.id)
        assert (attempt.fence, attempt.outcome) == (again.job.fence, AttemptOutcome.SUCCEEDED)
        await bench.jobs.retry(bench.tenant, again.job.id, priority=1)
        (claim,) = await bench.jobs.claim("w", ["noop"])
        assert claim.job.id == again.job.id
        assert claim.fence > again.job.fence


async def test_the_last_prefilled_event_of_each_job_has_its_current_state(tmp_path: Path) -> None:
    clock = await make_prefilled_store(tmp_path)
    async with open_bench("sqlite", tmp_path, clock) as bench:
        last_events = await _last_events(bench)
        for job in (await bench.jobs.list(bench.tenant, limit=1000)).items:
            event_data = last_events[job.id]
            assert (event_data.status, event_data.attempts, event_data.fence) == (job.status, job.attempts, job.fence)


async def _last_events(bench: Bench) -> dict[str, JobEventData]:
    last_events: dict[str, JobEventData] = {}
    after: str | None = None
    while events := await bench.events.read(bench.tenant, after=after, limit=1000):
        after = events[-1].id
        for event in events:
            event_data = msgspec.json.decode(event.data, type=JobEventData)
            last_events[event_data.id] = event_data
    return last_events


async def test_an_open_store_and_an_unknown_tenant_are_refused(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path):
        with pytest.raises(StoreLocked):
            prefill(tmp_path, finished=1, queued=0, tenant="default", type="noop")
    with pytest.raises(TenantNotFound):
        prefill(tmp_path, finished=1, queued=0, tenant="nobody", type="noop")
