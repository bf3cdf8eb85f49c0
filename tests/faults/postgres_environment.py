"""A PostgreSQL server of its own, for faults that a shared one would not survive; work on it, and the checks after."""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.kernel.clock import SystemClock
from tests.faults.history import History, Line, ListRecorder, Recorder
from tests.faults.invariants import SHOWN_MAX, Broken, Comparison
from tests.faults.postgres_rules import broken_rules
from tests.faults.postgres_tables import Owner, read_definitions, read_tables
from tests.faults.recorded_calls import Held
from tests.faults.replay import Replay
from tests.faults.tables import Tables
from tests.faults.workload import Workload
from tests.postgres import PLAIN_TEMPLATE, Server, own_server, with_database
from tests.waiting import SECONDS_MAX, eventually

DATABASE = "ingot"
LEASE_SECONDS = 0.6
ASK_SECONDS = 0.1
WINDOW_SECONDS = 1.0
WINDOWS_BEFORE = 3
WINDOWS_AFTER_MAX = 45
RECOVERED_SHARE = 0.3  # A store that lost its connections does next to nothing; a busy machine does less than before.
DRAIN_SECONDS_MAX = 200.0


class World:
    """A server with one migrated database."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.owner_url = with_database(server.url, DATABASE)
        self.url = with_database(server.url, DATABASE, "ingot_server")

    @asynccontextmanager
    async def owner(self) -> AsyncIterator[Owner]:
        """A connection that sees and may do everything, in a slot that is kept for it."""
        connection = await asyncpg.connect(self.owner_url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def store(self, url: str | None = None, **options: Any) -> AsyncIterator[PostgresStore]:
        """A store in the database, which may be reached by another way."""
        store = await PostgresStore.open(
            url or self.url, clock=SystemClock(), **({"lease_seconds": LEASE_SECONDS} | options)
        )
        try:
            yield store
        finally:
            await store.close()

    async def check(self, history: History, *, resent: bool = False, quiet: bool = True) -> Tables:
        """Check what is there beside what was answered. Raises `Broken` with all that is wrong.

        Waits until nobody is connected, unless it is known that nothing is under way (`quiet=False`).
        """
        async with self.owner() as owner:
            if quiet:
                await until_quiet(owner)
            wrong = await violations(owner, history, resent=resent)
            tables = await read_tables(owner)
        if wrong:
            more = f"\n… and {len(wrong) - SHOWN_MAX} more" if len(wrong) > SHOWN_MAX else ""
            raise Broken("\n".join(wrong[:SHOWN_MAX]) + more)
        return tables


@asynccontextmanager
async def open_world(settings: str = "") -> AsyncIterator[World]:
    """A new server with a migrated database, gone at the end."""
    with own_server(settings) as server:
        admin = await asyncpg.connect(server.url)
        try:
            await admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {PLAIN_TEMPLATE}")
        finally:
            await admin.close()
        yield World(server)


async def violations(owner: Owner, history: History, *, resent: bool = False) -> list[str]:
    """Everything that is wrong, in words: in the store by itself, and beside what it answered."""
    tables, definitions = await read_tables(owner), await read_definitions(owner)
    compare = ComparisonAfterLosses if resent else Comparison
    return [*await broken_rules(owner), *compare(tables, Replay(tables, definitions), history).wrong()]


async def until_quiet(owner: Owner) -> None:
    """Wait until no client is connected any more: what a dead one sent may still be under way."""
    connected = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ingot_server'"

    async def is_quiet() -> bool:
        return not await owner.fetchval(connected)

    await eventually(is_quiet)


class ComparisonAfterLosses(Comparison):
    """A store beside its history, where connections were lost and calls were sent again after their answers were lost.

    A claim that was sent twice may have taken jobs that nobody was given; they come back when their leases run out. A
    cancel or a change may have been done and then, sent again, met what happened meanwhile: nobody knows.
    """

    def __init__(self, tables: Tables, replay: Replay, history: History) -> None:
        for call in history.of("cancel", "change"):
            if call.refused:
                call.answered = call.error = None
        super().__init__(tables, replay, history)

    def _claims(self) -> Iterator[str]:
        made: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for attempt in self._tables.attempts.values():
            made[attempt.worker_id].add((attempt.job_id, attempt.fence, attempt.number))
        seen: set[tuple[str, int]] = set()
        for call in self._history.of("claim"):
            own = made.pop(call.number, set())
            if call.refused and own:
                yield f"J3 claim {call.number} was refused ({call.error}) and still took {len(own)} jobs"
            given = [tuple(claim) for claim in call.answer] if call.acked else []
            if len(given) > call.asked["limit"]:
                yield f"J12 claim {call.number} was given {len(given)} jobs; its limit was {call.asked['limit']}"
            for job_id, fence, number in given:
                if (job_id, fence, number) not in own:
                    yield f"J3 claim {call.number} was given {job_id} under {fence}, and there is no such attempt"
                if (job_id, fence) in seen:
                    yield f"J3 the job {job_id} was handed out twice under fence {fence}"
                seen.add((job_id, fence))
        for worker, own in made.items():
            yield f"J3 no claim of {worker} was made, and it has {len(own)} attempts"


class CountingRecorder(ListRecorder):
    """Keeps the history in memory, and counts the jobs that were completed."""

    def __init__(self) -> None:
        self.kept: list[Line] = []
        super().__init__("1", self.kept)
        self.completed = 0
        self.acked = 0

    def ok(self, number: str, answer: Any) -> None:
        super().ok(number, answer)
        self.acked += 1
        self.completed += isinstance(answer, dict) and answer["status"] == "succeeded"

    def history(self) -> History:
        """All calls so far."""
        history = History()
        history.add(self.kept)
        return history


class Shift(Workload):
    """Eight tasks that use every verb of the jobs room on a PostgreSQL store, at random.

    `ask_seconds` is how long those who ask for work rest each time: with some rest the rate of completed jobs is that
    of the asking, whatever else the machine does.
    """

    waits_for_others = False

    def __init__(
        self,
        store: PostgresStore,
        recorder: Recorder,
        *,
        seed: int,
        lease_seconds: float = LEASE_SECONDS,
        held: list[Held] | None = None,
        ask_seconds: float = 0.0,
    ) -> None:
        clock = SystemClock()
        super().__init__(cast("Any", store), clock, recorder, lease_seconds=lease_seconds, seed=seed, held=held)
        self._ask_seconds = ask_seconds

    async def _ask_and_rest(self) -> None:
        await self._ask()
        await asyncio.sleep(self._ask_seconds)

    async def work_until(self, stop: asyncio.Event, *, times: int = 1) -> None:
        """Work until told to stop, with so many times eight tasks; what was begun is finished."""
        turns = times * (
            *[self._ask_and_rest] * 2,
            *[self._work] * 2,
            self._work_in_line,
            self._swallow_poison,
            self._come_back_late,
            self._steer,
        )
        async with asyncio.TaskGroup() as group:
            for turn in turns:
                group.create_task(self._again(turn))
            await stop.wait()
            self._stopping = True


class Survival:
    """What a fault did to the rate of completed jobs, and what was asked and answered."""

    def __init__(self, world: World, recorder: CountingRecorder) -> None:
        self.world = world
        self.recorder = recorder
        self.before = 0.0
        self.after = 0.0

    async def window(self) -> float:
        """Completed jobs per second, for one window."""
        loop = asyncio.get_running_loop()
        completed, began = self.recorder.completed, loop.time()
        await asyncio.sleep(WINDOW_SECONDS)
        return (self.recorder.completed - completed) / (loop.time() - began)

    async def measure(self) -> None:
        """The rate before the fault."""
        await self.window()  # The first jobs of a new store are slower.
        self.before = statistics.median([await self.window() for _ in range(WINDOWS_BEFORE)])

    async def recover(self) -> None:
        """The rate after it: the best window, as soon as it is good enough."""
        for _ in range(WINDOWS_AFTER_MAX):
            self.after = max(self.after, await self.window())
            if self.after >= RECOVERED_SHARE * self.before:
                return


async def use_all_connections(store: PostgresStore) -> None:
    """Take all connections of the pool at once, which shows that none was lost for good."""
    pool = store.database.pool
    async with AsyncExitStack() as taken, asyncio.timeout(SECONDS_MAX):
        for _ in range(pool.get_max_size()):
            await taken.enter_async_context(pool.acquire())


async def survive(
    world: World, fault: Callable[[Survival], Awaitable[None]], *, seed: int, connections: int = 10
) -> Survival:
    """Work before, during and after a fault, then finish all work and check everything."""
    survival = Survival(world, CountingRecorder())
    stop = asyncio.Event()
    async with world.store(connections=connections) as store:
        shift = Shift(store, survival.recorder, seed=seed, ask_seconds=ASK_SECONDS)
        await shift.prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(shift.work_until(stop))
            await survival.measure()
            await fault(survival)
            await survival.recover()
            stop.set()
        last = Shift(store, survival.recorder, seed=seed)
        await last.prepare()
        assert await last.drain(DRAIN_SECONDS_MAX), "J9 the work did not come to an end"
        await use_all_connections(store)
        assert (await store.measure_load()).connections == connections, "the pool is back at its size"
    tables = await world.check(survival.recorder.history(), resent=True)
    assert {job.status for job in tables.jobs.values()} == {"succeeded", "dead", "canceled"}
    assert survival.before > 0
    assert survival.after >= RECOVERED_SHARE * survival.before, "the rate did not come back"
    return survival
