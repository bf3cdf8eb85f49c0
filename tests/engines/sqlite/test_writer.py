"""The writer of the SQLite store: groups of commands, their isolation, the limit of its queue, and closing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from structlog.testing import capture_logs

from ingot.engines.sqlite import writer as writer_module
from ingot.engines.tenant_queues import QUEUED_COMMANDS_MAX
from ingot.events.audit import Act
from ingot.identity import Limits, Tenant, TenantNotFound
from ingot.identity.ports import CreateTenant
from ingot.jobs import Definition, Done, Enqueued, Job, JobNotFound, JobStatus, RateLimited, Settle, Settled
from ingot.jobs.job_options import new_job
from ingot.jobs.ports import CancelJob, Enqueue, SettleJobs
from ingot.kernel.commands import Command
from ingot.kernel.errors import IngotError, StoreBusy, StoreError, TooMany
from ingot.kernel.ids import new_id
from tests.engines.sqlite.commit_gate import CommitGate
from tests.factories import Bench, open_bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    with capture_logs():
        async with open_bench("sqlite", tmp_path / "data") as bench:
            yield bench


class CommitCounter:
    """Counts the commits of a store's writer."""

    def __init__(self, bench: Bench) -> None:
        self.count = 0
        bench.sqlite.connection.set_commit_hook(self._on_commit)

    def _on_commit(self) -> bool:
        self.count += 1
        return False


def _invalid_command(bench: Bench, **values: Any) -> Enqueue:
    """A command with an order that skipped validation and violates a constraint."""
    return Enqueue(jobs=[_invalid_order(bench, **values)])


def _invalid_order(bench: Bench, **values: Any) -> Any:
    order = new_job(bench.tenant, "broken")
    return type(order)(**{name: getattr(order, name) for name in order.__struct_fields__} | values)


async def test_waiting_commands_share_a_commit(bench: Bench) -> None:
    commits = CommitCounter(bench)
    await asyncio.gather(*(bench.make_job() for _ in range(100)))
    assert 1 <= commits.count <= 5


async def test_sequential_commands_have_a_commit_each(bench: Bench) -> None:
    commits = CommitCounter(bench)
    for _ in range(5):
        await bench.make_job()
    assert commits.count == 5


@pytest.mark.parametrize(
    "values",
    [
        {"priority": 9},
        {"max_attempts": -1},
        {"delay": 2**70},
        {"source_ref": "\ud800"},
        {"type": "\ud800"},
        {"depth": 2**70},
        {"metadata": object()},
    ],
)
async def test_a_command_that_violates_a_constraint_does_not_affect_its_group(
    bench: Bench, values: dict[str, Any]
) -> None:
    claim = await bench.make_claim("held")
    answers = await asyncio.gather(
        bench.make_job("good"),
        bench.store.run(_invalid_command(bench, **values)),
        bench.make_job("good"),
        bench.store.run(SettleJobs(settles=[Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())])),
        bench.store.run(CancelJob(tenant=bench.tenant, job_id=new_id())),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [Job, StoreError, Job, list, JobNotFound]
    jobs = (await bench.jobs.list(bench.tenant)).items
    assert Counter((job.type, job.status.value) for job in jobs) == {("good", "queued"): 2, ("held", "succeeded"): 1}
    names = await bench.event_names()
    assert Counter(names) == {"job.created": 3, "job.started": 1, "job.completed": 1}
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] == 2


async def test_a_command_with_one_invalid_order_is_refused_as_a_whole(bench: Bench) -> None:
    orders = [new_job(bench.tenant, "good"), _invalid_order(bench, priority=9), new_job(bench.tenant, "good")]
    with pytest.raises(StoreError):
        await bench.store.run(Enqueue(jobs=orders))
    assert (await bench.jobs.list(bench.tenant)).items == []
    assert await bench.event_names() == []


@pytest.mark.parametrize("limits", [Limits(max_unfinished_jobs=5), Limits(rate=0.001, burst=5)])
async def test_caps_apply_in_a_group_that_is_replayed_one_by_one(bench: Bench, limits: Limits) -> None:
    await bench.tenants.change(bench.tenant, limits=limits)
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job())
    await gate.reached()
    calls: list[Any] = [bench.make_job() for _ in range(3)]
    calls += [bench.store.run(_invalid_command(bench, priority=9)), *(bench.make_job() for _ in range(5))]
    waiting = asyncio.gather(*calls, return_exceptions=True)
    await asyncio.sleep(0)
    gate.open()
    answers = [await first, *await waiting]
    assert [isinstance(answer, Job) for answer in answers] == [True] * 4 + [False, True] + [False] * 4
    with pytest.raises(TooMany):
        await bench.make_job()


async def test_the_type_limit_applies_in_a_group_that_is_replayed_one_by_one(bench: Bench) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(max_job_types=4))
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job("first"))
    await gate.reached()
    commands = [Enqueue(jobs=[new_job(bench.tenant, type)]) for type in "abcda"]
    commands.insert(2, _invalid_command(bench, priority=9))
    waiting = asyncio.gather(*map(bench.store.run, commands), return_exceptions=True)
    gate.open()
    await first
    assert [isinstance(answer, list) for answer in await waiting] == [True, True, False, True, False, True]
    assert sorted(await bench.jobs.counts(bench.tenant)) == ["a", "b", "c", "first"]


async def test_a_replayed_group_counts_once_against_the_rate(bench: Bench) -> None:
    await bench.tenants.change(bench.tenant, limits=Limits(rate=0.001, burst=3))
    await asyncio.gather(
        bench.make_job(), bench.store.run(_invalid_command(bench, priority=9)), bench.make_job(), return_exceptions=True
    )
    await bench.make_job()
    with pytest.raises(RateLimited):
        await bench.make_job()


async def test_the_store_works_normally_after_a_failed_group(bench: Bench) -> None:
    await asyncio.gather(
        bench.make_job("a", delay=60), bench.store.run(_invalid_command(bench, priority=9)), return_exceptions=True
    )
    job = await bench.make_job("a", idempotency_key="k", dedupe_key="d")
    (claim,) = await bench.jobs.claim("worker", ["a", "broken"], limit=10)
    assert claim.job.id == job.id
    bench.clock.advance(seconds=60)
    assert len(await bench.jobs.claim("worker", ["a"])) == 1
    assert len({event.id for event in await bench.events.read(bench.tenant, limit=100)}) == 4


async def test_a_settle_that_fails_does_not_affect_others_of_its_group(bench: Bench) -> None:
    good, bad = await bench.make_claim("good"), await bench.make_claim("bad")
    # An existing row makes the insert fail.
    bench.sqlite.connection.execute(
        "INSERT INTO outcomes SELECT number, fence, 'lost', 1, 'queued', 0, 1, 0, NULL, NULL, NULL, NULL, NULL "
        "FROM states WHERE id = ?",
        (bad.job.id,),
    )
    answers = await asyncio.gather(
        bench.jobs.complete(good), bench.jobs.complete(bad), bench.make_job(), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [Settled, StoreError, Job]
    statuses = [(await bench.reload(claim)).status for claim in (good, bad)]
    assert statuses == [JobStatus.SUCCEEDED, JobStatus.RUNNING]


async def test_a_full_queue_refuses_commands_with_store_busy(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "QUEUED_COMMANDS_MAX", 50)
    answers = await asyncio.gather(*(bench.make_job() for _ in range(200)), return_exceptions=True)
    kinds = Counter(type(answer) for answer in answers)
    assert set(kinds) == {Job, StoreBusy}
    assert kinds[Job] >= 25  # The other half is left to other tenants.
    assert len((await bench.jobs.list(bench.tenant, limit=1000)).items) == kinds[Job]
    assert isinstance(await bench.make_job(), Job)


def test_the_queue_has_a_limit_of_ten_thousand_commands() -> None:
    assert QUEUED_COMMANDS_MAX == 10_000


async def test_closing_runs_all_queued_commands(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data") as bench:
        answers = [
            asyncio.ensure_future(bench.store.run(Enqueue(jobs=[new_job(bench.tenant, "noop", n)])))
            for n in range(1000)
        ]
        await bench.store.close()
        assert all(answer.done() for answer in answers)
        ids = {answer.result()[0].job.id for answer in answers}
    async with open_bench("sqlite", tmp_path / "data") as bench:
        assert {job.id for job in (await bench.jobs.list(bench.tenant, limit=1000)).items} == ids


async def test_an_unknown_command_is_refused(bench: Bench) -> None:
    class UnknownCommand(Command[None], frozen=True):
        """A command that no engine implements."""

    with pytest.raises(TypeError, match="UnknownCommand"):
        await bench.store.run(UnknownCommand())


async def test_a_closed_store_refuses_commands_and_reads(bench: Bench) -> None:
    job = await bench.make_job()
    await bench.store.close()
    calls = [
        bench.make_job(),
        bench.jobs.claim("worker", ["noop"]),
        bench.jobs.claim("worker", ["noop"], wait_seconds=60),
        bench.jobs.cancel(bench.tenant, job.id),
        bench.jobs.maintain(),
        bench.jobs.get(bench.tenant, job.id),
        bench.jobs.summary(bench.tenant),
        bench.events.read(bench.tenant),
        bench.tenants.create("acme"),
        bench.tenants.list(),
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert {(type(answer), str(answer)) for answer in answers} == {(StoreError, "The store is closed.")}


async def test_a_canceled_caller_does_not_affect_its_group(bench: Bench) -> None:
    canceled = asyncio.create_task(bench.make_job("gone"))
    remaining = asyncio.create_task(bench.make_job("staying"))
    await asyncio.sleep(0)
    canceled.cancel()
    job = await remaining
    assert (await bench.reload(job)).type == "staying"
    with pytest.raises(asyncio.CancelledError):
        await canceled


async def test_a_failed_commit_raises_for_all_commands_and_changes_nothing(
    bench: Bench,
) -> None:
    bench.sqlite.connection.set_commit_hook(lambda: True)  # SQLite rolls back when the hook returns True.
    answers = await asyncio.gather(*(bench.make_job() for _ in range(3)), return_exceptions=True)
    bench.sqlite.connection.set_commit_hook(None)
    assert all(isinstance(answer, IngotError) for answer in answers)
    assert (await bench.jobs.list(bench.tenant)).items == []
    assert isinstance((await bench.jobs.enqueue(bench.tenant, "noop")), Enqueued)
    assert (await bench.jobs.summary(bench.tenant)).counts[JobStatus.QUEUED] == 1


async def test_a_failed_transaction_leaves_nothing_in_memory(bench: Bench) -> None:
    job = await bench.make_job("a")
    ghost = Tenant(id=new_id(), slug="ghost")
    bench.sqlite.connection.set_commit_hook(lambda: True)
    answers = await asyncio.gather(
        bench.store.run(CreateTenant(tenant=ghost, act=Act())),
        bench.jobs.define(Definition(type="b", priority=1)),
        bench.make_job("b", delay=5),
        bench.jobs.claim("worker", ["a"]),
        return_exceptions=True,
    )
    bench.sqlite.connection.set_commit_hook(None)
    assert all(isinstance(answer, IngotError) for answer in answers)
    assert bench.store.seconds_to_maintenance() is None
    (claim,) = await bench.jobs.claim("worker", ["a"])
    assert claim.job.id == job.id
    assert (await bench.make_job("b")).priority == 3
    with pytest.raises(TenantNotFound):
        await bench.make_job(tenant=ghost.id)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (apsw.FullError("full"), "storage_full"),
        (apsw.IOError("io"), "outcome_unknown"),
        (apsw.SQLError("no such table"), "store_failed"),
        (ValueError("odd"), "store_failed"),
        (StoreBusy(), "store_busy"),
    ],
)
def test_errors_of_sqlite_are_translated_to_codes(error: Exception, code: str) -> None:
    assert writer_module.translate_failure(error).code == code


async def test_the_load_contains_waiting_commands_and_the_time_of_the_commit(bench: Bench) -> None:
    gate = CommitGate(bench)
    first = asyncio.create_task(bench.make_job())
    await gate.reached()
    others = asyncio.gather(*(bench.make_job() for _ in range(3)))
    await asyncio.sleep(0)
    load = await bench.jobs.load()
    assert load.waiting_commands == 3
    assert load.commit_seconds
    gate.open()
    await asyncio.gather(first, others)
    assert (await bench.jobs.load()).waiting_commands == 0
