"""Tables of the SQLite store: permitted status changes, exact counts, and sweeps despite invalid rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import pytest
from structlog.testing import capture_logs

from ingot.engines.sqlite.connection import open_reader
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.jobs import JobStatus, Outcome, Release, Snooze
from ingot.jobs.model import Done, Failed
from ingot.kernel.errors import IngotError
from tests.factories import LEASE_SECONDS, Bench, open_bench
from tests.job_transitions import TRANSITIONS

# Rows with type '' count all types.
RECOUNT = """
    SELECT tenant, type, status, count(*) FROM states GROUP BY 1, 2, 3
    UNION ALL SELECT tenant, '', status, count(*) FROM states GROUP BY 1, 3
"""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    with capture_logs():
        async with open_bench("sqlite", tmp_path / "data") as bench:
            yield bench


def _set_status(connection: apsw.Connection, job_id: str, status: JobStatus) -> None:
    """Write a status with its required columns."""
    connection.execute(
        "UPDATE states SET status = ?1, lease_expires_at = iif(?1 = 'running', 1, NULL), "
        "finished_at = iif(?1 IN ('succeeded', 'dead', 'canceled'), 1, NULL) WHERE id = ?2",
        (status, job_id),
    )


async def test_the_trigger_permits_exactly_the_documented_transitions(bench: Bench) -> None:
    connection = bench.sqlite.connection
    job = await bench.make_job()
    (trigger,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'states_move'")
    allowed = set()
    for before, after in product(JobStatus, JobStatus):
        connection.execute("DROP TRIGGER states_move")
        _set_status(connection, job.id, before)
        connection.execute(str(trigger[0]))
        try:
            _set_status(connection, job.id, after)
        except apsw.ConstraintError as error:
            assert "a job cannot move that way" in str(error)  # noqa: PT017 - the test collects the moves that raise
        else:
            allowed.add((before, after))
    staying = {(status, status) for status in JobStatus}
    assert allowed == {(before, after) for before, afters in TRANSITIONS.items() for after in afters} | staying


@pytest.mark.parametrize(
    "change",
    [
        "status = 'odd'",
        "status = 'running'",
        "status = 'canceled'",
        "finished_at = 1",
        "lease_expires_at = 1",
        "priority = 0",
        "priority = 6",
        "max_attempts = 0",
        "due = 2",
        "cancel_requested = 2",
        "fence = 9007199254740992",
        "priority = 'high'",
        "run_at = 1.5",
    ],
)
async def test_table_constraints_refuse_invalid_rows(bench: Bench, change: str) -> None:
    job = await bench.make_job()
    with pytest.raises(apsw.ConstraintError):
        bench.sqlite.connection.execute(f"UPDATE states SET {change} WHERE id = ?", (job.id,))


async def test_an_index_keeps_dedupe_keys_unique_among_unfinished_jobs(bench: Bench) -> None:
    await bench.make_job(dedupe_key="d")
    other = await bench.make_job()
    with pytest.raises(apsw.ConstraintError):
        bench.sqlite.connection.execute("UPDATE states SET dedupe_key = 'd' WHERE id = ?", (other.id,))


@pytest.mark.parametrize("seed", range(4))
async def test_counts_equal_a_recount_after_random_calls(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with open_bench("sqlite", tmp_path / "data") as bench:
        tenants = [bench.tenant, (await bench.tenants.create("other")).id]
        for _ in range(150):
            await _make_random_call(bench, chance, tenants)
        reader = open_reader(tmp_path / "data" / FILE_NAME)
        counted = _count(reader.execute(RECOUNT))
        stored = _count(reader.execute("SELECT tenant, type, status, jobs FROM counts WHERE jobs <> 0"))
        reader.close()
        by_status = [(await bench.jobs.summary(tenant)).counts for tenant in tenants]
    assert stored == counted
    jobs = sum(count for (_, type, _), count in counted.items() if type)
    assert sum(sum(counts.values()) for counts in by_status) == jobs
    assert jobs >= 10


async def test_an_invalid_row_does_not_stop_the_sweep_of_others(bench: Bench) -> None:
    claims = [await bench.make_claim() for _ in range(5)]
    bad = claims[2].job.id
    bench.sqlite.connection.execute(
        "INSERT INTO outcomes SELECT number, fence, 'lost', 1, 'queued', 0, 1, 0, NULL, NULL, NULL, NULL, NULL "
        "FROM states WHERE id = ?",
        (bad,),
    )
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await bench.jobs.maintain()).swept == 4
    statuses = {claim.job.id: (await bench.reload(claim)).status for claim in claims}
    assert [id for id, status in statuses.items() if status is not JobStatus.QUEUED] == [bad]
    counts = (await bench.jobs.summary(bench.tenant)).counts
    assert (counts[JobStatus.QUEUED], counts[JobStatus.RUNNING]) == (4, 1)
    assert Counter(await bench.event_names())["job.failed"] == 4


async def test_an_invalid_row_is_retried_at_most_once_a_second(bench: Bench) -> None:
    claim = await bench.make_claim()
    bench.sqlite.connection.execute(
        "INSERT INTO outcomes SELECT number, fence, 'lost', 1, 'queued', 0, 1, 0, NULL, NULL, NULL, NULL, NULL "
        "FROM states WHERE id = ?",
        (claim.job.id,),
    )
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    assert bench.store.seconds_to_maintenance() == 1


async def _make_random_call(bench: Bench, chance: random.Random, tenants: list[str]) -> None:
    """Make one random call, which may be refused."""
    tenant = chance.choice(tenants)
    jobs = (await bench.jobs.list(tenant, limit=1000)).items
    job = chance.choice(jobs) if jobs else None
    outcomes: list[Outcome] = [Done(), Failed(error="e"), Failed(error="e", retry=False), Release(), Snooze(delay=5)]
    try:
        match chance.randrange(8):
            case 0 | 1:
                key = chance.choice([None, "d"])
                await bench.make_job(chance.choice("ab"), tenant=tenant, delay=chance.choice([0, 30]), dedupe_key=key)
            case 2 | 3:
                await bench.jobs.claim("worker", ["a", "b"], limit=2)
            case 4 if job is not None:
                await bench.jobs.settle(job.id, job.fence, chance.choice(outcomes))
            case 5 if job is not None:
                await bench.jobs.cancel(tenant, job.id)
            case 6 if job is not None:
                await bench.jobs.retry(tenant, job.id)
            case _:
                bench.clock.advance(seconds=chance.choice([1, 60, LEASE_SECONDS]))
                await bench.jobs.maintain()
    except IngotError:
        pass


def _count(rows: Any) -> dict[tuple[int, str, str], int]:
    return {(tenant, type, status): jobs for tenant, type, status, jobs in rows}
