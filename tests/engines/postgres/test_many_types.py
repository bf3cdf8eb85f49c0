"""A tenant with very many types costs the database no more than its jobs do.

The tests compare the CPU time of PostgreSQL with that for few types, which does not depend on the load of the machine.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from ingot.engines.postgres import PostgresStore, maintenance
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.job_pages import COUNT_DELTAS_MAX
from ingot.identity import Limits
from ingot.jobs import JobStatus
from ingot.jobs.job_options import new_job
from ingot.jobs.ports import JobFilter, ListJobs, ListQueueDepths, SummarizeJobs
from ingot.kernel.commands import Command
from tests.factories import Bench, open_bench
from tests.postgres import database_for

MANY: Final = 4_000
FEW: Final = 700  # More than the number up to which jobs are read type by type.
READS: Final = 40
STATEMENTS_MAX: Final = 20
MORE_MAX: Final = 6  # Comparing each job with each type, or reading type by type, takes at least 20 times the time.
TICKS: Final = os.sysconf("SC_CLK_TCK")
SECONDS_MORE_MAX: Final = 0.1
BACKENDS: Final = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
)
COMMANDS: Final[dict[str, Callable[[str], Command[Any]]]] = {
    "list": lambda tenant: ListJobs(where=JobFilter(tenant=tenant), before=None, limit=1),
    "queued": lambda tenant: ListJobs(where=JobFilter(tenant=tenant, status=JobStatus.QUEUED), before=None, limit=1),
    "summary": lambda tenant: SummarizeJobs(tenant=tenant),
    "queue depths": lambda _: ListQueueDepths(tenants_max=10, lanes_max=100),
}


class Meter:
    """Measures the CPU time of the backends of a database."""

    def __init__(self, bench: Bench, admin: Raw) -> None:
        self.bench = bench
        self.admin = admin

    async def seconds(self, run: Callable[[], Awaitable[object]]) -> float:
        """Return the CPU time that the database spends on a call."""
        before = await self._spent()
        await run()
        return await self._spent() - before

    async def _spent(self) -> float:
        pids = [row["pid"] for row in await self.admin.fetch(BACKENDS)]
        fields = [_stat(pid) for pid in pids]
        return sum(int(field[11]) + int(field[12]) for field in fields) / TICKS


@pytest.fixture
async def meter(tmp_path: Path) -> AsyncIterator[Meter]:
    async with open_bench("postgres", tmp_path / "data") as bench:
        admin = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            yield Meter(bench, admin)
        finally:
            await admin.close()


def _stat(pid: int) -> list[str]:
    """Return what Linux says about a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def enqueue_types(bench: Bench, tenant: str, types: int, jobs: int = MANY) -> None:
    """Enqueue jobs in one batch, evenly of a number of new types."""
    first = next(_numbers)
    await bench.jobs.enqueue_many([new_job(tenant, f"t{first}-{n % types}") for n in range(jobs)])


_numbers = count()


async def test_a_batch_of_many_types_costs_little_more_than_one_of_few(meter: Meter) -> None:
    bench = meter.bench
    await enqueue_types(bench, bench.tenant, 10, 10)
    few = await meter.seconds(lambda: enqueue_types(bench, bench.tenant, 10))
    many = await meter.seconds(lambda: enqueue_types(bench, bench.tenant, MANY))
    assert many < MORE_MAX * few + SECONDS_MORE_MAX


async def test_a_batch_that_is_sent_again_needs_no_statement_for_each_type(meter: Meter) -> None:
    bench = meter.bench
    assert isinstance(bench.store, PostgresStore)
    orders = [[new_job(bench.tenant, f"t{n}", idempotency_key="key") for n in range(MANY)] for _ in range(2)]
    await bench.jobs.enqueue_many(orders[0])
    async with logged_statements(bench.store) as statements:
        again = await bench.jobs.enqueue_many(orders[1])
    assert [answer.created for answer in again] == [False] * MANY
    assert 0 < len(statements) < STATEMENTS_MAX


@asynccontextmanager
async def logged_statements(store: PostgresStore) -> AsyncIterator[list[str]]:
    """Collect the statements that a store sends during the block."""
    pool, statements = store.database.pool, list[str]()

    def log(record: Any) -> None:
        statements.append(record.query)

    connections = [await pool.acquire() for _ in range(pool.get_max_size())]
    for connection in connections:
        connection.add_query_logger(log)
        await pool.release(connection)
    try:
        yield statements
    finally:
        connections = [await pool.acquire() for _ in range(pool.get_max_size())]
        for connection in connections:
            connection.remove_query_logger(log)
            await pool.release(connection)


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_read_costs_the_same_whatever_the_number_of_types(meter: Meter, name: str) -> None:
    bench = meter.bench
    store = bench.store
    assert isinstance(store, PostgresStore)
    other = (await bench.tenants.create("other")).id

    async def read(tenant: str) -> None:
        for _ in range(READS):
            await bench.store.run(COMMANDS[name](tenant))

    async def measure(tenant: str) -> float:
        await maintenance.fold_counts(store.database)
        await read(tenant)
        return await meter.seconds(lambda: read(tenant))

    await bench.tenants.change(bench.tenant, limits=Limits(max_job_types=3 * MANY))
    await enqueue_types(bench, other, FEW, FEW)
    few = await measure(other)
    for _ in range(3):
        await enqueue_types(bench, bench.tenant, MANY)
    assert await measure(bench.tenant) < MORE_MAX * few + SECONDS_MORE_MAX


async def test_a_list_is_complete_if_there_are_too_many_counts_to_choose_a_path(meter: Meter) -> None:
    bench = meter.bench
    first = await bench.make_job("a")
    await meter.admin.execute(
        "INSERT INTO ingot.count_deltas SELECT $1, 'a', 'queued', 1 - 2 * (n % 2) FROM generate_series(1, $2) AS n",
        bench.tenant,
        COUNT_DELTAS_MAX,
    )
    second = await bench.make_job("b")
    for status in (None, JobStatus.QUEUED):
        page = await bench.jobs.list(bench.tenant, status=status)
        assert [job.id for job in page.items] == [second.id, first.id]


async def test_totals_and_counts_by_type_agree(meter: Meter) -> None:
    bench = meter.bench
    store = bench.store
    assert isinstance(store, PostgresStore)
    for _ in range(3):
        await bench.make_job("a")
        await bench.make_job_in(JobStatus.DEAD, "b")
        await maintenance.fold_counts(store.database)
    summary = await bench.jobs.summary(bench.tenant)
    assert {status: jobs for status, jobs in summary.counts.items() if jobs} == {
        JobStatus.QUEUED: 3,
        JobStatus.DEAD: 3,
    }
    assert (await bench.jobs.summary(bench.tenant, type="a")).counts[JobStatus.QUEUED] == 3
