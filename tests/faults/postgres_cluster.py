"""A PostgreSQL server for tests that break it, with work on it and the checks afterwards."""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.kernel.clock import SystemClock
from ingot.kernel.errors import StoreBusy, StoreError
from tests.faults.history import Call, History, Line, ListRecorder, Recorder
from tests.faults.invariants import SHOWN_MAX, Broken, Comparison
from tests.faults.postgres_rules import broken_rules
from tests.faults.postgres_tables import Owner, read_definitions, read_tables
from tests.faults.recorded_calls import HeldAttempt
from tests.faults.replay import Replay
from tests.faults.tables import AttemptRow, Tables
from tests.faults.workload import Workload
from tests.postgres import PLAIN_TEMPLATE, Server, own_server, with_database
from tests.waiting import SECONDS_MAX, eventually

DATABASE = "ingot"
LEASE_SECONDS = 0.6
ENQUEUE_PAUSE_SECONDS = 0.1
WINDOW_SECONDS = 1.0
WINDOWS_BEFORE = 3
WINDOWS_AFTER_MAX = 45
RECOVERED_SHARE = (
    0.3  # A store that lost its connections does almost nothing; a busy machine only does less than before.
)
DRAIN_SECONDS_MAX = 200.0
UNAVAILABLE_CODES = (StoreError.code, StoreBusy.code)  # The call was not sent.


class PostgresCluster:
    """A PostgreSQL server of its own with one migrated database."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.owner_url = with_database(server.url, DATABASE)
        self.url = with_database(server.url, DATABASE, "ingot_server")

    @asynccontextmanager
    async def owner(self) -> AsyncIterator[Owner]:
        """A superuser connection, which has a reserved slot."""
        connection = await asyncpg.connect(self.owner_url)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def store(self, url: str | None = None, **options: Any) -> AsyncIterator[PostgresStore]:
        """A store in the database. `url` selects another way to connect."""
        store = await PostgresStore.open(
            url or self.url, clock=SystemClock(), **({"lease_seconds": LEASE_SECONDS} | options)
        )
        try:
            yield store
        finally:
            await store.close()

    async def check(self, history: History, *, with_resent_calls: bool = False, wait_until_idle: bool = True) -> Tables:
        """Compare the store with the recorded results. Raises `Broken` with all violations.

        Waits until no server is connected, unless the caller knows that no call is under way.
        """
        async with self.owner() as owner:
            if wait_until_idle:
                await until_idle(owner)
            wrong = await violations(owner, history, with_resent_calls=with_resent_calls)
            tables = await read_tables(owner)
        if wrong:
            more = f"\n… and {len(wrong) - SHOWN_MAX} more" if len(wrong) > SHOWN_MAX else ""
            raise Broken("\n".join(wrong[:SHOWN_MAX]) + more)
        return tables


@asynccontextmanager
async def open_cluster(settings: str = "") -> AsyncIterator[PostgresCluster]:
    """Start a new server with a migrated database, and remove it at the end."""
    with own_server(settings) as server:
        admin = await asyncpg.connect(server.url)
        try:
            await admin.execute(f"CREATE DATABASE {DATABASE} TEMPLATE {PLAIN_TEMPLATE}")
        finally:
            await admin.close()
        yield PostgresCluster(server)


async def violations(owner: Owner, history: History, *, with_resent_calls: bool = False) -> list[str]:
    """Return a description of each violation: of the rules, and of the recorded results."""
    tables, definitions = await read_tables(owner), await read_definitions(owner)
    compare = ComparisonWithResentCalls if with_resent_calls else Comparison
    return [*await broken_rules(owner), *compare(tables, Replay(tables, definitions), history).wrong()]


async def until_idle(owner: Owner) -> None:
    """Wait until no server is connected: statements of a killed one may still be running."""
    connected = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ingot_server'"

    async def is_idle() -> bool:
        return not await owner.fetchval(connected)

    await eventually(is_idle)


class ComparisonWithResentCalls(Comparison):
    """Compares a store with its history after connections were lost and calls were sent again.

    A claim that was sent twice may have taken jobs that no caller received. They return to the queue when their leases
    expire. A cancel or a change that was sent twice may have been done and then refused: its outcome is unknown.
    """

    def __init__(self, tables: Tables, replay: Replay, history: History) -> None:
        for call in history.of("cancel", "change"):
            if call.refused:
                call.answered = call.error = None
        super().__init__(tables, replay, history)

    def _refusal(self, call: Call, attempt: AttemptRow, earliest_end: int) -> Iterator[str]:
        if call.error not in UNAVAILABLE_CODES:
            yield from super()._refusal(call, attempt, earliest_end)

    def _claims(self) -> Iterator[str]:
        taken_by_worker: defaultdict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for attempt in self._tables.attempts.values():
            taken_by_worker[attempt.worker_id].add((attempt.job_id, attempt.fence, attempt.number))
        seen: set[tuple[str, int]] = set()
        for call in self._history.of("claim"):
            taken = taken_by_worker.pop(call.number, set())
            if call.refused and taken:
                yield f"J3 claim {call.number} was refused ({call.error}) and still took {len(taken)} jobs"
            received = [tuple(claim) for claim in call.answer] if call.acked else []
            if len(received) > call.arguments["limit"]:
                yield f"J12 claim {call.number} was given {len(received)} jobs; its limit was {call.arguments['limit']}"
            for job_id, fence, number in received:
                if (job_id, fence, number) not in taken:
                    yield f"J3 claim {call.number} was given {job_id} under {fence}, and there is no such attempt"
                if (job_id, fence) in seen:
                    yield f"J3 the job {job_id} was handed out twice under fence {fence}"
                seen.add((job_id, fence))
        for worker, taken in taken_by_worker.items():
            yield f"J3 no claim of {worker} was made, and it has {len(taken)} attempts"


class CountingRecorder(ListRecorder):
    """Stores the history in memory, counts completed jobs, and measures the slowest call."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        super().__init__("1", self.lines)
        self.completed = 0
        self.acked = 0
        self.began_at: dict[str, float] = {}  # Of calls that have not ended, by number.
        self.slowest_seconds = 0.0

    def ok(self, number: str, answer: Any) -> None:
        super().ok(number, answer)
        self.acked += 1
        self.completed += isinstance(answer, dict) and answer["status"] == "succeeded"

    def invoke(self, number: str, verb: str, arguments: dict[str, Any]) -> None:
        super().invoke(number, verb, arguments)
        self.began_at[number] = asyncio.get_running_loop().time()

    def write(self, lines: Iterable[Line]) -> None:
        lines = list(lines)
        super().write(lines)
        for kind, number, _ in lines:
            if kind in ("ok", "fail", "info") and (began_at := self.began_at.pop(number, None)) is not None:
                self.slowest_seconds = max(self.slowest_seconds, asyncio.get_running_loop().time() - began_at)

    def history(self) -> History:
        """All calls so far."""
        history = History()
        history.add(self.lines)
        return history


class PostgresWorkload(Workload):
    """Eight tasks that use every operation of the jobs room on a PostgreSQL store, at random.

    `enqueue_pause_seconds` is the pause after each enqueue. With a pause, the rate of completed jobs depends on the
    rate of enqueues, and not on the machine.
    """

    uses_dependencies = False

    def __init__(
        self,
        store: PostgresStore,
        recorder: Recorder,
        *,
        seed: int,
        lease_seconds: float = LEASE_SECONDS,
        attempts: list[HeldAttempt] | None = None,
        enqueue_pause_seconds: float = 0.0,
    ) -> None:
        clock = SystemClock()
        super().__init__(cast("Any", store), clock, recorder, lease_seconds=lease_seconds, seed=seed, attempts=attempts)
        self._enqueue_pause_seconds = enqueue_pause_seconds

    async def _enqueue_and_pause(self) -> None:
        await self._enqueue()
        await asyncio.sleep(self._enqueue_pause_seconds)

    async def work_until(self, stop: asyncio.Event, *, times: int = 1) -> None:
        """Work with `times` eight tasks until `stop` is set, and finish what has begun."""
        turns = times * (
            *[self._enqueue_and_pause] * 2,
            *[self._work_on_some] * 2,
            self._work_in_order,
            self._claim_poison,
            self._use_old_attempt,
            self._cancel_retry_or_change,
        )
        async with asyncio.TaskGroup() as group:
            for turn in turns:
                group.create_task(self._repeat(turn))
            await stop.wait()
            self._stopping = True


class FaultRun:
    """The rate of completed jobs before and after a fault, and the recorded calls."""

    def __init__(self, cluster: PostgresCluster, recorder: CountingRecorder) -> None:
        self.cluster = cluster
        self.recorder = recorder
        self.before = 0.0
        self.after = 0.0
        self.recovery_seconds = 0.0

    async def window(self) -> float:
        """Measure completed jobs per second for one window."""
        loop = asyncio.get_running_loop()
        completed, began = self.recorder.completed, loop.time()
        await asyncio.sleep(WINDOW_SECONDS)
        return (self.recorder.completed - completed) / (loop.time() - began)

    async def measure(self) -> None:
        """Measure the rate before the fault."""
        await self.window()  # The first jobs of a new store are slower.
        self.before = statistics.median([await self.window() for _ in range(WINDOWS_BEFORE)])

    async def recover(self, share: float) -> None:
        """Measure the rate after the fault: the best window, until one has this share of the rate before."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        for _ in range(WINDOWS_AFTER_MAX):
            self.after = max(self.after, await self.window())
            self.recovery_seconds = loop.time() - began_at
            if self.after >= share * self.before:
                return


async def use_all_connections(store: PostgresStore) -> None:
    """Acquire all connections of the pool at once, which shows that none was lost."""
    pool = store.database.pool
    async with AsyncExitStack() as taken, asyncio.timeout(SECONDS_MAX):
        for _ in range(pool.get_max_size()):
            await taken.enter_async_context(pool.acquire())


async def run_with_fault(
    cluster: PostgresCluster,
    fault: Callable[[FaultRun], Awaitable[None]],
    *,
    seed: int,
    connections: int = 10,
    url: str | None = None,
    recovered_share: float = RECOVERED_SHARE,
) -> FaultRun:
    """Work before, during and after a fault, then finish all jobs and check the store.

    `url` selects another way to connect. `recovered_share` is the share of the rate before to be reached afterwards.
    """
    fault_run = FaultRun(cluster, CountingRecorder())
    stop = asyncio.Event()
    async with cluster.store(url, connections=connections) as store:
        workload = PostgresWorkload(store, fault_run.recorder, seed=seed, enqueue_pause_seconds=ENQUEUE_PAUSE_SECONDS)
        await workload.prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(workload.work_until(stop))
            await fault_run.measure()
            await fault(fault_run)
            await fault_run.recover(recovered_share)
            stop.set()
        last = PostgresWorkload(store, fault_run.recorder, seed=seed)
        await last.prepare()
        assert await last.drain(DRAIN_SECONDS_MAX), "J9 the work did not finish"
        await use_all_connections(store)
        assert (await store.measure_load()).connections == connections, "the pool has lost connections"
    tables = await cluster.check(fault_run.recorder.history(), with_resent_calls=True)
    assert {job.status for job in tables.jobs.values()} == {"succeeded", "dead", "canceled"}
    assert fault_run.before > 0
    assert fault_run.after >= recovered_share * fault_run.before, "the rate did not recover"
    assert fault_run.recorder.began_at == {}, "calls did not end"
    return fault_run
