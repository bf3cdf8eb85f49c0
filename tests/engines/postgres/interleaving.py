"""Two calls about one job in overlapping transactions, and checks that hold in any order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Final

import asyncpg
import msgspec

from ingot.engines.postgres.connection import ERRORS_BY_SQLSTATE, Record
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.job_rows import EventEntryRow
from ingot.jobs import JobStatus
from ingot.kernel.ids import new_id
from tests.job_transitions import TRANSITIONS
from tests.postgres import ACT_SQL, Database, borrowed_database, until_blocked

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
    """A job under test, the only one of its type. `fence` is the one of its last claim."""

    id: str
    tenant: str
    type: str
    fence: int = 0


class TransactionCall:
    """One call in a transaction; it is repeated after a serialization error."""

    def __init__(self, connection: Raw, call: str, job: Job) -> None:
        self.connection = connection
        self.call = call
        self.job = job
        self.rows: list[Record] = []
        self.error_state: str | None = None
        self.is_committed = False

    async def start(self) -> None:
        """Make the call and leave the transaction open."""
        for _ in range(TRIES_MAX):
            await self.connection.execute("BEGIN")
            try:
                self.rows = await make_call(self.connection, self.call, self.job)
                return
            except asyncpg.SerializationError:
                await self.connection.execute("ROLLBACK")
            except asyncpg.PostgresError as error:
                if error.sqlstate not in ERRORS_BY_SQLSTATE:
                    raise
                self.error_state = error.sqlstate
                return
        raise AssertionError(f"{self.call} failed to serialize {TRIES_MAX} times")

    async def end(self, *, commits: bool) -> None:
        """Commit or roll back; a call that was rolled back has no rows."""
        await self.connection.execute("COMMIT" if commits else "ROLLBACK")
        self.is_committed = commits
        if not commits:
            self.rows = []


async def make_call(connection: Raw, call: str, job: Job) -> list[Record]:
    """Make one call about a job, as the engine does."""
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
            return await connection.fetch("SELECT * FROM ingot.collect_jobs(1000)")
        case _:
            raise AssertionError(f"unknown call {call}")
    return []


CALLS: Final = ["claim", "complete", "fail", "release", "renew", "sweep", "promote", "cancel", "retry", "change"]
STATES: Final[dict[str, list[str]]] = {
    "ready": [],
    "due": [],
    "running": ["claim"],
    "cancel requested": ["claim", "cancel"],
    "released": ["claim", "release"],
    "succeeded": ["claim", "complete"],
    "canceled": ["cancel"],
    "canceled after a run": ["claim", "release", "cancel"],
}


class Interleaving:
    """A database with two connections whose calls overlap, and one of the owner."""

    def __init__(self, database: Database, connections: list[Raw], tenant: str) -> None:
        self.database = database
        self.server_url = database.server_url
        first, second, owner = connections
        self.first = first
        self.second = second
        self.owner = owner
        self.tenant = tenant

    async def make_job(self, state: str) -> Job:
        """Make a job with a dedupe key in this state."""
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

    async def run_overlapping(self, first: TransactionCall, second: TransactionCall, *, commits: bool) -> None:
        """Start the first call, start the second, end the first, and end the second."""
        await first.start()
        second_task = asyncio.ensure_future(second.start())
        await until_blocked(self.owner, self.first, second_task)
        await first.end(commits=commits)
        await second_task
        await second.end(commits=second.error_state is None)


async def claim(connection: Raw, interleaving: Interleaving, types: list[str], limits: list[int]) -> list[Record]:
    """Claim once for each limit, each as another worker."""
    workers = [f"w{index}" for index in range(len(limits))]
    return await connection.fetch(CLAIM, types, [interleaving.tenant] * len(types), workers, limits)


@asynccontextmanager
async def open_interleaving() -> AsyncIterator[Interleaving]:
    """Open three connections to a database with one tenant."""
    async with borrowed_database() as database:
        urls, tenant = (database.server_url, database.server_url, database.owner_url), new_id()
        connections = [await asyncpg.connect(url) for url in urls]
        opened = Interleaving(database, connections, tenant)
        try:
            await opened.first.execute(
                f"SELECT ingot.create_tenant($1, 'default', 1, 'UTC', '{{}}', {ACT_SQL})", tenant
            )
            await opened.set_time(NOW)
            yield opened
        finally:
            for connection in connections:
                connection.terminate()  # A graceful close could wait for a lock.


# -- checks in any order ------------------------------------------------------------------------------------

ROWS_OF_JOB: Final = """
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


async def check_job(owner: Raw, job: Job) -> Record:
    """Check the rows of one job, which must be consistent at any time, and return its row."""
    row = await owner.fetchrow("SELECT * FROM ingot.job_rows WHERE id = $1", job.id)
    row_counts = await owner.fetchrow(ROWS_OF_JOB, job.id)
    attempts = await owner.fetch(ATTEMPTS, job.id)
    assert row is not None
    assert row_counts is not None
    tables = [name for name, count in row_counts.items() if count]
    assert sum(row_counts.values()) == len(tables) <= 1, f"the job is in {tables}"
    running, finished = tables == ["leases"], tables in ([], ["canceled"])
    assert (row["status"] == "running") == running
    assert (row["status"] in ("succeeded", "dead", "canceled")) == finished
    assert [attempt["number"] for attempt in attempts] == list(range(1, row["attempts"] + 1))
    assert row["fence"] == max((attempt["fence"] for attempt in attempts), default=0)
    open_attempts = [attempt["fence"] for attempt in attempts if attempt["status_after"] is None]
    assert open_attempts == ([row["fence"]] if running else [])
    outcomes = await owner.fetchval("SELECT count(*) FROM ingot.outcomes WHERE job = $1", job.id)
    assert outcomes == len(attempts) - running
    assert [tuple(count) for count in await owner.fetch(COUNTS, job.type)] == [(row["status"], 1)]
    dedupe_keys = await owner.fetchval("SELECT count(*) FROM ingot.dedupe_keys WHERE job = $1", job.id)
    assert dedupe_keys == (not finished)
    await check_events(owner, job, row)
    return row


async def events_of(owner: Raw, job: Job) -> list[EventEntryRow]:
    batches = [msgspec.json.decode(batch[0], type=list[EventEntryRow]) for batch in await owner.fetch(EVENTS)]
    return [entry for batch in batches for entry in batch if job.id in entry.ids]


async def check_events(owner: Raw, job: Job, row: Record) -> None:
    """Check that the events of a job are valid transitions up to its current state."""
    events = await events_of(owner, job)
    assert events[0].name == "job.created"
    for before, after in pairwise(events):
        transition = f"{after.name} {after.status} came after {before.name} {before.status}"
        assert after.status == before.status or after.status in TRANSITIONS[before.status], transition
        assert (after.name == "job.retried") == (
            after.status is JobStatus.QUEUED and before.status in ("succeeded", "dead", "canceled")
        ), transition
        assert (after.name == "job.started") == (after.fence > before.fence), transition
    assert [entry.attempts for entry in events] == sorted(entry.attempts for entry in events)
    assert (events[-1].status, events[-1].attempts, events[-1].fence) == (row["status"], row["attempts"], row["fence"])
