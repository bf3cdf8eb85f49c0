"""Jobs and events created in a transaction of an application: visible after the commit, and only then."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import asyncpg
import msgspec
import pytest

from ingot.events import Event
from ingot.identity import Limits
from ingot.jobs import Definition, JobStatus
from ingot.jobs.errors import DuplicateJob
from ingot.jobs.model import JobEventData
from ingot.kernel.errors import IdempotencyMismatch, StoreBusy
from ingot.kernel.ids import is_id
from tests.app_database import ROLE, AppDatabase, enqueue, publish
from tests.engines.postgres.app_errors import error_of
from tests.processes import started_async
from tests.waiting import eventually

RICH = {
    "type": "mail",
    "payload": {"to": "ada"},
    "metadata": {"n": 1},
    "tags": ["b", "a", "b"],
    "priority": 2,
    "idempotency_key": "made",
    "dedupe_key": "holds",
    "batch": "together",
    "correlation_id": "c",
    "max_attempts": 7,
}
ENDS = ["COMMIT", "ROLLBACK"]


def summarize(events: list[Event]) -> list[tuple[str, str]]:
    """Check that event IDs grow, and return the name with the job ID or the data of each event."""
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    return [
        (
            e.name,
            msgspec.json.decode(e.data, type=JobEventData).id if e.name.startswith("job.") else bytes(e.data).decode(),
        )
        for e in events
    ]


# -- all or nothing -----------------------------------------------------------------------------------------


async def test_a_rollback_leaves_no_rows(app_db: AppDatabase) -> None:
    await app_db.tenants.change(app_db.tenant, limits=Limits(rate=1000, max_unfinished_jobs=1000))
    await app_db.jobs.define(Definition(type="mail", limit_key="{to}", max_running_per_key=1, reuse=True))
    parent = (await app_db.jobs.enqueue(app_db.tenant, "parent")).job
    before = await app_db.rows()
    app = await app_db.begin()
    (created,) = await enqueue(app, RICH)
    await enqueue(
        app, {"type": "child", "after": [str(created["id"]), parent.id]}, {"type": "later", "delay_seconds": 60}
    )
    await publish(app, "order.paid", {"n": 1}, "key")
    await app.execute("ROLLBACK")
    assert await app_db.rows() == before
    assert await app.fetchval("SELECT count(*) FROM orders") == 0


async def test_committed_jobs_and_events_equal_those_created_over_the_api(app_db: AppDatabase) -> None:
    await app_db.tenants.change(app_db.tenant, limits=Limits(rate=1000, max_unfinished_jobs=1000))
    app = await app_db.begin()
    first, again = await enqueue(app, RICH, RICH)
    assert (first["status"], first["created"], again["created"], again["id"]) == ("queued", True, False, first["id"])
    child, later = await enqueue(
        app, {"type": "child", "after": [str(first["id"])]}, {"type": "later", "delay_seconds": 60}
    )
    assert [child["status"], later["status"]] == ["blocked", "queued"]
    event = await publish(app, "order.paid", {"n": 1}, "key")
    assert (await publish(app, "order.paid", {"n": 1}, "key"))["id"] == event["id"]
    last = await publish(app, "order.sent")
    assert await app_db.jobs.list(app_db.tenant) == await app_db.jobs.list(app_db.tenant, type="none")
    await app.execute("COMMIT")
    job = await app_db.jobs.get(app_db.tenant, str(first["id"]))
    ours = (
        await app_db.jobs.enqueue(app_db.tenant, "twin", {"to": "ada"}, metadata={"n": 1}, tags=["b", "a", "b"])
    ).job
    assert (job.payload, job.metadata, job.tags) == (ours.payload, ours.metadata, ours.tags)
    assert (job.priority, job.max_attempts, job.batch, job.inputs) == (2, 7, "together", {})
    assert (job.idempotency_key, job.dedupe_key, job.correlation_id) == ("made", "holds", "c")
    assert (job.source, job.created_by, is_id(job.id)) == ("manual", f"role/{ROLE}", True)
    counts = (await app_db.jobs.summary(app_db.tenant)).counts
    assert (counts[JobStatus.QUEUED], counts[JobStatus.BLOCKED]) == (3, 1)
    events = await app_db.all_events()
    assert summarize(events)[:5] == [
        ("job.created", str(first["id"])),
        ("job.created", str(child["id"])),
        ("job.created", str(later["id"])),
        ("order.paid", '{"n":1}'),
        ("order.sent", "null"),
    ]
    assert [events[3].id, events[4].id] == [event["id"], last["id"]]


async def test_readers_see_events_of_a_transaction_only_after_its_commit_and_in_order(app_db: AppDatabase) -> None:
    first = (await app_db.jobs.enqueue(app_db.tenant, "other")).job  # One transaction at a time adds types.
    app = await app_db.begin()
    (mine,) = await enqueue(app, {"type": "mail"})
    other = (await app_db.jobs.enqueue(app_db.tenant, "other")).job
    await publish(app, "order.paid", 1)
    assert summarize(await app_db.all_events()) == [("job.created", first.id)]
    await app.execute("COMMIT")
    assert summarize(await app_db.all_events()) == [
        ("job.created", first.id),
        ("job.created", str(mine["id"])),
        ("order.paid", "1"),
        ("job.created", other.id),
    ]


async def test_a_rollback_to_a_savepoint_removes_jobs_events_and_keys(app_db: AppDatabase) -> None:
    app = await app_db.begin()
    (kept,) = await enqueue(app, {"type": "mail", "dedupe_key": "a"})
    await app.execute("SAVEPOINT s")
    await enqueue(app, {"type": "mail", "dedupe_key": "b", "tags": ["gone"]})
    await publish(app, "order.lost", 1, "k")
    await app.execute("ROLLBACK TO s")
    event = await publish(app, "order.paid", 2, "k")
    (after,) = await enqueue(app, {"type": "mail", "dedupe_key": "b"})
    await app.execute("COMMIT")
    events = await app_db.all_events()
    assert summarize(events) == [
        ("job.created", str(kept["id"])),
        ("order.paid", "2"),
        ("job.created", str(after["id"])),
    ]
    assert events[1].id == event["id"]
    assert (await app_db.jobs.summary(app_db.tenant)).counts[JobStatus.QUEUED] == 2


async def test_a_killed_application_leaves_no_rows(app_db: AppDatabase) -> None:
    before = await app_db.rows()
    program = """
import asyncio, sys, asyncpg
async def main():
    app = await asyncpg.connect(sys.argv[1])
    await app.execute("BEGIN")
    await app.execute("INSERT INTO orders DEFAULT VALUES")
    await app.fetch("SELECT * FROM ingot.enqueue_jobs('[{\\"type\\": \\"mail\\", \\"dedupe_key\\": \\"k\\"}]')")
    print(app.get_server_pid(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    async with started_async(sys.executable, "-c", program, app_db.app_url, stdout=asyncio.subprocess.PIPE) as child:
        assert child.stdout is not None
        backend = int(await child.stdout.readline())
    watcher = await app_db.connect("postgres")

    async def has_ended() -> bool:
        return not await watcher.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", backend)

    await eventually(has_ended)
    assert await app_db.rows() == before
    assert (await app_db.jobs.enqueue(app_db.tenant, "mail", dedupe_key="k")).created


async def test_servers_are_notified_at_the_commit(app_db: AppDatabase) -> None:
    notifications: list[str] = []
    listener = await app_db.connect("postgres")
    await listener.add_listener("ingot_ready", lambda *arguments: notifications.append(str(arguments[-1])))
    app = await app_db.begin()
    await enqueue(app, {"type": "mail"})
    await listener.fetchval("SELECT 1")
    assert notifications == []
    await app.execute("COMMIT")
    await eventually(lambda: notifications)
    await app.execute("SET ingot.notify = 'off'")
    await enqueue(app, {"type": "mail"})
    await app.execute("SET ingot.notify = 'on'")
    await enqueue(app, {"type": "mail"})
    await eventually(lambda: len(notifications) > 1)
    assert len(notifications) == 2


# -- keys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
async def test_a_second_transaction_with_one_dedupe_key_waits_for_the_first(app_db: AppDatabase, end: str) -> None:
    first, second = await app_db.begin(), await app_db.begin()
    (created,) = await enqueue(first, {"type": "mail", "dedupe_key": "k"})
    waiting = asyncio.ensure_future(enqueue(second, {"type": "mail", "dedupe_key": "k"}))
    await app_db.wait_until_blocked(first, waiting)
    assert not waiting.done()
    await first.execute(end)
    if end == "COMMIT":
        with pytest.raises(asyncpg.PostgresError) as caught:
            await waiting
        assert isinstance(caught.value, asyncpg.PostgresError)
        detail = msgspec.json.decode(caught.value.detail or "")
        assert (caught.value.sqlstate, detail["code"], detail["holder_id"]) == (
            "IN005",
            "duplicate_job",
            str(created["id"]),
        )
    else:
        (own,) = await waiting
        await second.execute("COMMIT")
        assert own["created"]
    assert (await app_db.jobs.summary(app_db.tenant)).counts[JobStatus.QUEUED] == 1


@pytest.mark.parametrize("end", ENDS)
async def test_a_second_transaction_with_one_idempotency_key_gets_the_committed_job(
    app_db: AppDatabase, end: str
) -> None:
    first, second = await app_db.begin(), await app_db.begin()
    (created,) = await enqueue(first, {"type": "mail", "idempotency_key": "k"})
    waiting = asyncio.ensure_future(enqueue(second, {"type": "mail", "idempotency_key": "k"}))
    await app_db.wait_until_blocked(first, waiting)
    await first.execute(end)
    (repeated,) = await waiting
    assert (repeated["id"] == created["id"], repeated["created"]) == (
        (True, False) if end == "COMMIT" else (False, True)
    )


async def test_applications_and_the_api_share_keys(app_db: AppDatabase) -> None:
    app = await app_db.connect()
    ours = (
        await app_db.jobs.enqueue(app_db.tenant, "mail", {"b": 1e16, "a": "é"}, idempotency_key="k", dedupe_key="d")
    ).job
    (same,) = await enqueue(app, {"type": "mail", "payload": {"a": "é", "b": 1e16}, "idempotency_key": "k"})
    assert (str(same["id"]), same["created"]) == (ours.id, False)
    assert (await error_of(app, {"type": "mail", "payload": 2, "idempotency_key": "k"}))[0] == "IN042"
    state, detail = await error_of(app, {"type": "x", "dedupe_key": "d"})
    assert (state, detail["holder_id"]) == ("IN005", ours.id)
    (mine,) = await enqueue(app, {"type": "mail", "payload": [1.5], "idempotency_key": "m", "dedupe_key": "e"})
    again = await app_db.jobs.enqueue(app_db.tenant, "mail", [1.5], idempotency_key="m")
    assert (again.job.id, again.created) == (str(mine["id"]), False)
    with pytest.raises(IdempotencyMismatch):
        await app_db.jobs.enqueue(app_db.tenant, "mail", [1.6], idempotency_key="m")
    with pytest.raises(DuplicateJob):
        await app_db.jobs.enqueue(app_db.tenant, "y", dedupe_key="e")
    event = await publish(app, "order.paid", {"n": 1}, "k")
    assert (await app_db.events.publish(app_db.tenant, "order.paid", {"n": 1}, dedupe_key="k")).id == event["id"]
    with pytest.raises(IdempotencyMismatch):
        await app_db.events.publish(app_db.tenant, "order.paid", {"n": 2}, dedupe_key="k")


async def test_a_repeatable_read_transaction_with_an_outdated_snapshot_fails_to_serialize(app_db: AppDatabase) -> None:
    app = await app_db.connect()
    await app.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await app.fetch("SELECT count(*) FROM orders")
    await app_db.jobs.enqueue(app_db.tenant, "mail", dedupe_key="k")
    with pytest.raises(asyncpg.SerializationError):
        await enqueue(app, {"type": "mail", "dedupe_key": "k"})


async def test_jobs_of_applications_follow_limits_and_reuse_of_definitions(app_db: AppDatabase) -> None:
    await app_db.jobs.define(
        Definition(type="mail", tenant=app_db.tenant, limit_key="{to}:{n.0}", max_running_per_key=1, priority=1)
    )
    await app_db.jobs.define(Definition(type="same", reuse=True, version=3))
    app = await app_db.connect()
    (mine,) = await enqueue(app, {"type": "mail", "payload": {"to": "ada", "n": [1.50, 2]}})
    await app_db.jobs.enqueue(app_db.tenant, "mail", {"to": "ada", "n": [1.5]})
    claims = await app_db.claim("mail")
    assert [(claim.job.id, claim.job.priority) for claim in claims] == [(str(mine["id"]), 1)]
    ours = (await app_db.jobs.enqueue(app_db.tenant, "same", {"a": 1})).job
    (found,) = await enqueue(app, {"type": "same", "payload": {"a": 1}, "inputs": {}})
    assert (str(found["id"]), found["created"]) == (ours.id, False)
    (forced,) = await enqueue(app, {"type": "same", "payload": {"a": 1}, "force": True})
    assert forced["created"]


# -- transactions that stay open -------------------------------------------------------------------------------


async def test_an_open_transaction_blocks_only_calls_with_the_same_keys(app_db: AppDatabase) -> None:
    await app_db.jobs.enqueue(app_db.tenant, "other")  # One transaction at a time adds types.
    app = await app_db.begin()
    await enqueue(app, {"type": "mail", "dedupe_key": "d", "idempotency_key": "i"})
    await publish(app, "order.paid", 1, "e")
    blocked = [
        app_db.jobs.enqueue(app_db.tenant, "mail", dedupe_key="d"),
        app_db.jobs.enqueue(app_db.tenant, "mail", idempotency_key="i"),
        app_db.events.publish(app_db.tenant, "order.paid", 1, dedupe_key="e"),
    ]
    unaffected = [app_db.jobs.enqueue(app_db.tenant, "other", n, dedupe_key=f"d{n}") for n in range(20)]
    other = app_db.events.publish(app_db.tenant, "b.c", 1, dedupe_key="f")
    pending = asyncio.gather(*blocked, *unaffected, other, return_exceptions=True)
    await app_db.wait_until_blocked(app, pending)
    assert pending.done(), "a server call waits for the application"
    answers = pending.result()
    assert [type(one) for one in answers[:3]] == [StoreBusy] * 3
    assert [one for one in answers if isinstance(one, BaseException)] == answers[:3]
    assert len(await app_db.claim("other")) == 21
    await app.execute("COMMIT")
    with pytest.raises(DuplicateJob):
        await app_db.jobs.enqueue(app_db.tenant, "mail", dedupe_key="d")
    assert len(await app_db.claim("mail")) == 1


async def test_an_open_transaction_in_a_capped_tenant_blocks_no_other_tenant(app_db: AppDatabase) -> None:
    other = await app_db.tenants.create("other")
    for tenant in (app_db.tenant, other.id):
        await app_db.tenants.change(tenant, limits=Limits(max_unfinished_jobs=3))
    app = await app_db.begin()
    await enqueue(app, {"type": "mail"}, {"type": "mail"})
    pending = asyncio.gather(
        app_db.jobs.enqueue(app_db.tenant, "mail"), app_db.jobs.enqueue(other.id, "mail"), return_exceptions=True
    )
    await app_db.wait_until_blocked(app, pending)
    assert pending.done(), "a server call waits for the application"
    mine, others = pending.result()
    assert isinstance(mine, StoreBusy)
    assert not isinstance(others, BaseException)
    assert (await error_of(app, {"type": "mail"}, {"type": "mail"})) == ("IN008", {"code": "job_limit_exceeded"})
    await enqueue(app, {"type": "mail"})
    await app.execute("COMMIT")
    assert (await app_db.jobs.summary(app_db.tenant)).counts[JobStatus.QUEUED] == 3
    assert (await error_of(app, {"type": "mail"}))[0] == "IN008"


async def test_an_open_event_key_blocks_only_its_own_tenant(app_db: AppDatabase) -> None:
    other = await app_db.tenants.create("other")
    app, server = await app_db.begin(), await app_db.connect("ingot_server")
    await publish(app, "order.paid", 1, "key")
    rows = await server.fetch(
        "SELECT place, created FROM ingot.publish($1, '{a.b,a.b}', '{1,1}', '{key,key}', '{a,a}', 86400000000)",
        [app_db.tenant, other.id],
    )
    assert [tuple(row) for row in rows] == [(2, True)]


async def test_a_transaction_with_many_keys_takes_a_limited_number_of_locks(app_db: AppDatabase) -> None:
    app, admin = await app_db.begin(), await app_db.connect("postgres")
    for call in range(5):
        await enqueue(app, *({"type": "mail", "idempotency_key": f"{call}-{n}"} for n in range(100)))
    count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'"
    assert await admin.fetchval(count) == 200
    await app.execute("COMMIT")
    await app.execute("BEGIN")
    await enqueue(app, {"type": "mail", "idempotency_key": "another"})
    assert await admin.fetchval(count) == 1


async def test_a_tenant_with_an_open_transaction_cannot_be_removed(app_db: AppDatabase) -> None:
    other = await app_db.tenants.create("other")
    app = await app_db.connect(await app_db.make_role(other.id))
    await app.execute("BEGIN")
    await enqueue(app, {"type": "mail"})
    with pytest.raises(StoreBusy):
        await app_db.tenants.remove(other.id)
    await app.execute("COMMIT")
    await app_db.tenants.remove(other.id)
    assert (await error_of(app, {"type": "mail"}))[0] == "42501"


async def test_applications_and_servers_with_the_same_keys_never_deadlock(app_db: AppDatabase) -> None:
    """Every unfinished job holds its key in the end, and no call reports a deadlock."""
    keys = [f"k{n}" for n in range(4)]
    states: set[str | None] = set()

    async def apply(number: int) -> None:
        app = await app_db.connect()
        for turn in range(15):
            jobs = [{"type": "mail", "dedupe_key": key} for key in keys[(number + turn) % 3 :][::-1]]
            try:
                async with app.transaction():
                    await enqueue(app, *jobs)
                    if turn % 2:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            except asyncpg.PostgresError as error:
                states.add(error.sqlstate)

    async def serve(number: int) -> None:
        for turn in range(30):
            with contextlib.suppress(DuplicateJob, StoreBusy):
                await app_db.jobs.enqueue(app_db.tenant, "mail", dedupe_key=keys[(number + turn) % 4])
            for claim in await app_db.claim("mail"):
                await app_db.jobs.complete(claim)

    await asyncio.gather(*(apply(n) for n in range(4)), *(serve(n) for n in range(4)))
    assert states <= {"IN005"}
    admin = await app_db.connect("postgres")
    assert await admin.fetchval("SELECT count(*) FROM ingot.ready") == await admin.fetchval(
        "SELECT count(*) FROM ingot.dedupe_keys"
    )
    counts = (await app_db.jobs.summary(app_db.tenant)).counts
    events = summarize(await app_db.all_events())
    assert sum(counts.values()) == len([name for name, _ in events if name == "job.created"])


# -- order, and triggers -----------------------------------------------------------------------------------


async def test_jobs_of_one_transaction_have_growing_ids(app_db: AppDatabase) -> None:
    app = await app_db.begin()
    ids = [
        row["id"] for _ in range(3) for row in await enqueue(app, *({"type": "mail", "payload": n} for n in range(50)))
    ]
    await app.execute("COMMIT")
    assert ids == sorted(ids)
    claims = await app_db.claim("mail")
    assert len(claims) == 150


async def test_a_trigger_of_an_application_can_enqueue_jobs(app_db: AppDatabase) -> None:
    app = await app_db.connect()
    await app.execute("""
        CREATE FUNCTION pg_temp.enqueue_order() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM ingot.enqueue_jobs(jsonb_build_array(jsonb_build_object('type', 'mail', 'payload', to_jsonb(new))));
            RETURN new;
        END $$;
        CREATE TRIGGER enqueue_order AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION pg_temp.enqueue_order()
    """)
    await app.execute("INSERT INTO orders SELECT FROM generate_series(1, 3)")
    assert (await app_db.jobs.summary(app_db.tenant)).counts[JobStatus.QUEUED] == 3
