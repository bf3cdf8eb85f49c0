"""Calls that run every statement of a store, with the same sizes whatever the store contains."""

from __future__ import annotations

from contextlib import suppress

from benchmarks.queue.prefill import PAYLOAD
from ingot.events.audit import Act
from ingot.identity import Limits
from ingot.identity.authenticator import Authenticator
from ingot.identity.credential_service import Credentials
from ingot.identity.grants import Grant
from ingot.identity.members import Members
from ingot.identity.people import LOCAL_ISSUER, Person
from ingot.identity.ports import (
    BeginLogin,
    ChooseTenant,
    ClearTenants,
    ConsumeLogin,
    CreateToken,
    DenySignIn,
    EndSession,
    FindSession,
    LeaveTenant,
    ListSessions,
    ListUserTokens,
    RecordLastUsed,
    SignIn,
)
from ingot.identity.users import Users
from ingot.jobs import (
    Definition,
    Done,
    DuplicateJob,
    Failed,
    JobStatus,
    LeaseLost,
    Outcome,
    Progress,
    Release,
    Settle,
    Snooze,
    Source,
)
from ingot.jobs.checks import LOG_CHARS_MAX, RETENTION_SECONDS_MAX
from ingot.jobs.job_options import new_job
from ingot.jobs.ports import CheckLeases, ListDrainingWorkers
from ingot.jobs.workers import GRACE_SECONDS
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.conformance.people_fixture import token_of
from tests.engines.sqlite.plans.every_blob_statement import run_every_blob_statement
from tests.factories import LEASE_SECONDS, Bench

TYPE = "noop"
OLD_KEY = "prefilled-10"
BATCH = 50


async def run_every_statement(bench: Bench) -> None:
    """Run every statement."""
    await _identity(bench)
    await _credentials(bench)
    await _people(bench)
    await _enqueue(bench)
    await _claim_and_settle(bench)
    await _workers(bench)
    await _cancel_and_retry(bench)
    await _limit(bench)
    await _dependencies(bench)
    await _explain(bench)
    await _read(bench)
    await _publish(bench)
    await run_every_blob_statement(bench)
    await _collect(bench)
    await _remove(bench)


async def _identity(bench: Bench) -> None:
    acme = await bench.tenants.create("acme")
    await bench.tenants.change(acme.id, weight=2)
    await bench.tenants.list()
    await bench.jobs.define(Definition(type="other", max_attempts=2))
    await bench.jobs.definition("other", tenant=bench.tenant)
    await bench.jobs.definitions(tenant=bench.tenant)
    for tenant in (acme.id, bench.tenant):
        await bench.jobs.enqueue(tenant, "turns")
    await bench.jobs.settle_many(
        [
            Settle(job_id=claim.job.id, fence=claim.fence, outcome=Done())
            for claim in await bench.jobs.claim("w1", ["turns"], limit=4)
        ]
    )


async def _credentials(bench: Bench) -> None:
    access = Authenticator(bench.store, bench.clock)
    credentials = Credentials(bench.store, access, bench.clock)
    token = await credentials.create_token(bench.tenant, description="a program", grants=[Grant(action="jobs.*")])
    await access.authenticate_token(token.text)
    worker = await credentials.create_worker_credential(bench.tenant, "press")
    await access.authenticate_worker("press", worker.secret)
    now = bench.clock.micros()
    await bench.store.run(RecordLastUsed(tokens={token.token.id: now}, workers={"press": now}))
    await credentials.list_tokens(bench.tenant)
    await credentials.list_worker_credentials(bench.tenant)
    await credentials.revoke_token(bench.tenant, token.token.id)
    await credentials.enable_worker_credential(bench.tenant, "press", enabled=False)
    await bench.jobs.give_back("press")
    assert {entry.action for entry in (await bench.audit.list(bench.tenant)).items} >= {"token.revoked"}
    await bench.audit.list(None, action="token.revoked", limit=BATCH)


async def _people(bench: Bench) -> None:
    tenant, store, later = bench.tenant, bench.store, bench.clock.micros() + 60 * MICROS
    access = Authenticator(store, bench.clock)
    members, users = Members(store, access), Users(store, access)
    await bench.tenants.change(tenant, groups={"staff": "viewer"})
    await store.run(BeginLogin(digest=b"login", expires_at=later, is_link=True, act=Act()))
    await store.run(ConsumeLogin(digest=b"login", is_link=True))
    first = await members.put(tenant, role="member", email="ann@example.com", act=Act())
    await members.put(tenant, role="admin", email="ann@example.com", act=Act())
    sign_in = SignIn(
        person=Person(
            issuer=LOCAL_ISSUER, subject="ann", email="ann@example.com", email_verified=True, groups=("staff",)
        ),
        user_id=new_id(),
        session_id=new_id(),
        digest=b"session",
        expires_at=later,
        address=None,
        agent=None,
        replaced_digest=b"before",
        act=Act(),
    )
    ann = await store.run(sign_in)
    assert await store.run(FindSession(digest=b"session")) is not None
    await store.run(RecordLastUsed(tokens={}, workers={}, sessions={sign_in.session_id: later}))
    invited = await members.put(tenant, role="viewer", email="bob@example.com", act=Act())
    assert first.id != invited.id
    assert len((await members.list(tenant)).items) == 3
    (pending,) = await members.invitations(ann.id)
    await members.accept(pending.id, user=ann.id, act=Act())
    await members.change(tenant, ann.id, role="viewer", act=Act())
    await members.put(tenant, role="member", user=ann.id, act=Act())
    await members.change(tenant, invited.id, role="member", act=Act())
    await members.remove(tenant, invited.id, act=Act())
    await members.remove(tenant, ann.id, act=Act())
    again = await members.put(tenant, role="viewer", user=ann.id, act=Act())
    await members.decline(again.id, user=ann.id, act=Act())
    await store.run(ChooseTenant(session=sign_in.session_id, user=ann.id, tenant=tenant))
    await store.run(LeaveTenant(tenant=tenant, user=ann.id, act=Act()))
    await store.run(DenySignIn(person=sign_in.person, act=Act()))
    await store.run(sign_in)
    await users.list()
    await users.list(email="ann@example.com")
    await users.get(ann.id)
    await store.run(ListSessions(user=ann.id))
    await store.run(ListUserTokens(user=ann.id, before=None, limit=BATCH))
    await store.run(CreateToken(token=token_of(ann, tenant), digest=b"digest", act=Act()))
    await store.run(EndSession(id=sign_in.session_id, user=ann.id, act=Act()))
    await users.enable(ann.id, enabled=False, act=Act())


async def _enqueue(bench: Bench) -> None:
    tenant = bench.tenant
    assert not (await bench.jobs.enqueue(tenant, TYPE, PAYLOAD, idempotency_key=OLD_KEY)).created
    await bench.jobs.enqueue(tenant, TYPE, 1, tags=["red", "blue"], idempotency_key="new", dedupe_key="new")
    with suppress(DuplicateJob):
        await bench.jobs.enqueue(tenant, TYPE, 1, dedupe_key="new")
    await bench.jobs.enqueue_many([new_job(tenant, TYPE, n) for n in range(BATCH)])
    await bench.jobs.enqueue_many([new_job(tenant, TYPE, n, delay=60) for n in range(BATCH)])


async def _claim_and_settle(bench: Bench) -> None:
    claims = await bench.jobs.claim("w1", [TYPE], limit=BATCH)
    assert len(claims) == BATCH
    await bench.jobs.heartbeat_many([bench.jobs.beat(c.job.id, c.fence) for c in claims])
    await bench.jobs.heartbeat(claims[0].job.id, claims[0].fence, progress=Progress(percent=50))
    await bench.jobs.append_log(claims[0].job.id, claims[0].fence, "." * LOG_CHARS_MAX)
    await bench.jobs.append_log(claims[0].job.id, claims[0].fence, "more")
    assert (await bench.jobs.log(bench.tenant, claims[0].job.id)).live
    outcomes: list[Outcome] = [Done(result=b"1"), Failed(error="broken"), Snooze(delay=MICROS), Release()]
    settles = [
        Settle(job_id=claim.job.id, fence=claim.fence, outcome=outcomes[index % 4])
        for index, claim in enumerate(claims[:-10])
    ]
    await bench.jobs.settle_many(settles)
    await bench.jobs.settle_many(settles)
    with suppress(LeaseLost):
        await bench.jobs.settle(claims[0].job.id, claims[0].fence, Failed(error="too late"))
    await bench.jobs.cancel(bench.tenant, claims[-1].job.id)
    bench.clock.advance(seconds=LEASE_SECONDS)
    maintained = await bench.jobs.maintain()
    assert maintained.swept == 10
    assert maintained.promoted >= BATCH
    await bench.jobs.claim("w1", [TYPE], limit=1)


async def _workers(bench: Bench) -> None:
    tenant = bench.tenant
    for name in ("press/1", "press/2", "press/3"):
        await bench.workers.register(tenant, name, [TYPE])
    named, unnamed = await bench.jobs.claim("press/1", [TYPE], tenant=tenant, limit=2)
    bench.clock.advance(seconds=GRACE_SECONDS + 1)
    answer = await bench.workers.heartbeat(tenant, "press/1", [bench.jobs.beat(named.job.id, named.fence)])
    await bench.store.run(CheckLeases(leases=answer.jobs))
    with suppress(LeaseLost):
        await bench.jobs.complete(unnamed)
    await bench.workers.list(tenant)
    await bench.workers.get(tenant, "press/1")
    await bench.workers.drain(tenant, "press/2")
    await bench.store.run(ListDrainingWorkers())
    await bench.workers.total_counts()
    await bench.jobs.describe_store()
    await bench.workers.remove(tenant, "press/1")
    bench.clock.advance(seconds=LEASE_SECONDS)
    assert (await bench.workers.maintain()).marked_offline == 2


async def _cancel_and_retry(bench: Bench) -> None:
    tenant = bench.tenant
    old = (await bench.jobs.enqueue(tenant, TYPE, PAYLOAD, idempotency_key=OLD_KEY)).job
    assert old.status is JobStatus.SUCCEEDED
    await bench.jobs.retry(tenant, old.id)
    await bench.jobs.reschedule(tenant, old.id, priority=1, tags=["green"])
    await bench.jobs.cancel(tenant, old.id)


async def _limit(bench: Bench) -> None:
    tenant = bench.tenant
    await bench.jobs.define(Definition(type="keyed", max_running=BATCH, limit_key="{a}", max_running_per_key=1))
    await bench.tenants.change(tenant, limits=Limits(max_unfinished_jobs=10_000_000, max_running_jobs=1000))
    await bench.jobs.enqueue_many([new_job(tenant, "keyed", {"a": n % 5}) for n in range(BATCH)])
    for _ in range(2):
        await bench.jobs.claim("w1", [TYPE, "keyed"], limit=10)
    await bench.jobs.pause(tenant, TYPE)
    assert len(await bench.jobs.pauses(tenant)) == 1
    assert await bench.jobs.claim("w1", [TYPE]) == []
    await bench.jobs.resume(tenant, TYPE)


async def _explain(bench: Bench) -> None:
    tenant = bench.tenant
    await bench.jobs.define(Definition(type="same", reuse=True, max_running=1))
    first = (await bench.jobs.enqueue(tenant, "same")).job
    assert (await bench.jobs.enqueue(tenant, "same")).reused
    assert (await bench.jobs.explain(tenant, first.id)).status is first.status
    blocked = (await bench.jobs.enqueue(tenant, TYPE, after=[first.id])).job
    assert (await bench.jobs.explain(tenant, blocked.id)).reasons[0].code == "waits_for"
    await bench.jobs.cancel(tenant, first.id, by="token:ada")
    assert (await bench.jobs.explain(tenant, first.id)).reasons[0].data["canceled_by"] == "token:ada"


async def _dependencies(bench: Bench) -> None:
    tenant = bench.tenant
    first = (await bench.jobs.enqueue(tenant, TYPE, batch="batch")).job
    second = (await bench.jobs.enqueue(tenant, TYPE, after=[first.id], batch="batch")).job
    await bench.jobs.enqueue(tenant, TYPE, after=[first.id, second.id], batch="batch")
    await bench.jobs.cancel(tenant, first.id)
    batch = await bench.jobs.batch(tenant, "batch")
    assert (batch.total, batch.canceled) == (3, 3)


async def _read(bench: Bench) -> None:
    tenant = bench.tenant
    page = await bench.jobs.list(tenant, limit=BATCH)
    await bench.jobs.list(tenant, limit=BATCH, cursor=page.next_cursor)
    for status in JobStatus:
        await bench.jobs.list(tenant, limit=BATCH, status=status)
    await bench.jobs.list(tenant, limit=BATCH, type=TYPE)
    await bench.jobs.list(tenant, limit=BATCH, tag="green")
    await bench.jobs.list(tenant, limit=BATCH, source=Source.SCHEDULE)
    await bench.jobs.list(tenant, limit=BATCH, created_before=page.items[-1].created_at)
    await bench.jobs.counts(tenant)
    await bench.jobs.get(tenant, page.items[0].id)
    await bench.jobs.attempts(tenant, page.items[0].id)
    await bench.jobs.summary(tenant)
    await bench.jobs.summary(tenant, type=TYPE, status=JobStatus.QUEUED)
    assert (await bench.jobs.summary(tenant, source=Source.MANUAL)).more
    await bench.jobs.depths()
    events = await bench.events.read(tenant, limit=BATCH)
    await bench.events.read(tenant, after=events[-1].id, limit=BATCH)
    assert await bench.events.newest(tenant) > events[-1].id


async def _publish(bench: Bench) -> None:
    assert (await bench.events.publish(bench.tenant, "calls.done", 1, dedupe_key="calls")).created
    assert not (await bench.events.publish(bench.tenant, "calls.done", 1, dedupe_key="calls")).created
    assert (await bench.events.forget(keep=1, limit=BATCH)).batches == BATCH
    events = await bench.events.read(bench.tenant, limit=1)
    await bench.events.read(bench.tenant, after=events[-1].id, limit=BATCH)


async def _collect(bench: Bench) -> None:
    tenant = bench.tenant
    await bench.jobs.define(Definition(type=TYPE, retention_seconds=RETENTION_SECONDS_MAX))
    assert (await bench.jobs.collect(BATCH)).removed == 0
    await bench.jobs.define(Definition(type=TYPE, retention_seconds=0, keep_history=True))
    (preview,) = await bench.jobs.preview_retention(tenant)
    assert preview.more
    assert (await bench.jobs.collect(BATCH)).kept == BATCH
    await bench.jobs.enqueue_many([new_job(tenant, "together", n) for n in range(BATCH)])
    claims = await bench.jobs.claim("w1", ["together"], limit=BATCH)
    await bench.jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=Done()) for c in claims])
    await bench.jobs.define(Definition(type=TYPE))
    await bench.jobs.define(Definition(type="together", retention_seconds=0, keep_history=True))
    assert (await bench.jobs.collect(BATCH - 1)).kept == BATCH - 1
    await bench.jobs.history(tenant, limit=BATCH)
    await bench.jobs.history(tenant, type=TYPE, limit=BATCH)


async def _remove(bench: Bench) -> None:
    tenant = (await bench.tenants.create("gone")).id
    await bench.jobs.enqueue_many([new_job(tenant, "last", n) for n in range(BATCH)])
    (claim,) = await bench.jobs.claim("w1", ["last"], tenant=tenant)
    await bench.tenants.remove(tenant)
    while (cleared := await bench.store.run(ClearTenants(limit=BATCH))).has_more:
        pass
    assert cleared.remaining_tenants == 1
    await bench.jobs.release(claim)
    while cleared.remaining_tenants:
        cleared = await bench.store.run(ClearTenants(limit=BATCH))
