"""Workers: they register, are heard of, drain and go; what they hold is renewed, or given back."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.model import TenantNotFound
from ingot.jobs import AttemptOutcome, Claim, JobStatus, LeaseLost, Progress
from ingot.jobs.errors import WorkerNotFound
from ingot.jobs.ports import AttemptHeartbeat, CheckLeases, RemoveWorker, WorkerHeartbeat
from ingot.jobs.worker_model import HeartbeatAnswer, LeaseStatus, WorkerStatus
from ingot.jobs.workers import GRACE_SECONDS, RECORD_SEEN_SECONDS, REMOVE_OFFLINE_SECONDS
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


async def news(bench: Bench, tenant: str | None = None) -> list[tuple[str, object]]:
    """What the events say about workers."""
    events = await bench.events.read(tenant or bench.tenant, limit=1000)
    return [(event.name, msgspec.json.decode(event.data)) for event in events if event.name.startswith("worker.")]


# -- registering --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
async def test_a_worker_registers_and_is_seen(bench: Bench, shared: bool) -> None:
    tenant = None if shared else bench.tenant
    made = await bench.workers.register(
        tenant,
        "press/host-1",
        ["pdf", "a.b"],
        hostname="höst",
        version="1.2",
        metadata=b'{"a": 1.50}',
        by="worker:press",
    )
    assert (made.id, made.tenant, made.status, made.types) == ("press/host-1", tenant, "online", ("pdf", "a.b"))
    assert (made.hostname, made.version, bytes(made.metadata)) == ("höst", "1.2", b'{"a": 1.50}')
    assert made.registered_at == made.seen_at == bench.clock.now()
    assert made.registered_by == "worker:press"
    assert await bench.workers.get(tenant, "press/host-1") == made
    assert (await bench.workers.list(tenant)).items == [made]
    told = {"id": "press/host-1", "status": "online", "types": ["pdf", "a.b"], "hostname": "höst", "version": "1.2"}
    assert await news(bench) == ([] if shared else [("worker.online", told)])


async def test_registering_again_changes_what_is_known_and_tells_nothing(bench: Bench) -> None:
    await register(bench)
    await bench.workers.drain(bench.tenant, "press/1")
    bench.clock.advance(seconds=1)
    again = await bench.workers.register(bench.tenant, "press/1", ["other"])
    assert (again.status, again.types, again.registered_at) == (WorkerStatus.ONLINE, ("other",), bench.clock.now())
    assert [name for name, _ in await news(bench)] == ["worker.online"]


async def test_a_worker_id_that_cannot_be_is_refused(bench: Bench) -> None:
    ids: list[Any] = ["", "/", "/a", "a/", "a/b/c", "x" * 257, "a\x00", 7]
    calls = {repr(bad): partial(bench.workers.register, bench.tenant, bad, TYPES) for bad in ids}
    await refuses_each(bench, InvalidInput, calls)
    assert (await bench.workers.list(bench.tenant)).items == []


async def test_what_cannot_be_kept_is_refused(bench: Bench) -> None:
    large = b'"' + b"x" * 20_000 + b'"'
    bad: list[dict[str, Any]] = [{"types": []}, {"hostname": "x" * 600}, {"metadata": b"{"}, {"metadata": large}]
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
    stand = [(await bench.workers.get(tenant, "press")).status for tenant in (bench.tenant, other.id, None)]
    assert stand == ["online", "draining", "online"]
    await bench.workers.remove(other.id, "press")
    with pytest.raises(WorkerNotFound):
        await bench.workers.get(other.id, "press")
    assert (await bench.workers.get(bench.tenant, "press")).status is WorkerStatus.ONLINE


async def test_who_is_not_there_is_not_found_in_any_way(bench: Bench) -> None:
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


async def test_a_worker_is_disabled_with_its_own_credential_and_no_other(bench: Bench) -> None:
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


# -- being heard --------------------------------------------------------------------------------------------


async def test_what_a_worker_names_is_renewed_and_each_is_judged_by_itself(bench: Bench) -> None:
    await register(bench)
    held, canceled, lost = [await bench.make_claim(worker="press/1") for _ in range(3)]
    await bench.jobs.cancel(bench.tenant, canceled.job.id)
    await bench.jobs.complete(lost)
    bench.clock.advance(seconds=60)
    beats = [
        bench.jobs.beat(held.job.id, held.fence, progress=Progress(percent=40, stage="reading")),
        beat(bench, canceled),
        beat(bench, lost),
        bench.jobs.beat(new_id(), 1),
        bench.jobs.beat("nobody", 1),
    ]
    heard = await bench.workers.heartbeat(bench.tenant, "press/1", beats)
    expires_at = bench.clock.now() + timedelta(seconds=LEASE_SECONDS)
    assert [(job.lease_expires_at, job.cancel_requested, job.lost) for job in heard.jobs] == [
        (expires_at, False, False),
        (expires_at, True, False),
        (None, False, True),
        (None, False, True),
        (None, False, True),
    ]
    assert [job.job_id for job in heard.jobs] == [beat.job_id for beat in beats]
    assert not heard.drain
    job = await bench.reload(held)
    assert (job.lease_expires_at, job.progress) == (expires_at, Progress(percent=40, stage="reading"))


async def test_jobs_of_another_tenant_are_lost_for_a_worker(bench: Bench) -> None:
    await register(bench)
    other = await bench.tenants.create("other")
    strange = await bench.make_claim(worker="press/1", tenant=other.id)
    bench.clock.advance(seconds=60)
    (answer,) = (await bench.workers.heartbeat(bench.tenant, "press/1", [beat(bench, strange)])).jobs
    assert answer.lost
    assert (await bench.reload(strange)).lease_expires_at == strange.lease_expires_at


async def test_a_job_named_twice_is_refused_and_nothing_is_done(bench: Bench) -> None:
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


async def test_what_a_worker_does_not_name_is_given_back_uncounted_after_a_while(bench: Bench) -> None:
    await register(bench)
    named, unnamed, stale = [await bench.make_claim(worker="press/1") for _ in range(3)]
    bench.clock.advance(seconds=GRACE_SECONDS)
    fresh = await bench.make_claim(worker="press/1")
    heard = [beat(bench, named), bench.jobs.beat(stale.job.id, stale.fence - 1)]
    await bench.workers.heartbeat(bench.tenant, "press/1", heard)
    assert {(await bench.reload(claim)).status for claim in (named, unnamed, stale, fresh)} == {JobStatus.RUNNING}
    bench.clock.advance(seconds=0.001)
    await bench.workers.heartbeat(bench.tenant, "press/1", heard)
    assert [(await bench.reload(claim)).status for claim in (named, fresh)] == [JobStatus.RUNNING] * 2
    for claim in (unnamed, stale):  # One was not named at all, the other under a fence that is not that of its claim.
        job = await bench.reload(claim)
        assert (job.status, job.failures, job.crashes, job.worker_id) == (JobStatus.QUEUED, 0, 0, None)
        (attempt,) = await bench.jobs.attempts(bench.tenant, claim.job.id)
        assert attempt.outcome is AttemptOutcome.RELEASED
        with pytest.raises(LeaseLost):
            await bench.jobs.complete(claim)
    assert len(await bench.jobs.claim("other", TYPES, limit=5)) == 2


async def test_only_its_own_leases_are_given_back(bench: Bench) -> None:
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


async def test_a_job_that_was_to_stop_and_is_not_named_is_canceled(bench: Bench) -> None:
    await register(bench)
    claim = await bench.make_claim(worker="press/1")
    waits = await bench.make_job(after=[claim.job.id])
    await bench.jobs.cancel(bench.tenant, claim.job.id)
    bench.clock.advance(seconds=60)
    await bench.workers.heartbeat(bench.tenant, "press/1")
    await bench.jobs.maintain()
    assert (await bench.reload(claim)).status is JobStatus.CANCELED
    assert (await bench.reload(waits)).status is JobStatus.CANCELED


async def test_when_a_worker_was_seen_is_noted_now_and_then(bench: Bench) -> None:
    await register(bench)
    first = bench.clock.now()
    for _ in range(4):
        bench.clock.advance(seconds=RECORD_SEEN_SECONDS / 4 - 0.001)
        await bench.workers.heartbeat(bench.tenant, "press/1")
    assert (await bench.workers.get(bench.tenant, "press/1")).seen_at == first
    bench.clock.advance(seconds=1)
    await bench.workers.heartbeat(bench.tenant, "press/1")
    assert (await bench.workers.get(bench.tenant, "press/1")).seen_at == bench.clock.now()


# -- going --------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_silent_for_a_lease_is_offline_and_told_once(bench: Bench) -> None:
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
    known = await bench.workers.get(bench.tenant, "press/1")
    assert (known.status, known.seen_at) == (WorkerStatus.ONLINE, bench.clock.now())
    told = {"id": "press/1", "types": TYPES}
    assert await news(bench) == [
        ("worker.online", {**told, "status": "online"}),
        ("worker.offline", {**told, "status": "offline"}),
        ("worker.online", {**told, "status": "online"}),
    ]


async def test_who_beats_is_not_silent(bench: Bench) -> None:
    await register(bench)
    for _ in range(10):
        bench.clock.advance(seconds=LEASE_SECONDS - 1)
        await bench.workers.heartbeat(bench.tenant, "press/1")
        assert (await bench.workers.maintain()).marked_offline == 0


async def test_many_silent_workers_are_found_in_bounded_rounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.jobs.workers.MAINTAIN_WORKERS_MAX", 3)
    for number in range(7):
        await register(bench, f"w-{number}")
    bench.clock.advance(seconds=LEASE_SECONDS)
    rounds = [await bench.workers.maintain() for _ in range(4)]
    assert [(one.marked_offline, one.more) for one in rounds] == [(3, True), (3, True), (1, False), (0, False)]
    assert [name for name, _ in await news(bench)].count("worker.offline") == 7


async def test_who_was_offline_for_long_is_forgotten(bench: Bench) -> None:
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


async def test_a_removed_worker_gives_back_what_it_holds_and_is_gone(bench: Bench) -> None:
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
    assert [name for name, _ in await news(bench)] == ["worker.online", "worker.online", "worker.offline"]


async def test_a_worker_that_holds_much_is_removed_in_bounded_steps(bench: Bench) -> None:
    await register(bench)
    claims = [await bench.make_claim(worker="press/1") for _ in range(5)]
    command = RemoveWorker(tenant=bench.tenant, worker_id="press/1", limit=2, act=None)
    assert [await bench.store.run(command) for _ in range(3)] == [False, False, True]
    assert {(await bench.reload(claim)).status for claim in claims} == {JobStatus.QUEUED}


async def test_removing_who_is_offline_tells_nothing_more(bench: Bench) -> None:
    await register(bench)
    bench.clock.advance(seconds=LEASE_SECONDS)
    await bench.workers.maintain()
    await bench.workers.remove(bench.tenant, "press/1")
    assert [name for name, _ in await news(bench)] == ["worker.online", "worker.offline"]


# -- draining -----------------------------------------------------------------------------------------------


async def test_a_draining_worker_gets_no_more_work_until_it_registers_again(bench: Bench) -> None:
    await register(bench)
    claim = await bench.make_claim(worker="press/1", tenant=bench.tenant)
    for _ in range(2):
        assert (await bench.workers.drain(bench.tenant, "press/1")).status is WorkerStatus.DRAINING
    await bench.make_job()
    for seconds in (0, 30):
        assert await bench.jobs.claim("press/1", TYPES, tenant=bench.tenant, wait_seconds=seconds) == []
    heard = await bench.workers.heartbeat(bench.tenant, "press/1", [beat(bench, claim)])
    assert heard.drain
    assert not heard.jobs[0].lost
    await bench.jobs.complete(claim)
    await register(bench)
    assert not (await bench.workers.heartbeat(bench.tenant, "press/1")).drain
    assert len(await bench.jobs.claim("press/1", TYPES, tenant=bench.tenant)) == 1


async def test_others_are_not_drained_with_it(bench: Bench) -> None:
    other = await bench.tenants.create("other")
    for tenant in (bench.tenant, other.id, None):
        await bench.workers.register(tenant, "press", TYPES)
    await bench.workers.drain(other.id, "press")
    for tenant, name in ((bench.tenant, "press"), (None, "press"), (other.id, "press/1")):
        await bench.make_job(tenant=tenant or bench.tenant)
        assert len(await bench.jobs.claim(name, TYPES, tenant=tenant)) == 1


async def test_a_lease_is_checked_without_being_renewed(bench: Bench) -> None:
    held, canceled, lost = [await bench.make_claim() for _ in range(3)]
    await bench.jobs.cancel(bench.tenant, canceled.job.id)
    await bench.jobs.release(lost)
    bench.clock.advance(seconds=60)
    asked = [LeaseStatus(job_id=claim.job.id, fence=claim.fence) for claim in (lost, held, canceled)]
    stale = LeaseStatus(job_id=held.job.id, fence=held.fence - 1)
    assert await bench.store.run(CheckLeases(leases=[*asked, stale])) == [
        asked[0],
        LeaseStatus(job_id=held.job.id, fence=held.fence, lease_expires_at=held.lease_expires_at),
        LeaseStatus(
            job_id=canceled.job.id,
            fence=canceled.fence,
            lease_expires_at=canceled.lease_expires_at,
            cancel_requested=True,
        ),
        stale,
    ]


async def test_a_heartbeat_that_changes_nothing_leaves_no_trace(bench: Bench) -> None:
    await register(bench)
    before = await bench.event_names()
    command = WorkerHeartbeat(tenant=bench.tenant, worker_id="press/1", beats=[], grace=0, record_seen_after=MICROS)
    assert await bench.store.run(command) == HeartbeatAnswer(jobs=[], drain=False)
    assert await bench.event_names() == before
