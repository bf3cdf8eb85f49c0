"""Workers: they register, send heartbeats, drain and are removed; their leases are renewed or released."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.model import TenantNotFound
from ingot.jobs import AttemptOutcome, Claim, Jobs, JobStatus, LeaseLost, Progress
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.ports import AttemptHeartbeat, CheckLeases, RemoveWorker, WorkerHeartbeat
from ingot.jobs.worker_model import HeartbeatAnswer, LeaseStatus, WorkerStatus, silent_seconds
from ingot.jobs.workers import (
    GRACE_SECONDS,
    RECORD_SEEN_LEASE_SHARE,
    RECORD_SEEN_SECONDS,
    REMOVE_OFFLINE_SECONDS,
    Workers,
)
from ingot.kernel.clock import MICROS
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses_each
from tests.factories import LEASE_SECONDS, Bench

TYPES = ["noop"]


async def register(bench: Bench, name: str = "press/1", *, shared: bool = False) -> None:
    await bench.workers.register(None if shared else bench.tenant, name, TYPES)


def beat(bench: Bench, claim: Claim) -> AttemptHeartbeat:
    return bench.jobs.beat(claim.job.id, claim.fence)


async def statuses(bench: Bench) -> list[WorkerStatus]:
    """The statuses of all workers of the tenant, ordered by ID."""
    return [worker.status for worker in (await bench.workers.list(bench.tenant)).items]


async def worker_events(bench: Bench, tenant: str | None = None) -> list[tuple[str, object]]:
    """The names and data of worker events."""
    events = await bench.events.read(tenant or bench.tenant, limit=1000)
    return [(event.name, msgspec.json.decode(event.data)) for event in events if event.name.startswith("worker.")]


# -- registering --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
async def test_a_registered_worker_is_read_and_listed(bench: Bench, shared: bool) -> None:
    tenant = None if shared else bench.tenant
    worker = await bench.workers.register(
        tenant,
        "press/host-1",
        ["pdf", "a.b"],
        hostname="höst",
        version="1.2",
        protocol=3,
        metadata=b'{"a": 1.50}',
        by="worker:press",
    )
    assert (worker.id, worker.tenant, worker.status, worker.types) == ("press/host-1", tenant, "online", ("pdf", "a.b"))
    assert (worker.hostname, worker.version, bytes(worker.metadata)) == ("höst", "1.2", b'{"a": 1.50}')
    assert worker.registered_at == worker.seen_at == bench.clock.now()
    assert (worker.protocol, worker.registered_by) == (3, "worker:press")
    assert await bench.workers.get(tenant, "press/host-1") == worker
    assert (await bench.workers.list(tenant)).items == [worker]
    event_data = {
        "id": "press/host-1",
        "status": "online",
        "types": ["pdf", "a.b"],
        "hostname": "höst",
        "version": "1.2",
    }
    assert await worker_events(bench) == ([] if shared else [("worker.online", event_data)])


async def test_a_repeated_registration_updates_the_worker_without_an_event(bench: Bench) -> None:
    await register(bench)
    await bench.workers.drain(bench.tenant, "press/1")
    bench.clock.advance(seconds=1)
    again = await bench.workers.register(bench.tenant, "press/1", ["other"])
    assert (again.status, again.types, again.registered_at) == (WorkerStatus.ONLINE, ("other",), bench.clock.now())
    assert [name for name, _ in await worker_events(bench)] == ["worker.online"]


async def test_invalid_worker_ids_are_refused_at_registration(bench: Bench) -> None:
    ids: list[Any] = ["", "/", "/a", "a/", "a/b/c", "x" * 257, "a\x00", 7]
    calls = {repr(bad): partial(bench.workers.register, bench.tenant, bad, TYPES) for bad in ids}
    await refuses_each(bench, InvalidInput, calls)
    assert (await bench.workers.list(bench.tenant)).items == []


async def test_invalid_registrations_are_refused(bench: Bench) -> None:
    large = b'"' + b"x" * 20_000 + b'"'
    bad: list[dict[str, Any]] = [{"types": []}, {"hostname": "x" * 600}, {"metadata": b"{"}, {"metadata": large}]
    bad += [{"protocol": 0}, {"protocol": 1.5}, {"protocol": 10_000_000}]
    for one in bad:
        with pytest.raises(InvalidInput):
            await bench.workers.register(bench.tenant, "press", **{"types": TYPES, **one})
    with pytest.raises(TenantNotFound):
        await bench.workers.register(new_id(), "press", TYPES)
    assert (await bench.workers.list(bench.tenant)).items == []


async def test_the_same_id_in_another_tenant_is_another_worker(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    for tenant in (bench.tenant, other.id, None):
        await bench.workers.register(tenant, "press", TYPES)
    await bench.workers.drain(other.id, "press")
    statuses = [(await bench.workers.get(tenant, "press")).status for tenant in (bench.tenant, other.id, None)]
    assert statuses == ["online", "draining", "online"]
    await bench.workers.remove(other.id, "press")
    with pytest.raises(WorkerNotFound):
        await bench.workers.get(other.id, "press")
    assert (await bench.workers.get(bench.tenant, "press")).status is WorkerStatus.ONLINE


async def test_calls_for_an_unknown_worker_are_refused(bench: Bench) -> None:
    await register(bench)
    other = await bench.tenants.create("other")
    for tenant, name in ((bench.tenant, "press"), (other.id, "press/1"), (None, "press/1"), (new_id(), "press/1")):
        for call in (bench.workers.get, bench.workers.heartbeat, bench.workers.drain, bench.workers.remove):
            with pytest.raises(WorkerNotFound):
                await call(tenant, name)
    assert (await bench.workers.get(bench.tenant, "press/1")).status is WorkerStatus.ONLINE


async def test_workers_are_listed_in_pages_by_id(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    for name in ("b", "a/2", "a-1", "a/1", "B"):
        await register(bench, name)
    await bench.workers.register(other.id, "c", TYPES)
    first = await bench.workers.list(bench.tenant, limit=3)
    rest = await bench.workers.list(bench.tenant, cursor=first.next_cursor, limit=3)
    assert [worker.id for worker in [*first.items, *rest.items]] == ["B", "a-1", "a/1", "a/2", "b"]
    assert rest.next_cursor is None
    with pytest.raises(InvalidInput):
        await bench.workers.list(other.id, cursor=first.next_cursor)
    with pytest.raises(TenantNotFound):
        await bench.workers.list(new_id())


async def test_disabling_a_credential_disables_exactly_its_workers(bench: Bench) -> None:
    credentials = Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)
    other = await bench.tenants.create("other")
    await credentials.create_worker_credential(bench.tenant, "press")
    for tenant in (bench.tenant, other.id, None):
        for name in ("press", "press/1", "press-2", "pres"):
            await bench.workers.register(tenant, name, TYPES)
    await credentials.enable_worker_credential(None, "press", enabled=False)
    disabled = [
        (tenant, worker.id)
        for tenant in (bench.tenant, other.id, None)
        for worker in (await bench.workers.list(tenant)).items
        if worker.status is WorkerStatus.DISABLED
    ]
    assert disabled == [(bench.tenant, "press"), (bench.tenant, "press/1")]
    assert (await bench.workers.get(bench.tenant, "press/1")).status is WorkerStatus.DISABLED
    await credentials.enable_worker_credential(None, "press", enabled=True)
    assert (await bench.workers.get(bench.tenant, "press/1")).status is WorkerStatus.ONLINE


# -- heartbeats ---------------------------------------------------------------------------------------------


async def test_a_heartbeat_renews_or_rejects_each_named_lease(bench: Bench) -> None:
    await register(bench)
    running, canceled, lost = [await bench.make_claim(worker="press/1") for _ in range(3)]
    await bench.jobs.cancel(bench.tenant, canceled.job.id)
    await bench.jobs.complete(lost)
    bench.clock.advance(seconds=60)
    beats = [
        bench.jobs.beat(running.job.id, running.fence, progress=Progress(percent=40, stage="reading")),
        beat(bench, canceled),
        beat(bench, lost),
        bench.jobs.beat(new_id(), 1),
        bench.jobs.beat("nobody", 1),
    ]
    answer = await bench.workers.heartbeat(bench.tenant, "press/1", beats)
    expires_at = bench.clock.now() + timedelta(seconds=LEASE_SECONDS)
    assert [(job.lease_expires_at, job.cancel_requested, job.lost) for job in answer.jobs] == [
        (expires_at, False, False),
        (expires_at, True, False),
        (None, False, True),
        (None, False, True),
        (None, False, True),
    ]
    assert [job.job_id for job in answer.jobs] == [beat.job_id for beat in beats]
    assert not answer.drain
    job = await bench.reload(running)
    assert (job.lease_expires_at, job.progress) == (expires_at, Progress(percent=40, stage="reading"))


async def test_a_worker_cannot_renew_leases_of_another_tenant(bench: Bench) -> None:
    await register(bench)
    other = await bench.tenants.create("other")
    other_claim = await bench.make_claim(worker="press/1", tenant=other.id)
    bench.clock.advance(seconds=60)
    (answer,) = (await bench.workers.heartbeat(bench.tenant, "press/1", [beat(bench, other_claim)])).jobs
    assert answer.lost
    assert (await bench.reload(other_claim)).lease_expires_at == other_claim.lease_expires_at


async def test_an_invalid_heartbeat_is_refused_and_renews_nothing(bench: Bench) -> None:
    await register(bench)
    claims = [await bench.make_claim(worker="press/1") for _ in range(2)]
    bench.clock.advance(seconds=60)
    for bad in ([beat(bench, claims[0])] * 2, [7], "beats", [bench.jobs.beat(claims[0].job.id, "x")]):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            await bench.workers.heartbeat(bench.tenant, "press/1", bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await bench.workers.heartbeat(bench.tenant, "press/1", wait_seconds=61)
    for claim in claims:
        assert (await bench.reload(claim)).lease_expires_at == claim.lease_expires_at


async def test_a_job_not_named_in_heartbeats_is_released_after_the_grace(bench: Bench) -> None:
    await register(bench)
    named, unnamed, stale = [await bench.make_claim(worker="press/1") for _ in range(3)]
    bench.clock.advance(seconds=GRACE_SECONDS)
    fresh = await bench.make_claim(worker="press/1")
    beats = [beat(bench, named), bench.jobs.beat(stale.job.id, stale.fence - 1)]
    await bench.workers.heartbeat(bench.tenant, "press/1", beats)
    assert {(await bench.reload(claim)).status for claim in (named, unnamed, stale, fresh)} == {JobStatus.RUNNING}
    bench.clock.advance(seconds=0.001)
    await bench.workers.heartbeat(bench.tenant, "press/1", beats)
    assert [(await bench.reload(claim)).status for claim in (named, fresh)] == [JobStatus.RUNNING] * 2
    for claim in (unnamed, stale):  # One was not named, the other was named under a wrong fence.
        job = await bench.reload(claim)
        assert (job.status, job.failures, job.crashes, job.worker_id) == (JobStatus.QUEUED, 0, 0, None)
        (attempt,) = await bench.jobs.attempts(bench.tenant, claim.job.id)
        assert attempt.outcome is AttemptOutcome.RELEASED
        with pytest.raises(LeaseLost):
            await bench.jobs.complete(claim)
    assert len(await bench.jobs.claim("other", TYPES, limit=5)) == 2


async def test_a_heartbeat_releases_only_leases_of_its_worker(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    for name in ("press", "press/1"):
        await register(bench, name)
    await register(bench, "shared", shared=True)
    kept = [
        await bench.make_claim(worker=name, tenant=tenant)
        for name, tenant in (("press/1", bench.tenant), ("press2", bench.tenant), ("press", other.id))
    ]
    served = [await bench.make_claim(worker="shared", tenant=tenant) for tenant in (bench.tenant, other.id)]
    bench.clock.advance(seconds=60)
    await bench.workers.heartbeat(bench.tenant, "press")
    assert {(await bench.reload(claim)).status for claim in (*kept, *served)} == {JobStatus.RUNNING}
    await bench.workers.heartbeat(None, "shared")
    assert {(await bench.reload(claim)).status for claim in served} == {JobStatus.QUEUED}
    assert {(await bench.reload(claim)).status for claim in kept} == {JobStatus.RUNNING}


async def test_a_job_with_a_cancel_request_not_named_in_heartbeats_is_canceled(bench: Bench) -> None:
    await register(bench)
    claim = await bench.make_claim(worker="press/1")
    waits = await bench.make_job(after=[claim.job.id])
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    bench.clock.advance(seconds=60)
    await bench.workers.heartbeat(bench.tenant, "press/1")
    await bench.jobs.maintain()
    assert (await bench.reload(claim)).status is JobStatus.CANCELED
    assert (await bench.reload(waits)).status is JobStatus.CANCELED


async def test_seen_at_is_recorded_at_intervals(bench: Bench) -> None:
    await register(bench)
    first = bench.clock.now()
    for _ in range(4):
        bench.clock.advance(seconds=RECORD_SEEN_SECONDS / 4 - 0.001)
        await bench.workers.heartbeat(bench.tenant, "press/1")
    assert (await bench.workers.get(bench.tenant, "press/1")).seen_at == first
    bench.clock.advance(seconds=1)
    await bench.workers.heartbeat(bench.tenant, "press/1")
    assert (await bench.workers.get(bench.tenant, "press/1")).seen_at == bench.clock.now()


async def test_workers_of_all_tenants_are_counted_by_status(bench: Bench) -> None:
    assert await bench.workers.total_counts() == dict.fromkeys(WorkerStatus, 0)
    other = await bench.tenants.create("other")
    credentials = Credentials(bench.store, Authenticator(bench.store, bench.clock), bench.clock)
    for name in ("press", "shut"):
        await credentials.create_worker_credential(bench.tenant, name)
        for tenant in (bench.tenant, other.id, None):
            await bench.workers.register(tenant, f"{name}/1", TYPES)
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.workers.maintain()
    await bench.workers.register(bench.tenant, "still", TYPES)
    bench.clock.advance(seconds=silent_seconds(LEASE_SECONDS))
    await bench.workers.heartbeat(bench.tenant, "press/1")
    for tenant, name in ((bench.tenant, "press/2"), (None, "press/3"), (None, "slow")):
        await bench.workers.register(tenant, name, TYPES)
    await bench.workers.drain(None, "slow")
    await credentials.enable_worker_credential(bench.tenant, "shut", enabled=False)
    listed = [
        worker for tenant in (bench.tenant, other.id, None) for worker in (await bench.workers.list(tenant)).items
    ]
    counts = await bench.workers.total_counts()
    assert counts == Counter(worker.status for worker in listed)
    assert counts == {
        WorkerStatus.ONLINE: 3,
        WorkerStatus.DRAINING: 1,
        WorkerStatus.SILENT: 1,
        WorkerStatus.OFFLINE: 4,
        WorkerStatus.DISABLED: 1,
    }


# -- silent workers -----------------------------------------------------------------------------------------


async def test_a_worker_that_misses_heartbeats_is_silent_until_the_next_one(bench: Bench) -> None:
    for name in ("press/1", "press/2"):
        await register(bench, name)
    await bench.workers.drain(bench.tenant, "press/2")
    seen_at = bench.clock.now()
    bench.clock.advance(seconds=silent_seconds(LEASE_SECONDS) - 0.001)
    assert await statuses(bench) == ["online", "draining"]
    bench.clock.advance(seconds=0.001)
    assert await statuses(bench) == ["silent", "silent"]
    worker = await bench.workers.get(bench.tenant, "press/1")
    assert (worker.status, worker.seen_at) == (WorkerStatus.SILENT, seen_at)
    assert (await bench.workers.counts(bench.tenant))[WorkerStatus.SILENT] == 2
    await bench.workers.maintain()
    for name in ("press/1", "press/2"):
        await bench.workers.heartbeat(bench.tenant, name)
    assert await statuses(bench) == ["online", "draining"]
    assert [name for name, _ in await worker_events(bench)] == ["worker.online"] * 2


@pytest.mark.parametrize("lease_seconds", [1.0, 30.0, 180.0, 86_400.0])
async def test_a_worker_that_sends_its_heartbeats_in_time_is_never_silent(bench: Bench, lease_seconds: float) -> None:
    """Its last sign of life is not stored with every heartbeat, so the heartbeats come at the worst times."""
    jobs = Jobs(bench.store, lease_seconds=lease_seconds)
    workers = Workers(bench.store, jobs, lease_seconds=lease_seconds)
    await workers.register(bench.tenant, "press/1", TYPES)
    unstored_seconds = min(RECORD_SEEN_SECONDS, lease_seconds * RECORD_SEEN_LEASE_SHARE) * 0.999
    for seconds in (unstored_seconds, workers.heartbeat_seconds):
        bench.clock.advance(seconds=seconds)
        assert (await workers.get(bench.tenant, "press/1")).status is WorkerStatus.ONLINE
        await workers.heartbeat(bench.tenant, "press/1")


# -- offline and removed workers ----------------------------------------------------------------------------


async def test_a_worker_without_heartbeats_for_a_lease_is_offline_and_reported_once(bench: Bench) -> None:
    await register(bench)
    await register(bench, "shared", shared=True)
    bench.clock.advance(seconds=LEASE_SECONDS - 0.001)
    assert (await bench.workers.maintain()).marked_offline == 0
    bench.clock.advance(seconds=0.001)
    assert (await bench.workers.maintain()).marked_offline == 2
    assert (await bench.workers.maintain()).marked_offline == 0
    for tenant, name in ((bench.tenant, "press/1"), (None, "shared")):
        assert (await bench.workers.get(tenant, name)).status is WorkerStatus.OFFLINE
    await bench.workers.heartbeat(bench.tenant, "press/1")
    await bench.workers.heartbeat(bench.tenant, "press/1")
    await bench.workers.heartbeat(None, "shared")
    worker = await bench.workers.get(bench.tenant, "press/1")
    assert (worker.status, worker.seen_at) == (WorkerStatus.ONLINE, bench.clock.now())
    event_data = {"id": "press/1", "types": TYPES}
    assert await worker_events(bench) == [
        ("worker.online", {**event_data, "status": "online"}),
        ("worker.offline", {**event_data, "status": "offline"}),
        ("worker.online", {**event_data, "status": "online"}),
    ]


async def test_a_worker_that_sends_heartbeats_stays_online(bench: Bench) -> None:
    await register(bench)
    for _ in range(10):
        bench.clock.advance(seconds=LEASE_SECONDS - 1)
        await bench.workers.heartbeat(bench.tenant, "press/1")
        assert (await bench.workers.maintain()).marked_offline == 0


async def test_many_offline_workers_are_marked_in_limited_passes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.jobs.workers.MAINTAIN_WORKERS_MAX", 3)
    for number in range(7):
        await register(bench, f"w-{number}")
    bench.clock.advance(seconds=LEASE_SECONDS)
    rounds = [await bench.workers.maintain() for _ in range(4)]
    assert [(one.marked_offline, one.more) for one in rounds] == [(3, True), (3, True), (1, False), (0, False)]
    assert [name for name, _ in await worker_events(bench)].count("worker.offline") == 7


async def test_a_worker_offline_for_long_is_removed(bench: Bench) -> None:
    for name in ("gone", "back"):
        await register(bench, name)
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.workers.maintain()
    bench.clock.advance(seconds=REMOVE_OFFLINE_SECONDS - LEASE_SECONDS - 1)
    await bench.workers.heartbeat(bench.tenant, "back")
    assert (await bench.workers.maintain()).removed == 0
    bench.clock.advance(seconds=1)
    assert (await bench.workers.maintain()).removed == 1
    assert [worker.id for worker in (await bench.workers.list(bench.tenant)).items] == ["back"]


async def test_removing_a_worker_releases_its_jobs(bench: Bench) -> None:
    await register(bench)
    await register(bench, "press")
    own = [await bench.make_claim(worker="press/1") for _ in range(3)]
    others = await bench.make_claim(worker="press")
    await bench.workers.remove(bench.tenant, "press/1")
    for claim in own:
        job = await bench.reload(claim)
        assert (job.status, job.failures, job.crashes) == (JobStatus.QUEUED, 0, 0)
    assert (await bench.reload(others)).status is JobStatus.RUNNING
    with pytest.raises(WorkerNotFound):
        await bench.workers.heartbeat(bench.tenant, "press/1")
    assert [name for name, _ in await worker_events(bench)] == ["worker.online", "worker.online", "worker.offline"]


async def test_a_worker_with_many_jobs_is_removed_in_limited_steps(bench: Bench) -> None:
    await register(bench)
    claims = [await bench.make_claim(worker="press/1") for _ in range(5)]
    command = RemoveWorker(tenant=bench.tenant, worker_id="press/1", limit=2, act=None)
    assert [await bench.store.run(command) for _ in range(3)] == [False, False, True]
    assert {(await bench.reload(claim)).status for claim in claims} == {JobStatus.QUEUED}


async def test_removing_an_offline_worker_publishes_no_event(bench: Bench) -> None:
    await register(bench)
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.workers.maintain()
    await bench.workers.remove(bench.tenant, "press/1")
    assert [name for name, _ in await worker_events(bench)] == ["worker.online", "worker.offline"]


# -- draining -----------------------------------------------------------------------------------------------


async def test_a_draining_worker_gets_no_jobs_until_it_registers_again(bench: Bench) -> None:
    await register(bench)
    claim = await bench.make_claim(worker="press/1", tenant=bench.tenant)
    for _ in range(2):
        assert (await bench.workers.drain(bench.tenant, "press/1")).status is WorkerStatus.DRAINING
    await bench.make_job()
    for seconds in (0, 30):
        assert await bench.jobs.claim("press/1", TYPES, tenant=bench.tenant, wait_seconds=seconds) == []
    answer = await bench.workers.heartbeat(bench.tenant, "press/1", [beat(bench, claim)])
    assert answer.drain
    assert not answer.jobs[0].lost
    await bench.jobs.complete(claim)
    await register(bench)
    assert not (await bench.workers.heartbeat(bench.tenant, "press/1")).drain
    assert len(await bench.jobs.claim("press/1", TYPES, tenant=bench.tenant)) == 1


async def test_a_drain_applies_only_to_its_worker_and_tenant(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    for tenant in (bench.tenant, other.id, None):
        await bench.workers.register(tenant, "press", TYPES)
    await bench.workers.drain(other.id, "press")
    for tenant, name in ((bench.tenant, "press"), (None, "press"), (other.id, "press/1")):
        await bench.make_job(tenant=tenant or bench.tenant)
        assert len(await bench.jobs.claim(name, TYPES, tenant=tenant)) == 1


async def test_a_lease_check_does_not_renew_leases(bench: Bench) -> None:
    running, canceled, lost = [await bench.make_claim() for _ in range(3)]
    await bench.jobs.cancel(bench.tenant, canceled.job.id)
    await bench.jobs.release(lost)
    bench.clock.advance(seconds=60)
    leases = [LeaseStatus(job_id=claim.job.id, fence=claim.fence) for claim in (lost, running, canceled)]
    stale = LeaseStatus(job_id=running.job.id, fence=running.fence - 1)
    assert await bench.store.run(CheckLeases(leases=[*leases, stale])) == [
        leases[0],
        LeaseStatus(job_id=running.job.id, fence=running.fence, lease_expires_at=running.lease_expires_at),
        LeaseStatus(
            job_id=canceled.job.id,
            fence=canceled.fence,
            lease_expires_at=canceled.lease_expires_at,
            cancel_requested=True,
        ),
        stale,
    ]


async def test_a_heartbeat_without_changes_publishes_no_event(bench: Bench) -> None:
    await register(bench)
    before = await bench.event_names()
    command = WorkerHeartbeat(tenant=bench.tenant, worker_id="press/1", beats=[], grace=0, record_seen_after=MICROS)
    assert await bench.store.run(command) == HeartbeatAnswer(jobs=[], drain=False)
    assert await bench.event_names() == before
