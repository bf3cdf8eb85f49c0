"""The event cursor: nothing that commits late is missed, and no effect is shown before its cause.

Readers stop below the oldest transaction that still runs anywhere in the cluster.
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


class Office:
    """An open store on real time, and plain connections beside it."""

    def __init__(self, url: str, store: PostgresStore, tenant: str) -> None:
        self.url = url
        self.store = store
        self.tenant = tenant
        self.jobs = Jobs(store, lease_seconds=LEASE_SECONDS)
        self.events = Events(store)
        self.open = ExitStack()

    async def server(self) -> Raw:
        """A plain connection as our server has it."""
        connection = await asyncpg.connect(self.url)
        self.open.callback(connection.terminate)  # Whatever it waits for.
        return connection

    async def owner(self) -> Raw:
        """A plain connection as the role that may do everything."""
        name = self.url.partition("?")[0].rpartition("/")[2]
        connection = await asyncpg.connect(with_database(self.url, name, "postgres"))
        self.open.callback(connection.terminate)  # Whatever it waits for.
        return connection

    async def begin(self) -> Raw:
        """The same, in a transaction that others have to wait for."""
        connection = await self.server()
        await connection.execute("BEGIN")
        return connection

    async def make_job(self) -> str:
        """Enqueue one job."""
        return (await self.jobs.enqueue(self.tenant, "noop")).job.id

    async def make_claims(self, count: int) -> list[Claim]:
        """Enqueue some jobs and claim them, in the order of their ids."""
        for _ in range(count):
            await self.make_job()
        claims = await self.jobs.claim("worker", ["noop"], limit=count)
        assert len(claims) == count
        return sorted(claims, key=lambda claim: claim.job.id)

    async def all_events(self, page: int = 1000) -> list[Event]:
        """Everything a reader is shown, page by page, until it is shown nothing more."""
        events: list[Event] = []
        while more := await self.events.read(self.tenant, after=events[-1].id if events else None, limit=page):
            events += more
        return events

    async def waits_for(self, holder: Raw, waiting: asyncio.Future[Any]) -> None:
        """Wait until a call waits for a lock of this connection, or is done."""
        await until_blocked(await self.server(), holder, waiting)


@pytest.fixture
async def office() -> AsyncIterator[Office]:
    async with borrowed_database() as database:
        database.clock = clock = SystemClock()
        store = await PostgresStore.open(
            database.server_url, clock=clock, lease_seconds=LEASE_SECONDS, pool=await database.pool()
        )
        made = Office(database.server_url, store, (await Tenants(store).ensure_default()).id)
        try:
            yield made
        finally:
            made.open.close()
            await store.close()


def news(event: Event) -> JobEventData:
    return msgspec.json.decode(event.data, type=JobEventData)


def told(events: list[Event]) -> list[tuple[str, str]]:
    """Names and jobs of events, whose ids must grow."""
    ids = [event.id for event in events]
    assert ids == sorted(set(ids))
    return [(event.name, news(event).id) for event in events]


# -- late commits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 2, 1000])
@pytest.mark.parametrize("commits", [True, False])
async def test_what_began_before_is_waited_for(office: Office, page: int, commits: bool) -> None:
    before = await office.make_job()
    late, first = await office.begin(), new_id()
    await late.fetch(ENQUEUE, first, office.tenant)
    later = [await office.make_job() for _ in range(3)]
    assert told(await office.all_events(page)) == [("job.created", before)]
    await late.execute("COMMIT" if commits else "ROLLBACK")
    expected = [before, *([first] if commits else []), *later]
    assert told(await office.all_events(page)) == [("job.created", job_id) for job_id in expected]


async def test_a_reader_with_a_cursor_gets_the_late_one_too(office: Office) -> None:
    await office.make_job()
    (seen,) = await office.events.read(office.tenant)
    late, first = await office.begin(), new_id()
    await late.fetch(ENQUEUE, first, office.tenant)
    second = await office.make_job()
    assert await office.events.read(office.tenant, after=seen.id) == []
    await late.execute("COMMIT")
    assert told(await office.events.read(office.tenant, after=seen.id)) == [
        ("job.created", first),
        ("job.created", second),
    ]


async def test_a_transaction_that_ends_while_a_reader_waits_is_read_by_it(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.engines.postgres.events.HORIZON_SECONDS_MAX", 60.0)
    late, first = await office.begin(), new_id()
    await late.fetch(ENQUEUE, first, office.tenant)
    second = await office.make_job()
    reading = asyncio.create_task(office.events.read(office.tenant))
    await asyncio.sleep(0)
    await late.execute("COMMIT")
    events = await reading
    assert told(events) == [("job.created", first), ("job.created", second)]


@pytest.mark.parametrize("commits", [True, False])
async def test_transactions_that_end_in_another_order_than_they_began_are_read_in_theirs(
    office: Office, commits: bool
) -> None:
    parties = [(await office.begin(), new_id()) for _ in range(5)]
    for connection, job_id in parties:
        await connection.fetch(ENQUEUE, job_id, office.tenant)
    shown: list[list[tuple[str, str]]] = []
    for connection, _ in reversed(parties[1:]):
        await connection.execute("COMMIT")
        shown.append(told(await office.all_events()))
    await parties[0][0].execute("COMMIT" if commits else "ROLLBACK")
    assert shown == [[], [], [], []]
    expected = [job_id for _, job_id in parties[0 if commits else 1 :]]
    assert told(await office.all_events()) == [("job.created", job_id) for job_id in expected]


async def test_a_transaction_of_another_tenant_is_waited_for_and_not_shown(office: Office) -> None:
    other = await Tenants(office.store).create("other")
    late = await office.begin()
    await late.fetch(ENQUEUE, new_id(), other.id)
    job_id = await office.make_job()
    assert await office.events.read(office.tenant) == []
    await late.execute("COMMIT")
    assert told(await office.events.read(office.tenant)) == [("job.created", job_id)]


async def test_a_reader_that_only_reads_hides_nothing(office: Office) -> None:
    reader = await office.begin()
    await reader.fetch("SELECT * FROM ingot.job_rows")
    job_id = await office.make_job()
    assert told(await office.events.read(office.tenant)) == [("job.created", job_id)]


async def test_the_newest_event_is_below_what_may_still_come(office: Office) -> None:
    await office.make_job()
    (seen,) = await office.events.read(office.tenant)
    late, first = await office.begin(), new_id()
    await late.fetch(ENQUEUE, first, office.tenant)
    second = await office.make_job()
    assert await office.events.newest(office.tenant) == seen.id
    following = await Feeds(office.events, SystemClock()).follow(office.tenant, None, lambda _: True)
    await anext(following)
    await late.execute("COMMIT")
    frames = b""
    async with asyncio.timeout(30):
        while second.encode() not in frames:
            frames += await anext(following)
    await following.aclose()
    assert 0 < frames.index(first.encode()) < frames.index(second.encode())
    assert frames.count(b"event: ") == 2


async def test_who_follows_may_name_an_event_that_is_not_shown_yet(office: Office) -> None:
    late = await office.begin()
    await late.fetch(ENQUEUE, new_id(), office.tenant)
    made = await office.events.publish(office.tenant, "a.b")
    assert await office.events.newest(office.tenant) == START
    assert await office.events.check_position(office.tenant, made.id) == made.id


async def test_what_a_late_one_may_come_before_is_not_removed(office: Office) -> None:
    old = [await office.make_job() for _ in range(2)]
    ids = [event.id for event in await office.events.read(office.tenant)]
    late, first = await office.begin(), new_id()
    await late.fetch(ENQUEUE, first, office.tenant)
    later = [await office.make_job() for _ in range(2)]
    assert (await office.events.forget(keep=1, limit=100)).batches == len(old)
    await late.execute("COMMIT")
    kept = await office.events.read(office.tenant, after=ids[-1])
    assert told(kept) == [("job.created", job_id) for job_id in (first, *later)]


async def test_who_publishes_the_same_key_waits_for_who_came_first(office: Office) -> None:
    first = await office.begin()
    (row,) = await first.fetch(PUBLISH, office.tenant)
    second = asyncio.ensure_future(office.events.publish(office.tenant, "a.b", 1, dedupe_key="k"))
    await office.waits_for(first, second)
    await first.execute("ROLLBACK")
    made = await second
    assert made.created
    assert [event.id for event in await office.all_events()] == [made.id]
    assert int(made.id, 16) > row["event"]


# -- many writers -------------------------------------------------------------------------------------------


class Life:
    """Follows the events of one job, and knows which may come next."""

    def __init__(self) -> None:
        self.last: JobEventData | None = None
        self.name = ""

    def follow(self, event: Event) -> None:
        """Raises unless this event can follow the one before."""
        now, last = news(event), self.last
        said = f"{event.name} after {self.name or 'nothing'}: {now} after {last}"
        if last is None:
            assert (event.name, now.status) == ("job.created", JobStatus.QUEUED), said
        elif event.name == "job.started":
            assert (last.status, now.status) == (JobStatus.QUEUED, JobStatus.RUNNING), said
            assert now.fence > last.fence, said
            assert now.attempts == last.attempts + 1, said
        elif event.name == "job.retried":
            assert last.status in (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED), said
            assert now.status is JobStatus.QUEUED, said
        else:
            self._go_on(event.name, last, now, said)
        self.last, self.name = now, event.name

    def _go_on(self, name: str, last: JobEventData, now: JobEventData, said: str) -> None:
        assert (now.fence, now.attempts) == (last.fence, last.attempts), said
        if self.name == "job.failed" and last.status is not JobStatus.QUEUED:
            assert (name, now.status) == (f"job.{last.status}", last.status), said
            return
        ends = {"job.completed": JobStatus.SUCCEEDED, "job.dead": JobStatus.DEAD, "job.canceled": JobStatus.CANCELED}
        if name in ends:
            assert now.status is ends[name], said
            assert last.status in (JobStatus.QUEUED, JobStatus.RUNNING), said
            assert name != "job.canceled" or last.status is JobStatus.QUEUED or last.cancel_requested, said
        elif name == "job.failed":
            assert last.status is JobStatus.RUNNING, said
        else:
            assert (name, last.status) == ("job.updated", JobStatus.RUNNING), said
            assert now.status in (JobStatus.RUNNING, JobStatus.QUEUED), said
            assert now.status is JobStatus.QUEUED or now.cancel_requested >= last.cancel_requested, said


def follow(events: list[Event]) -> dict[str, Life]:
    """The lives of all jobs."""
    lives: defaultdict[str, Life] = defaultdict(Life)
    for event in events:
        lives[news(event).id].follow(event)
    return lives


async def write(office: Office, number: int) -> None:
    """Enqueue, claim, settle and cancel, among others that do the same with the same jobs."""
    chance = random.Random(number)
    known: list[str] = []
    for _ in range(JOBS_EACH):
        known.append(await office.make_job())
        for claim in await office.jobs.claim(f"worker-{number}", ["noop"], limit=chance.randint(1, 3)):
            if chance.random() < 0.5:
                known.append(claim.job.id)
            cancels = chance.random() < 0.4
            outcome = chance.choice(OUTCOMES)
            settling = office.jobs.settle(claim.job.id, claim.fence, outcome)
            canceling = cancel(office, claim.job.id) if cancels else asyncio.sleep(0)
            await asyncio.gather(*chance.sample([settling, canceling], 2))
        await cancel(office, chance.choice(known))


async def cancel(office: Office, job_id: str) -> None:
    with suppress(JobFinished):
        await office.jobs.cancel(office.tenant, job_id)


async def test_a_reader_among_many_writers_misses_nothing_repeats_nothing_and_sees_only_lives(office: Office) -> None:
    writers = [asyncio.create_task(write(office, number)) for number in range(WRITERS)]
    chance = random.Random(99)
    shown: list[Event] = []
    while True:
        finished = all(writer.done() for writer in writers)
        page = await office.events.read(
            office.tenant, after=shown[-1].id if shown else None, limit=chance.choice([1, 3, 17, 200])
        )
        shown += page
        if finished and not page:
            break
    await asyncio.gather(*writers)
    assert [event.id for event in shown] == [event.id for event in await office.all_events()]
    owner = await office.owner()
    entries = await owner.fetch("SELECT entries FROM ingot.events")
    stored = sum(
        len(entry.event_data()) for row in entries for entry in msgspec.json.decode(row[0], type=list[EventEntryRow])
    )
    assert len(told(shown)) == stored
    lives = follow(shown)
    assert len(lives) == WRITERS * JOBS_EACH
    assert {"job.created", "job.started", "job.updated", "job.canceled", "job.completed", "job.failed"} <= {
        event.name for event in shown
    }
    for job_id, life in lives.items():
        assert life.last is not None
        assert (await office.jobs.get(office.tenant, job_id)).status is life.last.status


# -- rows that a later transaction wrote --------------------------------------------------------------------


async def test_a_settle_that_waited_for_a_later_cancel_begins_again(office: Office) -> None:
    (claim,) = await office.make_claims(1)
    settling, canceling = await office.begin(), await office.begin()
    first = await settling.fetchval("SELECT pg_current_xact_id()::text::bigint")
    await canceling.execute(CANCEL, office.tenant, claim.job.id)
    assert first < await canceling.fetchval("SELECT pg_current_xact_id()::text::bigint")
    settle = asyncio.create_task(settling.fetch(SETTLE, claim.job.id, claim.fence, "released"))
    await office.waits_for(canceling, settle)
    await canceling.execute("COMMIT")
    with pytest.raises(asyncpg.SerializationError):
        await settle
    await settling.execute("ROLLBACK")
    settled = await office.jobs.settle(claim.job.id, claim.fence, Release())
    assert settled.status is JobStatus.CANCELED
    events = await office.all_events()
    assert [name for name, _ in told(events)][-2:] == ["job.updated", "job.canceled"]
    follow(events)


async def block(office: Office, claim: Claim) -> Raw:
    """A transaction that holds the lease of a claim and changes nothing."""
    holder = await office.owner()
    await holder.execute("BEGIN")
    await holder.execute("SELECT FROM ingot.leases WHERE id = $1 FOR UPDATE", claim.job.id)
    return holder


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_batch_of_settles_overtaken_by_a_cancel_tells_of_it_after_the_cancel(
    office: Office, outcome: Outcome
) -> None:
    """The batch locks in the order of ids: it has its place among the transactions before it gets to the last row."""
    claims = await office.make_claims(3)
    holder = await block(office, claims[1])
    settling = asyncio.ensure_future(
        office.jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=outcome) for c in claims])
    )
    await office.waits_for(holder, settling)
    await office.jobs.cancel(office.tenant, claims[2].job.id)
    await holder.execute("COMMIT")
    answers = [answer for answer in await settling if isinstance(answer, Settled)]
    expected = JobStatus.SUCCEEDED if isinstance(outcome, Done) else JobStatus.CANCELED
    assert len(answers) == 3
    assert answers[2].status is expected
    events = await office.all_events()
    names = [name for name, job_id in told(events) if job_id == claims[2].job.id]
    assert names[2] == "job.updated"
    assert names[-1] == ("job.completed" if isinstance(outcome, Done) else "job.canceled")
    follow(events)


async def test_a_batch_of_heartbeats_overtaken_by_a_cancel_hears_of_it(office: Office) -> None:
    claims = await office.make_claims(3)
    holder = await block(office, claims[1])
    beats = [office.jobs.beat(c.job.id, c.fence, progress=Progress(percent=50)) for c in claims]
    beating = asyncio.ensure_future(office.jobs.heartbeat_many(beats))
    await office.waits_for(holder, beating)
    await office.jobs.cancel(office.tenant, claims[2].job.id)
    await holder.execute("COMMIT")
    answers = [answer for answer in await beating if not isinstance(answer, IngotError)]
    assert [answer.cancel_requested for answer in answers] == [False, False, True]
    events = await office.all_events()
    requests = [news(event).cancel_requested for event in events if news(event).id == claims[2].job.id]
    assert requests == [False, False, True, True]
    follow(events)


async def test_new_tags_tell_nothing_that_an_earlier_event_has_overtaken(office: Office) -> None:
    (claim,) = await office.make_claims(1)
    settling = await office.begin()
    await settling.fetch(SETTLE, claim.job.id, claim.fence, "succeeded")
    tagging = asyncio.ensure_future(office.jobs.reschedule(office.tenant, claim.job.id, tags=["red"]))
    await asyncio.wait([tagging], timeout=0.2)
    await settling.execute("COMMIT")
    await tagging
    statuses = [news(event).status for event in await office.all_events()]
    assert statuses == [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.SUCCEEDED]


def test_a_life_that_cannot_be_is_noticed() -> None:
    def event(name: str, status: JobStatus, *, attempts: int = 0, cancel_requested: bool = False) -> Event:
        told = JobEventData("j", "noop", status, attempts, fence=attempts, cancel_requested=cancel_requested)
        data = msgspec.Raw(msgspec.json.encode(told))
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
