"""PostgreSQL and its clients are killed, cut off and starved; acknowledged calls are never lost or doubled."""

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
from tests.faults.forkserver import FORKSERVER
from tests.faults.history import History, HistoryFile
from tests.faults.postgres_cluster import (
    LEASE_SECONDS,
    FaultRun,
    PostgresCluster,
    open_cluster,
    run_with_fault,
    until_idle,
)
from tests.faults.postgres_process import PostgresPlan, work
from tests.faults.postgres_proxy import END_SECONDS, Loss, Proxy, open_proxy
from tests.faults.postgres_rules import broken_rules
from tests.faults.recorded_calls import HeldAttempt
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
SHARED_ATTEMPTS_MAX = 40
# How much of the history a process writes before it is killed: its first calls, or a few hundred.
LINES_BYTES_MIN = 500
LINES_BYTES_MAX = 60_000


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """Capture the many log entries of lost connections, because rendering them would take most of the time."""
    with capture_logs() as captured:
        yield captured


# -- killed clients ---------------------------------------------------------------------------------------------


class Clients:
    """Processes that work on a store one after the other, each killed at a random moment."""

    def __init__(self, cluster: PostgresCluster, folder: Path, seed: int) -> None:
        self._cluster = cluster
        self._folder = folder
        self._random = random.Random(seed)
        self._runs = 0
        self._file = HistoryFile(folder / "history.jsonl")

    @property
    def history(self) -> History:
        """All calls and results so far."""
        return self._file.read_new_lines()

    async def kill_one(self) -> None:
        """Let a process work, kill it, and wait until the server has processed everything it had sent."""
        acked_min = self._size() + self._random.randrange(LINES_BYTES_MIN, LINES_BYTES_MAX)
        process = self._start()

        async def is_at_work() -> bool:
            return self._size() > acked_min or not process.is_alive()

        await eventually(is_at_work)
        await asyncio.sleep(self._random.uniform(0.0, POLL_SECONDS))
        assert process.is_alive(), self._output()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.join, JOIN_SECONDS_MAX)
        assert process.exitcode == -signal.SIGKILL, self._output()
        async with self._cluster.owner() as owner:
            await until_idle(owner)

    async def finish(self) -> None:
        """Let a last process finish all work."""
        process = self._start(last=True)
        await asyncio.to_thread(process.join, JOIN_SECONDS_MAX)
        assert process.exitcode == 0, self._output()
        assert ("drained", True) in self.history.notes, "J9 the work did not finish"

    def _start(self, *, last: bool = False) -> BaseProcess:
        self._runs += 1
        claims = [claim for call in self.history.of("claim")[-200:] if call.acked for claim in call.answer]
        plan = PostgresPlan(
            url=self._cluster.url,
            history=self._folder / "history.jsonl",
            output=self._folder / "output.txt",
            run=self._runs,
            seed=self._random.randrange(2**32),
            lease_seconds=LEASE_SECONDS,
            last=last,
            attempts=[HeldAttempt(job_id, fence) for job_id, fence, _ in claims[-SHARED_ATTEMPTS_MAX:]],
        )
        process = FORKSERVER.Process(target=work, args=(plan,), daemon=True)
        process.start()
        return process

    def _size(self) -> int:
        path = self._folder / "history.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _output(self) -> str:
        path = self._folder / "output.txt"
        return path.read_text()[-3000:] if path.exists() else "no output"


@pytest.mark.long
async def test_acknowledged_calls_survive_kills_of_clients(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    async with open_cluster() as cluster:
        clients = Clients(cluster, tmp_path, seed)
        for kills in range(1, KILLS_OF_CLIENTS + 1):
            await clients.kill_one()
            if kills % 5 == 0:
                await cluster.check(clients.history)
        await clients.finish()
        tables = await cluster.check(clients.history)
    print(f"{KILLS_OF_CLIENTS} kills, {clients.history.acked} acknowledged calls, {len(tables.jobs)} jobs, seed {seed}")
    assert {job.status for job in tables.jobs.values()} == {"succeeded", "dead", "canceled"}


# -- a server that is killed, restarted or full -----------------------------------------------------------------


def report(fault_run: FaultRun, what: str) -> None:
    """Print what happened."""
    acked, before, after = fault_run.recorder.acked, fault_run.before, fault_run.after
    print(f"{what}; {acked} acknowledged calls; {before:.0f} jobs/s before, {after:.0f} after")


@pytest.mark.long
async def test_acknowledged_calls_survive_kills_of_backends() -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    kills = 0

    async def kill_backends(fault_run: FaultRun) -> None:
        nonlocal kills
        async with fault_run.cluster.owner() as owner:
            while kills < KILLS_OF_BACKENDS:
                rows = await owner.fetch("SELECT pid FROM pg_stat_activity WHERE usename = 'ingot_server'")
                if rows:
                    kills += await owner.fetchval("SELECT pg_terminate_backend($1)", chance.choice(rows)["pid"])
                await asyncio.sleep(KILL_EVERY_SECONDS)

    async with open_cluster() as cluster:
        fault_run = await run_with_fault(cluster, kill_backends, seed=seed)
    report(fault_run, f"{kills} kills of backends, seed {seed}")
    assert kills >= KILLS_OF_BACKENDS


@pytest.mark.long
async def test_acknowledged_calls_survive_crashes_and_restarts_of_the_server() -> None:
    seed = random.randrange(2**32)

    async def restart(fault_run: FaultRun) -> None:
        server, recorder = fault_run.cluster.server, fault_run.recorder
        for mode in [*["immediate"] * CRASHES, "fast"]:
            acked = recorder.acked

            async def is_at_work(acked_min: int = acked + ACKED_BETWEEN) -> bool:
                return recorder.acked >= acked_min

            await eventually(is_at_work)
            await asyncio.to_thread(server.stop, mode)
            await asyncio.sleep(AWAY_SECONDS)
            await asyncio.to_thread(server.start)

    async with open_cluster() as cluster:
        fault_run = await run_with_fault(cluster, restart, seed=seed)
    report(fault_run, f"{CRASHES} crashes of the server, 1 restart, seed {seed}")


@pytest.mark.long
async def test_calls_wait_while_all_connections_are_taken_and_then_continue() -> None:
    seed = random.randrange(2**32)
    connections_taken = 0

    async def take_all(fault_run: FaultRun) -> None:
        nonlocal connections_taken
        taken: list[asyncpg.Connection[asyncpg.Record]] = []
        try:
            async with fault_run.cluster.owner() as owner:
                loop = asyncio.get_running_loop()
                end = loop.time() + STARVED_SECONDS
                while loop.time() < end:  # The store may get a slot that is released late for a moment.
                    await _end_connections_of_the_store(owner)
                    with suppress(asyncpg.TooManyConnectionsError):
                        while True:
                            name = {"application_name": "taken"}
                            taken.append(await asyncpg.connect(fault_run.cluster.url, server_settings=name))
                    await asyncio.sleep(0.02)
                connections_taken = len(taken)
        finally:
            for connection in taken:
                await connection.close()

    async with open_cluster(SLOTS) as cluster:
        fault_run = await run_with_fault(cluster, take_all, seed=seed, connections=4)
        errors = Counter(call.error for call in fault_run.recorder.history().calls.values())
    report(fault_run, f"all {connections_taken} connections taken for {STARVED_SECONDS:.0f} s, seed {seed}")
    assert connections_taken == 12  # The thirteenth is the connection of the test itself.
    assert errors.keys() <= {None, "lease_lost", "job_finished", "job_not_finished", "job_not_queued", "job_not_found",
                             "duplicate_job", "idempotency_mismatch", "store_busy", "store_failed"}  # fmt: skip


async def _end_connections_of_the_store(owner: asyncpg.Connection[asyncpg.Record]) -> None:
    await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ingot_server' "
                        "AND application_name <> 'taken'")  # fmt: skip


# -- lost requests and lost responses ---------------------------------------------------------------------------


class CuttableStore:
    """A store whose connections can be cut at a chosen statement, and a second one on the same database."""

    def __init__(self, proxy: Proxy, cut_store: PostgresStore, direct_store: PostgresStore, tenant: str) -> None:
        self.proxy = proxy
        self.cut_store = cut_store
        self.direct_store = direct_store
        self.tenant = tenant
        self.cut_jobs = Jobs(cut_store, lease_seconds=60.0)
        self.direct_jobs = Jobs(direct_store, lease_seconds=60.0)

    async def event_names(self, job: Job) -> list[str]:
        """Return the names of the events of a job."""
        events = await Events(self.direct_store).read(self.tenant, limit=1000)
        return [event.name for event in events if job.id.encode() in bytes(event.data)]

    async def jobs(self) -> list[Job]:
        """Return all jobs."""
        return list((await self.direct_jobs.list(self.tenant)).items)

    async def make_claim(self, type: str = "noop") -> Claim:
        """Enqueue and claim a job through the second store."""
        await self.direct_jobs.enqueue(self.tenant, type)
        (claim,) = await self.direct_jobs.claim("worker", [type], tenant=self.tenant)
        return claim


@pytest.fixture(scope="module")
async def shared_cluster() -> AsyncIterator[PostgresCluster]:
    """A server for the tests that do not break it."""
    async with open_cluster() as cluster:
        yield cluster


@pytest.fixture
async def stores(shared_cluster: PostgresCluster) -> AsyncIterator[CuttableStore]:
    """A tenant of its own on the shared server. All rules must hold at the end."""
    with tempfile.TemporaryDirectory(prefix="ingot-proxy-", dir="/var/tmp") as folder:
        async with (
            open_proxy(Path(folder), shared_cluster.server.folder) as proxy,
            shared_cluster.store(f"postgresql://ingot_server@/ingot?host={folder}", lease_seconds=60.0) as cut_store,
            shared_cluster.store(lease_seconds=60.0) as direct_store,
        ):
            tenant = await Tenants(direct_store).create(f"t-{random.randrange(2**32)}")
            yield CuttableStore(proxy, cut_store, direct_store, tenant.id)
            assert proxy.losses == 1, "no message was lost"
    async with shared_cluster.owner() as owner:
        await until_idle(owner)
        assert await broken_rules(owner) == []


both_losses = pytest.mark.parametrize("loss", Loss)


async def test_an_outage_does_not_count_as_the_cost_of_a_poll(stores: CuttableStore) -> None:
    """Polls are repeated after fifty times their cost; an outage must not stop them for minutes."""
    stores.proxy.lose(Loss.RESPONSE, "ingot.poll(", meanwhile=lambda: asyncio.sleep(1.0))
    lane_cache = stores.cut_store.lane_cache
    await poll(stores.cut_store.database, lane_cache)
    assert lane_cache.poll_interval_seconds < 10


@both_losses
@pytest.mark.parametrize("keys", [{}, {"idempotency_key": "once"}, {"dedupe_key": "alone"}], ids=["", "once", "alone"])
async def test_an_enqueue_that_is_cut_off_creates_one_job(
    stores: CuttableStore, loss: Loss, keys: dict[str, str]
) -> None:
    stores.proxy.lose(loss, "ingot.enqueue(")
    enqueued = await stores.cut_jobs.enqueue(
        stores.tenant,
        "noop",
        {"n": 1},
        idempotency_key=keys.get("idempotency_key"),
        dedupe_key=keys.get("dedupe_key"),
    )
    assert [enqueued.job.id] == [job.id for job in await stores.jobs()]
    assert await stores.event_names(enqueued.job) == ["job.created"]
    if "idempotency_key" in keys:
        again = await stores.direct_jobs.enqueue(stores.tenant, "noop", {"n": 1}, idempotency_key="once")
        assert (again.job.id, again.created) == (enqueued.job.id, False)


@both_losses
async def test_a_batch_enqueue_that_is_cut_off_creates_each_job_once(stores: CuttableStore, loss: Loss) -> None:
    stores.proxy.lose(loss, "ingot.enqueue(")
    orders = [new_job(stores.tenant, "noop", number) for number in range(20)]
    enqueued = await stores.cut_jobs.enqueue_many(orders)
    assert [each.job.id for each in enqueued] == [order.id for order in orders]
    assert sorted(order.id for order in orders) == sorted(job.id for job in await stores.jobs())


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
    stores: CuttableStore, loss: Loss, outcome: Outcome, after: JobStatus
) -> None:
    claim = await stores.make_claim()
    stores.proxy.lose(loss, "ingot.settle(")
    settled = await stores.cut_jobs.settle(claim.job.id, claim.fence, outcome)
    job = await stores.direct_jobs.get(stores.tenant, claim.job.id)
    assert (settled.status, settled.attempts) == (job.status, job.attempts) == (after, 1)
    assert settled.run_at == (job.run_at if after is JobStatus.QUEUED else None)
    assert [attempt.status_after for attempt in await stores.direct_jobs.attempts(stores.tenant, job.id)] == [after]


@both_losses
async def test_a_heartbeat_that_is_cut_off_renews_the_lease(stores: CuttableStore, loss: Loss) -> None:
    claim = await stores.make_claim()
    stores.proxy.lose(loss, "ingot.renew(")
    beat = await stores.cut_jobs.heartbeat(claim.job.id, claim.fence)
    assert beat.lease_expires_at == (await stores.direct_jobs.get(stores.tenant, claim.job.id)).lease_expires_at
    assert beat.lease_expires_at > claim.lease_expires_at


@both_losses
@pytest.mark.parametrize("text", ["ingot.cancel(", "COMMIT"])
async def test_a_cancel_that_is_cut_off_takes_effect_once(stores: CuttableStore, loss: Loss, text: str) -> None:
    job = (await stores.direct_jobs.enqueue(stores.tenant, "noop")).job
    stores.proxy.lose(loss, text)
    assert (await stores.cut_jobs.cancel(stores.tenant, job.id)).status is JobStatus.CANCELED
    assert await stores.event_names(job) == ["job.created", "job.canceled"]


@both_losses
async def test_a_cancel_of_a_running_job_that_is_cut_off_is_requested_once(stores: CuttableStore, loss: Loss) -> None:
    claim = await stores.make_claim()
    stores.proxy.lose(loss, "COMMIT")
    assert (await stores.cut_jobs.cancel(stores.tenant, claim.job.id)).cancel_requested
    assert await stores.event_names(claim.job) == ["job.created", "job.started", "job.updated"]


@both_losses
@pytest.mark.parametrize("text", ["ingot.retry(", "COMMIT"])
async def test_a_retry_that_is_cut_off_takes_effect_at_most_once_and_is_never_refused(
    stores: CuttableStore, loss: Loss, text: str
) -> None:
    claim = await stores.make_claim()
    await stores.direct_jobs.complete(claim)
    stores.proxy.lose(loss, text)
    with suppress(OutcomeUnknown):
        assert (await stores.cut_jobs.retry(stores.tenant, claim.job.id)).status is JobStatus.QUEUED
    event_names = await stores.event_names(claim.job)
    assert event_names.count("job.retried") <= 1
    if loss is Loss.RESPONSE and text == "COMMIT":
        assert event_names.count("job.retried") == 1


@both_losses
async def test_a_reschedule_that_is_cut_off_takes_effect(stores: CuttableStore, loss: Loss) -> None:
    job = (await stores.direct_jobs.enqueue(stores.tenant, "noop", delay=timedelta(hours=1))).job
    stores.proxy.lose(loss, "COMMIT")
    changed = await stores.cut_jobs.reschedule(stores.tenant, job.id, priority=1, tags=["b"])
    assert (changed.priority, changed.tags) == (1, ("b",))
    assert changed == await stores.direct_jobs.get(stores.tenant, job.id)


@both_losses
async def test_a_claim_that_is_cut_off_gives_no_attempt_to_two_workers_and_loses_no_job(
    stores: CuttableStore, loss: Loss
) -> None:
    type = f"own-{stores.tenant}"
    orders = [new_job(stores.tenant, type, number) for number in range(3)]
    await stores.cut_jobs.enqueue_many(orders)
    stores.proxy.lose(loss, "ingot.claim(")
    claims = [*await stores.cut_jobs.claim("one", [type], tenant=stores.tenant)]
    for _ in range(3):
        claims += await stores.cut_jobs.claim("two", [type], tenant=stores.tenant)
    fences = {claim.job.id: claim.fence for claim in claims}
    assert len(fences) == len(claims)
    running = {job.id: job.fence for job in await stores.jobs() if job.status is JobStatus.RUNNING}
    assert len(running) == 3
    # The lost response contained a lease. No worker has it, and the job returns to the queue when it expires.
    assert len(claims) == (2 if loss is Loss.RESPONSE else 3)
    assert fences.items() <= running.items()


async def test_a_job_whose_claim_was_cut_off_is_queued_again_after_its_lease(
    shared_cluster: PostgresCluster,
) -> None:
    with tempfile.TemporaryDirectory(prefix="ingot-proxy-", dir="/var/tmp") as folder:
        async with (
            open_proxy(Path(folder), shared_cluster.server.folder) as proxy,
            shared_cluster.store(f"postgresql://ingot_server@/ingot?host={folder}") as store,
        ):
            tenant = (await Tenants(store).create("comes-back")).id
            jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
            job = (await jobs.enqueue(tenant, "comes-back")).job
            proxy.lose(Loss.RESPONSE, "ingot.claim(")
            assert await jobs.claim("one", ["comes-back"]) == []
            claims: list[Claim] = []
            while not claims:
                claims = await jobs.claim("two", ["comes-back"], wait_seconds=0.2)
            assert [(claim.job.id, claim.job.attempts) for claim in claims] == [(job.id, 2)]
            await jobs.complete(claims[0])
    async with shared_cluster.owner() as owner:
        await until_idle(owner)
        assert await broken_rules(owner) == []


async def test_an_enqueue_whose_response_is_lost_reports_a_created_job(stores: CuttableStore) -> None:
    stores.proxy.lose(Loss.RESPONSE, "ingot.enqueue(")
    assert (await stores.cut_jobs.enqueue(stores.tenant, "noop")).created


async def test_a_reschedule_whose_response_is_lost_is_not_refused_after_it_took_effect(stores: CuttableStore) -> None:
    job = (await stores.direct_jobs.enqueue(stores.tenant, "noop")).job
    stores.proxy.lose(
        Loss.RESPONSE, "COMMIT", meanwhile=lambda: stores.direct_jobs.claim("w", ["noop"], tenant=stores.tenant)
    )
    with suppress(OutcomeUnknown):
        await stores.cut_jobs.reschedule(stores.tenant, job.id, priority=1)
    assert (await stores.direct_jobs.get(stores.tenant, job.id)).priority == 1


@pytest.mark.long
async def test_a_call_whose_response_is_lost_before_a_long_outage_has_an_unknown_outcome(stores: CuttableStore) -> None:
    async def shut_down() -> None:
        stores.proxy.is_down = True

    stores.proxy.lose(Loss.RESPONSE, "ingot.enqueue(", meanwhile=shut_down)
    with pytest.raises(OutcomeUnknown):
        await stores.cut_jobs.enqueue(stores.tenant, "noop")
    assert len(await stores.jobs()) == 1


@pytest.mark.parametrize("verb", ["enqueue", "claim", "get"])
async def test_a_call_on_a_terminated_connection_is_sent_on_another_one(
    shared_cluster: PostgresCluster, verb: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="ingot-proxy-", dir="/var/tmp") as folder:
        async with (
            open_proxy(Path(folder), shared_cluster.server.folder) as proxy,
            shared_cluster.store(f"postgresql://ingot_server@/ingot?host={folder}", lease_seconds=60.0) as store,
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
async def test_the_creation_of_a_tenant_that_is_cut_off_creates_one(stores: CuttableStore, loss: Loss) -> None:
    stores.proxy.lose(loss, "ingot.create_tenant(")
    slug = f"cut-{random.randrange(2**32)}"
    made = await Tenants(stores.cut_store).create(slug)
    assert made == await Tenants(stores.direct_store).get(slug)
    assert [entry.action for entry in (await Audit(stores.direct_store).list(made.id)).items] == ["tenant.created"]
