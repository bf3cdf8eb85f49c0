"""Claims that overlap with other calls: no job is skipped, lost or handed out too early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from ingot.engines.postgres import PostgresStore, maintenance
from ingot.engines.postgres.connection import Connection, Record
from ingot.engines.postgres.lane_cache import LaneCache
from ingot.identity import Tenants
from ingot.jobs import Definition, Job, JobStatus
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import MICROS, SystemClock
from ingot.kernel.errors import StoreError
from tests.factories import LEASE_SECONDS, Bench
from tests.postgres import database_for, open_postgres

NEVER: Final = 1e9
WOKEN_SECONDS: Final = 30.0  # More than a woken claim needs.
CLAIMS: Final = 8
ROUNDS: Final = 5


class CallGate:
    """Stops one call of a database function: before it is sent, before its result is returned, or with an error."""

    def __init__(self, function: str, behavior: str, passes: int) -> None:
        self.function, self.behavior, self.passes = function, behavior, passes
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    def matches(self, query: str) -> bool:
        """Return True for the call to stop, the first after `passes` others."""
        self.passes -= self.function in query
        return self.function in query and self.passes == -1

    async def stop(self, position: str) -> None:
        """Fail, or report that the call has reached this position and wait until the gate opens."""
        if self.behavior == "fails":
            raise asyncpg.QueryCanceledError("canceled")
        if self.behavior == position:
            self.reached.set()
            await self.opened.wait()


class GatedBench(Bench):
    """A bench whose calls can be stopped midway, and which polls only on request."""

    gates: list[CallGate]

    @property
    def lane_cache(self) -> LaneCache:
        """The lane cache of this process."""
        assert isinstance(self.store, PostgresStore)
        return self.store.lane_cache

    @contextmanager
    def gate(self, function: str, behavior: str, *, passes: int = 0) -> Iterator[CallGate]:
        """Stop a call of this function, at the latest until the end of the block."""
        gate = CallGate(function, behavior, passes)
        self.gates.append(gate)
        try:
            yield gate
        finally:
            gate.opened.set()
            self.gates.remove(gate)

    async def poll(self) -> None:
        """Find out what other processes did."""
        assert isinstance(self.store, PostgresStore)
        try:
            await maintenance.poll(self.store.database, self.lane_cache)
        finally:
            self.lane_cache.poll_interval_seconds = NEVER

    def set_full_scan_interval(self, seconds: float) -> None:
        """Set how often known lanes of this tenant are scanned from their front."""
        for hint in self.lane_cache.lanes["noop"][self.tenant].values():
            hint.full_scan_interval_seconds = seconds


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[GatedBench]:
    gates: list[CallGate] = []

    class GatedConnection(Connection):
        async def fetch(self, query: str, *args: Any, **options: Any) -> list[Record]:  # type: ignore[override]
            matches = [gate for gate in gates if gate.matches(query)]
            for gate in matches:
                await gate.stop("before")
            rows: list[Record] = await super().fetch(query, *args, **options)
            for gate in matches:
                await gate.stop("after")
            return rows

    clock, url = SystemClock(), (await database_for(tmp_path)).server_url
    store = await PostgresStore.open(url, clock=clock, lease_seconds=LEASE_SECONDS, connection_class=GatedConnection)
    try:
        bench = GatedBench(store, clock, await Tenants(store).ensure_default())  # type: ignore[arg-type]
        bench.gates = gates
        bench.lane_cache.poll_interval_seconds = NEVER
        await bench.jobs.define(Definition(type="noop", limit_key="{key}"))
        yield bench
    finally:
        await store.close()


@pytest.fixture
async def there(here: GatedBench, tmp_path: Path) -> AsyncIterator[Bench]:
    """The same tenant in another process."""
    store = await open_postgres(tmp_path, SystemClock(), lease_seconds=LEASE_SECONDS)
    try:
        yield Bench(store, here.clock, await here.tenants.get(here.tenant))
    finally:
        await store.close()


async def enqueue(bench: Bench, *parts: tuple[str, int, int], times: int = 1) -> list[Job]:
    """Enqueue jobs: each part is a name, a number of keys and a priority, with `times` jobs for each key."""
    orders = [
        new_job(bench.tenant, "noop", {"key": f"{name}{number}"}, priority=priority)
        for name, keys, priority in parts
        for number in range(keys)
        for _ in range(times)
    ]
    return [enqueued.job for enqueued in await bench.jobs.enqueue_many(orders)]


async def claim_priorities(bench: Bench, limit: int, *types: str) -> list[int]:
    """Claim jobs, and return their priorities."""
    return [claim.job.priority for claim in await bench.jobs.claim("worker", ["noop", *types], limit=limit)]


async def claim_while_waiting(here: GatedBench, type: str, change: Callable[[], Awaitable[object]]) -> list[str]:
    """Start a claim that finds nothing, cause the change, and return the IDs of the claimed jobs."""
    with here.gate("ingot.claim", "after") as gate:
        waiting = asyncio.create_task(here.jobs.claim("worker", [type], wait_seconds=60))
        await gate.reached.wait()
        await change()
    async with asyncio.timeout(WOKEN_SECONDS):
        return [claim.job.id for claim in await waiting]


async def test_concurrent_claims_skip_no_ready_job(here: GatedBench) -> None:
    for _ in range(ROUNDS):
        await enqueue(here, ("a", 50, 3), times=2)
        claimed = await asyncio.gather(*(claim_priorities(here, 10, f"other-{number}") for number in range(CLAIMS)))
        assert [len(jobs) for jobs in claimed] == [10] * CLAIMS


async def test_a_claim_of_one_lane_waits_for_a_claim_of_several_lanes(here: GatedBench) -> None:
    assert isinstance(here.store, PostgresStore)
    here.store.database.pooled = (
        True  # A call is a transaction of several statements, which holds its locks for a while.
    )
    await here.jobs.enqueue_many([new_job(here.tenant, type) for type in ("a", "b") for _ in range(5)])
    with here.gate("ingot.claim", "after") as gate:
        several = asyncio.create_task(here.jobs.claim("worker", ["a", "b"], limit=5))
        await gate.reached.wait()
        one = asyncio.create_task(here.jobs.claim("worker", ["b"], limit=5))
        await asyncio.wait([one], timeout=0.5)
    assert [claim.job.type for claim in [*await several, *await one]] == ["a"] * 5 + ["b"] * 5


@pytest.mark.parametrize("behavior", ["canceled", "locked"])
async def test_a_lane_whose_first_jobs_disappeared_is_not_treated_as_empty(
    here: GatedBench, tmp_path: Path, behavior: str
) -> None:
    first_jobs = await enqueue(here, ("x", 10, 1))
    await enqueue(here, ("x", 10, 3), ("a", 54, 1), ("c", 1, 2), ("d", 50, 4))
    admin = await asyncpg.connect((await database_for(tmp_path)).owner_url)
    try:
        with here.gate("ingot.claim", "before") as gate:
            claiming = asyncio.create_task(claim_priorities(here, 64))
            await gate.reached.wait()
            if behavior == "canceled":
                for job in first_jobs:
                    await here.jobs.cancel(here.tenant, job.id)
            else:
                await admin.execute("BEGIN")
                await admin.execute(
                    "SELECT FROM ingot.ready WHERE id = ANY ($1) FOR UPDATE", [job.id for job in first_jobs]
                )
            gate.opened.set()
            assert await claiming == [1] * 54 + [2] + [3] * 9
    finally:
        await admin.close()


async def claim_while_heads_are_read(here: GatedBench, *, passes: int) -> list[int]:
    """Claim ten jobs, and meanwhile enqueue jobs of a hundred keys."""
    with here.gate("ingot.lane_heads", "after", passes=passes) as gate:
        claiming = asyncio.create_task(claim_priorities(here, 10))
        await gate.reached.wait()
        await enqueue(here, ("a", 100, 5))
        gate.opened.set()
        return await claiming


async def test_jobs_enqueued_while_lane_heads_are_read_keep_their_order(here: GatedBench) -> None:
    await enqueue(here, ("a", 100, 5), ("b", 100, 1))
    assert await claim_while_heads_are_read(here, passes=0) == [1] * 10


async def test_jobs_enqueued_after_lane_heads_were_read_keep_their_order(here: GatedBench) -> None:
    await enqueue(here, ("b", 100, 1))
    assert await claim_priorities(here, 1) == [1]
    here.set_full_scan_interval(NEVER)
    await enqueue(here, ("a", 100, 5))
    # New lanes are read first, then those that seem to precede them.
    assert await claim_while_heads_are_read(here, passes=1) == [1] * 10


async def test_an_earlier_claim_does_not_move_the_hint_past_newly_found_jobs(here: GatedBench, there: Bench) -> None:
    await enqueue(here, ("x", 1, 3), times=10)
    assert await claim_priorities(here, 2) == [3, 3]
    with here.gate("ingot.claim", "after") as gate:  # A claim of one lane blocks no other claim.
        claiming = asyncio.create_task(claim_priorities(here, 1))
        await gate.reached.wait()
        await enqueue(there, ("x", 1, 1), times=2)
        here.set_full_scan_interval(0)
        assert await claim_priorities(here, 1) == [1]
        here.set_full_scan_interval(NEVER)
        gate.opened.set()
        assert await claiming == [3]
    assert await claim_priorities(here, 2) == [1, 3]


async def test_a_retry_wakes_a_claim_although_the_clock_of_the_process_is_behind(here: GatedBench) -> None:
    job = await here.make_job_in(JobStatus.DEAD, "other")
    here.lane_cache.set_clock(here.clock.micros() - MICROS // 10)
    assert await claim_while_waiting(here, "other", lambda: here.jobs.retry(here.tenant, job.id)) == [job.id]


async def test_a_poll_that_finds_jobs_in_a_known_lane_wakes_a_claim(here: GatedBench, there: Bench) -> None:
    await enqueue(here, ("x", 1, 3))
    assert await claim_priorities(here, 1) == [3]
    here.set_full_scan_interval(NEVER)
    enqueued: list[Job] = []

    async def change() -> None:
        enqueued.extend(await enqueue(there, ("x", 1, 3)))
        await here.poll()

    assert await claim_while_waiting(here, "noop", change) == [job.id for job in enqueued]


async def test_a_poll_finds_a_job_in_an_empty_lane_among_many(here: GatedBench, there: Bench) -> None:
    await enqueue(here, ("x", 1, 1), times=2)
    await enqueue(here, ("a", 300, 4))
    assert await claim_priorities(here, 1) == [1]
    here.set_full_scan_interval(NEVER)
    assert await claim_priorities(here, 1) + await claim_priorities(here, 1) == [1, 4]
    await enqueue(there, ("x", 1, 1))
    await here.poll()
    assert await claim_priorities(here, 1) == [1]


@pytest.fixture
async def fill_limit(here: GatedBench) -> Callable[[], Any]:
    """Start a job that uses up the limit, and return a function that completes it."""
    await here.jobs.define(Definition(type="noop", limit_key="{key}", max_running=1))
    await enqueue(here, ("held", 1, 1))
    (running,) = await here.jobs.claim("worker", ["noop"])
    return lambda: here.jobs.complete(running)


async def test_a_lane_suspended_during_a_poll_is_kept(here: GatedBench, fill_limit: Callable[[], Any]) -> None:
    with here.gate("ingot.poll", "after") as gate:
        polling = asyncio.create_task(here.poll())
        await gate.reached.wait()
        await enqueue(here, ("x", 1, 2))
        assert await claim_priorities(here, 1) == []
        gate.opened.set()
        await polling
    await fill_limit()
    assert await claim_priorities(here, 1) == [2]


async def test_a_failed_poll_keeps_suspended_lanes(here: GatedBench, fill_limit: Callable[[], Any]) -> None:
    await enqueue(here, ("x", 1, 2))
    assert await claim_priorities(here, 1) == []
    with here.gate("ingot.poll", "fails"), pytest.raises(StoreError):
        await here.poll()
    await fill_limit()
    assert await claim_priorities(here, 1) == [2]


async def test_a_lane_read_in_full_without_a_claim_is_scanned_from_its_front(here: GatedBench, there: Bench) -> None:
    await enqueue(here, ("x", 1, 3), times=10)
    await enqueue(here, ("a", 20, 4))
    assert await claim_priorities(here, 2) == [3, 3]
    await enqueue(there, ("x", 1, 2), times=2)
    here.set_full_scan_interval(0)
    await enqueue(here, ("y", 1, 1))
    assert await claim_priorities(here, 1) == [1]
    here.set_full_scan_interval(NEVER)
    assert await claim_priorities(here, 3) == [2, 2, 3]


async def test_an_error_in_a_later_pass_keeps_jobs_already_leased(here: GatedBench) -> None:
    await enqueue(here, ("a", 1, 3), times=100)
    await enqueue(here, ("b", 9, 3))
    with here.gate("ingot.claim", "fails", passes=1):
        first = await claim_priorities(here, 100)
    counts = (await here.jobs.summary(here.tenant)).counts
    assert 0 < len(first) == counts[JobStatus.RUNNING] < 100
    assert len(first) + len(await claim_priorities(here, 1000)) == 109
