"""The checker of PostgreSQL stores can fail: each planted error is reported by the rule that it violates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.faults.history import History, Line
from tests.faults.postgres_cluster import CountingRecorder, PostgresCluster, PostgresWorkload, open_cluster, violations
from tests.faults.postgres_rules import RULES, broken_rules
from tests.faults.tables import Tables
from tests.waiting import eventually

pytestmark = pytest.mark.postgres

ACKED = 1200


class WorkedStore(msgspec.Struct, frozen=True):
    """A store after some work, with jobs in every state, and its history."""

    cluster: PostgresCluster
    lines: list[Line]
    tables: Tables

    def history(self) -> History:
        """A copy of all calls, which a test may change."""
        history = History()
        history.add(self.lines)
        return history


@pytest.fixture(scope="module")
async def worked() -> AsyncIterator[WorkedStore]:
    """A store after some work, which has passed all checks."""
    recorder = CountingRecorder()
    stop = asyncio.Event()

    async def is_enough() -> bool:
        return recorder.acked > ACKED

    async with open_cluster() as cluster:
        async with cluster.store() as store:
            workload = PostgresWorkload(store, recorder, seed=7)
            await workload.prepare()
            async with asyncio.TaskGroup() as group:
                group.create_task(workload.work_until(stop))
                await eventually(is_enough)
                stop.set()
        tables = await cluster.check(recorder.history())
        yield WorkedStore(cluster, recorder.lines, tables)


PLANTED: list[tuple[str, str]] = [
    ("J1 a job is in one table", "INSERT INTO ingot.later SELECT * FROM ingot.ready LIMIT 1"),
    ("J1 a job is in one table", "DELETE FROM ingot.ready WHERE id = (SELECT id FROM ingot.ready LIMIT 1)"),
    ("J1 a job is in one table", "DELETE FROM ingot.jobs WHERE id = (SELECT id FROM ingot.ready LIMIT 1)"),
    ("J1 everything belongs to an existing tenant", "DELETE FROM ingot.tenants WHERE slug = 'other'"),
    ("J1 the rows of a job name its tenant and type", "UPDATE ingot.ready SET type = 'another'"),
    (
        "J3 an attempt that ended holds no lease",
        "INSERT INTO ingot.outcomes (job, fence, tenant, worker_id, started_at, outcome, retry, status_after, run_at, "
        "attempts, failures, crashes, max_attempts, priority, cancel_requested, finished_at, told_at) "
        "SELECT id, fence, tenant, worker_id, started_at, 'released', true, 'queued', run_at, attempts, failures, "
        "crashes, max_attempts, priority, false, started_at, 0 FROM ingot.leases LIMIT 1",
    ),
    (
        "J3 an attempt has its job",
        "UPDATE ingot.outcomes SET job = gen_random_uuid() "
        "WHERE (job, fence) = (SELECT job, fence FROM ingot.outcomes LIMIT 1)",
    ),
    (
        "J3 an attempt has one outcome",
        "ALTER TABLE ingot.outcomes DROP CONSTRAINT outcomes_pkey; "
        "INSERT INTO ingot.outcomes SELECT * FROM ingot.outcomes LIMIT 1",
    ),
    ("J4 a job's fence is that of its latest attempt", "UPDATE ingot.ready SET fence = fence + 1"),
    ("J4 no fence is above the last one issued", "SELECT setval('ingot.fences', 4294967297)"),
    ("J5 a job is ready only when its time has come", "UPDATE ingot.ready SET run_at = 8e15"),
    ("J6 a result comes only with success", "UPDATE ingot.outcomes SET result = '1' WHERE outcome = 'failed'"),
    ("J7 attempts are numbered and counted", "UPDATE ingot.leases SET attempts = attempts + 1"),
    ("J7 attempts are numbered and counted", "UPDATE ingot.outcomes SET attempts = attempts + 1"),
    ("J7 attempts are numbered and counted", "DELETE FROM ingot.outcomes"),
    (
        "J7 attempts are numbered and counted",
        "DELETE FROM ingot.outcomes WHERE (job, fence) = (SELECT job, fence FROM ingot.outcomes "
        "WHERE status_after = 'queued' LIMIT 1)",
    ),
    ("J7 failures and crashes do not exceed the outcomes", "UPDATE ingot.ready SET failures = attempts + 1"),
    ("J11 an idempotency key and its job name each other", "DELETE FROM ingot.idempotency_keys"),
    ("J11 an idempotency key and its job name each other", "UPDATE ingot.idempotency_keys SET job = gen_random_uuid()"),
    ("J11 dedupe keys are held by the unfinished jobs that have one", "DELETE FROM ingot.dedupe_keys"),
    (
        "J11 dedupe keys are held by the unfinished jobs that have one",
        "INSERT INTO ingot.dedupe_keys SELECT tenant, 'left behind', id FROM ingot.jobs LIMIT 1",
    ),
    (
        "J17 a job returns within its delay",
        "UPDATE ingot.outcomes SET run_at = finished_at - 1 WHERE status_after = 'queued'",
    ),
    ("counts are exact", "INSERT INTO ingot.count_deltas SELECT tenant, type, 'queued', 1 FROM ingot.jobs LIMIT 1"),
    ("counts are exact", "DELETE FROM ingot.count_deltas WHERE status = 'running' AND jobs > 0"),
    (
        "totals are the sums of counts",
        "INSERT INTO ingot.count_totals SELECT tenant, 'dead', 1 FROM ingot.jobs LIMIT 1 "
        "ON CONFLICT (tenant, status) DO UPDATE SET jobs = count_totals.jobs + 1",
    ),
    ("the types of jobs are listed and counted", "UPDATE ingot.tenant_types SET type = type || '2'"),
    ("the types of jobs are listed and counted", "UPDATE ingot.type_counts SET types = types + 1"),
    ("no attempt ends before it began", "UPDATE ingot.outcomes SET started_at = 8e15"),
    ("a finished job is listed in the endings", "UPDATE ingot.endings SET finished_at = finished_at + 1"),
    ("a tag belongs to a job of its tenant", "UPDATE ingot.tags SET job = gen_random_uuid()"),
    ("J5 an event has", "DELETE FROM ingot.events WHERE entries LIKE '%job.started%'"),
    (
        "J5 the job",
        "DELETE FROM ingot.events "
        "WHERE position = (SELECT max(position) FROM ingot.events WHERE entries LIKE '%job.completed%')",
    ),
    ("J2 no event created the job", "TRUNCATE ingot.events"),
    ("J1 a job was created twice", "INSERT INTO ingot.events SELECT tenant, '99999999', at, entries FROM ingot.events "
     "WHERE entries LIKE '%job.created%' LIMIT 1"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "statement"), PLANTED)
async def test_a_planted_error_violates_its_rule(worked: WorkedStore, rule: str, statement: str) -> None:
    async with worked.cluster.owner() as owner:
        planting = owner.transaction(isolation="repeatable_read")
        await planting.start()
        try:
            await owner.execute(statement)
            wrong = await broken_rules(owner)
        finally:
            await planting.rollback()
    assert [text for text in wrong if text.startswith(rule)], wrong


def test_every_rule_has_a_planted_error() -> None:
    assert RULES.keys() <= {rule for rule, _ in PLANTED}


async def test_a_lost_acknowledged_job_is_reported(worked: WorkedStore) -> None:
    lost = next(iter(worked.tables.jobs))
    async with worked.cluster.owner() as owner:
        planting = owner.transaction(isolation="repeatable_read")
        await planting.start()
        for table, column in (("jobs", "id"), ("ready", "id"), ("later", "id"), ("leases", "id"), ("canceled", "id"),
                              ("outcomes", "job"), ("tags", "job"), ("idempotency_keys", "job"),
                              ("dedupe_keys", "job")):  # fmt: skip
            await owner.execute(f"DELETE FROM ingot.{table} WHERE {column} = $1", lost)
        wrong = await violations(owner, worked.history())
        await planting.rollback()
    assert [text for text in wrong if text.startswith(f"J1 the job {lost}") and "is lost" in text], wrong


@pytest.mark.parametrize("with_resent_calls", [False, True])
async def test_an_attempt_handed_out_twice_is_reported(worked: WorkedStore, with_resent_calls: bool) -> None:
    history = worked.history()
    first, second = [call for call in history.of("claim") if call.acked and call.answer][:2]
    second.answer = [*second.answer, first.answer[0]]
    async with worked.cluster.owner() as owner:
        wrong = await violations(owner, history, with_resent_calls=with_resent_calls)
    assert [text for text in wrong if "handed out twice" in text], wrong


@pytest.mark.parametrize("with_resent_calls", [False, True])
async def test_a_lost_acknowledged_settle_is_reported(worked: WorkedStore, with_resent_calls: bool) -> None:
    settle = next(call for call in worked.history().of("settle") if call.acked)
    async with worked.cluster.owner() as owner:
        planting = owner.transaction(isolation="repeatable_read")
        await planting.start()
        await owner.execute("DELETE FROM ingot.outcomes WHERE job = $1 AND fence = $2", settle.arguments["id"],
                            settle.arguments["fence"])  # fmt: skip
        wrong = await violations(owner, worked.history(), with_resent_calls=with_resent_calls)
        await planting.rollback()
    assert f"J4 settle {settle.number} was acknowledged and is lost" in wrong
