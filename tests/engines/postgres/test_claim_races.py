"""Claims meet each other, and other calls, half way: nothing is passed over, forgotten, or handed out too soon."""

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
WOKEN_SECONDS: Final = 30.0  # More than enough for what is woken, and what is not never comes.
CLAIMS: Final = 8
ROUNDS: Final = 5


class Gate:
    """Stops a call of a function of the database: before it is sent, before its answer is told, or with an error."""

    def __init__(self, function: str, way: str, passes: int) -> None:
        self.function, self.way, self.passes = function, way, passes
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    def stops(self, query: str) -> bool:
        """Whether this is the call: the first after so many that pass."""
        self.passes -= self.function in query
        return self.function in query and self.passes == -1

    async def meet(self, moment: str) -> None:
        """Fail, or tell that the call is here and wait until it may go on, if this is the moment."""
        if self.way == "fails":
            raise asyncpg.QueryCanceledError("canceled")
        if self.way == moment:
            self.reached.set()
            await self.opened.wait()


class Gated(Bench):
    """A bench whose calls can be stopped half way. It looks for what others did only when it is told to."""

    gates: list[Gate]

    @property
    def memory(self) -> LaneCache:
        """What this process remembers."""
        assert isinstance(self.store, PostgresStore)
        return self.store.lane_cache

    @contextmanager
    def gate(self, function: str, way: str, *, passes: int = 0) -> Iterator[Gate]:
        """Stop a call of this function; it goes on at the end at the latest."""
        gate = Gate(function, way, passes)
        self.gates.append(gate)
        try:
            yield gate
        finally:
            gate.opened.set()
            self.gates.remove(gate)

    async def look(self) -> None:
        """See what others did."""
        assert isinstance(self.store, PostgresStore)
        try:
            await maintenance.poll(self.store.database, self.memory)
        finally:
            self.memory.poll_interval_seconds = NEVER

    def trust(self, seconds: float) -> None:
        """Ask the lanes of this tenant that are known from their beginning again after so long, and no sooner."""
        for hint in self.memory.lanes["noop"][self.tenant].values():
            hint.full_scan_interval_seconds = seconds


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Gated]:
    gates: list[Gate] = []

    class Line(Connection):
        async def fetch(self, query: str, *args: Any, **options: Any) -> list[Record]:  # type: ignore[override]
            stops = [gate for gate in gates if gate.stops(query)]
            for gate in stops:
                await gate.meet("before")
            rows: list[Record] = await super().fetch(query, *args, **options)
            for gate in stops:
                await gate.meet("after")
            return rows

    clock, url = SystemClock(), (await database_for(tmp_path)).server_url
    store = await PostgresStore.open(url, clock=clock, lease_seconds=LEASE_SECONDS, connection_class=Line)
    try:
        bench = Gated(store, clock, await Tenants(store).ensure_default())  # type: ignore[arg-type]
        bench.gates = gates
        bench.memory.poll_interval_seconds = NEVER
        await bench.jobs.define(Definition(type="noop", limit_key="{key}"))
        yield bench
    finally:
        await store.close()


@pytest.fixture
async def there(here: Gated, tmp_path: Path) -> AsyncIterator[Bench]:
    """The same tenant in another process."""
    store = await open_postgres(tmp_path, SystemClock(), lease_seconds=LEASE_SECONDS)
    try:
        yield Bench(store, here.clock, await here.tenants.get(here.tenant))
    finally:
        await store.close()


async def put(bench: Bench, *parts: tuple[str, int, int], times: int = 1) -> list[Job]:
    """For each part so many keys with this name, and so many times a job of this priority for each."""
    orders = [
        new_job(bench.tenant, "noop", {"key": f"{name}{number}"}, priority=priority)
        for name, keys, priority in parts
        for number in range(keys)
        for _ in range(times)
    ]
    return [made.job for made in await bench.jobs.enqueue_many(orders)]


async def take(bench: Bench, limit: int, *types: str) -> list[int]:
    """Claim, and answer the priorities of what there was."""
    return [claim.job.priority for claim in await bench.jobs.claim("worker", ["noop", *types], limit=limit)]


async def wait_for(here: Gated, type: str, news: Callable[[], Awaitable[object]]) -> list[str]:
    """What a claim gets that found nothing before this happened."""
    with here.gate("ingot.claim", "after") as gate:
        waiting = asyncio.create_task(here.jobs.claim("worker", [type], wait_seconds=60))
        await gate.reached.wait()
        await news()
    async with asyncio.timeout(WOKEN_SECONDS):
        return [claim.job.id for claim in await waiting]


async def test_claims_at_once_leave_no_ready_job_behind(here: Gated) -> None:
    for _ in range(ROUNDS):
        await put(here, ("a", 50, 3), times=2)
        taken = await asyncio.gather(*(take(here, 10, f"other-{number}") for number in range(CLAIMS)))
        assert [len(jobs) for jobs in taken] == [10] * CLAIMS


async def test_a_claim_of_one_lane_waits_for_one_of_several(here: Gated) -> None:
    assert isinstance(here.store, PostgresStore)
    here.store.database.pooled = (
        True  # A call is a transaction of several statements: what it locked stays so for a while.
    )
    await here.jobs.enqueue_many([new_job(here.tenant, type) for type in ("a", "b") for _ in range(5)])
    with here.gate("ingot.claim", "after") as gate:
        several = asyncio.create_task(here.jobs.claim("worker", ["a", "b"], limit=5))
        await gate.reached.wait()
        one = asyncio.create_task(here.jobs.claim("worker", ["b"], limit=5))
        await asyncio.wait([one], timeout=0.5)
    assert [claim.job.type for claim in [*await several, *await one]] == ["a"] * 5 + ["b"] * 5


@pytest.mark.parametrize("way", ["canceled", "locked"])
async def test_a_lane_whose_first_job_is_gone_by_now_is_not_taken_for_empty(
    here: Gated, tmp_path: Path, way: str
) -> None:
    gone = await put(here, ("x", 10, 1))
    await put(here, ("x", 10, 3), ("a", 54, 1), ("c", 1, 2), ("d", 50, 4))
    admin = await asyncpg.connect((await database_for(tmp_path)).owner_url)
    try:
        with here.gate("ingot.claim", "before") as gate:
            claiming = asyncio.create_task(take(here, 64))
            await gate.reached.wait()
            if way == "canceled":
                for job in gone:
                    await here.jobs.cancel(here.tenant, job.id)
            else:
                await admin.execute("BEGIN")
                await admin.execute("SELECT FROM ingot.ready WHERE id = ANY ($1) FOR UPDATE", [job.id for job in gone])
            gate.opened.set()
            assert await claiming == [1] * 54 + [2] + [3] * 9
    finally:
        await admin.close()


async def take_while_heads_are_asked(here: Gated, *, passes: int) -> list[int]:
    """Claim ten; meanwhile more is put into a hundred keys."""
    with here.gate("ingot.lane_heads", "after", passes=passes) as gate:
        claiming = asyncio.create_task(take(here, 10))
        await gate.reached.wait()
        await put(here, ("a", 100, 5))
        gate.opened.set()
        return await claiming


async def test_what_is_put_into_many_lanes_while_they_are_asked_keeps_its_place(here: Gated) -> None:
    await put(here, ("a", 100, 5), ("b", 100, 1))
    assert await take_while_heads_are_asked(here, passes=0) == [1] * 10


async def test_what_is_put_into_many_lanes_after_they_were_asked_keeps_its_place(here: Gated) -> None:
    await put(here, ("b", 100, 1))
    assert await take(here, 1) == [1]
    here.trust(NEVER)
    await put(here, ("a", 100, 5))
    # New lanes are asked first, then those that seem to come before them.
    assert await take_while_heads_are_asked(here, passes=1) == [1] * 10


async def test_work_that_was_found_is_not_passed_by_a_claim_that_began_before(here: Gated, there: Bench) -> None:
    await put(here, ("x", 1, 3), times=10)
    assert await take(here, 2) == [3, 3]
    with here.gate("ingot.claim", "after") as gate:  # A claim of one lane stands in nobody's way.
        claiming = asyncio.create_task(take(here, 1))
        await gate.reached.wait()
        await put(there, ("x", 1, 1), times=2)
        here.trust(0)
        assert await take(here, 1) == [1]
        here.trust(NEVER)
        gate.opened.set()
        assert await claiming == [3]
    assert await take(here, 2) == [1, 3]


async def test_a_retry_wakes_those_who_wait_though_our_clock_is_behind(here: Gated) -> None:
    job = await here.make_job_in(JobStatus.DEAD, "other")
    here.memory.set_clock(here.clock.micros() - MICROS // 10)
    assert await wait_for(here, "other", lambda: here.jobs.retry(here.tenant, job.id)) == [job.id]


async def test_a_look_at_a_lane_that_is_known_wakes_those_who_wait(here: Gated, there: Bench) -> None:
    await put(here, ("x", 1, 3))
    assert await take(here, 1) == [3]
    here.trust(NEVER)
    made: list[Job] = []

    async def news() -> None:
        made.extend(await put(there, ("x", 1, 3)))
        await here.look()

    assert await wait_for(here, "noop", news) == [job.id for job in made]


async def test_a_look_at_one_of_many_lanes_that_was_empty_brings_it_back(here: Gated, there: Bench) -> None:
    await put(here, ("x", 1, 1), times=2)
    await put(here, ("a", 300, 4))
    assert await take(here, 1) == [1]
    here.trust(NEVER)
    assert await take(here, 1) + await take(here, 1) == [1, 4]
    await put(there, ("x", 1, 1))
    await here.look()
    assert await take(here, 1) == [1]


@pytest.fixture
async def full(here: Gated) -> Callable[[], Any]:
    """Something runs, and nothing else may; to be called to end it."""
    await here.jobs.define(Definition(type="noop", limit_key="{key}", max_running=1))
    await put(here, ("held", 1, 1))
    (held,) = await here.jobs.claim("worker", ["noop"])
    return lambda: here.jobs.complete(held)


async def test_a_lane_that_is_parked_during_a_look_is_kept(here: Gated, full: Callable[[], Any]) -> None:
    with here.gate("ingot.poll", "after") as gate:
        looking = asyncio.create_task(here.look())
        await gate.reached.wait()
        await put(here, ("x", 1, 2))
        assert await take(here, 1) == []
        gate.opened.set()
        await looking
    await full()
    assert await take(here, 1) == [2]


async def test_a_look_that_fails_keeps_the_lanes_that_are_parked(here: Gated, full: Callable[[], Any]) -> None:
    await put(here, ("x", 1, 2))
    assert await take(here, 1) == []
    with here.gate("ingot.poll", "fails"), pytest.raises(StoreError):
        await here.look()
    await full()
    assert await take(here, 1) == [2]


async def test_a_lane_that_was_asked_whole_and_gave_nothing_begins_at_its_front(here: Gated, there: Bench) -> None:
    await put(here, ("x", 1, 3), times=10)
    await put(here, ("a", 20, 4))
    assert await take(here, 2) == [3, 3]
    await put(there, ("x", 1, 2), times=2)
    here.trust(0)
    await put(here, ("y", 1, 1))
    assert await take(here, 1) == [1]
    here.trust(NEVER)
    assert await take(here, 3) == [2, 2, 3]


async def test_an_error_in_a_later_round_loses_nothing_that_was_leased(here: Gated) -> None:
    await put(here, ("a", 1, 3), times=100)
    await put(here, ("b", 9, 3))
    with here.gate("ingot.claim", "fails", passes=1):
        first = await take(here, 100)
    counts = (await here.jobs.summary(here.tenant)).counts
    assert 0 < len(first) == counts[JobStatus.RUNNING] < 100
    assert len(first) + len(await take(here, 1000)) == 109
