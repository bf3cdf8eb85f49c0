"""The event cursor: late commits are not missed, and no effect is visible before its cause.

Readers stop before the oldest transaction that is still running anywhere in the cluster.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.job_rows import EventEntryRow
from ingot.events import Event, Events
from ingot.events.feeds import Feeds
from ingot.events.service import START
from ingot.identity import Tenants
from ingot.jobs import Claim, Done, Failed, Jobs, JobStatus, Release, Settled
from ingot.jobs.errors import JobFinished
from ingot.jobs.model import JobEventData, Outcome, Progress, Settle, Snooze
from ingot.kernel.clock import SystemClock, to_datetime
from ingot.kernel.errors import IngotError
from ingot.kernel.ids import new_id
from tests.postgres import borrowed_database, until_blocked, with_database

LEASE_SECONDS: Final = 180.0
WRITERS: Final = 16
JOBS_EACH: Final = 12
OUTCOMES: Final[list[Outcome]] = [Done(), Failed(error="no"), Release(), Snooze(delay=1)]
ENQUEUE: Final = """
    SELECT * FROM ingot.enqueue(
        '{0}', ARRAY[$1::uuid], ARRAY[$2::uuid], '{noop}', '{"null"}', '{NULL}', '{NULL}', '{NULL}', '{0}', '{NULL}',
        '{NULL}', '{NULL}', '{NULL}', '{manual}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{0}', '{}', '{}', '{}', '{}'
    )
"""
SETTLE: Final = """
    SELECT * FROM ingot.settle(
        ARRAY[$1::uuid], ARRAY[$2::bigint], '{NULL}', ARRAY[$3], '{t}', '{0}', '{NULL}', '{NULL}', '{NULL}'
    )
"""
PUBLISH: Final = "SELECT * FROM ingot.publish(ARRAY[$1::uuid], '{a.b}', '{1}', '{k}', '{\\\\x00}', 86400000000)"
CANCEL: Final = "SELECT ingot.cancel($1, $2)"


class EventDatabase:
    """An open store in real time, and plain connections to its database."""

    def __init__(self, url: str, store: PostgresStore, tenant: str) -> None:
        self.url = url
        self.store = store
        self.tenant = tenant
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        self.events = Events(store)
        self.open = ExitStack()

    async def server(self) -> Raw:
        """A plain connection with the server role."""
        connection = await asyncpg.connect(self.url)
        self.open.callback(connection.terminate)  # A graceful close could wait for a lock.
        return connection

    async def owner(self) -> Raw:
        """A plain connection with the owner role."""
        name = self.url.partition("?")[0].rpartition("/")[2]
        connection = await asyncpg.connect(with_database(self.url, name, "postgres"))
        self.open.callback(connection.terminate)  # A graceful close could wait for a lock.
        return connection

    async def begin(self) -> Raw:
        """A connection of the server role with an open transaction."""
        connection = await self.server()
        await connection.execute("BEGIN")
        return connection

    async def add_type(self) -> None:
        """Add the type of jobs to the tenant, because one transaction at a time adds types."""
        owner = await self.owner()
        await owner.execute("INSERT INTO ingot.tenant_types (tenant, type) VALUES ($1, 'noop')", self.tenant)

    async def make_job(self) -> str:
        """Enqueue one job."""
        return (await self.jobs.enqueue(self.tenant, "noop")).job.id

    async def make_claims(self, count: int) -> list[Claim]:
        """Enqueue jobs, claim them, and return the claims in the order of their IDs."""
        for _ in range(count):
            await self.make_job()
        claims = await self.jobs.claim("worker", ["noop"], limit=count)
        assert len(claims) == count
        return sorted(claims, key=lambda claim: claim.job.id)

    async def all_events(self, page: int = 1000) -> list[Event]:
        """All events that are visible, read page by page."""
        events: list[Event] = []
        while more := await self.events.read(self.tenant, after=events[-1].id if events else None, limit=page):
            events += more
        return events

    async def waits_for(self, holder: Raw, waiting: asyncio.Future[Any]) -> None:
        """Wait until a call is blocked by this connection, or done."""
        await until_blocked(await self.server(), holder, waiting)


@pytest.fixture
async def database() -> AsyncIterator[EventDatabase]:
    async with borrowed_database() as borrowed:
        borrowed.clock = clock = SystemClock()
        store = await PostgresStore.open(
            borrowed.server_url, clock=clock, lease_seconds=LEASE_SECONDS, pool=await borrowed.pool()
        )
        opened = EventDatabase(borrowed.server_url, store, (await Tenants(store).ensure_default()).id)
        try:
            yield opened
        finally:
            opened.open.close()
            await store.close()


def job_data(event: Event) -> JobEventData:
    return msgspec.json.decode(event.data, type=JobEventData)


def summarize(events: list[Event]) -> list[tuple[str, str]]:
    """Check that event IDs grow, and return the name and job ID of each event."""
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    return [(event.name, job_data(event).id) for event in events]


# -- late commits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 2, 1000])
@pytest.mark.parametrize("commits", [True, False])
async def test_readers_wait_for_transactions_that_began_earlier(
    database: EventDatabase, page: int, commits: bool
) -> None:
    before = await database.make_job()
    late, first = await database.begin(), new_id()
    await late.fetch(ENQUEUE, first, database.tenant)
    later = [await database.make_job() for _ in range(3)]
    assert summarize(await database.all_events(page)) == [("job.created", before)]
    await late.execute("COMMIT" if commits else "ROLLBACK")
    expected = [before, *([first] if commits else []), *later]
    assert summarize(await database.all_events(page)) == [("job.created", job_id) for job_id in expected]


async def test_a_reader_with_a_cursor_receives_a_late_commit(database: EventDatabase) -> None:
    await database.make_job()
    (seen,) = await database.events.read(database.tenant)
    late, first = await database.begin(), new_id()
    await late.fetch(ENQUEUE, first, database.tenant)
    second = await database.make_job()
    assert await database.events.read(database.tenant, after=seen.id) == []
    await late.execute("COMMIT")
    assert summarize(await database.events.read(database.tenant, after=seen.id)) == [
        ("job.created", first),
        ("job.created", second),
    ]


async def test_a_waiting_reader_receives_a_transaction_that_ends_meanwhile(
    database: EventDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.engines.postgres.events.HORIZON_SECONDS_MAX", 60.0)
    await database.add_type()
    late, first = await database.begin(), new_id()
    await late.fetch(ENQUEUE, first, database.tenant)
    second = await database.make_job()
    reading = asyncio.create_task(database.events.read(database.tenant))
    await asyncio.sleep(0)
    await late.execute("COMMIT")
    events = await reading
    assert summarize(events) == [("job.created", first), ("job.created", second)]


@pytest.mark.parametrize("commits", [True, False])
async def test_transactions_are_read_in_the_order_in_which_they_began(database: EventDatabase, commits: bool) -> None:
    await database.add_type()
    parties = [(await database.begin(), new_id()) for _ in range(5)]
    for connection, job_id in parties:
        await connection.fetch(ENQUEUE, job_id, database.tenant)
    shown: list[list[tuple[str, str]]] = []
    for connection, _ in reversed(parties[1:]):
        await connection.execute("COMMIT")
        shown.append(summarize(await database.all_events()))
    await parties[0][0].execute("COMMIT" if commits else "ROLLBACK")
    assert shown == [[], [], [], []]
    expected = [job_id for _, job_id in parties[0 if commits else 1 :]]
    assert summarize(await database.all_events()) == [("job.created", job_id) for job_id in expected]


async def test_readers_wait_for_a_transaction_of_another_tenant_without_seeing_it(database: EventDatabase) -> None:
    other = await Tenants(database.store).create("other")
    late = await database.begin()
    await late.fetch(ENQUEUE, new_id(), other.id)
    job_id = await database.make_job()
    assert await database.events.read(database.tenant) == []
    await late.execute("COMMIT")
    assert summarize(await database.events.read(database.tenant)) == [("job.created", job_id)]


async def test_a_read_only_transaction_does_not_delay_readers(database: EventDatabase) -> None:
    reader = await database.begin()
    await reader.fetch("SELECT * FROM ingot.job_rows")
    job_id = await database.make_job()
    assert summarize(await database.events.read(database.tenant)) == [("job.created", job_id)]


async def test_the_newest_position_is_before_uncommitted_events(database: EventDatabase) -> None:
    await database.make_job()
    (seen,) = await database.events.read(database.tenant)
    late, first = await database.begin(), new_id()
    await late.fetch(ENQUEUE, first, database.tenant)
    second = await database.make_job()
    assert await database.events.newest(database.tenant) == seen.id
    following = await Feeds(database.events, SystemClock()).follow(database.tenant, None, lambda *_: True)
    await anext(following)
    await late.execute("COMMIT")
    frames = b""
    async with asyncio.timeout(30):
        while second.encode() not in frames:
            frames += await anext(following)
    await following.aclose()
    assert 0 < frames.index(first.encode()) < frames.index(second.encode())
    assert frames.count(b"event: ") == 2


async def test_a_position_of_an_event_that_is_not_visible_yet_is_valid(database: EventDatabase) -> None:
    late = await database.begin()
    await late.fetch(ENQUEUE, new_id(), database.tenant)
    opened = await database.events.publish(database.tenant, "a.b")
    assert await database.events.newest(database.tenant) == START
    assert await database.events.check_position(database.tenant, opened.id) == opened.id


async def test_events_after_an_open_transaction_are_not_removed(database: EventDatabase) -> None:
    old = [await database.make_job() for _ in range(2)]
    ids = [event.id for event in await database.events.read(database.tenant)]
    late, first = await database.begin(), new_id()
    await late.fetch(ENQUEUE, first, database.tenant)
    later = [await database.make_job() for _ in range(2)]
    assert (await database.events.forget(keep=1, limit=100)).batches == len(old)
    await late.execute("COMMIT")
    kept = await database.events.read(database.tenant, after=ids[-1])
    assert summarize(kept) == [("job.created", job_id) for job_id in (first, *later)]


async def test_a_second_event_with_one_key_waits_for_the_first_transaction(database: EventDatabase) -> None:
    first = await database.begin()
    (row,) = await first.fetch(PUBLISH, database.tenant)
    second = asyncio.ensure_future(database.events.publish(database.tenant, "a.b", 1, dedupe_key="k"))
    await database.waits_for(first, second)
    await first.execute("ROLLBACK")
    opened = await second
    assert opened.created
    assert [event.id for event in await database.all_events()] == [opened.id]
    assert int(opened.id, 16) > row["event"]


# -- many writers -------------------------------------------------------------------------------------------


class JobLife:
    """Follows the events of one job, and checks that each can follow the one before."""

    def __init__(self) -> None:
        self.previous: JobEventData | None = None
        self.name = ""

    def follow(self, event: Event) -> None:
        """Check that this event can follow the one before."""
        current, previous = job_data(event), self.previous
        transition = f"{event.name} after {self.name or 'nothing'}: {current} after {previous}"
        if previous is None:
            assert (event.name, current.status) == ("job.created", JobStatus.QUEUED), transition
        elif event.name == "job.started":
            assert (previous.status, current.status) == (JobStatus.QUEUED, JobStatus.RUNNING), transition
            assert current.fence > previous.fence, transition
            assert current.attempts == previous.attempts + 1, transition
        elif event.name == "job.retried":
            assert previous.status in (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED), transition
            assert current.status is JobStatus.QUEUED, transition
        else:
            self._check_update(event.name, previous, current, transition)
        self.previous, self.name = current, event.name

    def _check_update(self, name: str, previous: JobEventData, current: JobEventData, transition: str) -> None:
        assert (current.fence, current.attempts) == (previous.fence, previous.attempts), transition
        if self.name == "job.failed" and previous.status is not JobStatus.QUEUED:
            assert (name, current.status) == (f"job.{previous.status}", previous.status), transition
            return
        ends = {"job.completed": JobStatus.SUCCEEDED, "job.dead": JobStatus.DEAD, "job.canceled": JobStatus.CANCELED}
        if name in ends:
            assert current.status is ends[name], transition
            assert previous.status in (JobStatus.QUEUED, JobStatus.RUNNING), transition
            assert name != "job.canceled" or previous.status is JobStatus.QUEUED or previous.cancel_requested, (
                transition
            )
        elif name == "job.failed":
            assert previous.status is JobStatus.RUNNING, transition
        else:
            assert (name, previous.status) == ("job.updated", JobStatus.RUNNING), transition
            assert current.status in (JobStatus.RUNNING, JobStatus.QUEUED), transition
            assert current.status is JobStatus.QUEUED or current.cancel_requested >= previous.cancel_requested, (
                transition
            )


def follow(events: list[Event]) -> dict[str, JobLife]:
    """Check the events of all jobs, and return their lives."""
    lives: defaultdict[str, JobLife] = defaultdict(JobLife)
    for event in events:
        lives[job_data(event).id].follow(event)
    return lives


async def write(database: EventDatabase, number: int) -> None:
    """Enqueue, claim, settle and cancel jobs, concurrently with other writers."""
    chance = random.Random(number)
    known: list[str] = []
    for _ in range(JOBS_EACH):
        known.append(await database.make_job())
        for claim in await database.jobs.claim(f"worker-{number}", ["noop"], limit=chance.randint(1, 3)):
            if chance.random() < 0.5:
                known.append(claim.job.id)
            cancels = chance.random() < 0.4
            outcome = chance.choice(OUTCOMES)
            settling = database.jobs.settle(claim.job.id, claim.fence, outcome)
            canceling = cancel(database, claim.job.id) if cancels else asyncio.sleep(0)
            await asyncio.gather(*chance.sample([settling, canceling], 2))
        await cancel(database, chance.choice(known))


async def cancel(database: EventDatabase, job_id: str) -> None:
    with suppress(JobFinished):
        await database.jobs.cancel(database.tenant, job_id)


async def test_a_reader_among_many_writers_sees_every_event_once_and_in_valid_order(database: EventDatabase) -> None:
    writers = [asyncio.create_task(write(database, number)) for number in range(WRITERS)]
    chance = random.Random(99)
    shown: list[Event] = []
    while True:
        finished = all(writer.done() for writer in writers)
        page = await database.events.read(
            database.tenant, after=shown[-1].id if shown else None, limit=chance.choice([1, 3, 17, 200])
        )
        shown += page
        if finished and not page:
            break
    await asyncio.gather(*writers)
    assert [event.id for event in shown] == [event.id for event in await database.all_events()]
    owner = await database.owner()
    entries = await owner.fetch("SELECT entries FROM ingot.events")
    stored = sum(
        len(entry.event_data()) for row in entries for entry in msgspec.json.decode(row[0], type=list[EventEntryRow])
    )
    assert len(summarize(shown)) == stored
    lives = follow(shown)
    assert len(lives) == WRITERS * JOBS_EACH
    assert {"job.created", "job.started", "job.updated", "job.canceled", "job.completed", "job.failed"} <= {
        event.name for event in shown
    }
    for job_id, life in lives.items():
        assert life.previous is not None
        assert (await database.jobs.get(database.tenant, job_id)).status is life.previous.status


# -- rows written by a later transaction --------------------------------------------------------------------


async def test_a_settle_that_waited_for_a_later_cancel_is_repeated(database: EventDatabase) -> None:
    (claim,) = await database.make_claims(1)
    settling, canceling = await database.begin(), await database.begin()
    first = await settling.fetchval("SELECT pg_current_xact_id()::text::bigint")
    await canceling.execute(CANCEL, database.tenant, claim.job.id)
    assert first < await canceling.fetchval("SELECT pg_current_xact_id()::text::bigint")
    settle = asyncio.create_task(settling.fetch(SETTLE, claim.job.id, claim.fence, "released"))
    await database.waits_for(canceling, settle)
    await canceling.execute("COMMIT")
    with pytest.raises(asyncpg.SerializationError):
        await settle
    await settling.execute("ROLLBACK")
    settled = await database.jobs.settle(claim.job.id, claim.fence, Release())
    assert settled.status is JobStatus.CANCELED
    events = await database.all_events()
    assert [name for name, _ in summarize(events)][-2:] == ["job.updated", "job.canceled"]
    follow(events)


async def block(database: EventDatabase, claim: Claim) -> Raw:
    """Open a transaction that locks the lease of a claim and changes nothing."""
    holder = await database.owner()
    await holder.execute("BEGIN")
    await holder.execute("SELECT FROM ingot.leases WHERE id = $1 FOR UPDATE", claim.job.id)
    return holder


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_events_of_a_batch_of_settles_follow_a_cancel_that_overtook_it(
    database: EventDatabase, outcome: Outcome
) -> None:
    """The batch locks rows in the order of IDs, so it has its position before it reaches the last row."""
    claims = await database.make_claims(3)
    holder = await block(database, claims[1])
    settling = asyncio.ensure_future(
        database.jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=outcome) for c in claims])
    )
    await database.waits_for(holder, settling)
    await database.jobs.cancel(database.tenant, claims[2].job.id)
    await holder.execute("COMMIT")
    answers = [answer for answer in await settling if isinstance(answer, Settled)]
    expected = JobStatus.SUCCEEDED if isinstance(outcome, Done) else JobStatus.CANCELED
    assert len(answers) == 3
    assert answers[2].status is expected
    events = await database.all_events()
    names = [name for name, job_id in summarize(events) if job_id == claims[2].job.id]
    assert names[2] == "job.updated"
    assert names[-1] == ("job.completed" if isinstance(outcome, Done) else "job.canceled")
    follow(events)


async def test_a_batch_of_heartbeats_overtaken_by_a_cancel_reports_it(database: EventDatabase) -> None:
    claims = await database.make_claims(3)
    holder = await block(database, claims[1])
    beats = [database.jobs.beat(c.job.id, c.fence, progress=Progress(percent=50)) for c in claims]
    beating = asyncio.ensure_future(database.jobs.heartbeat_many(beats))
    await database.waits_for(holder, beating)
    await database.jobs.cancel(database.tenant, claims[2].job.id)
    await holder.execute("COMMIT")
    answers = [answer for answer in await beating if not isinstance(answer, IngotError)]
    assert [answer.cancel_requested for answer in answers] == [False, False, True]
    events = await database.all_events()
    requests = [job_data(event).cancel_requested for event in events if job_data(event).id == claims[2].job.id]
    assert requests == [False, False, True, True]
    follow(events)


async def test_an_event_of_new_tags_has_the_current_status(database: EventDatabase) -> None:
    (claim,) = await database.make_claims(1)
    settling = await database.begin()
    await settling.fetch(SETTLE, claim.job.id, claim.fence, "succeeded")
    tagging = asyncio.ensure_future(database.jobs.reschedule(database.tenant, claim.job.id, tags=["red"]))
    await asyncio.wait([tagging], timeout=0.2)
    await settling.execute("COMMIT")
    await tagging
    statuses = [job_data(event).status for event in await database.all_events()]
    assert statuses == [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.SUCCEEDED]


def test_an_invalid_sequence_of_events_is_detected() -> None:
    def event(name: str, status: JobStatus, *, attempts: int = 0, cancel_requested: bool = False) -> Event:
        summarize = JobEventData("j", "noop", status, attempts, fence=attempts, cancel_requested=cancel_requested)
        data = msgspec.Raw(msgspec.json.encode(summarize))
        return Event(id="0", tenant="t", name=name, at=to_datetime(0), data=data)

    created, started = event("job.created", JobStatus.QUEUED), event("job.started", JobStatus.RUNNING, attempts=1)
    requested = event("job.updated", JobStatus.RUNNING, attempts=1, cancel_requested=True)
    ended = event("job.canceled", JobStatus.CANCELED, attempts=1, cancel_requested=True)
    completed = event("job.completed", JobStatus.SUCCEEDED, attempts=1)
    follow([created, started, requested, ended])
    for wrong in (
        [started],
        [created, completed],
        [created, started, started],
        [created, started, ended, requested],
        [created, started, requested, ended, completed],
        [created, started, requested, started],
    ):
        with pytest.raises(AssertionError):
            follow(wrong)
