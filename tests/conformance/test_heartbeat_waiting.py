"""Waiting heartbeats: notifications answer them when a worker has news, and one poll checks all of them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from ingot.jobs import Claim, Jobs
from ingot.jobs.ports import ListDrainingWorkers, WorkerStore
from ingot.jobs.worker_loops import HeartbeatPoller, WorkerMaintenance
from ingot.jobs.worker_model import HeartbeatAnswer
from ingot.jobs.workers import HeartbeatWaiter, Workers
from ingot.kernel.commands import Command
from tests.conformance.counting_workers import WatchedWorkers
from tests.factories import LEASE_SECONDS, Bench, open_store
from tests.waiting import eventually

TYPES = ["noop"]
HeartbeatTask = asyncio.Task[HeartbeatAnswer]

A = TypeVar("A")


class HeartbeatFixture:
    """A service of workers on a store that counts heartbeats and lease checks."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.store = WatchedWorkers(bench.store)
        self.workers = Workers(cast("WorkerStore", self.store), bench.jobs, lease_seconds=LEASE_SECONDS)

    async def claim(self, name: str = "press/1") -> Claim:
        """Register a worker, and claim a job for it."""
        await self.workers.register(self.bench.tenant, name, TYPES)
        return await self.bench.make_claim(worker=name)

    async def wait(self, name: str, *claims: Claim, seconds: float = 60) -> HeartbeatTask:
        """Start a heartbeat that waits longer than any test runs, and wait until the store has answered it."""
        beats = [self.bench.jobs.beat(claim.job.id, claim.fence) for claim in claims]
        waiting = asyncio.create_task(
            self.workers.heartbeat(self.bench.tenant, name, beats, wait_seconds=seconds), name=name
        )
        async with asyncio.timeout(30):
            assert await self.store.answers.get() == name
        return waiting


async def answer_of(waiting: HeartbeatTask) -> tuple[list[str], bool]:
    """The state of each job in the response, and whether to drain."""
    async with asyncio.timeout(30):
        answer = await waiting
    states = {(True, False): "lost", (False, True): "cancel", (False, False): "held"}
    return [states[job.lost, job.cancel_requested] for job in answer.jobs], answer.drain


@pytest.fixture
def fixture(bench: Bench) -> HeartbeatFixture:
    return HeartbeatFixture(bench)


async def cancel_tasks(*waiting: asyncio.Task[Any]) -> None:
    for task in waiting:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def count_waiters(tenant: str) -> int:
    """The number of heartbeats of a tenant that exist in memory."""
    gc.collect()
    return sum(type(one) is HeartbeatWaiter and one.worker_key[0] == tenant for one in gc.get_objects())


async def test_a_cancel_ends_the_waiting_heartbeat_of_its_worker_at_once(fixture: HeartbeatFixture) -> None:
    own, other = await fixture.claim(), await fixture.claim()
    other_claim = await fixture.claim("other/1")
    waiting = await fixture.wait("press/1", own, other)
    other_waiting = await fixture.wait("other/1", other_claim)
    await fixture.bench.jobs.cancel(fixture.bench.tenant, other.job.id)
    assert await answer_of(waiting) == (["held", "cancel"], False)
    assert not other_waiting.done()
    assert fixture.store.looks == [2]
    await cancel_tasks(other_waiting)


async def test_a_drain_ends_waiting_heartbeats_and_claims_of_the_worker_at_once(fixture: HeartbeatFixture) -> None:
    tenant = fixture.bench.tenant
    await fixture.claim("press/1")
    await fixture.claim("press/2")
    claims = [
        asyncio.create_task(fixture.bench.jobs.claim(name, ["none"], tenant=tenant, wait_seconds=60))
        for name in ("press/1", "press/2")
    ]
    beats = [await fixture.wait(name) for name in ("press/1", "press/2")]
    await fixture.workers.drain(tenant, "press/1")
    assert await answer_of(beats[0]) == ([], True)
    async with asyncio.timeout(30):
        assert await claims[0] == []
    assert not beats[1].done()
    assert not claims[1].done()
    await cancel_tasks(beats[1], claims[1])


async def test_a_heartbeat_with_lost_or_canceled_jobs_returns_without_waiting(fixture: HeartbeatFixture) -> None:
    released, stopped = await fixture.claim(), await fixture.claim()
    await fixture.bench.jobs.release(released)
    await fixture.bench.jobs.cancel(fixture.bench.tenant, stopped.job.id)
    assert await answer_of(await fixture.wait("press/1", released, stopped)) == (["lost", "cancel"], False)
    assert fixture.store.looks == []


async def test_one_poll_checks_the_leases_of_all_waiting_heartbeats(fixture: HeartbeatFixture) -> None:
    names = [f"press/{number}" for number in range(5)]
    claims = [await fixture.claim(name) for name in names]
    waiting = [await fixture.wait(name, claim) for name, claim in zip(names, claims, strict=True)]
    await fixture.workers.poll()
    assert fixture.store.looks == [5]
    assert not any(task.done() for task in waiting)
    await fixture.bench.jobs.release(claims[3])
    await fixture.workers.poll()
    assert await answer_of(waiting[3]) == (["lost"], False)
    assert fixture.store.looks == [5, 5, 1]
    assert [task.done() for task in waiting] == [False, False, False, True, False]
    await cancel_tasks(*waiting)


async def test_a_cancel_request_already_reported_does_not_end_the_next_wait(fixture: HeartbeatFixture) -> None:
    claim = await fixture.claim()
    await fixture.bench.jobs.cancel(fixture.bench.tenant, claim.job.id)
    assert await answer_of(await fixture.wait("press/1", claim)) == (["cancel"], False)
    waiting = await fixture.wait("press/1", claim)
    await fixture.workers.poll()
    assert not waiting.done()
    await fixture.workers.drain(fixture.bench.tenant, "press/1")
    assert await answer_of(waiting) == (["cancel"], True)


async def test_a_cancel_request_reported_long_ago_is_reported_again(
    fixture: HeartbeatFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.jobs.workers.REPEAT_NOTICE_SECONDS", 0.01)
    claim = await fixture.claim()
    await fixture.bench.jobs.cancel(fixture.bench.tenant, claim.job.id)
    for _ in range(3):
        assert await answer_of(await fixture.wait("press/1", claim)) == (["cancel"], False)


async def test_a_heartbeat_without_news_ends_after_its_wait(fixture: HeartbeatFixture) -> None:
    claim = await fixture.claim()
    assert await answer_of(await fixture.wait("press/1", claim, seconds=0.05)) == (["held"], False)


async def test_a_canceled_heartbeat_leaves_nothing_in_memory(fixture: HeartbeatFixture) -> None:
    waiting = await fixture.wait("press/1", await fixture.claim())
    assert (fixture.workers.waiting_heartbeats, count_waiters(fixture.bench.tenant)) == (1, 1)
    await cancel_tasks(waiting)
    assert fixture.workers.waiting_heartbeats == 0
    del waiting  # The traceback of the task refers to the heartbeat.
    await eventually(lambda: count_waiters(fixture.bench.tenant) == 0, why="no heartbeat is kept")
    await fixture.workers.poll()
    assert fixture.store.looks == []


async def test_waiting_heartbeats_end_when_the_server_stops(fixture: HeartbeatFixture) -> None:
    claim = await fixture.claim()
    waiting = await fixture.wait("press/1", claim)
    fixture.workers.stop_waiting()
    assert await answer_of(waiting) == (["held"], False)
    assert await answer_of(await fixture.wait("press/1", claim)) == (["held"], False)


async def test_removing_a_worker_ends_its_waiting_heartbeat(fixture: HeartbeatFixture) -> None:
    await fixture.claim("press/2")
    waiting = [await fixture.wait("press/1", await fixture.claim()), await fixture.wait("press/2")]
    for name in ("press/1", "press/2"):
        await fixture.workers.remove(fixture.bench.tenant, name)
    assert await answer_of(waiting[0]) == (["lost"], False)
    assert await answer_of(waiting[1]) == ([], False)


# -- another process ----------------------------------------------------------------------------------------


@pytest.fixture
async def other_process(engine: str, bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """The same store, opened by another process."""
    if engine == "sqlite":
        pytest.skip("one process has a SQLite store")
    store = await open_store(engine, tmp_path / "data", bench.clock)
    yield Bench(store, bench.clock, await bench.tenants.get(bench.tenant))
    await store.close()


async def test_changes_by_another_process_are_found_by_the_next_poll(
    fixture: HeartbeatFixture, other_process: Bench
) -> None:
    tenant = fixture.bench.tenant
    claim = await fixture.claim("press/1")
    await fixture.claim("press/2")
    waiting_claim = asyncio.create_task(fixture.bench.jobs.claim("press/2", ["none"], tenant=tenant, wait_seconds=60))
    waiting = [await fixture.wait("press/1", claim), await fixture.wait("press/2")]
    await other_process.jobs.cancel(tenant, claim.job.id)
    await other_process.workers.drain(tenant, "press/2")
    await fixture.workers.poll()
    assert await answer_of(waiting[0]) == (["cancel"], False)
    assert await answer_of(waiting[1]) == ([], True)
    async with asyncio.timeout(30):
        assert await waiting_claim == []
    await other_process.workers.register(tenant, "press/2", TYPES)
    await fixture.workers.poll()
    await fixture.bench.make_job()
    assert len(await fixture.bench.jobs.claim("press/2", TYPES, tenant=tenant)) == 1


async def test_a_drain_found_by_a_heartbeat_applies_to_claims_too(
    fixture: HeartbeatFixture, other_process: Bench
) -> None:
    tenant = fixture.bench.tenant
    claim = await fixture.claim()
    await other_process.workers.drain(tenant, "press/1")
    assert await answer_of(await fixture.wait("press/1", claim)) == (["held"], True)
    await fixture.bench.make_job()
    assert await fixture.bench.jobs.claim("press/1", TYPES, tenant=tenant) == []
    waiting = await fixture.wait("press/1", claim)
    await fixture.bench.jobs.cancel(tenant, claim.job.id)
    assert await answer_of(waiting) == (["cancel"], True)


async def test_a_drain_is_kept_across_a_restart(bench: Bench) -> None:
    await bench.workers.register(bench.tenant, "press", TYPES)
    await bench.workers.drain(bench.tenant, "press")
    await bench.make_job()
    jobs = Jobs(bench.store, lease_seconds=LEASE_SECONDS)
    await Workers(bench.store, jobs, lease_seconds=LEASE_SECONDS).refresh_draining_workers()
    assert await jobs.claim("press", TYPES, tenant=bench.tenant) == []


async def test_a_poll_that_started_before_a_drain_does_not_undo_it(bench: Bench) -> None:
    await bench.workers.register(bench.tenant, "press", TYPES)
    has_read, may_continue = asyncio.Event(), asyncio.Event()

    class SlowStore(WatchedWorkers):
        async def run(self, command: Command[A]) -> A:
            answer = await super().run(command)
            if isinstance(command, ListDrainingWorkers):
                has_read.set()
                await may_continue.wait()
            return answer

    workers = Workers(cast("WorkerStore", SlowStore(bench.store)), bench.jobs, lease_seconds=LEASE_SECONDS)
    polling = asyncio.create_task(workers.poll())
    await has_read.wait()
    await workers.drain(bench.tenant, "press")
    may_continue.set()
    await polling
    await bench.make_job()
    assert await bench.jobs.claim("press", TYPES, tenant=bench.tenant) == []


async def test_the_loops_poll_and_maintain_automatically(
    fixture: HeartbeatFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.jobs.worker_loops.POLL_SECONDS", 0.01)
    claim = await fixture.claim()
    poller, maintenance = HeartbeatPoller(fixture.workers), WorkerMaintenance(fixture.workers)
    poller.start()
    waiting = await fixture.wait("press/1", claim)
    await fixture.bench.jobs.release(claim)
    assert await answer_of(waiting) == (["lost"], False)
    await poller.stop()
    fixture.bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await maintenance.run_once()).marked_offline == 1
