"""Hints: what became ready, and when something is next to be done, told without a query."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from ingot.jobs import DuplicateJob
from ingot.jobs.job_options import new_job
from tests.factories import LEASE_SECONDS, Bench


class Heard:
    """Notes what a store tells, and on which thread."""

    def __init__(self, bench: Bench) -> None:
        self.ready: list[tuple[str, str, int]] = []
        self.agenda = 0
        self.threads: set[int] = set()
        bench.store.on_ready(self._on_ready)
        bench.store.on_maintenance_rescheduled(self._on_agenda)

    def _on_ready(self, tenant: str, type: str, count: int) -> None:
        self.ready.append((tenant, type, count))
        self.threads.add(threading.get_ident())

    def _on_agenda(self) -> None:
        self.agenda += 1
        self.threads.add(threading.get_ident())


async def test_ready_work_is_told_by_tenant_type_and_number(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    heard = Heard(bench)
    await bench.jobs.enqueue_many(
        [
            new_job(bench.tenant, "a"),
            new_job(bench.tenant, "a"),
            new_job(bench.tenant, "b"),
            new_job(other.id, "a"),
            new_job(bench.tenant, "b", delay=60),
        ]
    )
    assert sorted(heard.ready) == sorted([(bench.tenant, "a", 2), (bench.tenant, "b", 1), (other.id, "a", 1)])


async def test_hints_are_told_on_the_event_loop(bench: Bench) -> None:
    heard = Heard(bench)
    await bench.make_job()
    await bench.make_job(delay=60)
    assert (len(heard.ready), heard.agenda) == (1, 1)
    assert heard.threads == {threading.get_ident()}


async def test_work_that_becomes_due_is_told_when_it_is_promoted(bench: Bench) -> None:
    await bench.jobs.enqueue_many([new_job(bench.tenant, "a", delay=60) for _ in range(3)])
    heard = Heard(bench)
    bench.clock.advance(seconds=60)
    await bench.jobs.maintain()
    assert heard.ready == [(bench.tenant, "a", 3)]


async def test_refused_work_is_not_told(bench: Bench) -> None:
    await bench.make_job("a", dedupe_key="d")
    heard = Heard(bench)
    with pytest.raises(DuplicateJob):
        await bench.make_job("a", dedupe_key="d")
    assert heard.ready == []


async def test_every_listener_hears(bench: Bench) -> None:
    heard = [Heard(bench), Heard(bench)]
    await bench.make_job()
    assert heard[0].ready == heard[1].ready == [(bench.tenant, "noop", 1)]


async def test_without_work_to_come_there_is_no_agenda(bench: Bench) -> None:
    assert bench.store.seconds_to_maintenance() is None
    await bench.make_job()
    assert bench.store.seconds_to_maintenance() is None


async def test_the_agenda_is_the_next_instant_of_due_work_or_a_lease(bench: Bench) -> None:
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


async def test_the_agenda_goes_on_once_what_was_due_is_done(bench: Bench) -> None:
    await bench.make_job(delay=10)
    await bench.make_job(delay=100)
    bench.clock.advance(seconds=10)
    await bench.jobs.maintain()
    assert bench.store.seconds_to_maintenance() == 90
    bench.clock.advance(seconds=90)
    await bench.jobs.maintain()
    assert bench.store.seconds_to_maintenance() is None


async def test_tending_moves_the_agenda_past_what_is_no_longer_there(bench: Bench) -> None:
    job = await bench.make_job(delay=10)
    claim = await bench.make_claim("held")
    await bench.jobs.cancel(bench.tenant, job.id)
    await bench.jobs.complete(claim)
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.jobs.maintain()
    assert bench.store.seconds_to_maintenance() is None


async def test_an_agenda_that_comes_closer_is_told(bench: Bench) -> None:
    heard = Heard(bench)
    job = await bench.make_job(delay=100)
    assert heard.agenda == 1
    await bench.make_job(delay=50)
    assert heard.agenda == 2
    await bench.jobs.reschedule(bench.tenant, job.id, run_at=bench.clock.now() + timedelta(seconds=5))
    assert heard.agenda == 3


async def test_an_agenda_that_stays_or_goes_away_is_not_told(bench: Bench) -> None:
    await bench.make_job(delay=50)
    heard = Heard(bench)
    await bench.make_job(delay=100)
    await bench.make_job()
    await bench.make_claim("held")
    bench.clock.advance(seconds=50)
    await bench.jobs.maintain()
    assert heard.agenda == 0
