"""Workers connected to PostgreSQL directly: limited to their tenant, and to valid arguments."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.connection import Record
from ingot.engines.postgres.job_rows import EventEntryRow
from ingot.jobs import Definition, JobStatus
from ingot.jobs.checks import CLAIM_SCAN_MAX, ERROR_CHARS_MAX
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Claim
from ingot.jobs.ports import Enqueue
from ingot.kernel.errors import StoreBusy
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import BlobFixture, id_of
from tests.factories import LEASE_SECONDS
from tests.two_tenant_database import TenantPair, is_refused, store_with_one_connection, tables_of

CLAIM: Final = "SELECT * FROM ingot.worker_claim($1, 'direct', NULL, NULL, $2, 60000000)"
RENEW: Final = "SELECT * FROM ingot.worker_renew($1, $2, '{60000000}', '{50}', '{half}')"
SETTLE: Final = "SELECT * FROM ingot.worker_settle($1, $2, '{succeeded}', '{t}', '{0}', '{NULL}', '{NULL}', '{NULL}')"


async def worker_role(worker: Raw) -> str:
    return str(await worker.fetchval("SELECT session_user"))


async def make_claim_of(pair: TenantPair, worker: Raw, type: str = "mine") -> Claim:
    """Make a job, and claim it as the worker."""
    return await pair.bench.make_claim(type, worker=f"{await worker_role(worker)}/w", tenant=pair.tenants[0])


async def test_a_worker_role_can_claim_renew_and_settle_jobs_of_its_tenant(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    jobs = [await pair.bench.make_job("direct", n, tenant=tenant) for n in range(3)]
    worker = await pair.as_worker(tenant)
    rows = await worker.fetch(CLAIM, ["direct"], 2)
    assert [(row["id"], row["payload"]) for row in rows] == [(jobs[0].id, b"0"), (jobs[1].id, b"1")]
    claimed = [rows[0]["id"]], [rows[0]["fence"]]
    (renewed,) = await worker.fetch(RENEW, *claimed)
    assert (renewed["place"], renewed["cancel_requested"]) == (1, False)
    (settled,) = await worker.fetch(SETTLE, *claimed)
    assert (settled["place"], settled["status"]) == (1, "succeeded")
    statuses = [(await pair.bench.reload(job)).status for job in jobs]
    assert statuses == [JobStatus.SUCCEEDED, JobStatus.RUNNING, JobStatus.QUEUED]


async def test_a_worker_role_gets_jobs_with_limit_keys_within_their_limits(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    await pair.bench.jobs.define(Definition(type="keyed", limit_key="{key}", max_running_per_key=1))
    jobs = [
        await pair.bench.make_job("keyed", {"key": key}, tenant=tenant, priority=p)
        for key, p in [("a", 3), ("b", 2), ("a", 1)]
    ]
    worker = await pair.as_worker(tenant)
    rows = await worker.fetch(CLAIM, ["keyed"], 10)
    assert [row["id"] for row in rows] == [jobs[2].id, jobs[1].id]
    assert await worker.fetch(CLAIM, ["keyed"], 10) == []
    reasons = (await pair.bench.jobs.explain(tenant, jobs[0].id)).reasons
    assert [reason.code for reason in reasons] == ["key_limit", "in_line"]
    await worker.fetch(SETTLE, [rows[0]["id"]], [rows[0]["fence"]])
    assert [row["id"] for row in await worker.fetch(CLAIM, ["keyed"], 10)] == [jobs[0].id]


CLAIM_WITHOUT_FILES: Final = (
    "SELECT * FROM ingot.worker_claim($1, 'direct', NULL, NULL, $2, 60000000, with_files => false)"
)


async def test_a_claim_without_files_leaves_jobs_with_files_to_other_workers(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    await pair.bench.jobs.define(Definition(type="keyed", limit_key="{key}", max_running_per_key=1))
    blobs = BlobFixture(pair.bench, tenant)
    blob = id_of(b"the same bytes in every tenant")
    with_files = [
        blobs.order("direct", inputs={"a.txt": blob}),
        blobs.order("direct", payload_blob=blob),
        blobs.order("keyed", {"key": "a"}, inputs={"a.txt": blob}),
    ]
    await pair.bench.jobs.enqueue_many(with_files)
    plain = [
        await pair.bench.make_job("direct", tenant=tenant),
        await pair.bench.make_job("keyed", {"key": "a"}, tenant=tenant),
        await pair.bench.make_job("keyed", {"key": "b"}, tenant=tenant),
    ]
    worker = await pair.as_worker(tenant)
    rows = await worker.fetch(CLAIM_WITHOUT_FILES, ["direct", "keyed"], 10)
    assert {row["id"] for row in rows} == {job.id for job in plain}
    assert await worker.fetch(CLAIM_WITHOUT_FILES, ["direct", "keyed"], 10) == []
    rows = await worker.fetch(CLAIM, ["direct", "keyed"], 10)
    assert [row["id"] for row in rows] == [order.id for order in with_files[:2]], "the limit of key a is reached"


async def test_a_claim_without_files_reads_a_limited_number_of_jobs(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    blobs = BlobFixture(pair.bench, tenant)
    inputs = {"a.txt": id_of(b"the same bytes in every tenant")}
    await pair.bench.jobs.enqueue_many([blobs.order("direct", inputs=inputs) for _ in range(CLAIM_SCAN_MAX)])
    plain = await pair.bench.make_job("direct", tenant=tenant)
    worker = await pair.as_worker(tenant)
    assert await worker.fetch(CLAIM_WITHOUT_FILES, ["direct"], 10) == []
    assert len(await worker.fetch(CLAIM, ["direct"], 1)) == 1
    assert [row["id"] for row in await worker.fetch(CLAIM_WITHOUT_FILES, ["direct"], 10)] == [plain.id]


async def test_only_claims_with_files_count_for_jobs_with_files(pair: TenantPair) -> None:
    tenant = pair.tenants[0]
    blobs = BlobFixture(pair.bench, tenant)
    order = blobs.order("direct", inputs={"a.txt": id_of(b"the same bytes in every tenant")})
    await pair.bench.jobs.enqueue_many([order])
    plain = await pair.bench.make_job("direct", tenant=tenant, delay=60)
    worker = await pair.as_worker(tenant)

    async def codes() -> list[list[str]]:
        explanations = [await pair.bench.jobs.explain(tenant, job_id) for job_id in (order.id, plain.id)]
        return [[reason.code for reason in explanation.reasons] for explanation in explanations]

    assert await codes() == [["no_worker", "in_line"], ["scheduled", "no_worker"]]
    await worker.fetch(CLAIM_WITHOUT_FILES, ["direct"], 10)
    assert await codes() == [["no_worker", "in_line"], ["scheduled"]]
    await worker.fetch(CLAIM, ["direct"], 1)
    assert (await codes())[0] == ["running"]


async def test_a_worker_role_cannot_access_jobs_of_another_tenant(pair: TenantPair) -> None:
    first, second = pair.tenants
    waiting = await pair.bench.make_job("direct", tenant=second)
    claimed = await pair.bench.make_claim("theirs", tenant=second)
    worker = await pair.as_worker(first)
    await worker.execute(f"SET ingot.tenant = '{second}'")
    assert await worker.fetch(CLAIM, ["direct", "noop", "held", "theirs"], 1000) != []
    assert {row[0] for row in await _tenants_of_leases(pair, worker)} == {first}
    for call in (RENEW, SETTLE):
        assert await worker.fetch(call, [claimed.job.id], [claimed.fence]) == []
        assert await worker.fetch(call, [new_id()], [claimed.fence]) == []
    untouched = [await pair.bench.reload(job) for job in (waiting, claimed)]
    assert [job.status for job in untouched] == [JobStatus.QUEUED, JobStatus.RUNNING]
    assert untouched[1].progress is None
    await pair.bench.jobs.complete(claimed)


async def _tenants_of_leases(pair: TenantPair, worker: Raw) -> list[Record]:
    admin, name = await pair.connect(), f"{await worker_role(worker)}/direct"
    return await admin.fetch("SELECT tenant::text FROM ingot.leases WHERE worker_id = $1", name)


async def test_a_worker_role_needs_the_current_fence_of_its_job(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    for fence in (claim.fence - 1, claim.fence + 1, 0, -1):
        for call in (RENEW, SETTLE):
            assert await worker.fetch(call, [claim.job.id], [fence]) == []
    assert (await worker.fetch(SETTLE, [claim.job.id], [claim.fence]))[0]["status"] == "succeeded"


async def test_a_worker_role_can_read_no_table_and_call_no_other_function(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    await worker.execute(f"SET ingot.tenant = '{pair.tenants[0]}'")
    for name in await tables_of(pair):
        for statement in ("SELECT FROM ingot.{}", "SELECT FROM ingot.{} FOR UPDATE", "COPY (TABLE ingot.{}) TO STDOUT"):
            assert await is_refused(worker, statement.format(name)), statement.format(name)
    claim_for_all = (
        "SELECT * FROM ingot.claim('{noop}', ARRAY[$1::uuid], '{\"\"}', '{0}', '{0}', ARRAY[$1::uuid],"
        " '{9}', '{0}', ARRAY[$1::uuid], '{1}', '{1}', '{1}', '{w}', '{NULL}', '{NULL}', '{1}', '{1}')"
    )
    assert await is_refused(worker, claim_for_all, pair.tenants[0])
    for call in (
        "SELECT ingot.clock()",
        "SELECT * FROM ingot.poll()",
        "SELECT * FROM ingot.find_tenants(NULL, NULL)",
        "SELECT * FROM ingot.find_attempts('{}', '{}')",
        "SELECT ingot.worker_tenant()",
        "SELECT nextval('ingot.fences')",
        "SET ROLE ingot_server",
        "SET ROLE ingot_owner",
    ):
        assert await is_refused(worker, call), call


async def test_a_claim_without_a_limit_loses_no_job(pair: TenantPair) -> None:
    jobs = [await pair.bench.make_job("direct", tenant=pair.tenants[0]) for _ in range(3)]
    worker = await pair.as_worker(pair.tenants[0])
    with suppress(asyncpg.PostgresError):
        await worker.fetch(CLAIM, ["direct"], None)
    admin = await pair.connect()
    query = "SELECT count(*) FROM ingot.job_rows WHERE id = ANY ($1) AND status IN ('queued', 'running')"
    assert await admin.fetchval(query, [job.id for job in jobs]) == 3


async def test_a_worker_role_receives_no_notifications_about_another_tenant(pair: TenantPair) -> None:
    notifications: list[object] = []
    worker = await pair.as_worker(pair.tenants[0])
    await worker.add_listener("ingot_ready", lambda *entries: notifications.append(entries[-1]))
    async with store_with_one_connection(pair) as store:
        await store.listener.run_once()
        store.listener.start()
        await store.run(Enqueue(jobs=[new_job(pair.tenants[1], "secret")]))
    await worker.fetch("SELECT 1 AS after_what_was_told")
    assert [text for text in notifications if pair.tenants[1] in str(text)] == []


async def test_set_role_does_not_change_the_tenant_of_a_worker(pair: TenantPair) -> None:
    first, second = pair.tenants
    await pair.bench.make_job("direct", tenant=second)
    worker = await pair.as_worker(first)
    await worker.execute("SET ROLE ingot_worker")
    assert await worker.fetch(CLAIM, ["direct"], 10) == []


async def test_a_worker_role_without_a_tenant_is_refused(pair: TenantPair) -> None:
    claim = await pair.bench.make_claim("mine", tenant=pair.tenants[0])
    unknown = await pair.connect(await pair.make_role("IN ROLE ingot_worker"))
    assert await is_refused(unknown, CLAIM, ["noop"], 1)
    assert await is_refused(unknown, RENEW, [claim.job.id], [claim.fence])
    assert await is_refused(unknown, SETTLE, [claim.job.id], [claim.fence])
    assert (await pair.bench.reload(claim)).status is JobStatus.RUNNING


async def test_a_worker_role_cannot_shadow_functions_with_its_own(pair: TenantPair) -> None:
    """The temporary schema comes after pg_catalog in the search path of security definer functions."""
    worker = await pair.as_worker(pair.tenants[0])
    await pair.bench.make_job("direct", tenant=pair.tenants[0])
    await worker.execute("CREATE TEMP TABLE worker_roles (role name, tenant uuid)")
    await worker.execute("INSERT INTO worker_roles VALUES ($1, $2)", "x", pair.tenants[1])
    await worker.execute("""
        CREATE FUNCTION pg_temp.cardinality(text[]) RETURNS integer LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'called as %', current_user; END $$
    """)
    assert len(await worker.fetch(CLAIM, ["direct"], 10)) == 1


# -- arguments ----------------------------------------------------------------------------------------------

SETTLE_WITH_ALL_ARGUMENTS: Final = "SELECT * FROM ingot.worker_settle($1, $2, $3, $4, $5, $6, $7, $8)"
GOOD: Final[dict[str, list[Any]]] = {
    "outcomes": ["succeeded"],
    "retries": [True],
    "delays": [0],
    "exit_codes": [None],
    "errors": [None],
    "results": [None],
}
BAD: Final[list[dict[str, list[Any]]]] = [
    {"outcomes": ["lost"]},
    {"outcomes": ["finished"]},
    {"outcomes": [None]},
    {"outcomes": []},
    {"outcomes": ["snoozed"], "delays": [-1]},
    {"outcomes": ["snoozed"], "delays": [2**62]},
    {"outcomes": ["failed"], "exit_codes": [2**60]},
    {"results": [b"not JSON"]},
    {"results": [b"\xff"]},
    {"results": [b"1e400"]},
    {"results": [b'{"a":1e400,"a":2}']},
    {"results": [b'{"a":' + b"[" * 3_000 + b"]" * 3_000 + b',"a":2}']},
    {"results": [b'{"\\ud800":1}']},
    {"results": [b"[" + b"7" * 5_000 + b"]"]},
    {"results": [b'"\\ud800"']},
    {"results": [b"[" * 201 + b"]" * 201]},
    {"results": [b"[" * 30_000 + b"]" * 30_000]},
    {"results": [b"[" + b"1," * 40_000 + b"1]"]},
    {"outcomes": ["failed"], "results": [b"1"]},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad)[:50])
async def test_an_invalid_settle_of_a_worker_role_is_refused(pair: TenantPair, bad: dict[str, list[Any]]) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    with pytest.raises((asyncpg.DataError, asyncpg.CharacterNotInRepertoireError, asyncpg.StatementTooComplexError)):
        await worker.fetch(SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *(GOOD | bad).values())
    assert (await pair.bench.reload(claim)).status is JobStatus.RUNNING
    assert (await worker.fetch(SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *GOOD.values()))[0][
        "status"
    ] == "succeeded"


@pytest.mark.parametrize(
    ("lease", "percent", "stage"),
    [(0, 1.0, "a"), (2**60, 1.0, "a"), (None, 1.0, "a"), (1, 101.0, "a"), (1, float("nan"), "a"), (1, 1.0, "a" * 201)],
)
async def test_an_invalid_renewal_of_a_worker_role_is_refused(
    pair: TenantPair, lease: int | None, percent: float, stage: str
) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    with pytest.raises(asyncpg.DataError):
        await worker.fetch(
            "SELECT * FROM ingot.worker_renew($1, $2, $3, $4, $5)",
            [claim.job.id],
            [claim.fence],
            [lease],
            [percent],
            [stage],
        )
    assert await pair.bench.reload(claim) == claim.job


@pytest.mark.parametrize(
    ("types", "worker_id", "jobs"),
    [([], "w", 1), (None, "w", 1), (["direct"], "", 1), (["direct"], "a/b", 1), (["direct"], "w", 0)],
)
async def test_an_invalid_claim_of_a_worker_role_is_refused(
    pair: TenantPair, types: list[str] | None, worker_id: str, jobs: int
) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    with pytest.raises(asyncpg.DataError):
        await worker.fetch("SELECT * FROM ingot.worker_claim($1, $2, NULL, NULL, $3, 1)", types, worker_id, jobs)


async def test_a_type_named_twice_is_claimed_once(pair: TenantPair) -> None:
    jobs = [await pair.bench.make_job("direct", tenant=pair.tenants[0]) for _ in range(3)]
    worker = await pair.as_worker(pair.tenants[0])
    rows = await worker.fetch(CLAIM, ["direct", "direct"], 2)
    assert [row["id"] for row in rows] == [job.id for job in jobs[:2]]


async def test_a_too_long_error_is_truncated(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    failed = GOOD | {"outcomes": ["failed"], "errors": ["x" * (ERROR_CHARS_MAX + 1)]}
    await worker.fetch(SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *failed.values())
    assert (await pair.bench.reload(claim)).last_error == "x" * ERROR_CHARS_MAX


async def test_a_worker_role_can_claim_and_settle_in_one_transaction(pair: TenantPair) -> None:
    job = await pair.bench.make_job("direct", tenant=pair.tenants[0])
    worker = await pair.as_worker(pair.tenants[0])
    async with worker.transaction():
        (row,) = await worker.fetch(CLAIM, ["direct"], 1)
        await worker.fetch(RENEW, [row["id"]], [row["fence"]])
        await worker.fetch(SETTLE, [row["id"]], [row["fence"]])
    admin = await pair.connect()
    newest = await admin.fetchval("SELECT entries FROM ingot.events ORDER BY position DESC LIMIT 1")
    entries = msgspec.json.decode(newest, type=list[EventEntryRow])
    assert [(entry.name, job.id in entry.ids) for entry in entries] == [
        (name, True) for name in ("job.started", "job.updated", "job.completed")
    ]


async def test_a_call_that_names_a_job_twice_is_refused(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    ids, fences = [claim.job.id] * 2, [claim.fence] * 2
    twice = {name: values * 2 for name, values in GOOD.items()}
    with pytest.raises(asyncpg.DataError, match="named once"):
        await worker.fetch(SETTLE_WITH_ALL_ARGUMENTS, ids, fences, *twice.values())
    with pytest.raises(asyncpg.DataError, match="named once"):
        await worker.fetch("SELECT * FROM ingot.worker_renew($1, $2, '{60000000,60000000}', NULL, NULL)", ids, fences)
    assert (await pair.bench.reload(claim)).status is JobStatus.RUNNING


@pytest.mark.parametrize("result", [b"[" * 200 + b"1" + b"]" * 200, b'{"a": [1e300, -7, "\\ud83d\\ude00"]}', b"null"])
async def test_a_valid_result_is_accepted(pair: TenantPair, result: bytes) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    await worker.fetch(
        SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *(GOOD | {"results": [result]}).values()
    )
    job = await pair.bench.reload(claim)
    assert (job.status, msgspec.json.decode(job.result or b"")) == (JobStatus.SUCCEEDED, msgspec.json.decode(result))


async def test_a_repeated_settle_of_a_worker_role_returns_the_same_result(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    failed = GOOD | {"outcomes": ["failed"], "errors": ["no"]}
    first = await worker.fetch(SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *failed.values())
    assert first[0]["status"] == "queued"
    assert await worker.fetch(SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *failed.values()) == first
    assert await worker.fetch(SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *GOOD.values()) == []
    other = await pair.as_worker(pair.tenants[1])
    assert await other.fetch(SETTLE_WITH_ALL_ARGUMENTS, [claim.job.id], [claim.fence], *failed.values()) == []


async def test_a_claim_must_be_the_first_call_of_its_transaction(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    await pair.bench.make_job("direct", tenant=pair.tenants[0])
    transaction = worker.transaction()
    await transaction.start()
    await worker.fetch(SETTLE, [claim.job.id], [claim.fence])
    with pytest.raises(asyncpg.DataError, match="first call"):
        await worker.fetch(CLAIM, ["direct"], 1)
    await transaction.rollback()
    assert len(await worker.fetch(CLAIM, ["direct"], 1)) == 1


async def test_a_sweep_skips_locked_leases(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claims = [await make_claim_of(pair, worker) for _ in range(2)]
    async with worker.transaction():
        await worker.fetch(RENEW, [claims[0].job.id], [claims[0].fence])
        pair.bench.clock.advance(seconds=10 * LEASE_SECONDS)
        async with store_with_one_connection(pair) as store:
            found = await store.database.call("SELECT id FROM ingot.expired_leases(0, 1000, 0)")
        claimed = {row["id"] for row in found}
        assert (claims[0].job.id in claimed, claims[1].job.id in claimed) == (False, True)
        await pair.bench.jobs.maintain()
        assert (await pair.bench.reload(claims[1])).status is JobStatus.QUEUED


async def test_a_cancel_or_drain_of_a_locked_row_fails_soon(pair: TenantPair) -> None:
    worker = await pair.as_worker(pair.tenants[0])
    claim = await make_claim_of(pair, worker)
    await worker.fetch("SELECT ingot.worker_register('w', '{mine}', NULL, NULL)")
    async with worker.transaction():
        await worker.fetch(RENEW, [claim.job.id], [claim.fence])
        await worker.fetch("SELECT ingot.worker_register('w', '{mine}', NULL, NULL)")
        answers = await asyncio.gather(
            pair.bench.jobs.cancel(pair.tenants[0], claim.job.id),
            pair.bench.workers.drain(pair.tenants[0], f"{await worker_role(worker)}/w"),
            return_exceptions=True,
        )
    assert [StoreBusy, StoreBusy] == [type(answer) for answer in answers]
