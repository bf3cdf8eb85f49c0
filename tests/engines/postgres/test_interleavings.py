"""Two parties at one job: in whatever order they meet, the job stays whole.

One party has done its part and has not said whether it holds; the other begins, and waits or does not; then the first
commits or goes back. Every ordered pair of calls is tried on a job in every state. The tests have a server of their
own, because transactions that stay open hide the events of tests beside them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres import PostgresStore, migrate
from ingot.engines.postgres.connection import REFUSALS, Record
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.rows import NewsRow
from ingot.jobs import JobStatus
from ingot.jobs.errors import DuplicateJob
from ingot.jobs.lifecycle import MOVES
from ingot.jobs.ports import RetryJob
from ingot.kernel.clock import SystemClock
from ingot.kernel.ids import new_id
from tests.postgres import AN_ACT, TEST_CLOCK, own_server, with_database

START: Final = 1_800_000_000_000_000
LEASE: Final = 180_000_000
NOW: Final = START + LEASE + 20_000_000  # Leases taken at the start have run out.
SOON: Final = 1_000_000
TRIES_MAX: Final = 5
NIL: Final = "00000000-0000-0000-0000-000000000000"

ENQUEUE: Final = """
    SELECT * FROM ingot.enqueue(
        '{0}', ARRAY[$1::uuid], ARRAY[$2::uuid], ARRAY[$3], '{"null"}', '{NULL}', '{NULL}', '{NULL}', ARRAY[$4::bigint],
        '{NULL}', '{NULL}', '{NULL}', ARRAY[$5::text], '{manual}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{0}', '{}',
        '{}', '{}', '{}'
    )
"""
CLAIM: Final = """
    SELECT * FROM ingot.claim(
        $1, $2, array_fill(''::text, ARRAY[cardinality($1::text[])]),
        array_fill(0::smallint, ARRAY[cardinality($1::text[])]), array_fill(0::bigint, ARRAY[cardinality($1::text[])]),
        array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[cardinality($1::text[])]),
        array_fill(32767::smallint, ARRAY[cardinality($1::text[])]),
        array_fill(0::bigint, ARRAY[cardinality($1::text[])]),
        array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[cardinality($1::text[])]),
        array_fill(1, ARRAY[cardinality($1::text[])]), array_fill(1000, ARRAY[cardinality($1::text[])]),
        array_fill(1000, ARRAY[cardinality($1::text[])]), $3, array_fill(NULL::text, ARRAY[cardinality($3::text[])]),
        array_fill(NULL::bigint, ARRAY[cardinality($3::text[])]), $4,
        array_fill(180000000::bigint, ARRAY[cardinality($3::text[])])
    )
"""
SETTLE: Final = """
    SELECT * FROM ingot.settle(
        ARRAY[$1::uuid], ARRAY[$2::bigint], '{NULL}', ARRAY[$3], '{t}', '{0}', '{NULL}', '{NULL}', '{NULL}'
    )
"""
RENEW: Final = """
    SELECT * FROM ingot.renew(ARRAY[$1::uuid], ARRAY[$2::bigint], '{NULL}', '{180000000}', '{50}', '{half}')
"""


class Job(msgspec.Struct):
    """A job under test: the only one of its type. `fence` is that of its last claim."""

    id: str
    tenant: str
    type: str
    fence: int = 0


class Party:
    """A connection that makes one call in a transaction, and makes it again when it is told to begin again."""

    def __init__(self, connection: Raw, call: str, job: Job) -> None:
        self.connection = connection
        self.call = call
        self.job = job
        self.rows: list[Record] = []
        self.refused: str | None = None
        self.holds = False

    async def act(self) -> None:
        """Make the call and leave the transaction open."""
        for _ in range(TRIES_MAX):
            await self.connection.execute("BEGIN")
            try:
                self.rows = await make_call(self.connection, self.call, self.job)
                return
            except asyncpg.SerializationError:
                await self.connection.execute("ROLLBACK")
            except asyncpg.PostgresError as error:
                if error.sqlstate not in REFUSALS:
                    raise
                self.refused = error.sqlstate
                return
        raise AssertionError(f"{self.call} was told to begin again {TRIES_MAX} times")

    async def end(self, *, commits: bool) -> None:
        """Commit or go back; a call that went back never was."""
        await self.connection.execute("COMMIT" if commits else "ROLLBACK")
        self.holds = commits
        if not commits:
            self.rows = []


async def make_call(connection: Raw, call: str, job: Job) -> list[Record]:
    """One call about a job, as the engine makes it."""
    match call:
        case "claim":
            return await connection.fetch(CLAIM, [job.type], [job.tenant], ["w"], [1])
        case "complete":
            return await connection.fetch(SETTLE, job.id, job.fence, "succeeded")
        case "fail":
            return await connection.fetch(SETTLE, job.id, job.fence, "failed")
        case "release":
            return await connection.fetch(SETTLE, job.id, job.fence, "released")
        case "renew":
            return await connection.fetch(RENEW, job.id, job.fence)
        case "sweep":
            return await connection.fetch("SELECT * FROM ingot.sweep($1, $2)", [job.id], [job.fence])
        case "promote":
            return await connection.fetch("SELECT * FROM ingot.promote(1000, 0)")
        case "cancel":
            await connection.execute("SELECT ingot.cancel($1, $2)", job.tenant, job.id)
        case "retry":
            await connection.execute("SELECT ingot.retry($1, $2, false, NULL, NULL, NULL)", job.tenant, job.id)
        case "change":
            await connection.execute("SELECT ingot.change($1, $2, 1, $3, NULL, NULL)", job.tenant, job.id, NOW + SOON)
        case "label":
            await connection.execute("SELECT ingot.change($1, $2, NULL, NULL, NULL, '{red}')", job.tenant, job.id)
        case "collect":
            return await connection.fetch("SELECT * FROM ingot.collect(1000)")
        case _:
            raise AssertionError(f"there is no call {call}")
    return []


CALLS: Final = ["claim", "complete", "fail", "release", "renew", "sweep", "promote", "cancel", "retry", "change"]
STATES: Final[dict[str, list[str]]] = {
    "ready": [],
    "due": [],
    "running": ["claim"],
    "asked to stop": ["claim", "cancel"],
    "back": ["claim", "release"],
    "succeeded": ["claim", "complete"],
    "canceled": ["cancel"],
    "canceled after a run": ["claim", "release", "cancel"],
}


class Yard:
    """A database of our own with connections to it: two parties, and one that watches."""

    def __init__(self, server_url: str, connections: list[Raw], tenant: str) -> None:
        self.server_url = server_url
        first, second, owner = connections
        self.first = first
        self.second = second
        self.owner = owner
        self.tenant = tenant

    async def make(self, state: str) -> Job:
        """A job in this state, with a dedupe key."""
        job = Job(new_id(), self.tenant, f"t-{new_id()}")
        delay = SOON if state == "due" else 0
        await self.set_time(START)
        await self.first.fetch(ENQUEUE, job.id, job.tenant, job.type, delay, f"key-{job.id}")
        for call in STATES[state]:
            for row in await make_call(self.first, call, job):
                job.fence = row.get("fence", job.fence)
        await self.set_time(NOW)
        return job

    async def set_time(self, now: int) -> None:
        for connection in (self.first, self.second):
            await connection.execute(f"SET ingot.now = '{now}'; SET ingot.chance = '0.5'")

    async def meet(self, first: Party, second: Party, *, commits: bool) -> None:
        """The first acts, the second begins, the first ends, the second ends."""
        await first.act()
        acting = asyncio.ensure_future(second.act())
        waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        while not acting.done() and not await self.owner.fetchval(waits, self.first.get_server_pid()):
            pass
        await first.end(commits=commits)
        await acting
        await second.end(commits=second.refused is None)


pytestmark = pytest.mark.timeout(90)  # At the end a folder goes that holds a database for each test.


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a server of our own with a migrated database that has the tests' clock."""
    with own_server() as server:
        asyncio.run(_make_template(server.url))
        yield server.url


async def _make_template(url: str) -> None:
    admin = await asyncpg.connect(url)
    await admin.execute("CREATE DATABASE template_of_ingot")
    await admin.close()
    template = with_database(url, "template_of_ingot")
    await migrate(template)
    owner = await asyncpg.connect(template)
    await owner.execute(TEST_CLOCK)
    await owner.close()


@pytest.fixture
async def yard(cluster: str) -> AsyncIterator[Yard]:
    name = f"ingot_{new_id().replace('-', '')}"
    admin = await asyncpg.connect(cluster)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE template_of_ingot")
    await admin.close()
    server, tenant = with_database(cluster, name, "ingot_server"), new_id()
    connections = [await asyncpg.connect(url) for url in (server, server, with_database(cluster, name))]
    made = Yard(server, connections, tenant)
    await made.first.execute(f"SELECT ingot.create_tenant($1, 'default', 1, 'UTC', '{{}}', {AN_ACT})", tenant)
    await made.set_time(NOW)
    try:
        yield made
    finally:
        for connection in connections:
            connection.terminate()  # Whatever it waits for.


# -- what must hold whoever was first -----------------------------------------------------------------------

PLACES: Final = """
    SELECT (SELECT count(*) FROM ingot.ready WHERE id = $1) AS ready,
        (SELECT count(*) FROM ingot.later WHERE id = $1) AS later,
        (SELECT count(*) FROM ingot.leases WHERE id = $1) AS leases,
        (SELECT count(*) FROM ingot.canceled WHERE id = $1) AS canceled
"""
ATTEMPTS: Final = """
    SELECT a.fence, a.number, o.status_after FROM ingot.attempts AS a
    LEFT JOIN ingot.outcomes AS o ON o.job = a.job AND o.fence = a.fence
    WHERE a.job = $1 ORDER BY a.fence
"""
COUNTS: Final = """
    SELECT status, sum(jobs)::integer AS jobs FROM (
        SELECT tenant, type, status, jobs FROM ingot.counts UNION ALL
        SELECT tenant, type, status, jobs FROM ingot.count_deltas
    ) AS c
    WHERE c.type = $1 GROUP BY status HAVING sum(jobs) <> 0
"""
EVENTS: Final = "SELECT entries FROM ingot.events ORDER BY position"


async def check(owner: Raw, job: Job) -> Record:
    """Everything that is true of one job at any time."""
    row = await owner.fetchrow("SELECT * FROM ingot.job_rows WHERE id = $1", job.id)
    places = await owner.fetchrow(PLACES, job.id)
    attempts = await owner.fetch(ATTEMPTS, job.id)
    assert row is not None
    assert places is not None
    where = [name for name, count in places.items() if count]
    assert sum(places.values()) == len(where) <= 1, f"it is in {where}"
    running, finished = where == ["leases"], where in ([], ["canceled"])
    assert (row["status"] == "running") == running
    assert (row["status"] in ("succeeded", "dead", "canceled")) == finished
    assert [attempt["number"] for attempt in attempts] == list(range(1, row["attempts"] + 1))
    assert row["fence"] == max((attempt["fence"] for attempt in attempts), default=0)
    open_attempts = [attempt["fence"] for attempt in attempts if attempt["status_after"] is None]
    assert open_attempts == ([row["fence"]] if running else [])
    outcomes = await owner.fetchval("SELECT count(*) FROM ingot.outcomes WHERE job = $1", job.id)
    assert outcomes == len(attempts) - running
    assert [tuple(count) for count in await owner.fetch(COUNTS, job.type)] == [(row["status"], 1)]
    held = await owner.fetchval("SELECT count(*) FROM ingot.dedupe_keys WHERE job = $1", job.id)
    assert held == (not finished)
    await check_events(owner, job, row)
    return row


async def events_of(owner: Raw, job: Job) -> list[NewsRow]:
    batches = [msgspec.json.decode(batch[0], type=list[NewsRow]) for batch in await owner.fetch(EVENTS)]
    return [news for batch in batches for news in batch if job.id in news.ids]


async def check_events(owner: Raw, job: Job, row: Record) -> None:
    """The events of a job tell a life that can be, up to where it stands."""
    events = await events_of(owner, job)
    assert events[0].name == "job.created"
    for before, after in pairwise(events):
        said = f"{after.name} {after.status} came after {before.name} {before.status}"
        assert after.status == before.status or after.status in MOVES[before.status], said
        assert (after.name == "job.retried") == (
            after.status is JobStatus.QUEUED and before.status in ("succeeded", "dead", "canceled")
        ), said
        assert (after.name == "job.started") == (after.fence > before.fence), said
    assert [news.attempts for news in events] == sorted(news.attempts for news in events)
    assert (events[-1].status, events[-1].attempts, events[-1].fence) == (row["status"], row["attempts"], row["fence"])


async def check_answers(owner: Raw, parties: list[Party]) -> None:
    """What was answered and committed is so."""
    job = parties[0].job
    names = {news.name for news in await events_of(owner, job)}
    requested = any(news.cancel_requested for news in await events_of(owner, job))
    done = {party.call for party in parties if party.refused is None and party.holds}
    assert "cancel" not in done or "job.canceled" in names or requested
    assert "retry" not in done or "job.retried" in names
    assert "change" not in done or "job.updated" in names
    fences = {row["fence"] for row in await owner.fetch(ATTEMPTS, job.id)}
    claimed = [row["fence"] for party in parties if party.call == "claim" for row in party.rows]
    assert len(set(claimed)) == len(claimed)
    assert set(claimed) <= fences
    ended = [row["status"] for party in parties if party.call in SETTLES for row in party.rows]
    assert len(ended) <= 1
    if ended:
        query = "SELECT status_after FROM ingot.outcomes WHERE job = $1 AND fence = $2"
        assert await owner.fetchval(query, job.id, job.fence) == ended[0]


SETTLES: Final = ("complete", "fail", "release", "sweep")


@pytest.mark.parametrize("second", CALLS)
@pytest.mark.parametrize("first", CALLS)
async def test_a_job_stays_whole_whoever_meets_at_it(yard: Yard, first: str, second: str) -> None:
    for state in STATES:
        for commits in (True, False):
            job = await yard.make(state)
            await check(yard.owner, job)
            parties = [Party(yard.first, first, job), Party(yard.second, second, job)]
            await yard.meet(*parties, commits=commits)
            try:
                await check(yard.owner, job)
                await check_answers(yard.owner, parties)
            except AssertionError as error:
                error.add_note(f"a job that is {state}: {first} {'commits' if commits else 'goes back'}, {second}")
                raise


async def test_of_two_that_want_a_job_one_gets_it(yard: Yard) -> None:
    for commits in (True, False):
        job = await yard.make("ready")
        parties = [Party(yard.first, "claim", job), Party(yard.second, "claim", job)]
        await yard.meet(*parties, commits=commits)
        assert [len(party.rows) for party in parties] == [int(commits), 0]


@pytest.mark.parametrize(("first", "second"), [("complete", "sweep"), ("sweep", "complete"), ("fail", "complete")])
async def test_of_two_that_end_an_attempt_one_does(yard: Yard, first: str, second: str) -> None:
    for commits in (True, False):
        job = await yard.make("running")
        parties = [Party(yard.first, first, job), Party(yard.second, second, job)]
        await yard.meet(*parties, commits=commits)
        assert [len(party.rows) for party in parties] == ([1, 0] if commits else [0, 1])


async def test_a_renewed_lease_is_not_swept(yard: Yard) -> None:
    job = await yard.make("running")
    parties = [Party(yard.first, "renew", job), Party(yard.second, "sweep", job)]
    await yard.meet(*parties, commits=True)
    assert (len(parties[0].rows), parties[1].rows) == (1, [])
    assert (await check(yard.owner, job))["status"] == "running"


@pytest.mark.parametrize("outcome", ["fail", "release", "sweep"])
async def test_a_cancel_that_was_first_is_obeyed(yard: Yard, outcome: str) -> None:
    job = await yard.make("running")
    await yard.meet(Party(yard.first, "cancel", job), Party(yard.second, outcome, job), commits=True)
    row = await check(yard.owner, job)
    assert (row["status"], row["failures"], row["crashes"]) == ("canceled", 0, 0)


async def test_a_retry_that_meets_another_is_refused(yard: Yard) -> None:
    job = await yard.make("succeeded")
    parties = [Party(yard.first, "retry", job), Party(yard.second, "retry", job)]
    await yard.meet(*parties, commits=True)
    assert [party.refused for party in parties] == [None, "IN003"]


async def test_a_retry_that_loses_its_dedupe_key_is_refused_by_its_name(yard: Yard) -> None:
    job = await yard.make("succeeded")
    store = await PostgresStore.open(yard.server_url, clock=SystemClock(), lease_seconds=180)
    try:
        await yard.first.execute("BEGIN")
        await yard.first.fetch(ENQUEUE, new_id(), yard.tenant, "other", 0, f"key-{job.id}")
        retrying = asyncio.ensure_future(store.retry(RetryJob(tenant=yard.tenant, job_id=job.id)))
        waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        while not retrying.done() and not await yard.owner.fetchval(waits, yard.first.get_server_pid()):
            pass
        await yard.first.execute("COMMIT")
        with pytest.raises(DuplicateJob):
            await retrying
    finally:
        await store.close()


async def test_a_job_in_two_places_is_noticed(yard: Yard) -> None:
    job = await yard.make("running")
    change = yard.owner.transaction()
    await change.start()
    await yard.owner.execute(
        "INSERT INTO ingot.ready SELECT id, tenant, type, limit_key, batch, dedupe_key, priority, run_at, attempts,"
        " failures, crashes, max_attempts, fence, told_at FROM ingot.leases WHERE id = $1",
        job.id,
    )
    with pytest.raises(AssertionError, match="it is in"):
        await check(yard.owner, job)
    await change.rollback()
    await check(yard.owner, job)


# -- claims of many jobs ------------------------------------------------------------------------------------


async def fill(yard: Yard, types: list[str], count: int) -> list[str]:
    """Ready jobs, spread over types."""
    ids = [new_id() for _ in range(count)]
    for place, job_id in enumerate(ids):
        await yard.first.fetch(ENQUEUE, job_id, yard.tenant, types[place % len(types)], 0, None)
    return ids


@pytest.mark.parametrize("limits", [(4, 8), (10, 1), (1, 10), (5, 5), (9, 9)])
@pytest.mark.parametrize("commits", [True, False])
async def test_claims_of_ten_jobs_pass_each_other_without_waiting(
    yard: Yard, limits: tuple[int, int], commits: bool
) -> None:
    ids = await fill(yard, ["noop"], 10)
    await yard.second.execute("SET lock_timeout = '1ms'")  # Waiting for anybody is an error.
    await yard.first.execute("BEGIN")
    first = [row["id"] for row in await claim(yard.first, yard, ["noop"], [limits[0]])]
    second = [row["id"] for row in await claim(yard.second, yard, ["noop"], [limits[1]])]
    assert first == ids[: limits[0]]
    assert second == ids[limits[0] :][: limits[1]]
    await yard.first.execute("COMMIT" if commits else "ROLLBACK")
    rest = [row["id"] for row in await claim(yard.second, yard, ["noop"], [100])]
    taken = (first if commits else []) + second
    assert rest == [job_id for job_id in ids if job_id not in taken]


async def claim(connection: Raw, yard: Yard, types: list[str], limits: list[int]) -> list[Record]:
    """A claim by as many workers as there are limits."""
    workers = [f"w{place}" for place in range(len(limits))]
    return await connection.fetch(CLAIM, types, [yard.tenant] * len(types), workers, limits)


PLANS: Final = [
    {},
    {"enable_nestloop": "off", "enable_hashjoin": "on"},
    {"enable_nestloop": "off", "enable_mergejoin": "on"},
    {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_seqscan": "on"},
    {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "on"},
    {"enable_nestloop": "off", "enable_hashjoin": "on", "enable_indexscan": "off", "enable_seqscan": "on"},
    {"enable_hashjoin": "on", "enable_mergejoin": "on", "enable_seqscan": "on", "enable_bitmapscan": "on"},
    {"plan_cache_mode": "force_custom_plan", "enable_seqscan": "on", "enable_sort": "off"},
    {"enable_material": "off", "enable_memoize": "off", "enable_nestloop": "off", "enable_hashagg": "off"},
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: ",".join(f"{name}={value}" for name, value in plan.items()))
@pytest.mark.parametrize("analyzed", [True, False])
async def test_a_claim_keeps_to_its_limit_under_every_plan(yard: Yard, plan: dict[str, str], analyzed: bool) -> None:
    types = [f"type-{number}" for number in range(6)]
    ids = await fill(yard, types, 60)
    if analyzed:
        await yard.owner.execute("ANALYZE")
    for name, value in plan.items():
        await yard.owner.execute(f"ALTER FUNCTION ingot.claim SET {name} = '{value}'")
    claimed: list[Record] = []
    for limits in ([1], [3, 2], [7, 1, 1], [5], [4, 4], [10]):
        pair: tuple[list[Record], list[Record]] = await asyncio.gather(
            claim(yard.first, yard, types, limits), claim(yard.second, yard, types, limits)
        )
        for rows in pair:
            each = Counter(row["asker"] for row in rows)
            assert all(each[place] <= limit for place, limit in enumerate(limits, start=1))
            claimed += rows
    claimed += await claim(yard.first, yard, types, [100])
    assert sorted(row["id"] for row in claimed) == sorted(ids)
    answered = {(row["id"], row["fence"]) for row in claimed}
    held = await yard.owner.fetch("SELECT id::text, fence FROM ingot.leases")
    assert {tuple(row) for row in held} == answered
    assert await yard.owner.fetchval("SELECT count(*) FROM ingot.ready") == 0


async def test_a_claim_that_names_a_lane_twice_hands_out_no_job_twice(yard: Yard) -> None:
    ids = await fill(yard, ["noop"], 10)
    taken: list[Any] = []
    while rows := await claim(yard.first, yard, ["noop", "noop"], [2, 2]):
        assert len(rows) <= 4
        taken += [row["id"] for row in rows]
    assert sorted(taken) == sorted(ids)
