"""PostgreSQL stalls, refuses or resets connections: every call ends, and nothing is lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from ingot.blobs.ports import FindBlob, GetBlobMetrics, OpenKey
from ingot.engines.postgres import (
    PostgresStore,
    command_batcher,
    command_scope,
    connection,
    maintenance,
    migrate,
    worker_database,
)
from ingot.engines.postgres.command_batcher import IN_FLIGHT_MAX
from ingot.engines.postgres.worker_database import WorkerDatabase
from ingot.events import Events
from ingot.events.audit import Act
from ingot.identity import Tenants
from ingot.identity.ports import ChangeTenant
from ingot.jobs import Done, Job, Jobs, JobStatus
from ingot.jobs.ports import LogEntry
from ingot.kernel.clock import MICROS, SystemClock
from ingot.kernel.errors import IngotError, OutcomeUnknown, StoreBusy, StoreError
from ingot.settings import Settings
from tests import campaigns, event_loop
from tests.faults.outage_proxy import Outage, OutageProxy, open_outage_proxy
from tests.faults.postgres_cluster import (
    DATABASE,
    RECOVERED_SHARE,
    FaultRun,
    PostgresCluster,
    open_cluster,
    run_with_fault,
    until_idle,
    use_all_connections,
)
from tests.faults.postgres_proxy import Loss, Part, Proxy, open_proxy
from tests.faults.postgres_rules import broken_rules
from tests.http.serving import Served, serving
from tests.postgres import Database
from tests.waiting import SECONDS_MAX, eventually
from tests.worker_roles import worker_role

pytestmark = [pytest.mark.postgres, pytest.mark.usefixtures("leftovers")]

CALLS = 28
# The campaign runs with the real limits of calls, the sample with shortened ones.
OUTAGES = list(Outage) if campaigns.IS_WHOLE else [Outage.STALL]
OUTAGE_SECONDS = (5.0, 30.0, 120.0) if campaigns.IS_WHOLE else (2.5,)
REGAINED_SHARE = 0.95 if campaigns.IS_WHOLE else RECOVERED_SHARE
RECOVERY_SECONDS_MAX = 30.0
SLOWEST_CALL_SECONDS_MAX = 30.0
CALL_SECONDS = 0.5
CLAIM_SECONDS = 3.0
OPERATOR_WORDS = ("INGOT_", "URL", "host", "port", "role", "password", "127.0.0.1")


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """Capture the log entries of outages."""
    with capture_logs() as captured:
        yield captured


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[PostgresCluster]:
    """A server for all tests."""
    async with open_cluster() as cluster:
        yield cluster


class RemoteStore:
    """A store behind a proxy, and another one without it."""

    def __init__(self, proxy: Any, store: PostgresStore, direct_store: PostgresStore, tenant: str) -> None:
        self.proxy = proxy
        self.store = store
        self.tenant = tenant
        self.jobs = Jobs(store, lease_seconds=60.0)
        self.direct_jobs = Jobs(direct_store, lease_seconds=60.0)

    async def stored_jobs(self) -> list[Job]:
        """Return all jobs."""
        return list((await self.direct_jobs.list(self.tenant)).items)


@asynccontextmanager
async def remote_store(cluster: PostgresCluster, proxy: OutageProxy | Proxy, url: str) -> AsyncIterator[RemoteStore]:
    async with cluster.store(url, lease_seconds=60.0) as store, cluster.store(lease_seconds=60.0) as direct_store:
        tenant = await Tenants(store).create(f"t-{random.randrange(2**32)}")
        yield RemoteStore(proxy, store, direct_store, tenant.id)
    async with cluster.owner() as owner:
        await until_idle(owner)
        assert await broken_rules(owner) == []


@pytest.fixture
async def remote(cluster: PostgresCluster) -> AsyncIterator[RemoteStore]:
    """A store whose connections can have an outage."""
    async with open_outage_proxy(cluster.server.folder) as proxy, remote_store(cluster, proxy, proxy.url) as remote:
        yield remote
        await proxy.end()


@pytest.fixture
def proxy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the socket of a proxy. Its name is short, because the length of a path to a socket is limited."""
    return tmp_path_factory.mktemp("proxy")


@pytest.fixture
async def stallable(cluster: PostgresCluster, proxy_folder: Path) -> AsyncIterator[RemoteStore]:
    """A store whose connections can stall at a chosen statement."""
    url = f"postgresql://ingot_server@/ingot?host={proxy_folder}"
    async with open_proxy(proxy_folder, cluster.server.folder) as proxy, remote_store(cluster, proxy, url) as remote:
        yield remote
        proxy.end_stall()
        assert proxy.losses == 1, "no statement stalled"


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that shortens the deadlines of calls."""

    def shorten() -> None:
        monkeypatch.setattr(command_scope, "CALL_SECONDS_MAX", CALL_SECONDS)
        monkeypatch.setattr(command_batcher, "RUN_SECONDS_MIN", CALL_SECONDS / 2)
        monkeypatch.setattr(command_batcher, "EXPIRY_INTERVAL_SECONDS", CALL_SECONDS / 20)
        monkeypatch.setattr(connection, "CANCEL_SECONDS_MAX", CALL_SECONDS / 10)
        monkeypatch.setattr(connection, "CLOSE_SECONDS_MAX", CALL_SECONDS / 4)

    return shorten


async def errors_of(calls: list[Awaitable[object]]) -> list[IngotError]:
    """Wait until all calls have ended, and return their errors."""
    async with asyncio.timeout(SECONDS_MAX):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, IngotError) for result in results), results
    return [result for result in results if isinstance(result, IngotError)]


async def until_listening(cluster: PostgresCluster) -> None:
    """Wait until a store listens to notifications."""
    async with cluster.owner() as owner:

        async def is_listening() -> bool:
            return bool(await owner.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"))

        await eventually(is_listening)


# -- campaign ---------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("seconds", OUTAGE_SECONDS)
@pytest.mark.parametrize("outage", OUTAGES)
async def test_work_continues_after_an_outage_and_nothing_is_lost(
    short_calls: Callable[[], None], outage: Outage, seconds: float
) -> None:
    seed = random.randrange(2**32)
    if not campaigns.IS_WHOLE:
        short_calls()

    async def have_outage(fault_run: FaultRun) -> None:
        await proxy.begin(outage)
        await asyncio.sleep(seconds)
        await proxy.end()

    async with open_cluster() as own_cluster, open_outage_proxy(own_cluster.server.folder) as proxy:
        fault_run = await run_with_fault(
            own_cluster, have_outage, seed=seed, url=proxy.url, recovered_share=REGAINED_SHARE
        )
    recorder, slowest = fault_run.recorder, fault_run.recorder.slowest_seconds
    errors = Counter(call.error for call in recorder.history().calls.values() if call.error or not call.acked)
    print(
        f"{outage.value} for {seconds:g} s, seed {seed}: {recorder.acked} acknowledged calls, {dict(errors)}, "
        f"slowest call {slowest:.1f} s, {fault_run.before:.0f} jobs/s before, {fault_run.after:.0f} within "
        f"{fault_run.recovery_seconds:.0f} s after"
    )
    if campaigns.IS_WHOLE:
        assert slowest <= SLOWEST_CALL_SECONDS_MAX
        assert fault_run.recovery_seconds <= RECOVERY_SECONDS_MAX


# -- batches ----------------------------------------------------------------------------------------------------


async def test_every_command_of_a_batch_gets_the_error_of_a_refusing_server(
    remote: RemoteStore, short_calls: Callable[[], None]
) -> None:
    short_calls()
    await remote.proxy.begin(Outage.REFUSE)
    await eventually(lambda: remote.store.database.pool.get_size() == 0)
    errors = await errors_of([remote.jobs.enqueue(remote.tenant, "noop") for _ in range(CALLS)])
    assert {error.code for error in errors} == {StoreError.code}
    assert len(set(map(id, errors))) == CALLS
    await remote.proxy.end()
    assert await remote.stored_jobs() == []
    await remote.jobs.enqueue(remote.tenant, "noop")


async def test_commands_behind_hung_batches_are_not_sent(remote: RemoteStore, short_calls: Callable[[], None]) -> None:
    await remote.jobs.enqueue(remote.tenant, "first")
    short_calls()
    await remote.proxy.begin(Outage.STALL)
    hung: list[Awaitable[object]] = []
    for _ in range(IN_FLIGHT_MAX):
        hung.append(asyncio.ensure_future(remote.jobs.enqueue(remote.tenant, "hung")))
        await asyncio.sleep(0.01)  # Each call has a batch of its own.
    queued = [remote.jobs.enqueue(remote.tenant, "queued") for _ in range(CALLS)]
    errors = await errors_of([*hung, *queued])
    assert {error.code for error in errors[IN_FLIGHT_MAX:]} == {StoreBusy.code}
    # One of the hung calls was sent on the connection that was open. The others wait for new connections.
    codes = Counter(error.code for error in errors[:IN_FLIGHT_MAX])
    assert codes == {OutcomeUnknown.code: 1, StoreError.code: IN_FLIGHT_MAX - 1}
    await remote.proxy.end()
    await remote.jobs.enqueue(remote.tenant, "last")
    async with asyncio.timeout(SECONDS_MAX):
        await use_all_connections(remote.store)
    assert "queued" not in {job.type for job in await remote.stored_jobs()}


async def test_a_batch_reports_the_commands_that_were_created_before_the_outage(
    stallable: RemoteStore, short_calls: Callable[[], None]
) -> None:
    """The batch creates the new job first, and looks up the existing one in a later call, which stalls."""
    await stallable.jobs.enqueue(stallable.tenant, "noop", 1, idempotency_key="existing")
    short_calls()
    stallable.proxy.stall(Part.REQUEST, "ingot.resolve_orders(")
    new, existing = await asyncio.gather(
        stallable.jobs.enqueue(stallable.tenant, "other"),
        stallable.jobs.enqueue(stallable.tenant, "noop", 1, idempotency_key="existing"),
        return_exceptions=True,
    )
    assert isinstance(existing, OutcomeUnknown)
    assert not isinstance(new, BaseException)
    assert new.job.id in {job.id for job in await stallable.stored_jobs()}


async def test_a_command_whose_first_call_has_written_has_an_unknown_outcome(
    stallable: RemoteStore, short_calls: Callable[[], None]
) -> None:
    """A change of a tenant is followed by a read, which stalls."""
    short_calls()
    stallable.proxy.stall(Part.NOTHING, "ingot.find_tenants(")
    (error,) = await errors_of([stallable.store.run(ChangeTenant(id=stallable.tenant, weight=2, act=Act()))])
    assert error.code == OutcomeUnknown.code


# -- stalls at a statement --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "part"),
    [
        *(("enqueue", part) for part in Part),
        *(("cancel", part) for part in Part),
        ("claim", Part.REQUEST),
        ("settle", Part.HALF_OF_RESPONSE),
        ("heartbeat", Part.REQUEST),
    ],
)
async def test_a_write_that_stalls_has_an_unknown_outcome(
    stallable: RemoteStore, short_calls: Callable[[], None], verb: str, part: Part
) -> None:
    type = f"own-{stallable.tenant}"
    job = (await stallable.jobs.enqueue(stallable.tenant, type)).job
    if verb in ("settle", "heartbeat"):
        (claim,) = await stallable.jobs.claim("w", [type], tenant=stallable.tenant)
    jobs: Jobs = stallable.jobs
    calls: dict[str, tuple[str, Callable[[], Awaitable[object]]]] = {
        "enqueue": ("ingot.enqueue(", lambda: jobs.enqueue(stallable.tenant, "noop")),
        "claim": ("ingot.claim(", lambda: jobs.claim("w", [type], tenant=stallable.tenant)),
        "settle": ("ingot.settle(", lambda: jobs.settle(job.id, claim.fence, Done(result=b"1"))),
        "heartbeat": ("ingot.renew(", lambda: jobs.heartbeat(job.id, claim.fence)),
        "cancel": ("COMMIT", lambda: jobs.cancel(stallable.tenant, job.id)),
    }
    text, call = calls[verb]
    short_calls()
    stallable.proxy.stall(part, text)
    (error,) = await errors_of([call()])
    assert error.code == OutcomeUnknown.code
    stallable.proxy.end_stall()
    jobs_after = {job.id: job for job in await stallable.stored_jobs()}
    is_done = part is not Part.NOTHING
    after: dict[str, bool] = {
        "enqueue": len(jobs_after) == 2,
        "claim": jobs_after[job.id].status is JobStatus.RUNNING,
        "settle": jobs_after[job.id].status is JobStatus.SUCCEEDED,
        "heartbeat": is_done,
        "cancel": jobs_after[job.id].status is JobStatus.CANCELED,
    }
    assert after[verb] is is_done


@pytest.mark.parametrize(
    ("verb", "text", "part"),
    [
        ("get", "SET LOCAL", Part.NOTHING),
        ("get", "job_rows", Part.HALF_OF_RESPONSE),
        ("get", "COMMIT", Part.REQUEST),
        ("list", "SET LOCAL", Part.REQUEST),
        ("key", "ingot.open_key(", Part.REQUEST),
        ("blob", "ingot.open_blob(", Part.REQUEST),
        ("metrics", "ingot.blob_metrics(", Part.REQUEST),
        ("depths", "ingot.queue_depths(", Part.REQUEST),
        ("tenant", "ingot.find_tenants(", Part.REQUEST),
        ("events", "COMMIT", Part.REQUEST),
    ],
)
async def test_a_read_that_stalls_never_has_an_unknown_outcome(
    stallable: RemoteStore, short_calls: Callable[[], None], verb: str, text: str, part: Part
) -> None:
    store, tenant, jobs = stallable.store, stallable.tenant, stallable.jobs
    job = (await jobs.enqueue(tenant, "noop")).job
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "get": lambda: jobs.get(tenant, job.id),
        "list": lambda: jobs.list(tenant),
        "key": lambda: store.run(OpenKey(tenant=tenant, key="a")),
        "blob": lambda: store.run(FindBlob(tenant=tenant, blob_id="0" * 64)),
        "metrics": lambda: store.run(GetBlobMetrics()),
        "depths": jobs.depths,
        "tenant": lambda: Tenants(store).get("elsewhere"),
        "events": lambda: Events(store).read(tenant),
    }
    short_calls()
    stallable.proxy.stall(part, text)
    (error,) = await errors_of([calls[verb]()])
    assert error.code == StoreError.code


async def test_a_claim_ends_while_maintenance_hangs(remote: RemoteStore, short_calls: Callable[[], None]) -> None:
    lane_cache = remote.store.lane_cache
    short_calls()
    await remote.proxy.begin(Outage.STALL)
    for _ in range(2):
        lane_cache.notify_jobs_ended(["0190a000-0000-7000-8000-000000000000"], ())
    lane_cache.polled_at = 0.0
    (error,) = await errors_of([remote.jobs.claim("w", ["noop"], tenant=remote.tenant)])
    assert error.code in (StoreBusy.code, StoreError.code)


async def test_maintenance_ends_while_dependents_are_released(
    remote: RemoteStore, short_calls: Callable[[], None]
) -> None:
    async def end_jobs() -> None:
        while True:
            remote.store.lane_cache.notify_jobs_ended(["0190a000-0000-7000-8000-000000000000"], ())
            await asyncio.sleep(CALL_SECONDS / 10)

    short_calls()
    await remote.proxy.begin(Outage.STALL)
    ending = asyncio.create_task(end_jobs())
    try:
        (error,) = await errors_of([remote.jobs.maintain()])
    finally:
        ending.cancel()
    assert error.code == StoreBusy.code


@pytest.mark.parametrize("outage", Outage)
async def test_a_store_closes_during_an_outage(
    cluster: PostgresCluster, short_calls: Callable[[], None], outage: Outage
) -> None:
    async with open_outage_proxy(cluster.server.folder) as proxy:
        store = await PostgresStore.open(proxy.url, clock=SystemClock(), lease_seconds=60.0)
        tenant = (await Tenants(store).create(f"t-{random.randrange(2**32)}")).id
        store.listener.start()
        await until_listening(cluster)
        jobs = Jobs(store, lease_seconds=60.0)
        short_calls()
        await proxy.begin(outage)
        calls = [asyncio.ensure_future(jobs.enqueue(tenant, "noop")) for _ in range(CALLS)]
        await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS_MAX):
            await store.close()
        assert all(call.done() for call in calls)
        await errors_of(list(calls))
        await proxy.end()


async def test_canceled_calls_return_their_connections_during_a_stall(
    remote: RemoteStore, short_calls: Callable[[], None]
) -> None:
    job = (await remote.jobs.enqueue(remote.tenant, "noop")).job
    short_calls()
    await remote.proxy.begin(Outage.STALL)
    calls = [asyncio.ensure_future(remote.jobs.get(remote.tenant, job.id)) for _ in range(CALLS)]
    await asyncio.sleep(0.05)
    for call in calls:
        call.cancel()
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.wait(calls)
    await remote.proxy.end()
    await use_all_connections(remote.store)


async def test_the_listener_continues_after_a_stall(cluster: PostgresCluster, short_calls: Callable[[], None]) -> None:
    async with open_outage_proxy(cluster.server.folder) as proxy, cluster.store(proxy.url) as store:
        store.listener.start()
        await until_listening(cluster)
        short_calls()
        await proxy.begin(Outage.STALL)
        await eventually(lambda: store.database.lost_at is not None)
        await proxy.end()
        stopped_at = store.lane_cache.polled_at
        await eventually(lambda: store.database.lost_at is None and store.lane_cache.polled_at > stopped_at)


async def test_a_stall_does_not_count_as_the_cost_of_a_poll(remote: RemoteStore) -> None:
    """Polls are repeated after fifty times their cost; a stall must not stop them for minutes."""
    lane_cache = remote.store.lane_cache
    await remote.proxy.begin(Outage.STALL)
    polling = asyncio.ensure_future(maintenance.poll(remote.store.database, lane_cache))
    await asyncio.sleep(0.3)
    await remote.proxy.end()
    await polling
    assert lane_cache.poll_cost_seconds >= 0.3
    assert lane_cache.poll_interval_seconds < 5


# -- opening ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outage", Outage)
async def test_an_error_at_opening_names_the_server(
    cluster: PostgresCluster, short_calls: Callable[[], None], monkeypatch: pytest.MonkeyPatch, outage: Outage
) -> None:
    short_calls()
    monkeypatch.setattr(connection, "CALL_SECONDS_MAX", CALL_SECONDS)  # Of the first connection.
    async with open_outage_proxy(cluster.server.folder) as proxy:
        await proxy.begin(outage)
        with pytest.raises(StoreError, match=f"127.0.0.1:{proxy.port}/ingot") as caught:
            await PostgresStore.open(proxy.url, clock=SystemClock(), lease_seconds=60.0)
        assert (caught.value.code, caught.value.status) == (StoreError.code, 503)


@pytest.mark.parametrize("text", ["pg_roles", "ingot.migrations", "ingot.at_home", "ingot.poll("])
async def test_a_connection_that_is_lost_during_opening_is_replaced(
    cluster: PostgresCluster, proxy_folder: Path, text: str
) -> None:
    async with open_proxy(proxy_folder, cluster.server.folder) as proxy:
        proxy.lose(Loss.RESPONSE, text)
        async with cluster.store(f"postgresql://ingot_server@/ingot?host={proxy_folder}"):
            assert proxy.losses == 1


@pytest.mark.parametrize("text", ["pg_roles", "ingot.migrations", "ingot.poll("])
async def test_connections_that_are_lost_for_ever_during_opening_are_reported(
    cluster: PostgresCluster, proxy_folder: Path, short_calls: Callable[[], None], text: str
) -> None:
    async with open_proxy(proxy_folder, cluster.server.folder) as proxy:

        async def shut_down() -> None:
            short_calls()
            proxy.is_down = True

        short_calls()
        proxy.lose(Loss.RESPONSE, text, meanwhile=shut_down)
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            await PostgresStore.open(
                f"postgresql://ingot_server@/ingot?host={proxy_folder}", clock=SystemClock(), lease_seconds=60.0
            )
        assert caught.value.status == 503


@pytest.mark.parametrize("text", ["pg_roles", "CREATE SCHEMA", "obj_description"])
async def test_a_connection_that_is_lost_during_a_migration_is_reported(
    cluster: PostgresCluster, proxy_folder: Path, text: str
) -> None:
    async with open_proxy(proxy_folder, cluster.server.folder) as proxy:
        proxy.lose(Loss.RESPONSE, text)
        with pytest.raises(StoreError, match="cannot be migrated") as caught:
            await migrate(f"postgresql://postgres@/ingot?host={proxy_folder}")
        assert (proxy.losses, caught.value.status) == (1, 503)


# -- workers with a role ----------------------------------------------------------------------------------------


async def test_every_call_of_a_worker_with_a_role_ends_during_a_stall(
    cluster: PostgresCluster, short_calls: Callable[[], None]
) -> None:
    database = Database(cluster.server.url, DATABASE)
    async with cluster.store() as store, open_outage_proxy(cluster.server.folder) as proxy:
        tenant = (await Tenants(store).create(f"t-{random.randrange(2**32)}")).id
        job = (await Jobs(store, lease_seconds=60.0).enqueue(tenant, "direct")).job
        async with worker_role(database, tenant) as role_url:
            login = role_url.partition("://")[2].partition("@")[0]
            worker = await WorkerDatabase.open(
                proxy.url.replace("ingot_server", login), instance="1", lease=60 * MICROS, connections=2
            )
            await worker.register(["direct"])
            short_calls()
            await proxy.begin(Outage.STALL)
            errors = await errors_of(
                [
                    worker.claim("direct", 1),
                    worker.heartbeat([]),
                    worker.settle([(job.id, 1, "succeeded", True, 0, None, None, None)]),
                    worker.append_logs([LogEntry(job_id=job.id, fence=1, text="a", offset=0)]),
                    worker.read_status([]),
                    worker.ready_types(["direct"]),
                    worker.unregister(),
                ]
            )
            assert {error.code for error in errors} <= {StoreError.code, OutcomeUnknown.code}
            async with asyncio.timeout(SECONDS_MAX):
                await worker.close()
            await proxy.end()


async def test_a_claim_of_a_worker_with_a_role_has_one_deadline(
    cluster: PostgresCluster, short_calls: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(cluster.server.url, DATABASE)
    async with cluster.store() as store, open_outage_proxy(cluster.server.folder) as proxy:
        tenant = (await Tenants(store).create(f"t-{random.randrange(2**32)}")).id
        async with worker_role(database, tenant) as role_url:
            login = role_url.partition("://")[2].partition("@")[0]
            worker = await WorkerDatabase.open(
                proxy.url.replace("ingot_server", login), instance="1", lease=60 * MICROS, connections=2
            )
            short_calls()
            monkeypatch.setattr(command_scope, "CALL_SECONDS_MAX", CLAIM_SECONDS)
            monkeypatch.setattr(worker_database, "SCHEMA_CHECK_SECONDS", 0.0)
            await proxy.begin(Outage.STALL)
            started_at = time.monotonic()
            await errors_of([worker.claim("direct", 1)])
            # The check of the schema stalls before the claim.
            assert CLAIM_SECONDS <= time.monotonic() - started_at < 2 * CLAIM_SECONDS
            await proxy.end()
            await worker.close()


# -- HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def served_behind_proxy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[OutageProxy, Served]]:
    """A server whose database connections can have an outage. No other test uses its database."""
    folder = tmp_path_factory.mktemp("served")
    async with (
        open_cluster() as cluster,
        open_outage_proxy(cluster.server.folder) as proxy,
        serving(folder, Settings(database_url=proxy.url)) as served,
    ):
        with event_loop.lasting_tasks():
            yield proxy, served


@pytest.mark.parametrize("outage", Outage)
async def test_requests_during_an_outage_get_503_with_a_delay_and_a_hint_for_the_caller(
    served_behind_proxy: tuple[OutageProxy, Served], short_calls: Callable[[], None], outage: Outage
) -> None:
    proxy, served = served_behind_proxy
    job = await served.make_job()
    short_calls()
    await proxy.begin(outage)
    writes = [served.call("POST", "/jobs", json={"type": "noop"}) for _ in range(CALLS)]
    reads = [served.call("GET", path) for path in ("/jobs", f"/jobs/{job['id']}", "/jobs/summary", "/keys")]
    async with asyncio.timeout(SECONDS_MAX):
        answers = await asyncio.gather(*writes, *reads)
    for answer in answers:
        problem = answer.json()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
        assert not any(word in problem["detail"] + problem["hint"] for word in OPERATOR_WORDS), problem
    assert {answer.json()["code"] for answer in answers[CALLS:]} <= {StoreError.code, StoreBusy.code}
    await proxy.end()

    async def is_served() -> bool:
        return (await served.call("POST", "/jobs", json={"type": "noop"})).status_code == 201

    await eventually(is_served)


async def test_a_caller_does_not_learn_how_the_database_is_misconfigured(
    served_behind_proxy: tuple[OutageProxy, Served], logs: list[EventDict]
) -> None:
    proxy, served = served_behind_proxy
    owner = await asyncpg.connect(proxy.url.replace("ingot_server", "postgres"))
    try:
        await owner.execute("ALTER ROLE ingot_server NOLOGIN")
        await owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ingot_server'")
        await served.call("POST", "/jobs", json={"type": "noop"})  # Its connection may be lost after it was sent.
        answer = await served.call("POST", "/jobs", json={"type": "noop"})
        await owner.execute("ALTER ROLE ingot_server LOGIN")
    finally:
        await owner.close()
    problem = answer.json()
    assert (problem["status"], problem["code"]) == (500, "store_misconfigured")
    assert not any(word in problem["detail"] + problem["hint"] for word in OPERATOR_WORDS), problem
    refused = next(line for line in logs if line["event"] == "request_refused" and line["code"] == problem["code"])
    assert "role" in refused["hint"]
