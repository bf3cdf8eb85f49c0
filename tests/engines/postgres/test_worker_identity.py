"""Workers with their own database role: which calls they can make, and for which jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from ingot.blobs.ports import FinishUpload
from ingot.engines.postgres import make_worker_role, migrate
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.worker_database import WorkerDatabase
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.credentials import CredentialExists
from ingot.jobs import Definition, JobStatus
from ingot.jobs.ports import AttemptHeartbeat, Enqueue, LogEntry
from ingot.jobs.worker_model import heartbeat_seconds
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput, StoreError, StoreMisconfigured, StoreTooNew
from ingot.settings import LEASE_SECONDS
from ingot.wire.jobs import AttemptSucceeded
from ingot.wire.workers import JobHeartbeat
from ingot.worker.postgres_job_source import PostgresJobSource, WorkerLogin
from tests.conformance.blob_fixture import BlobFixture, content_of, id_of
from tests.postgres import empty_database, own_server, with_database
from tests.two_tenant_database import TenantPair
from tests.worker_roles import worker_role

LEASE: Final = 60 * MICROS
CLAIM: Final = "SELECT * FROM ingot.worker_claim('{direct}', '1', NULL, NULL, 10, 60000000)"
REGISTER: Final = "SELECT ingot.worker_register('1', '{direct}', 'host', '1.0')"
HEARTBEAT: Final = "SELECT * FROM ingot.worker_hear('1', 60000000, $1, $2, '{}', '{}')"
CHECK: Final = "SELECT * FROM ingot.worker_look('1', $1, $2)"
APPEND: Final = "SELECT * FROM ingot.worker_append_logs($1, $2, '{words}', '{0}')"
RENEW: Final = "SELECT * FROM ingot.worker_renew($1, $2, '{60000000}', '{50}', '{half}')"
SETTLE: Final = "SELECT * FROM ingot.worker_settle($1, $2, '{released}', NULL, NULL, NULL, NULL, NULL)"


@asynccontextmanager
async def open_worker(pair: TenantPair, *, instance: str = "1") -> AsyncIterator[WorkerDatabase]:
    """Open a worker of the first tenant."""
    async with worker_role(pair.database, pair.tenants[0]) as url:
        worker_database = await WorkerDatabase.open(url, instance=instance, lease=LEASE, connections=2)
        try:
            yield worker_database
        finally:
            await worker_database.close()


async def name_of(worker: Raw) -> str:
    return f"{await worker.fetchval('SELECT session_user')}/1"


async def claim_job(pair: TenantPair, worker: Raw) -> tuple[list[str], list[int]]:
    """Make a job, let the worker claim it, and return its ID and fence as lists."""
    await pair.bench.make_job("direct", tenant=pair.tenants[0])
    (row,) = await worker.fetch(CLAIM)
    return [row["id"]], [row["fence"]]


async def storage_keys(worker: Raw, statement: str, *values: Any) -> list[int]:
    return [row["place"] for row in await worker.fetch(statement, *values) if row["place"] is not None]


# -- identity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", [0, 1], ids=["same tenant", "other tenant"])
async def test_a_role_cannot_affect_jobs_of_another_role(pair: TenantPair, tenant: int) -> None:
    worker, other = await pair.as_worker(pair.tenants[0]), await pair.as_worker(pair.tenants[tenant])
    for one in (worker, other):
        await one.fetch(REGISTER)
    held = await claim_job(pair, worker)
    before = await pair.bench.jobs.get(pair.tenants[0], held[0][0])
    for statement in (HEARTBEAT, CHECK, APPEND, RENEW):
        assert await storage_keys(other, statement, *held) == [], statement
    assert await other.fetch(SETTLE, *held) == []
    assert await other.fetchval("SELECT ingot.worker_leave('1')")
    assert await pair.bench.jobs.get(pair.tenants[0], held[0][0]) == before
    names = [one.id for one in (await pair.bench.workers.list(pair.tenants[0])).items]
    assert await name_of(worker) in names
    for statement in (HEARTBEAT, CHECK, APPEND, RENEW):
        assert await storage_keys(worker, statement, *held) == [1], statement


async def test_the_result_of_a_settle_is_not_returned_to_another_role(pair: TenantPair) -> None:
    worker, other = await pair.as_worker(pair.tenants[0]), await pair.as_worker(pair.tenants[0])
    held = await claim_job(pair, worker)
    first = await worker.fetch(SETTLE, *held)
    assert await worker.fetch(SETTLE, *held) == first != []
    assert await other.fetch(SETTLE, *held) == []


async def test_an_instance_cannot_send_heartbeats_for_another_of_its_role(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.fetch(REGISTER)
    await worker.fetch(REGISTER.replace("'1', '{", "'2', '{"))
    held = await claim_job(pair, worker)
    for statement in (HEARTBEAT, CHECK):
        assert await storage_keys(worker, statement.replace("'1'", "'2'"), *held) == []
        assert await storage_keys(worker, statement, *held) == [1]


async def test_an_array_with_another_lower_bound_cannot_reach_logs_of_another_tenant(pair: TenantPair) -> None:
    worker, other = await pair.as_worker(pair.tenants[0]), await pair.as_worker(pair.tenants[1])
    (own, *_), (own_fence, *_) = await claim_job(pair, worker)
    await pair.bench.make_job("direct", tenant=pair.tenants[1])
    (theirs,) = await other.fetch(CLAIM)
    log = APPEND, [theirs["id"]], [theirs["fence"]]
    before = await other.fetch(*log)
    ids, fences = f"[0:1]={{{own},{theirs['id']}}}", f"[0:1]={{{own_fence},{theirs['fence']}}}"
    with pytest.raises(asyncpg.InvalidParameterValueError, match="begin at index 1"):
        await worker.fetch(
            f"SELECT * FROM ingot.worker_append_logs('{ids}', '{fences}', '{{x,y}}', '[0:1]={{0,1000000}}')"
        )
    assert await other.fetch(*log) == before != []


async def test_a_two_dimensional_array_of_types_is_refused(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    with pytest.raises(asyncpg.InvalidParameterValueError, match="one dimension"):
        await worker.fetch("SELECT ingot.worker_register('1', '{{a,b},{c,d}}', NULL, NULL)")


async def test_set_role_does_not_change_the_name_of_a_worker(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.execute("SET ROLE ingot_worker")
    await worker.fetch(REGISTER)
    assert (await pair.bench.workers.get(pair.tenants[0], await name_of(worker))).types == ("direct",)


async def test_a_role_and_a_credential_cannot_have_the_same_name(pair: TenantPair) -> None:
    credentials = Credentials(pair.bench.store, Authenticator(pair.bench.store, pair.bench.clock), pair.bench.clock)
    await credentials.create_worker_credential(pair.tenants[1], "taken")
    with pytest.raises(InvalidInput, match="taken"):
        await make_worker_role(pair.database.owner_url, "taken", pair.tenants[0])
    role = (await name_of(await pair.as_worker(pair.tenants[0]))).removesuffix("/1")
    with pytest.raises(CredentialExists, match="worker role"):
        await credentials.create_worker_credential(pair.tenants[1], role)


BAD: Final = [
    "SELECT ingot.worker_register('', '{direct}', NULL, NULL)",
    "SELECT ingot.worker_register('a/b', '{direct}', NULL, NULL)",
    "SELECT ingot.worker_register(NULL, '{direct}', NULL, NULL)",
    "SELECT ingot.worker_register(repeat('x', 193), '{direct}', NULL, NULL)",
    "SELECT ingot.worker_register('1', '{}', NULL, NULL)",
    "SELECT ingot.worker_register('1', '{NULL}', NULL, NULL)",
    "SELECT ingot.worker_register('1', '{\"no type\"}', NULL, NULL)",
    "SELECT ingot.worker_register('1', array_fill('a'::text, ARRAY[257]), NULL, NULL)",
    "SELECT ingot.worker_register('1', '{direct}', repeat('x', 513), NULL)",
    "SELECT ingot.worker_register('1', '{direct}', NULL, repeat('x', 513))",
    "SELECT * FROM ingot.worker_hear('1', 1, '{}', '{}', '{}', '{}')",
    "SELECT * FROM ingot.worker_hear('1', NULL, '{}', '{}', '{}', '{}')",
    "SELECT * FROM ingot.worker_hear('1', 60000000, NULL, NULL, '{}', '{}')",
    "SELECT * FROM ingot.worker_hear('1', 60000000, '{}', '{1}', '{}', '{}')",
    "SELECT * FROM ingot.worker_hear('1', 60000000, '{}', '{}', '{101}', '{}')",
    "SELECT * FROM ingot.worker_hear('1', 60000000, '{}', '{}', '{}', ARRAY[repeat('x', 201)])",
    "SELECT * FROM ingot.worker_look('1', array_fill(gen_random_uuid(), ARRAY[2]), '{1,1}')",
    "SELECT * FROM ingot.worker_look('1', array_fill(gen_random_uuid(), ARRAY[10001]), array_fill(1, ARRAY[10001]))",
    "SELECT * FROM ingot.worker_append_logs(ARRAY[gen_random_uuid()], '{1}', '{a}', '{NULL}')",
    "SELECT * FROM ingot.worker_append_logs(ARRAY[gen_random_uuid()], '{1}', '{a}', '{-1}')",
    "SELECT * FROM ingot.worker_append_logs(ARRAY[gen_random_uuid()], '{1}', '{}', '{0}')",
    "SELECT * FROM ingot.worker_append_logs(ARRAY[gen_random_uuid()], '{1}', ARRAY[repeat('x', 65537)], '{0}')",
    "SELECT * FROM ingot.worker_ready('{}')",
    "SELECT * FROM ingot.worker_ready(NULL)",
    "SELECT ingot.worker_leave('a/b')",
]


@pytest.mark.parametrize("statement", BAD)
async def test_arguments_out_of_range_are_refused(pair: TenantPair, statement: str) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.fetch(REGISTER)
    with pytest.raises(asyncpg.DataError):
        await worker.fetch(statement.replace("array_fill(1, ", "array_fill(1::bigint, "))


# -- jobs and files -----------------------------------------------------------------------------------------


async def test_a_worker_can_be_read_drained_and_removed(pair: TenantPair) -> None:
    tenant, workers = pair.tenants[0], pair.bench.workers
    async with open_worker(pair) as worker_database:
        await worker_database.register(["direct", "other"], version="1.0")
        registered = await workers.get(tenant, worker_database.worker_id)
        role = worker_database.worker_id.removesuffix("/1")
        assert (registered.status, registered.types, registered.registered_by) == (
            "online",
            ("direct", "other"),
            f"role/{role}",
        )
        await pair.bench.make_job("direct", tenant=tenant)
        await workers.drain(tenant, worker_database.worker_id)
        assert [(await worker_database.read_status([])).drain, (await worker_database.heartbeat([])).drain] == [
            True,
            True,
        ]
        assert await worker_database.claim("direct", 10) == []
        await worker_database.register(["direct"])
        (claim,) = await worker_database.claim("direct", 10)
        await worker_database.unregister()
        await worker_database.unregister()
        released = await pair.bench.reload(claim)
        assert (released.status, released.failures, released.crashes) == (JobStatus.QUEUED, 0, 0)
        assert worker_database.worker_id not in [one.id for one in (await workers.list(tenant)).items]


async def test_a_claim_contains_the_whole_job(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    await pair.bench.jobs.define(Definition(type="direct", timeout_seconds=12.5))
    created = await pair.bench.make_job(
        "direct", {"n": 1}, tenant=tenant, tags=["red"], metadata={"of": "it"}, correlation_id="c", trace_id="t",
        dedupe_key="d", batch="b", priority=2,
    )  # fmt: skip
    async with open_worker(pair) as worker_database:
        (claim,) = await worker_database.claim("direct", 1)
        assert claim.timeout_seconds == 12.5
        assert claim.job == await pair.bench.reload(created)


async def test_a_worker_gets_inputs_and_its_outputs_become_files_when_it_settles(pair: TenantPair) -> None:
    blobs = BlobFixture(pair.bench, pair.tenants[0])
    store, blob = blobs.store, id_of(b"the same bytes in every tenant")
    order = blobs.order("direct", inputs={"in.txt": blob}, payload_blob=blob)
    await pair.bench.store.run(Enqueue(jobs=[order]))
    async with open_worker(pair) as worker_database:
        (claim,) = await worker_database.claim("direct", 1)
        usual = (True, 0, None, None, None)
        assert (claim.job.inputs, claim.job.payload_blob) == ({"in.txt": blob}, blob)
        for_job: dict[str, Any] = {"job_id": order.id, "fence": claim.fence, "file": "output"}
        begin = blobs.upload_of(order, "out.txt", 4, **for_job)
        await store.run(begin)
        content = content_of(b"1234", begin.storage_key)
        await store.run(FinishUpload(tenant=blobs.tenant, id=begin.id, content=content, lifetime=LEASE))
        assert await worker_database.settle([(order.id, claim.fence + 1, "succeeded", *usual)]) == {}
        assert [kind for kind, _, _ in await blobs.files(order.id)] == ["input", "payload"]
        answers = await worker_database.settle([(order.id, claim.fence, "succeeded", *usual)])
        assert await worker_database.settle([(order.id, claim.fence, "succeeded", *usual)]) == answers != {}
    assert (await blobs.files(order.id))[1] == ("output", "out.txt", id_of(b"1234"))


async def test_a_job_not_named_in_heartbeats_of_a_role_is_released(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.fetch(REGISTER)
    (named,), (fence,) = await claim_job(pair, worker)
    (lost,), _ = await claim_job(pair, worker)
    now = await worker.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    for seconds, status in [(10, JobStatus.RUNNING), (20, JobStatus.QUEUED)]:
        await worker.execute(f"SET ingot.now = '{now + seconds * MICROS}'")
        assert await storage_keys(worker, HEARTBEAT, [named], [fence]) == [1]
        assert (await pair.bench.jobs.get(pair.tenants[0], lost)).status is status
    assert (await pair.bench.jobs.get(pair.tenants[0], named)).status is JobStatus.RUNNING


async def test_a_repeated_log_append_is_stored_once(pair: TenantPair) -> None:
    job = await pair.bench.make_job("direct", tenant=pair.tenants[0])
    async with open_worker(pair) as worker_database:
        (claim,) = await worker_database.claim("direct", 1)
        for text, offset in [("one\n", 0), ("one\n", 0), ("two\n", 4)]:
            await worker_database.append_logs([LogEntry(job_id=job.id, fence=claim.fence, text=text, offset=offset)])
    assert (await pair.bench.jobs.log(pair.tenants[0], job.id)).text == "one\ntwo\n"


async def test_a_worker_with_long_leases_sends_heartbeats_as_often_as_servers_expect(pair: TenantPair) -> None:
    async with worker_role(pair.database, pair.tenants[0]) as url:
        job_source = PostgresJobSource(WorkerLogin(url=url, instance="1", lease_seconds=600))
        try:
            assert await job_source.register(["direct"]) == heartbeat_seconds(LEASE_SECONDS)
        finally:
            await job_source.close()


async def test_a_reported_cancel_request_does_not_end_the_next_heartbeat(pair: TenantPair) -> None:
    """Otherwise the heartbeats of a worker that stops a job would never wait."""
    job = await pair.bench.make_job("direct", tenant=pair.tenants[0])
    async with worker_role(pair.database, pair.tenants[0]) as url:
        job_source = PostgresJobSource(WorkerLogin(url=url, instance="1", lease_seconds=60))
        try:
            await job_source.register(["direct"])
            (work,) = await job_source.claim("direct", limit=1, wait_seconds=0)
            held = [JobHeartbeat(id=job.id, fence=work.job.fence)]
            await pair.bench.jobs.cancel(pair.tenants[0], job.id)
            answer = await job_source.heartbeat(held, wait_seconds=60)
            assert [(one.cancel_requested, one.lost) for one in answer.jobs] == [(True, False)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job_source.heartbeat(held, wait_seconds=60), 2.5)
            await job_source.leave()
        finally:
            await job_source.close()


# -- claims -------------------------------------------------------------------------------------------------


async def test_claims_that_start_after_the_last_one_skip_no_job(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    # Enough jobs that the last claim after another finds none.
    jobs = [await pair.bench.make_job("direct", n, tenant=tenant, priority=3) for n in range(6)]
    async with open_worker(pair) as worker_database:
        first = await worker_database.claim("direct", 2)
        urgent = await pair.bench.make_job("direct", tenant=tenant, priority=1)
        claimed_ids = [claim.job.id for claim in first]
        while claims := await worker_database.claim("direct", 2):
            claimed_ids += [claim.job.id for claim in claims]
    assert sorted(claimed_ids) == sorted([*(job.id for job in jobs), urgent.id])


async def test_an_urgent_job_with_a_limit_key_is_claimed_before_jobs_without_one(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    for n in range(6):
        await pair.bench.make_job("direct", n, tenant=tenant, priority=3)
    async with open_worker(pair) as worker_database:
        await worker_database.claim("direct", 2)
        await pair.bench.jobs.define(Definition(type="direct", limit_key="{key}", max_running_per_key=5))
        keyed = await pair.bench.make_job("direct", {"key": "a"}, tenant=tenant, priority=1)
        assert (await worker_database.claim("direct", 1))[0].job.id == keyed.id


# -- errors -------------------------------------------------------------------------------------------------


async def test_an_invalid_result_does_not_affect_other_settles(pair: TenantPair) -> None:
    jobs = [await pair.bench.make_job("direct", n, tenant=pair.tenants[0]) for n in range(3)]
    async with worker_role(pair.database, pair.tenants[0]) as url:
        job_source = PostgresJobSource(WorkerLogin(url=url, instance="1", lease_seconds=60))
        try:
            works = await job_source.claim("direct", limit=3, wait_seconds=0)
            deep = b"[" * 300 + b"]" * 300
            endings = [
                AttemptSucceeded(id=work.job.id, fence=work.job.fence, result=msgspec.Raw(deep if n == 1 else b"1"))
                for n, work in enumerate(works)
            ]
            answers = await job_source.settle(endings)
        finally:
            await job_source.close()
    assert [answer.code for answer in answers] == [None, "invalid_input", None]
    statuses = [(await pair.bench.reload(job)).status for job in jobs]
    assert statuses == [JobStatus.SUCCEEDED, JobStatus.RUNNING, JobStatus.SUCCEEDED]


async def test_terminated_connections_are_reopened(pair: TenantPair) -> None:
    admin = await pair.connect()
    job = await pair.bench.make_job("direct", tenant=pair.tenants[0])
    async with open_worker(pair) as worker_database:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1"
        role = worker_database.worker_id.removesuffix("/1")
        await worker_database.register(["direct"])
        (claim,) = await worker_database.claim("direct", 1)
        assert await admin.fetch(cut, role) != []
        answer = await worker_database.heartbeat([AttemptHeartbeat(job_id=job.id, fence=claim.fence, lease=0)])
        assert [held.lost for held in answer.jobs] == [False]
        assert await admin.fetch(cut, role) != []
        said = (job.id, claim.fence, "succeeded", True, 0, None, None, None)
        assert (await worker_database.settle([said]))[0]["status"] == "succeeded"  # type: ignore[index]


async def open_and_close(url: str) -> None:
    worker_database = await WorkerDatabase.open(url, instance="1", lease=LEASE, connections=1)
    await worker_database.close()


async def test_a_role_that_is_not_a_worker_is_refused(pair: TenantPair) -> None:
    with pytest.raises(StoreMisconfigured, match="only for servers") as refused:
        await open_and_close(pair.database.server_url)
    assert "over HTTP" in str(refused.value.hint)
    without_membership = await pair.make_role("")
    with pytest.raises(StoreMisconfigured, match="is not a worker role"):
        await open_and_close(with_database(pair.database.owner_url, pair.database.name, without_membership))
    without_tenant = await pair.make_role("IN ROLE ingot_worker")
    with pytest.raises(StoreMisconfigured, match="not a worker of any tenant"):
        await open_and_close(with_database(pair.database.owner_url, pair.database.name, without_tenant))


async def test_a_database_without_the_schema_is_refused(pair: TenantPair) -> None:
    role = await pair.make_role("IN ROLE ingot_worker")
    empty = await empty_database()
    with pytest.raises(StoreMisconfigured, match="schema of Ingot"):
        await open_and_close(with_database(empty.owner_url, empty.name, role))
    with pytest.raises(StoreMisconfigured, match="does not exist"):
        await open_and_close(with_database(empty.owner_url, "nowhere", role))


NEWEST: Final = "(SELECT max(number) FROM ingot.migrations)"
VERSIONS: Final = [
    (
        "INSERT INTO ingot.migrations VALUES (9999, 'later')",
        "DELETE FROM ingot.migrations WHERE number = 9999",
        StoreTooNew,
        "is at schema 9999; this program supports up to",
    ),
    (
        f"UPDATE ingot.migrations SET number = -number WHERE number = {NEWEST}",
        "UPDATE ingot.migrations SET number = -number WHERE number < 0",
        StoreMisconfigured,
        "is at schema [0-9]+; this program needs schema",
    ),
    (
        "ALTER FUNCTION ingot.worker_hello RENAME TO worker_hallo",
        "ALTER FUNCTION ingot.worker_hallo RENAME TO worker_hello",
        StoreMisconfigured,
        "is older than this program",
    ),
]


@pytest.mark.parametrize(("change", "undo", "error", "said"), VERSIONS, ids=["newer", "older", "much older"])
async def test_a_database_of_another_schema_version_is_refused(
    pair: TenantPair, change: str, undo: str, error: type[StoreError], said: str
) -> None:
    admin = await pair.connect()
    async with worker_role(pair.database, pair.tenants[0]) as url:
        await open_and_close(url)
        await admin.execute(change)
        try:
            with pytest.raises(error, match=said) as refused:
                await open_and_close(url)
        finally:
            await admin.execute(undo)
        assert type(refused.value) is error
        await open_and_close(url)


async def test_a_wrong_password_is_reported() -> None:
    with own_server(fresh=True) as server:
        await migrate(server.url)
        owner = await asyncpg.connect(server.url)
        await owner.execute("CREATE ROLE worker LOGIN PASSWORD 'right' IN ROLE ingot_worker")
        (server.folder / "data" / "pg_hba.conf").write_text(
            "local all postgres trust\nlocal all all scram-sha-256\n", encoding="utf-8"
        )
        await owner.execute("SELECT pg_reload_conf()")
        await owner.close()
        url = with_database(server.url, "postgres", "worker:wrong")
        refused = hint = ""
        async with asyncio.timeout(30):
            while "password authentication failed" not in refused:  # Retry until the server has reloaded pg_hba.conf.
                await asyncio.sleep(0.1)
                with pytest.raises(StoreMisconfigured) as error:
                    await open_and_close(url)
                refused, hint = str(error.value), str(error.value.hint)
        assert "ingot database worker-role" in hint
        assert "wrong" not in refused
