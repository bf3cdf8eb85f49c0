"""PostgreSQL and its clients are killed, cut off and starved, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import asyncpg
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.maintenance import poll
from ingot.events import Events
from ingot.events.audit_service import Audit
from ingot.identity import Tenants
from ingot.jobs import Claim, Done, Failed, Job, Jobs, JobStatus, Outcome, Release, Snooze
from ingot.jobs.job_options import new_job
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import OutcomeUnknown
from tests.faults.forkserver import PROCESSES
from tests.faults.history import History, HistoryFile
from tests.faults.postgres_environment import (
    LEASE_SECONDS,
    Survival,
    World,
    open_world,
    survive,
    until_quiet,
)
from tests.faults.postgres_process import PostgresPlan, work
from tests.faults.postgres_proxy import END_SECONDS, Loss, Proxy, open_proxy
from tests.faults.postgres_rules import broken_rules
from tests.faults.recorded_calls import Held
from tests.waiting import POLL_SECONDS, eventually

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("leftovers")]

KILLS_OF_CLIENTS = 20
KILLS_OF_BACKENDS = 40
KILL_EVERY_SECONDS = 0.05
CRASHES = 3
AWAY_SECONDS = 0.3
ACKED_BETWEEN = 200
STARVED_SECONDS = 3.0
SLOTS = """
max_connections = 16
superuser_reserved_connections = 3
"""
JOIN_SECONDS_MAX = 240.0
HELD_MAX = 40
# How much of the history a process writes before it is killed: its first calls, or some hundred.
LINES_BYTES_MIN = 500
LINES_BYTES_MAX = 60_000


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What is logged while connections are lost: much, and drawing all of it would be most of the work."""
    with capture_logs() as captured:
        yield captured


# -- killed clients ---------------------------------------------------------------------------------------------


class Clients:
    """Processes that work on a store, one after the other, each killed at some moment."""

    def __init__(self, world: World, folder: Path, seed: int) -> None:
        self._world = world
        self._folder = folder
        self._random = random.Random(seed)
        self._runs = 0
        self._file = HistoryFile(folder / "history.jsonl")

    @property
    def history(self) -> History:
        """What was asked and answered so far."""
        return self._file.read_on()

    async def kill_one(self) -> None:
        """Let a process work and kill it; the next begins when the server has done what this one sent."""
        enough = self._size() + self._random.randrange(LINES_BYTES_MIN, LINES_BYTES_MAX)
        process = self._start()

        async def is_at_work() -> bool:
            return self._size() > enough or not process.is_alive()

        await eventually(is_at_work)
        await asyncio.sleep(self._random.uniform(0.0, POLL_SECONDS))
        assert process.is_alive(), self._told()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.join, JOIN_SECONDS_MAX)
        assert process.exitcode == -signal.SIGKILL, self._told()
        async with self._world.owner() as owner:
            await until_quiet(owner)

    async def finish(self) -> None:
        """Let a last process finish all work."""
        process = self._start(last=True)
        await asyncio.to_thread(process.join, JOIN_SECONDS_MAX)
        assert process.exitcode == 0, self._told()
        assert ("drained", True) in self.history.notes, "J9 the work did not come to an end"

    def _start(self, *, last: bool = False) -> BaseProcess:
        self._runs += 1
        given = [claim for call in self.history.of("claim")[-200:] if call.acked for claim in call.answer]
        plan = PostgresPlan(
            url=self._world.url,
            history=self._folder / "history.jsonl",
            output=self._folder / "output.txt",
            run=self._runs,
            seed=self._random.randrange(2**32),
            lease_seconds=LEASE_SECONDS,
            last=last,
            held=[Held(job_id, fence) for job_id, fence, _ in given[-HELD_MAX:]],
        )
        process = PROCESSES.Process(target=work, args=(plan,), daemon=True)
        process.start()
        return process

    def _size(self) -> int:
        path = self._folder / "history.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _told(self) -> str:
        path = self._folder / "output.txt"
        return path.read_text()[-3000:] if path.exists() else "it said nothing"


@pytest.mark.long
async def test_nothing_acknowledged_is_lost_however_often_a_client_is_killed(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    async with open_world() as world:
        clients = Clients(world, tmp_path, seed)
        for kills in range(1, KILLS_OF_CLIENTS + 1):
            await clients.kill_one()
            if kills % 5 == 0:
                await world.check(clients.history)
        await clients.finish()
        tables = await world.check(clients.history)
    print(f"{KILLS_OF_CLIENTS} kills, {clients.history.acked} acknowledged calls, {len(tables.jobs)} jobs, seed {seed}")
    assert {job.status for job in tables.jobs.values()} == {"succeeded", "dead", "canceled"}


# -- a server that is killed, restarted or full -----------------------------------------------------------------


def report(survival: Survival, what: str) -> None:
    """Say what was survived."""
    acked, before, after = survival.recorder.acked, survival.before, survival.after
    print(f"{what}; {acked} acknowledged calls; {before:.0f} jobs/s before, {after:.0f} after")


@pytest.mark.long
async def test_nothing_acknowledged_is_lost_when_backends_are_killed() -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    kills = 0

    async def kill_backends(survival: Survival) -> None:
        nonlocal kills
        async with survival.world.owner() as owner:
            while kills < KILLS_OF_BACKENDS:
                rows = await owner.fetch("SELECT pid FROM pg_stat_activity WHERE usename = 'ingot_server'")
                if rows:
                    kills += await owner.fetchval("SELECT pg_terminate_backend($1)", chance.choice(rows)["pid"])
                await asyncio.sleep(KILL_EVERY_SECONDS)

    async with open_world() as world:
        survival = await survive(world, kill_backends, seed=seed)
    report(survival, f"{kills} kills of backends, seed {seed}")
    assert kills >= KILLS_OF_BACKENDS


@pytest.mark.long
async def test_nothing_acknowledged_is_lost_when_the_server_crashes_or_restarts() -> None:
    seed = random.randrange(2**32)

    async def restart(survival: Survival) -> None:
        server, recorder = survival.world.server, survival.recorder
        for mode in [*["immediate"] * CRASHES, "fast"]:
            acked = recorder.acked

            async def is_at_work(enough: int = acked + ACKED_BETWEEN) -> bool:
                return recorder.acked >= enough

            await eventually(is_at_work)
            await asyncio.to_thread(server.stop, mode)
            await asyncio.sleep(AWAY_SECONDS)
            await asyncio.to_thread(server.start)

    async with open_world() as world:
        survival = await survive(world, restart, seed=seed)
    report(survival, f"{CRASHES} crashes of the server, 1 restart, seed {seed}")


@pytest.mark.long
async def test_calls_wait_for_connections_when_all_are_taken_and_then_go_on() -> None:
    seed = random.randrange(2**32)
    starved = 0

    async def take_all(survival: Survival) -> None:
        nonlocal starved
        taken: list[asyncpg.Connection[asyncpg.Record]] = []
        try:
            async with survival.world.owner() as owner:
                loop = asyncio.get_running_loop()
                end = loop.time() + STARVED_SECONDS
                while loop.time() < end:  # A slot that is given back late may go to the store for a moment.
                    await _end_connections_of_the_store(owner)
                    with suppress(asyncpg.TooManyConnectionsError):
                        while True:
                            name = {"application_name": "taken"}
                            taken.append(await asyncpg.connect(survival.world.url, server_settings=name))
                    await asyncio.sleep(0.02)
                starved = len(taken)
        finally:
            for connection in taken:
                await connection.close()

    async with open_world(SLOTS) as world:
        survival = await survive(world, take_all, seed=seed, connections=4)
        errors = Counter(call.error for call in survival.recorder.history().calls.values())
    report(survival, f"all {starved} connections taken for {STARVED_SECONDS:.0f} s, seed {seed}")
    assert starved == 12  # The thirteenth is the one that looks on.
    assert errors.keys() <= {None, "lease_lost", "job_finished", "job_not_finished", "job_not_queued", "job_not_found",
                             "duplicate_job", "idempotency_mismatch", "store_busy", "store_failed"}  # fmt: skip


async def _end_connections_of_the_store(owner: asyncpg.Connection[asyncpg.Record]) -> None:
    await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ingot_server' "
                        "AND application_name <> 'taken'")  # fmt: skip


# -- lost requests and lost answers -----------------------------------------------------------------------------


class Wire:
    """A store whose connections can be cut at a chosen statement, and one beside it that is never cut."""

    def __init__(self, proxy: Proxy, behind: PostgresStore, direct: PostgresStore, tenant: str) -> None:
        self.proxy = proxy
        self.behind = behind
        self.direct = direct
        self.tenant = tenant
        self.cut = Jobs(behind, lease_seconds=60.0)
        self.sound = Jobs(direct, lease_seconds=60.0)

    async def event_names(self, job: Job) -> list[str]:
        """What happened to one job, as the log has it."""
        events = await Events(self.direct).read(self.tenant, limit=1000)
        return [event.name for event in events if job.id.encode() in bytes(event.data)]

    async def jobs(self) -> list[Job]:
        """All jobs."""
        return list((await self.sound.list(self.tenant)).items)

    async def make_claim(self, type: str = "noop") -> Claim:
        """A job that runs, made and claimed over the sound store."""
        await self.sound.enqueue(self.tenant, type)
        (claim,) = await self.sound.claim("worker", [type], tenant=self.tenant)
        return claim


@pytest.fixture(scope="module")
async def shared_world() -> AsyncIterator[World]:
    """One server for the tests that do not break it."""
    async with open_world() as world:
        yield world


@pytest.fixture
async def wire(shared_world: World) -> AsyncIterator[Wire]:
    """A tenant of its own on the server; what is left behind must keep the rules."""
    with tempfile.TemporaryDirectory(prefix="ingot-proxy-", dir="/var/tmp") as folder:
        async with (
            open_proxy(Path(folder), shared_world.server.folder) as proxy,
            shared_world.store(f"postgresql://ingot_server@/ingot?host={folder}", lease_seconds=60.0) as behind,
            shared_world.store(lease_seconds=60.0) as direct,
        ):
            tenant = await Tenants(direct).create(f"t-{random.randrange(2**32)}")
            yield Wire(proxy, behind, direct, tenant.id)
            assert proxy.losses == 1, "nothing was lost"
    async with shared_world.owner() as owner:
        await until_quiet(owner)
        assert await broken_rules(owner) == []


both_losses = pytest.mark.parametrize("loss", Loss)


async def test_the_time_of_an_outage_is_not_the_cost_of_a_look(wire: Wire) -> None:
    """A look is made again after fifty times what it cost: a process must not be blind for minutes after an outage."""
    wire.proxy.lose(Loss.ANSWER, "ingot.look(", meanwhile=lambda: asyncio.sleep(1.0))
    memory = wire.behind.lane_cache
    await poll(wire.behind.database, memory)
    assert memory.poll_interval_seconds < 10


@both_losses
@pytest.mark.parametrize("keys", [{}, {"idempotency_key": "once"}, {"dedupe_key": "alone"}], ids=["", "once", "alone"])
async def test_an_enqueue_that_is_cut_off_makes_one_job(wire: Wire, loss: Loss, keys: dict[str, str]) -> None:
    wire.proxy.lose(loss, "ingot.enqueue(")
    enqueued = await wire.cut.enqueue(wire.tenant, "noop", {"n": 1}, idempotency_key=keys.get("idempotency_key"),
                                      dedupe_key=keys.get("dedupe_key"))  # fmt: skip
    assert [enqueued.job.id] == [job.id for job in await wire.jobs()]
    assert await wire.event_names(enqueued.job) == ["job.created"]
    if "idempotency_key" in keys:
        again = await wire.sound.enqueue(wire.tenant, "noop", {"n": 1}, idempotency_key="once")
        assert (again.job.id, again.created) == (enqueued.job.id, False)


@both_losses
async def test_a_batch_that_is_cut_off_is_made_once_and_whole(wire: Wire, loss: Loss) -> None:
    wire.proxy.lose(loss, "ingot.enqueue(")
    orders = [new_job(wire.tenant, "noop", number) for number in range(20)]
    enqueued = await wire.cut.enqueue_many(orders)
    assert [each.job.id for each in enqueued] == [order.id for order in orders]
    assert sorted(order.id for order in orders) == sorted(job.id for job in await wire.jobs())


@both_losses
@pytest.mark.parametrize(
    ("outcome", "after"),
    [
        (Done(result=b'{"n":1}'), JobStatus.SUCCEEDED),
        (Failed(error="broken"), JobStatus.QUEUED),
        (Failed(error="broken", retry=False), JobStatus.DEAD),
        (Snooze(delay=10 * MICROS), JobStatus.QUEUED),
        (Release(), JobStatus.QUEUED),
    ],
    ids=["done", "failed", "dead", "snoozed", "released"],
)
async def test_a_settle_that_is_cut_off_is_recorded_once(
    wire: Wire, loss: Loss, outcome: Outcome, after: JobStatus
) -> None:
    claim = await wire.make_claim()
    wire.proxy.lose(loss, "ingot.settle(")
    settled = await wire.cut.settle(claim.job.id, claim.fence, outcome)
    job = await wire.sound.get(wire.tenant, claim.job.id)
    assert (settled.status, settled.attempts) == (job.status, job.attempts) == (after, 1)
    assert settled.run_at == (job.run_at if after is JobStatus.QUEUED else None)
    assert [attempt.status_after for attempt in await wire.sound.attempts(wire.tenant, job.id)] == [after]


@both_losses
async def test_a_heartbeat_that_is_cut_off_renews_the_lease(wire: Wire, loss: Loss) -> None:
    claim = await wire.make_claim()
    wire.proxy.lose(loss, "ingot.renew(")
    beat = await wire.cut.heartbeat(claim.job.id, claim.fence)
    assert beat.lease_expires_at == (await wire.sound.get(wire.tenant, claim.job.id)).lease_expires_at
    assert beat.lease_expires_at > claim.lease_expires_at


@both_losses
@pytest.mark.parametrize("text", ["ingot.cancel(", "COMMIT"])
async def test_a_cancel_that_is_cut_off_is_done_once(wire: Wire, loss: Loss, text: str) -> None:
    job = (await wire.sound.enqueue(wire.tenant, "noop")).job
    wire.proxy.lose(loss, text)
    assert (await wire.cut.cancel(wire.tenant, job.id)).status is JobStatus.CANCELED
    assert await wire.event_names(job) == ["job.created", "job.canceled"]


@both_losses
async def test_a_cancel_of_running_work_that_is_cut_off_is_asked_for_once(wire: Wire, loss: Loss) -> None:
    claim = await wire.make_claim()
    wire.proxy.lose(loss, "COMMIT")
    assert (await wire.cut.cancel(wire.tenant, claim.job.id)).cancel_requested
    assert await wire.event_names(claim.job) == ["job.created", "job.started", "job.updated"]


@both_losses
@pytest.mark.parametrize("text", ["ingot.retry(", "COMMIT"])
async def test_a_retry_that_is_cut_off_is_done_once_at_most_and_never_refused(
    wire: Wire, loss: Loss, text: str
) -> None:
    claim = await wire.make_claim()
    await wire.sound.complete(claim)
    wire.proxy.lose(loss, text)
    with suppress(OutcomeUnknown):
        assert (await wire.cut.retry(wire.tenant, claim.job.id)).status is JobStatus.QUEUED
    happened = await wire.event_names(claim.job)
    assert happened.count("job.retried") <= 1
    if loss is Loss.ANSWER and text == "COMMIT":
        assert happened.count("job.retried") == 1


@both_losses
async def test_a_change_that_is_cut_off_is_done(wire: Wire, loss: Loss) -> None:
    job = (await wire.sound.enqueue(wire.tenant, "noop", delay=timedelta(hours=1))).job
    wire.proxy.lose(loss, "COMMIT")
    changed = await wire.cut.reschedule(wire.tenant, job.id, priority=1, tags=["b"])
    assert (changed.priority, changed.tags) == (1, ("b",))
    assert changed == await wire.sound.get(wire.tenant, job.id)


@both_losses
async def test_a_claim_that_is_cut_off_gives_no_attempt_to_two_and_loses_no_job(wire: Wire, loss: Loss) -> None:
    type = f"own-{wire.tenant}"
    orders = [new_job(wire.tenant, type, number) for number in range(3)]
    await wire.cut.enqueue_many(orders)
    wire.proxy.lose(loss, "ingot.claim(")
    claims = [*await wire.cut.claim("one", [type], tenant=wire.tenant)]
    for _ in range(3):
        claims += await wire.cut.claim("two", [type], tenant=wire.tenant)
    given = {claim.job.id: claim.fence for claim in claims}
    assert len(given) == len(claims)
    running = {job.id: job.fence for job in await wire.jobs() if job.status is JobStatus.RUNNING}
    assert len(running) == 3
    # With its answer one lease got lost: nobody holds it, and its job comes back when it has run out.
    assert len(claims) == (2 if loss is Loss.ANSWER else 3)
    assert given.items() <= running.items()


async def test_a_job_whose_claim_was_cut_off_comes_back_when_its_lease_has_run_out(shared_world: World) -> None:
    with tempfile.TemporaryDirectory(prefix="ingot-proxy-", dir="/var/tmp") as folder:
        async with (
            open_proxy(Path(folder), shared_world.server.folder) as proxy,
            shared_world.store(f"postgresql://ingot_server@/ingot?host={folder}") as store,
        ):
            tenant = (await Tenants(store).create("comes-back")).id
            jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
            job = (await jobs.enqueue(tenant, "comes-back")).job
            proxy.lose(Loss.ANSWER, "ingot.claim(")
            assert await jobs.claim("one", ["comes-back"]) == []
            claims: list[Claim] = []
            while not claims:
                claims = await jobs.claim("two", ["comes-back"], wait_seconds=0.2)
            assert [(claim.job.id, claim.job.attempts) for claim in claims] == [(job.id, 2)]
            await jobs.complete(claims[0])
    async with shared_world.owner() as owner:
        await until_quiet(owner)
        assert await broken_rules(owner) == []


async def test_an_enqueue_whose_answer_is_lost_says_that_it_made_the_job(wire: Wire) -> None:
    wire.proxy.lose(Loss.ANSWER, "ingot.enqueue(")
    assert (await wire.cut.enqueue(wire.tenant, "noop")).created


async def test_a_change_whose_answer_is_lost_is_not_refused_after_it_was_done(wire: Wire) -> None:
    job = (await wire.sound.enqueue(wire.tenant, "noop")).job
    wire.proxy.lose(Loss.ANSWER, "COMMIT", meanwhile=lambda: wire.sound.claim("w", ["noop"], tenant=wire.tenant))
    with suppress(OutcomeUnknown):
        await wire.cut.reschedule(wire.tenant, job.id, priority=1)
    assert (await wire.sound.get(wire.tenant, job.id)).priority == 1


@pytest.mark.long
async def test_a_call_whose_answer_is_lost_before_a_long_outage_says_that_its_outcome_is_unknown(wire: Wire) -> None:
    async def go_away() -> None:
        wire.proxy.is_away = True

    wire.proxy.lose(Loss.ANSWER, "ingot.enqueue(", meanwhile=go_away)
    with pytest.raises(OutcomeUnknown):
        await wire.cut.enqueue(wire.tenant, "noop")
    assert len(await wire.jobs()) == 1


@pytest.mark.parametrize("verb", ["enqueue", "claim", "get"])
async def test_a_call_on_a_connection_that_is_about_to_end_is_sent_on_another(shared_world: World, verb: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ingot-proxy-", dir="/var/tmp") as folder:
        async with (
            open_proxy(Path(folder), shared_world.server.folder) as proxy,
            shared_world.store(f"postgresql://ingot_server@/ingot?host={folder}", lease_seconds=60.0) as store,
        ):
            jobs = Jobs(store, lease_seconds=60.0)
            tenant = (await Tenants(store).create(f"ends-{random.randrange(2**32)}")).id
            job = (await jobs.enqueue(tenant, "ends")).job
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "enqueue": lambda: jobs.enqueue(tenant, "ends"),
                "claim": lambda: jobs.claim("worker", ["ends"], tenant=tenant),
                "get": lambda: jobs.get(tenant, job.id),
            }
            await calls[verb]()
            proxy.terminate()
            await asyncio.sleep(END_SECONDS / 5)
            await calls[verb]()


@both_losses
async def test_making_a_tenant_that_is_cut_off_makes_one(wire: Wire, loss: Loss) -> None:
    wire.proxy.lose(loss, "ingot.create_tenant(")
    slug = f"cut-{random.randrange(2**32)}"
    made = await Tenants(wire.behind).create(slug)
    assert made == await Tenants(wire.direct).get(slug)
    assert [entry.action for entry in (await Audit(wire.direct).list(made.id)).items] == ["tenant.created"]
