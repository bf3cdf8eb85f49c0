"""A worker that comes to PostgreSQL with a role of its own: what it says of itself, and who may say it."""

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
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput, StoreError, StoreMisconfigured, StoreTooNew
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
HEAR: Final = "SELECT * FROM ingot.worker_hear('1', 60000000, $1, $2, '{}', '{}')"
LOOK: Final = "SELECT * FROM ingot.worker_look('1', $1, $2)"
APPEND: Final = "SELECT * FROM ingot.worker_append_logs($1, $2, '{words}', '{0}')"
RENEW: Final = "SELECT * FROM ingot.worker_renew($1, $2, '{60000000}', '{50}', '{half}')"
SETTLE: Final = "SELECT * FROM ingot.worker_settle($1, $2, '{released}', NULL, NULL, NULL, NULL, NULL)"


@asynccontextmanager
async def directly(pair: TenantPair, *, instance: str = "1") -> AsyncIterator[WorkerDatabase]:
    """A worker of the first tenant."""
    async with worker_role(pair.database, pair.tenants[0]) as url:
        direct = await WorkerDatabase.open(url, instance=instance, lease=LEASE, connections=2)
        try:
            yield direct
        finally:
            await direct.close()


async def name_of(worker: Raw) -> str:
    return f"{await worker.fetchval('SELECT session_user')}/1"


async def held_by(pair: TenantPair, worker: Raw) -> tuple[list[str], list[int]]:
    """A job that the worker is at work on."""
    await pair.bench.make_job("direct", tenant=pair.tenants[0])
    (row,) = await worker.fetch(CLAIM)
    return [row["id"]], [row["fence"]]


async def storage_keys(worker: Raw, statement: str, *values: Any) -> list[int]:
    return [row["place"] for row in await worker.fetch(statement, *values) if row["place"] is not None]


# -- who speaks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", [0, 1], ids=["same tenant", "other tenant"])
async def test_a_role_has_no_say_in_what_another_does(pair: TenantPair, tenant: int) -> None:
    worker, other = await pair.as_worker(pair.tenants[0]), await pair.as_worker(pair.tenants[tenant])
    for one in (worker, other):
        await one.fetch(REGISTER)
    held = await held_by(pair, worker)
    before = await pair.bench.jobs.get(pair.tenants[0], held[0][0])
    for statement in (HEAR, LOOK, APPEND, RENEW):
        assert await storage_keys(other, statement, *held) == [], statement
    assert await other.fetch(SETTLE, *held) == []
    assert await other.fetchval("SELECT ingot.worker_leave('1')")
    assert await pair.bench.jobs.get(pair.tenants[0], held[0][0]) == before
    names = [one.id for one in (await pair.bench.workers.list(pair.tenants[0])).items]
    assert await name_of(worker) in names
    for statement in (HEAR, LOOK, APPEND, RENEW):
        assert await storage_keys(worker, statement, *held) == [1], statement


async def test_a_settle_of_another_role_is_not_told_to_this_one(pair: TenantPair) -> None:
    worker, other = await pair.as_worker(pair.tenants[0]), await pair.as_worker(pair.tenants[0])
    held = await held_by(pair, worker)
    first = await worker.fetch(SETTLE, *held)
    assert await worker.fetch(SETTLE, *held) == first != []
    assert await other.fetch(SETTLE, *held) == []


async def test_an_instance_does_not_hear_for_another_of_its_role(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.fetch(REGISTER)
    await worker.fetch(REGISTER.replace("'1', '{", "'2', '{"))
    held = await held_by(pair, worker)
    for statement in (HEAR, LOOK):
        assert await storage_keys(worker, statement.replace("'1'", "'2'"), *held) == []
        assert await storage_keys(worker, statement, *held) == [1]


async def test_an_array_that_counts_from_elsewhere_reaches_no_log_of_another(pair: TenantPair) -> None:
    worker, other = await pair.as_worker(pair.tenants[0]), await pair.as_worker(pair.tenants[1])
    (own, *_), (own_fence, *_) = await held_by(pair, worker)
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


async def test_types_in_rows_are_refused(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    with pytest.raises(asyncpg.InvalidParameterValueError, match="one dimension"):
        await worker.fetch("SELECT ingot.worker_register('1', '{{a,b},{c,d}}', NULL, NULL)")


async def test_becoming_the_group_of_workers_changes_no_name(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.execute("SET ROLE ingot_worker")
    await worker.fetch(REGISTER)
    assert (await pair.bench.workers.get(pair.tenants[0], await name_of(worker))).types == ("direct",)


async def test_a_role_and_a_credential_do_not_share_a_name(pair: TenantPair) -> None:
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
async def test_what_is_out_of_bounds_is_refused(pair: TenantPair, statement: str) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.fetch(REGISTER)
    with pytest.raises(asyncpg.DataError):
        await worker.fetch(statement.replace("array_fill(1, ", "array_fill(1::bigint, "))


# -- how it stands ------------------------------------------------------------------------------------------


async def test_a_worker_is_seen_drained_and_gone(pair: TenantPair) -> None:
    tenant, workers = pair.tenants[0], pair.bench.workers
    async with directly(pair) as direct:
        await direct.register(["direct", "other"], version="1.0")
        known = await workers.get(tenant, direct.worker_id)
        role = direct.worker_id.removesuffix("/1")
        assert (known.status, known.types, known.registered_by) == ("online", ("direct", "other"), f"role/{role}")
        await pair.bench.make_job("direct", tenant=tenant)
        await workers.drain(tenant, direct.worker_id)
        assert [(await direct.read_status([])).drain, (await direct.heartbeat([])).drain] == [True, True]
        assert await direct.claim("direct", 10) == []
        await direct.register(["direct"])
        (claim,) = await direct.claim("direct", 10)
        await direct.unregister()
        await direct.unregister()
        back = await pair.bench.reload(claim)
        assert (back.status, back.failures, back.crashes) == (JobStatus.QUEUED, 0, 0)
        assert direct.worker_id not in [one.id for one in (await workers.list(tenant)).items]


async def test_a_handler_sees_all_of_its_job(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    await pair.bench.jobs.define(Definition(type="direct", timeout_seconds=12.5))
    made = await pair.bench.make_job(
        "direct", {"n": 1}, tenant=tenant, tags=["red"], metadata={"of": "it"}, correlation_id="c", trace_id="t",
        dedupe_key="d", batch="b", priority=2,
    )  # fmt: skip
    async with directly(pair) as direct:
        (claim,) = await direct.claim("direct", 1)
        assert claim.timeout_seconds == 12.5
        assert claim.job == await pair.bench.reload(made)


async def test_a_worker_is_told_the_files_of_a_job_and_what_it_made_is_there_when_it_says_so(pair: TenantPair) -> None:
    blobs = BlobFixture(pair.bench, pair.tenants[0])
    store, blob = blobs.store, id_of(b"the same bytes in every tenant")
    order = blobs.order("direct", inputs={"in.txt": blob}, payload_blob=blob)
    await pair.bench.store.run(Enqueue(jobs=[order]))
    async with directly(pair) as direct:
        (claim,) = await direct.claim("direct", 1)
        usual = (True, 0, None, None, None)
        assert (claim.job.inputs, claim.job.payload_blob) == ({"in.txt": blob}, blob)
        for_job: dict[str, Any] = {"job_id": order.id, "fence": claim.fence, "file": "output"}
        begin = blobs.upload_of(order, "out.txt", 4, **for_job)
        await store.run(begin)
        content = content_of(b"1234", begin.storage_key)
        await store.run(FinishUpload(tenant=blobs.tenant, id=begin.id, content=content, lifetime=LEASE))
        assert await direct.settle([(order.id, claim.fence + 1, "succeeded", *usual)]) == {}
        assert [kind for kind, _, _ in await blobs.files(order.id)] == ["input", "payload"]
        answers = await direct.settle([(order.id, claim.fence, "succeeded", *usual)])
        assert await direct.settle([(order.id, claim.fence, "succeeded", *usual)]) == answers != {}
    assert (await blobs.files(order.id))[1] == ("output", "out.txt", id_of(b"1234"))


async def test_what_was_not_named_for_long_is_given_back(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.fetch(REGISTER)
    (named,), (fence,) = await held_by(pair, worker)
    (lost,), _ = await held_by(pair, worker)
    now = await worker.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    for seconds, status in [(10, JobStatus.RUNNING), (20, JobStatus.QUEUED)]:
        await worker.execute(f"SET ingot.now = '{now + seconds * MICROS}'")
        assert await storage_keys(worker, HEAR, [named], [fence]) == [1]
        assert (await pair.bench.jobs.get(pair.tenants[0], lost)).status is status
    assert (await pair.bench.jobs.get(pair.tenants[0], named)).status is JobStatus.RUNNING


async def test_a_log_that_is_sent_again_is_kept_once(pair: TenantPair) -> None:
    job = await pair.bench.make_job("direct", tenant=pair.tenants[0])
    async with directly(pair) as direct:
        (claim,) = await direct.claim("direct", 1)
        for text, offset in [("one\n", 0), ("one\n", 0), ("two\n", 4)]:
            await direct.append_logs([LogEntry(job_id=job.id, fence=claim.fence, text=text, offset=offset)])
    assert (await pair.bench.jobs.log(pair.tenants[0], job.id)).text == "one\ntwo\n"


async def test_what_was_told_is_no_news(pair: TenantPair) -> None:
    """A worker that winds up a job is not answered at once again and again."""
    job = await pair.bench.make_job("direct", tenant=pair.tenants[0])
    async with worker_role(pair.database, pair.tenants[0]) as url:
        board = PostgresJobSource(WorkerLogin(url=url, instance="1", lease_seconds=60))
        try:
            await board.register(["direct"])
            (work,) = await board.claim("direct", limit=1, wait_seconds=0)
            held = [JobHeartbeat(id=job.id, fence=work.job.fence)]
            await pair.bench.jobs.cancel(pair.tenants[0], job.id)
            answer = await board.heartbeat(held, wait_seconds=60)
            assert [(one.cancel_requested, one.lost) for one in answer.jobs] == [(True, False)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(board.heartbeat(held, wait_seconds=60), 2.5)
            await board.leave()
        finally:
            await board.close()


# -- claims -------------------------------------------------------------------------------------------------


async def test_claims_that_begin_behind_the_last_leave_nothing_out(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    # So many that the last claim behind another finds nothing.
    jobs = [await pair.bench.make_job("direct", n, tenant=tenant, priority=3) for n in range(6)]
    async with directly(pair) as direct:
        first = await direct.claim("direct", 2)
        urgent = await pair.bench.make_job("direct", tenant=tenant, priority=1)
        got = [claim.job.id for claim in first]
        while claims := await direct.claim("direct", 2):
            got += [claim.job.id for claim in claims]
    assert sorted(got) == sorted([*(job.id for job in jobs), urgent.id])


async def test_a_key_does_not_wait_behind_work_without_one(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    for n in range(6):
        await pair.bench.make_job("direct", n, tenant=tenant, priority=3)
    async with directly(pair) as direct:
        await direct.claim("direct", 2)
        await pair.bench.jobs.define(Definition(type="direct", limit_key="{key}", max_running_per_key=5))
        keyed = await pair.bench.make_job("direct", {"key": "a"}, tenant=tenant, priority=1)
        assert (await direct.claim("direct", 1))[0].job.id == keyed.id


# -- when things go wrong -----------------------------------------------------------------------------------


async def test_a_result_that_is_refused_costs_no_other_its_settle(pair: TenantPair) -> None:
    jobs = [await pair.bench.make_job("direct", n, tenant=pair.tenants[0]) for n in range(3)]
    async with worker_role(pair.database, pair.tenants[0]) as url:
        board = PostgresJobSource(WorkerLogin(url=url, instance="1", lease_seconds=60))
        try:
            works = await board.claim("direct", limit=3, wait_seconds=0)
            deep = b"[" * 300 + b"]" * 300
            endings = [
                AttemptSucceeded(id=work.job.id, fence=work.job.fence, result=msgspec.Raw(deep if n == 1 else b"1"))
                for n, work in enumerate(works)
            ]
            answers = await board.settle(endings)
        finally:
            await board.close()
    assert [answer.code for answer in answers] == [None, "invalid_input", None]
    statuses = [(await pair.bench.reload(job)).status for job in jobs]
    assert statuses == [JobStatus.SUCCEEDED, JobStatus.RUNNING, JobStatus.SUCCEEDED]


async def test_connections_that_are_cut_are_made_anew(pair: TenantPair) -> None:
    admin = await pair.connect()
    job = await pair.bench.make_job("direct", tenant=pair.tenants[0])
    async with directly(pair) as direct:
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1"
        role = direct.worker_id.removesuffix("/1")
        await direct.register(["direct"])
        (claim,) = await direct.claim("direct", 1)
        assert await admin.fetch(cut, role) != []
        heard = await direct.heartbeat([AttemptHeartbeat(job_id=job.id, fence=claim.fence, lease=0)])
        assert [held.lost for held in heard.jobs] == [False]
        assert await admin.fetch(cut, role) != []
        said = (job.id, claim.fence, "succeeded", True, 0, None, None, None)
        assert (await direct.settle([said]))[0]["status"] == "succeeded"  # type: ignore[index]


async def opened(url: str) -> None:
    direct = await WorkerDatabase.open(url, instance="1", lease=LEASE, connections=1)
    await direct.close()


async def test_who_is_no_worker_is_told_so(pair: TenantPair) -> None:
    with pytest.raises(StoreMisconfigured, match="only for servers") as refused:
        await opened(pair.database.server_url)
    assert "over HTTP" in str(refused.value.hint)
    stranger = await pair.make_role("")
    with pytest.raises(StoreMisconfigured, match="is not a worker role"):
        await opened(with_database(pair.database.owner_url, pair.database.name, stranger))
    homeless = await pair.make_role("IN ROLE ingot_worker")
    with pytest.raises(StoreMisconfigured, match="not a worker of any tenant"):
        await opened(with_database(pair.database.owner_url, pair.database.name, homeless))


async def test_a_database_that_is_not_ours_is_told(pair: TenantPair) -> None:
    role = await pair.make_role("IN ROLE ingot_worker")
    empty = await empty_database()
    with pytest.raises(StoreMisconfigured, match="schema of Ingot"):
        await opened(with_database(empty.owner_url, empty.name, role))
    with pytest.raises(StoreMisconfigured, match="does not exist"):
        await opened(with_database(empty.owner_url, "nowhere", role))


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
async def test_a_database_of_another_version_is_told(
    pair: TenantPair, change: str, undo: str, error: type[StoreError], said: str
) -> None:
    admin = await pair.connect()
    async with worker_role(pair.database, pair.tenants[0]) as url:
        await opened(url)
        await admin.execute(change)
        try:
            with pytest.raises(error, match=said) as refused:
                await opened(url)
        finally:
            await admin.execute(undo)
        assert type(refused.value) is error
        await opened(url)


async def test_a_wrong_password_is_told() -> None:
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
            while "password authentication failed" not in refused:  # Until the server has read its rules anew.
                await asyncio.sleep(0.1)
                with pytest.raises(StoreMisconfigured) as error:
                    await opened(url)
                refused, hint = str(error.value), str(error.value.hint)
        assert "ingot database worker-role" in hint
        assert "wrong" not in refused
