"""Notifications of a store: which jobs became ready, and when maintenance is due next."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from ingot.jobs import DuplicateJob
from ingot.jobs.job_options import new_job
from tests.factories import LEASE_SECONDS, Bench


class RecordingListener:
    """Records notifications of a store, and their threads."""

    def __init__(self, bench: Bench) -> None:
        self.ready: list[tuple[str, str, int]] = []
        self.maintenance_changes = 0
        self.threads: set[int] = set()
        bench.store.on_ready(self._on_ready)
        bench.store.on_maintenance_rescheduled(self._on_maintenance_rescheduled)

    def _on_ready(self, tenant: str, type: str, count: int) -> None:
        self.ready.append((tenant, type, count))
        self.threads.add(threading.get_ident())

    def _on_maintenance_rescheduled(self) -> None:
        self.maintenance_changes += 1
        self.threads.add(threading.get_ident())


async def test_ready_jobs_are_reported_by_tenant_type_and_count(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    listener = RecordingListener(bench)
    await bench.jobs.enqueue_many(
        [
            new_job(bench.tenant, "a"),
            new_job(bench.tenant, "a"),
            new_job(bench.tenant, "b"),
            new_job(other.id, "a"),
            new_job(bench.tenant, "b", delay=60),
        ]
    )
    assert sorted(listener.ready) == sorted([(bench.tenant, "a", 2), (bench.tenant, "b", 1), (other.id, "a", 1)])


async def test_listeners_are_called_on_the_event_loop(bench: Bench) -> None:
    listener = RecordingListener(bench)
    await bench.make_job()
    await bench.make_job(delay=60)
    assert (len(listener.ready), listener.maintenance_changes) == (1, 1)
    assert listener.threads == {threading.get_ident()}


async def test_due_jobs_are_reported_when_they_are_promoted(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "a", delay=60) for _ in range(3)])
    listener = RecordingListener(bench)
    bench.clock.advance(seconds=60)
    await bench.jobs.maintain()
    assert listener.ready == [(bench.tenant, "a", 3)]


async def test_refused_jobs_are_not_reported(bench: Bench) -> None:
    await bench.make_job("a", dedupe_key="d")
    listener = RecordingListener(bench)
    with pytest.raises(DuplicateJob):
        await bench.make_job("a", dedupe_key="d")
    assert listener.ready == []


async def test_every_listener_is_called(bench: Bench) -> None:
    listener = [RecordingListener(bench), RecordingListener(bench)]
    await bench.make_job()
    assert listener[0].ready == listener[1].ready == [(bench.tenant, "noop", 1)]


async def test_no_maintenance_is_due_without_scheduled_jobs_or_leases(bench: Bench) -> None:
    assert bench.store.seconds_to_maintenance() is None
    await bench.make_job()
    assert bench.store.seconds_to_maintenance() is None


async def test_maintenance_is_due_at_the_next_run_at_or_lease_end(bench: Bench) -> None:
    claim = await bench.make_claim("held")
    assert bench.store.seconds_to_maintenance() == LEASE_SECONDS
    await bench.make_job(delay=100)
    assert bench.store.seconds_to_maintenance() == 100
    await bench.make_job(delay=50)
    assert bench.store.seconds_to_maintenance() == 50
    bench.clock.advance(seconds=20)
    assert bench.store.seconds_to_maintenance() == 30
    await bench.jobs.complete(claim)
    bench.clock.advance(seconds=1000)
    assert bench.store.seconds_to_maintenance() == 0


async def test_maintenance_moves_the_due_time_to_the_next_job(bench: Bench) -> None:
    await bench.make_job(delay=10)
    await bench.make_job(delay=100)
    bench.clock.advance(seconds=10)
    await bench.jobs.maintain()
    assert bench.store.seconds_to_maintenance() == 90
    bench.clock.advance(seconds=90)
    await bench.jobs.maintain()
    assert bench.store.seconds_to_maintenance() is None


async def test_maintenance_skips_canceled_jobs_and_completed_leases(bench: Bench) -> None:
    job = await bench.make_job(delay=10)
    claim = await bench.make_claim("held")
    await bench.jobs.cancel(bench.tenant, job.id)
    await bench.jobs.complete(claim)
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    assert bench.store.seconds_to_maintenance() is None


async def test_an_earlier_due_time_is_reported(bench: Bench) -> None:
    listener = RecordingListener(bench)
    job = await bench.make_job(delay=100)
    assert listener.maintenance_changes == 1
    await bench.make_job(delay=50)
    assert listener.maintenance_changes == 2
    await bench.jobs.reschedule(bench.tenant, job.id, run_at=bench.clock.now() + timedelta(seconds=5))
    assert listener.maintenance_changes == 3


async def test_a_later_or_unchanged_due_time_is_not_reported(bench: Bench) -> None:
    await bench.make_job(delay=50)
    listener = RecordingListener(bench)
    await bench.make_job(delay=100)
    await bench.make_job()
    await bench.make_claim("held")
    bench.clock.advance(seconds=50)
    await bench.jobs.maintain()
    assert listener.maintenance_changes == 0
