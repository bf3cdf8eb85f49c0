"""Heartbeats that wait: answered when there is something to be told, by signals, and by one look for all of them."""

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
Waiting = asyncio.Task[HeartbeatAnswer]

A = TypeVar("A")


class Room:
    """A bench on whose store heartbeats are watched."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.store = WatchedWorkers(bench.store)
        self.workers = Workers(cast("WorkerStore", self.store), bench.jobs, lease_seconds=LEASE_SECONDS)

    async def claim(self, name: str = "press/1") -> Claim:
        """A job that a registered worker holds."""
        await self.workers.register(self.bench.tenant, name, TYPES)
        return await self.bench.make_claim(worker=name)

    async def wait(self, name: str, *claims: Claim, seconds: float = 60) -> Waiting:
        """A heartbeat that was heard, and waits for longer than any test runs."""
        beats = [self.bench.jobs.beat(claim.job.id, claim.fence) for claim in claims]
        waiting = asyncio.create_task(
            self.workers.heartbeat(self.bench.tenant, name, beats, wait_seconds=seconds), name=name
        )
        async with asyncio.timeout(30):
            assert await self.store.answers.get() == name
        return waiting


async def told(waiting: Waiting) -> tuple[list[str], bool]:
    """What of each job is to be told, and whether to drain."""
    async with asyncio.timeout(30):
        heard = await waiting
    words = {(True, False): "lost", (False, True): "cancel", (False, False): "held"}
    return [words[held.lost, held.cancel_requested] for held in heard.jobs], heard.drain


@pytest.fixture
def room(bench: Bench) -> Room:
    return Room(bench)


async def end(*waiting: asyncio.Task[Any]) -> None:
    for task in waiting:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def listeners_of(tenant: str) -> int:
    """How many heartbeats of a tenant are kept anywhere in memory."""
    gc.collect()
    return sum(type(one) is HeartbeatWaiter and one.worker_key[0] == tenant for one in gc.get_objects())


async def test_a_cancel_is_told_at_once_to_who_runs_the_job(room: Room) -> None:
    own, other = await room.claim(), await room.claim()
    strange = await room.claim("other/1")
    waiting = await room.wait("press/1", own, other)
    bystander = await room.wait("other/1", strange)
    await room.bench.jobs.cancel(room.bench.tenant, other.job.id)
    assert await told(waiting) == (["held", "cancel"], False)
    assert not bystander.done()
    assert room.store.looks == [2]
    await end(bystander)


async def test_a_drain_is_told_at_once_to_the_heartbeat_and_the_claims(room: Room) -> None:
    tenant = room.bench.tenant
    await room.claim("press/1")
    await room.claim("press/2")
    claims = [
        asyncio.create_task(room.bench.jobs.claim(name, ["none"], tenant=tenant, wait_seconds=60))
        for name in ("press/1", "press/2")
    ]
    beats = [await room.wait(name) for name in ("press/1", "press/2")]
    await room.workers.drain(tenant, "press/1")
    assert await told(beats[0]) == ([], True)
    async with asyncio.timeout(30):
        assert await claims[0] == []
    assert not beats[1].done()
    assert not claims[1].done()
    await end(beats[1], claims[1])


async def test_what_is_to_be_told_already_is_told_without_waiting(room: Room) -> None:
    gone, stopped = await room.claim(), await room.claim()
    await room.bench.jobs.release(gone)
    await room.bench.jobs.cancel(room.bench.tenant, stopped.job.id)
    assert await told(await room.wait("press/1", gone, stopped)) == (["lost", "cancel"], False)
    assert room.store.looks == []


async def test_what_others_do_is_found_by_one_look_for_all(room: Room) -> None:
    names = [f"press/{number}" for number in range(5)]
    claims = [await room.claim(name) for name in names]
    waiting = [await room.wait(name, claim) for name, claim in zip(names, claims, strict=True)]
    await room.workers.poll()
    assert room.store.looks == [5]
    assert not any(task.done() for task in waiting)
    await room.bench.jobs.release(claims[3])
    await room.workers.poll()
    assert await told(waiting[3]) == (["lost"], False)
    assert room.store.looks == [5, 5, 1]
    assert [task.done() for task in waiting] == [False, False, False, True, False]
    await end(*waiting)


async def test_what_was_just_told_is_no_news(room: Room) -> None:
    claim = await room.claim()
    await room.bench.jobs.cancel(room.bench.tenant, claim.job.id)
    assert await told(await room.wait("press/1", claim)) == (["cancel"], False)
    waiting = await room.wait("press/1", claim)
    await room.workers.poll()
    assert not waiting.done()
    await room.workers.drain(room.bench.tenant, "press/1")
    assert await told(waiting) == (["cancel"], True)


async def test_what_was_told_some_time_ago_is_told_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.jobs.workers.REPEAT_NOTICE_SECONDS", 0.01)
    claim = await room.claim()
    await room.bench.jobs.cancel(room.bench.tenant, claim.job.id)
    for _ in range(3):
        assert await told(await room.wait("press/1", claim)) == (["cancel"], False)


async def test_with_nothing_to_tell_the_wait_ends_by_itself(room: Room) -> None:
    claim = await room.claim()
    assert await told(await room.wait("press/1", claim, seconds=0.05)) == (["held"], False)


async def test_nothing_is_left_of_a_heartbeat_whose_caller_went_away(room: Room) -> None:
    waiting = await room.wait("press/1", await room.claim())
    assert (room.workers.waiting_heartbeats, listeners_of(room.bench.tenant)) == (1, 1)
    await end(waiting)
    assert room.workers.waiting_heartbeats == 0
    del waiting  # Its error has a traceback, which keeps the heartbeat.
    await eventually(lambda: listeners_of(room.bench.tenant) == 0, why="nothing is kept")
    await room.workers.poll()
    assert room.store.looks == []


async def test_heartbeats_end_when_the_server_does(room: Room) -> None:
    claim = await room.claim()
    waiting = await room.wait("press/1", claim)
    room.workers.stop_waiting()
    assert await told(waiting) == (["held"], False)
    assert await told(await room.wait("press/1", claim)) == (["held"], False)


async def test_who_is_removed_is_answered(room: Room) -> None:
    await room.claim("press/2")
    waiting = [await room.wait("press/1", await room.claim()), await room.wait("press/2")]
    for name in ("press/1", "press/2"):
        await room.workers.remove(room.bench.tenant, name)
    assert await told(waiting[0]) == (["lost"], False)
    assert await told(waiting[1]) == ([], False)


# -- another process ----------------------------------------------------------------------------------------


@pytest.fixture
async def elsewhere(engine: str, bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """The same store, as another process opens it."""
    if engine == "sqlite":
        pytest.skip("one process has a SQLite store")
    store = await open_store(engine, tmp_path / "data", bench.clock)
    yield Bench(store, bench.clock, await bench.tenants.get(bench.tenant))
    await store.close()


async def test_what_another_process_does_is_found_by_the_next_look(room: Room, elsewhere: Bench) -> None:
    tenant = room.bench.tenant
    claim = await room.claim("press/1")
    await room.claim("press/2")
    asking = asyncio.create_task(room.bench.jobs.claim("press/2", ["none"], tenant=tenant, wait_seconds=60))
    waiting = [await room.wait("press/1", claim), await room.wait("press/2")]
    await elsewhere.jobs.cancel(tenant, claim.job.id)
    await elsewhere.workers.drain(tenant, "press/2")
    await room.workers.poll()
    assert await told(waiting[0]) == (["cancel"], False)
    assert await told(waiting[1]) == ([], True)
    async with asyncio.timeout(30):
        assert await asking == []
    await elsewhere.workers.register(tenant, "press/2", TYPES)
    await room.workers.poll()
    await room.bench.make_job()
    assert len(await room.bench.jobs.claim("press/2", TYPES, tenant=tenant)) == 1


async def test_a_drain_that_a_heartbeat_tells_of_holds_for_claims_too(room: Room, elsewhere: Bench) -> None:
    tenant = room.bench.tenant
    claim = await room.claim()
    await elsewhere.workers.drain(tenant, "press/1")
    assert await told(await room.wait("press/1", claim)) == (["held"], True)
    await room.bench.make_job()
    assert await room.bench.jobs.claim("press/1", TYPES, tenant=tenant) == []
    waiting = await room.wait("press/1", claim)
    await room.bench.jobs.cancel(tenant, claim.job.id)
    assert await told(waiting) == (["cancel"], True)


async def test_a_drain_outlives_the_process(bench: Bench) -> None:
    await bench.workers.register(bench.tenant, "press", TYPES)
    await bench.workers.drain(bench.tenant, "press")
    await bench.make_job()
    jobs = Jobs(bench.store, lease_seconds=LEASE_SECONDS)
    await Workers(bench.store, jobs, lease_seconds=LEASE_SECONDS).refresh_draining_workers()
    assert await jobs.claim("press", TYPES, tenant=bench.tenant) == []


async def test_a_look_that_began_before_a_drain_does_not_undo_it(bench: Bench) -> None:
    await bench.workers.register(bench.tenant, "press", TYPES)
    looked, go_on = asyncio.Event(), asyncio.Event()

    class Slow(WatchedWorkers):
        async def run(self, command: Command[A]) -> A:
            answer = await super().run(command)
            if isinstance(command, ListDrainingWorkers):
                looked.set()
                await go_on.wait()
            return answer

    workers = Workers(cast("WorkerStore", Slow(bench.store)), bench.jobs, lease_seconds=LEASE_SECONDS)
    looking = asyncio.create_task(workers.poll())
    await looked.wait()
    await workers.drain(bench.tenant, "press")
    go_on.set()
    await looking
    await bench.make_job()
    assert await bench.jobs.claim("press", TYPES, tenant=bench.tenant) == []


async def test_the_loops_do_it_by_themselves(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.jobs.worker_loops.POLL_SECONDS", 0.01)
    claim = await room.claim()
    watch, tending = HeartbeatPoller(room.workers), WorkerMaintenance(room.workers)
    watch.start()
    waiting = await room.wait("press/1", claim)
    await room.bench.jobs.release(claim)
    assert await told(waiting) == (["lost"], False)
    await watch.stop()
    room.bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await tending.run_once()).marked_offline == 1
