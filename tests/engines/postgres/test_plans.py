"""Frequent statements use an index: 200,000 finished jobs and 20,000 queued ones cost almost nothing.

The tests compare the number of pages that a call touches in a small and a large store, which does not depend on the
speed of the machine. The store is filled in one long transaction, so it has its own server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.sql import SQL
from ingot.kernel.ids import new_id
from tests.postgres import ACT_SQL, PLAIN_TEMPLATE, own_server, with_database

SMALL: Final = {"finished": 1_000, "queued": 1_000}
BIG: Final = {"finished": 200_000, "queued": 20_000}
RARE: Final = 200  # Jobs of each rare kind, evenly among the finished ones.
FINISHED_AT_ONCE: Final = 50  # Number of jobs in one batch of events.
RUNS: Final = 5
READ_RUNS: Final = 8  # The first five runs use custom plans.
BATCH: Final = 50
NEWCOMER_PAGES_MAX: Final = 50  # Enough for a few index lookups.
TOP: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
BOTTOM: Final = "'00000000-0000-0000-0000-000000000000'"
FIRST_POSITION: Final = 1_000_000_000  # Higher than the positions of measured calls.
START: Final = 1_700_000_000_000_000
OWN_SETTINGS: Final = "autovacuum = off\nmax_wal_size = 8GB\ncheckpoint_timeout = 1h\n"

FILL: Final = """
    SET LOCAL synchronous_commit = off;
    CREATE TEMP TABLE numbered AS SELECT n, (
        lpad(to_hex({start} / 1000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
            || substr(md5(n::text), 4, 15)
    )::uuid AS id, {start} + n * 1000 AS at, n <= {finished} AS finished,
        CASE WHEN n <= {finished} THEN 'succeeded' ELSE 'queued' END AS status,
        CASE WHEN n <= {finished} THEN n % ({finished} / {rare}) END AS kind
    FROM generate_series(1, {finished} + {queued}) AS n;
    INSERT INTO ingot.jobs (id, tenant, type, payload, created_at, source, depth, drift)
        SELECT id, '{tenant}', CASE WHEN kind = 0 THEN 'rare' ELSE 'noop' END, '{{"n":1}}', at,
            CASE WHEN kind = 1 THEN 'schedule' ELSE 'manual' END, 0, CASE WHEN kind = 1 THEN 3 END
        FROM numbered ORDER BY n;
    INSERT INTO ingot.outcomes (job, fence, tenant, worker_id, started_at, outcome, retry, status_after, run_at,
        attempts, failures, crashes, max_attempts, priority, cancel_requested, finished_at, told_at)
        SELECT id, n, '{tenant}', 'worker', at, CASE WHEN kind IN (2, 3) THEN 'failed' ELSE 'succeeded' END, true,
            CASE kind WHEN 2 THEN 'dead' WHEN 3 THEN 'canceled' ELSE 'succeeded' END, at, 1, 0, 0, 5, 3, false, at, 0
        FROM numbered WHERE finished ORDER BY n;
    INSERT INTO ingot.logs (job, fence, start, size, tenant, text)
        SELECT id, n, 0, 4, '{tenant}', 'text' FROM numbered WHERE finished ORDER BY n;
    INSERT INTO ingot.endings (tenant, type, finished_at, size, jobs)
        SELECT '{tenant}', 'noop', at, 1, ARRAY[id] FROM numbered WHERE finished ORDER BY n;
    INSERT INTO ingot.history (tenant, finished_at, id, type, status, attempts, created_at)
        SELECT '{tenant}', at - 1, id, 'noop', 'succeeded', 1, at - 2 FROM numbered WHERE finished ORDER BY n;
    INSERT INTO ingot.events (tenant, position, at, entries)
        SELECT '{tenant}', {first_position} + n / {together}, max(at), '[' || string_agg(
            ingot.job_event_entry('job.completed', ingot.quoted_id(id), 'noop', 'succeeded', 1, 0, 0, n, NULL, NULL,
                NULL, NULL, false, NULL, NULL),
            ',' ORDER BY n) || ']'
        FROM numbered WHERE finished GROUP BY n / {together};
    INSERT INTO ingot.ready (id, tenant, type, limit_key, priority, run_at, attempts, failures, crashes, max_attempts,
        fence)
        SELECT id, '{tenant}', 'noop', '', 1 + n % 5, at, 0, 0, 0, 5, 0 FROM numbered WHERE NOT finished AND n % 2 = 0;
    INSERT INTO ingot.later (id, tenant, type, limit_key, priority, run_at, attempts, failures, crashes, max_attempts,
        fence)
        SELECT id, '{tenant}', 'noop', '', 3, at + 4000000000000000, 0, 0, 0, 5, 0
        FROM numbered WHERE NOT finished AND n % 2 = 1;
    INSERT INTO ingot.tags (job, tag, tenant) SELECT id, 'red', '{tenant}' FROM numbered WHERE NOT finished ORDER BY n;
    INSERT INTO ingot.tags (job, tag, tenant) SELECT id, 'rare', '{tenant}' FROM numbered WHERE kind = 0 ORDER BY n;
    INSERT INTO ingot.counts
        SELECT '{tenant}', CASE WHEN kind = 0 THEN 'rare' ELSE 'noop' END,
            CASE kind WHEN 2 THEN 'dead' WHEN 3 THEN 'canceled' ELSE status END, count(*)
        FROM numbered GROUP BY 2, 3;
"""
# A large index is one or two pages deeper for each lookup. Measured: a claim touches
# 1.12 times the pages, a settle 1.00, a page of jobs 1.19, and at most 1.42 times where lookups dominate.
# The constant is for calls that touch few pages. A sequential scan touches thousands more.
MORE_MAX: Final = 1.5
MORE_PAGES_MAX: Final = 10

CLAIM: Final = """
    SELECT * FROM ingot.claim('{noop}', ARRAY[$1::uuid], '{""}', '{0}', '{0}',
        '{00000000-0000-0000-0000-000000000000}', '{32767}', '{0}', '{00000000-0000-0000-0000-000000000000}',
        '{1}', '{1000}', ARRAY[$2::integer], '{w}', '{NULL}', '{NULL}',
        ARRAY[$2::integer], '{180000000}')
"""
SETTLE: Final = """
    SELECT * FROM ingot.settle($1, $2, array_fill(NULL::uuid, ARRAY[cardinality($1::uuid[])]),
        array_fill($3::text, ARRAY[cardinality($1::uuid[])]), array_fill(true, ARRAY[cardinality($1::uuid[])]),
        array_fill(60000000::bigint, ARRAY[cardinality($1::uuid[])]), NULL,
        array_fill('no'::text, ARRAY[cardinality($1::uuid[])]), NULL)
"""
RENEW: Final = """
    SELECT * FROM ingot.renew($1, $2, array_fill(NULL::uuid, ARRAY[cardinality($1::uuid[])]),
        array_fill(180000000::bigint, ARRAY[cardinality($1::uuid[])]),
        array_fill(50::double precision, ARRAY[cardinality($1::uuid[])]), NULL)
"""
APPEND: Final = """
    SELECT * FROM ingot.append_logs(
        $1, $2, NULL, array_fill('text'::text, ARRAY[cardinality($1::uuid[])]), NULL, 65536, NULL
    )
"""
ENQUEUE: Final = """
    SELECT e.* FROM (
        SELECT array_agg(id) AS ids, array_agg(0) AS zeros, array_agg($2::uuid) AS tenants,
            array_agg('noop'::text) AS types,
            array_agg('null'::bytea) AS payloads, array_agg(NULL::bytea) AS no_bytes, array_agg(NULL::text) AS no_texts,
            array_agg('manual'::text) AS sources, array_agg(0::bigint) AS delays, array_agg(id::text) AS keys
        FROM unnest($1::uuid[]) AS u (id)
    ) AS a CROSS JOIN LATERAL ingot.enqueue(
        a.zeros, a.ids, a.tenants, a.types, a.payloads, a.no_bytes, NULL, NULL, a.delays, NULL, a.keys, a.payloads,
        a.keys, a.sources, a.no_texts, a.no_texts, a.no_texts, a.no_texts, a.zeros, a.ids, a.tenants, a.keys, a.zeros
    ) AS e
"""
HEADS: Final = """
    SELECT * FROM ingot.lane_heads(
        '{noop}', ARRAY[$1::uuid], '{""}', '{0}', '{0}', '{00000000-0000-0000-0000-000000000000}'
    )
"""
PUBLISH: Final = """
    SELECT * FROM ingot.publish(array_fill($2::uuid, '{50}'), array_fill('a.b'::text, '{50}'),
        array_fill('1'::text, '{50}'), $1::text[], array_fill('\\x00'::bytea, '{50}'), 1000000)
"""
RESOLVE_ORDERS: Final = """
    SELECT * FROM ingot.resolve_orders($1, array_fill($2::uuid, '{50}'), array_fill('noop'::text, '{50}'),
        array_fill('k'::text, '{50}'), array_fill('\\x00'::bytea, '{50}'), array_fill('k'::text, '{50}'),
        array_fill('k'::bytea, '{50}'), array_fill(false, '{50}'))
"""
TYPES: Final = ["type noop", "type rare"]
PAGES: Final[dict[str, tuple[list[str], dict[str, str]]]] = {
    "all": (["tenant"], {}),
    "all by type": (TYPES, {}),
    "type": (["type noop"], {"type": "'noop'"}),
    "rare type": (["type rare"], {"type": "'rare'"}),
    "queued": (TYPES, {"status": "'queued'"}),
    "few queued": (["ready rare", "later noop"], {"status": "'queued'"}),
    "blocked": (["blocked noop"], {"status": "'blocked'"}),
    "running": (["leases"], {"status": "'running'"}),
    "succeeded": (TYPES, {"status": "'succeeded'"}),
    "few succeeded": (["endings rare"], {"status": "'succeeded'"}),
    "dead": (["ended"], {"status": "'dead'"}),
    "canceled": (["ended", "canceled noop"], {"status": "'canceled'"}),
    "tag": (["tag"], {"tag": "'red'"}),
    "rare tag": (["tag"], {"tag": "'rare'"}),
    "source": (["tenant"], {"source": "'manual'"}),
    "rare source": (["source"], {"source": "'schedule'"}),
    "time": ([*TYPES, "drift"], {"after": "'{after}'", "created_after": str(START)}),
    "type and queued": (["type noop"], {"status": "'queued'", "type": "'noop'"}),
    "type and succeeded": (["type noop"], {"status": "'succeeded'", "type": "'noop'"}),
    "type and tag": (["tag"], {"type": "'noop'", "tag": "'red'"}),
    "tag and queued": (TYPES, {"status": "'queued'", "tag": "'red'"}),
    "rare tag and succeeded": (["tag"], {"status": "'succeeded'", "tag": "'rare'"}),
    "nothing newer": (TYPES, {"after": f"'{TOP}'", "created_after": str(START)}),
    "time and dead": (["ended", "drift"], {"status": "'dead'", "after": "'{after}'", "created_after": str(START)}),
    "time and tag": (["tag", "drift"], {"tag": "'red'", "after": "'{after}'", "created_after": str(START)}),
}


def page_values(scans: list[str], filters: dict[str, str], *, before: str, at_once: int) -> str:
    """The arguments of `page_of_jobs` for some scans and filters."""
    named = [(*scan.split(), "")[:2] for scan in scans]
    columns = [
        ("text", [f"'{kind}'" for kind, _ in named]),
        ("uuid", [f"'{before}'" for _ in named]),
        ("uuid", [BOTTOM if kind == "drift" else filters.get("after", BOTTOM) for kind, _ in named]),
        ("text", [f"'{type}'" for _, type in named]),
        ("smallint", ["3" for _ in named]),
    ]
    arrays = [f"ARRAY[{', '.join(values)}]::{kind}[]" for kind, values in columns]
    names = ("status", "type", "tag", "source", "created_after", "created_before")
    filter_values = [filters.get(name, "NULL") for name in names]
    return ", ".join(["'{tenant}'", *arrays, str(at_once), *filter_values, str(BATCH)])


SUMMARY: Final = "summary_of_tenant"
SCAN: Final = "a statement without an index"
READS: Final[dict[str, tuple[str, str]]] = {
    "get_job of a finished job": (SQL.get_job, "'{finished}'"),
    "get_job of a waiting job": (SQL.get_job, "'{queued}'"),
    "attempts_of_job": (SQL.attempts_of_job, "'{finished}'"),
    "logged_attempt": (SQL.logged_attempt, "'{finished}', NULL, 0"),
    "logged_attempt, one of several": (SQL.logged_attempt, "'{finished}', 1, 2"),
    "get_jobs": (SQL.get_jobs, "'{{{several}}}'"),
    **{
        f"page_of_jobs, {name}, {place}": (
            SQL.page_of_jobs,
            page_values(scans, filters, before=before, at_once=500 if filters else BATCH),
        )
        for name, (scans, filters) in PAGES.items()
        for place, before in [("the first", TOP), ("deep", "{middle}")]
    },
    "counts_of_tenant": (SQL.counts_of_tenant, "'{tenant}'"),
    "some_counts_of_tenant": (SQL.some_counts_of_tenant, "'{tenant}', NULL, 600, 20000"),
    "count_jobs_of_tag": (SQL.count_jobs_of_tag, "'{tenant}', 'red', 500"),
    "count_jobs_of_source": (SQL.count_jobs_of_source, "'{tenant}', 'schedule', 500"),
    "read_events, the first": (SQL.read_events, f"'{{tenant}}', '0', {BATCH}"),
    SUMMARY: (SQL.summary_of_tenant, "'{tenant}', NULL, 1000"),
    "count_jobs_by_status": (SQL.count_jobs_by_status, "'{{{several}}}'"),
    SCAN: ("SELECT count(*) FROM ingot.outcomes WHERE exit_code = 7", ""),
    "page_of_history": (SQL.page_of_history, f"'{{tenant}}', {2**62}, '{TOP}', {BATCH}"),
    "page_of_history_by_type": (SQL.page_of_history_by_type, f"'{{tenant}}', {2**62}, '{TOP}', {BATCH}, 'noop'"),
    "preview_retention": (SQL.preview_retention, f"'{{tenant}}', {BATCH}"),
    "newest_events": (SQL.newest_events, "'{tenant}', true"),
    "newest_events of all": (SQL.newest_events, "'{tenant}', false"),
    "read_events, the last": (SQL.read_events, f"'{{tenant}}', '{FIRST_POSITION + 1}', {BATCH}"),
}


pytestmark = pytest.mark.long


class Store:
    """A database with many jobs, and the number of pages that calls on it touch."""

    def __init__(self, url: str, owner: Raw, tenant: str) -> None:
        self.url = url
        self.owner = owner
        self.tenant = tenant

    async def measure(self) -> dict[str, int]:
        """The pages of every call that must not slow down with a long history, in a new session."""
        session = await asyncpg.connect(self.url)
        try:
            meter = Meter(session, self.tenant)
            return await self._measure_calls(meter) | await self._measure_reads(meter)
        finally:
            await session.close()
            await self.owner.execute("VACUUM ingot.later")

    async def measure_newcomer(self) -> dict[str, int]:
        """The pages that lists of a tenant without jobs touch, created after the statistics."""
        tenant = new_id()
        await self.owner.execute(f"SELECT ingot.create_tenant($1, 'newcomer', 1, 'UTC', '{{}}', {ACT_SQL})", tenant)
        names = {"tenant": tenant, "middle": await self._middle(), "after": await self._oldest()}
        session = await asyncpg.connect(self.url)
        try:
            meter = Meter(session, tenant)
            lists = {name: read for name, read in READS.items() if name.startswith(("page_of_jobs", "count_jobs_of"))}
            return {
                name: await meter.read(statement, values.format(**names)) for name, (statement, values) in lists.items()
            }
        finally:
            await session.close()

    async def _measure_calls(self, meter: Meter) -> dict[str, int]:
        tenant, new = self.tenant, [new_id() for _ in range(BATCH)]
        rows = await meter.session.fetch(CLAIM, tenant, BATCH)
        claimed = [row["id"] for row in rows], [row["fence"] for row in rows]
        queued, finished = (await self._newest(BATCH))[0], await self._oldest()
        assert len(rows) == BATCH
        return {
            # Measured first: rolled-back calls leave dead rows in `later`, which a promotion has to skip.
            "promote nothing": await meter.call("SELECT * FROM ingot.promote(5000, 0)"),
            "expired_leases": await meter.call("SELECT * FROM ingot.expired_leases(0, 1000, 0)"),
            "poll": await meter.call("SELECT * FROM ingot.poll()"),
            "next_due": await meter.call("SELECT ingot.next_due(0)"),
            "claim": await meter.call(CLAIM, tenant, BATCH),
            "claim one": await meter.call(CLAIM, tenant, 1),
            "claim nothing": await meter.call(CLAIM, new_id(), BATCH),
            "complete": await meter.call(SETTLE, *claimed, "succeeded"),
            "fail": await meter.call(SETTLE, *claimed, "failed"),
            "snooze": await meter.call(SETTLE, *claimed, "snoozed"),
            "renew": await meter.call(RENEW, *claimed),
            "append_logs": await meter.call(APPEND, *claimed),
            "enqueue": await meter.call(ENQUEUE, new, tenant),
            "cancel": await meter.call("SELECT ingot.cancel($1, $2)", tenant, queued),
            "cancel a running job": await meter.call("SELECT ingot.cancel($1, $2)", tenant, claimed[0][0]),
            "retry": await meter.call("SELECT ingot.retry($1, $2, false, NULL, NULL, NULL)", tenant, finished),
            "change": await meter.call("SELECT ingot.change($1, $2, 1, NULL, NULL, '{red}')", tenant, queued),
            "queue_depths": await meter.call("SELECT * FROM ingot.queue_depths(1000, 10000)"),
            "lane_heads": await meter.call(HEADS, tenant),
            "next_expiry": await meter.call("SELECT ingot.next_expiry(0)"),
            "find_attempts": await meter.call("SELECT * FROM ingot.find_attempts($1, $2)", *claimed),
            "publish": await meter.call(PUBLISH, new, tenant),
            "delete_old_events": await meter.call("SELECT * FROM ingot.delete_old_events(1, $1, 1000000)", BATCH),
            "resolve_orders": await meter.call(RESOLVE_ORDERS, new, tenant),
            "collect nothing": await self._measure_collect(meter, seconds=1e10),
            "collect_jobs": await self._measure_collect(meter, seconds=0),
            "clear": await self._measure_clear(meter),
        }

    async def _measure_clear(self, meter: Meter) -> int:
        """Measure clearing as if the tenant with all jobs had been removed."""
        await self.owner.execute("INSERT INTO ingot.removed_tenants VALUES ($1, 0)", self.tenant)
        try:
            return await meter.call("SELECT * FROM ingot.clear_tenants($1, 0)", BATCH)
        finally:
            await self.owner.execute("DELETE FROM ingot.removed_tenants")

    async def _measure_collect(self, meter: Meter, *, seconds: float) -> int:
        limits = msgspec.json.encode({"retention_seconds": seconds}).decode()
        await self.owner.execute(
            f"SELECT ingot.change_tenant($1, NULL, NULL, NULL, $2, {ACT_SQL})", self.tenant, limits
        )
        return await meter.call("SELECT * FROM ingot.collect_jobs($1)", BATCH)

    async def _measure_reads(self, meter: Meter) -> dict[str, int]:
        newest = await self._newest(BATCH)
        names = {
            "tenant": self.tenant,
            "queued": newest[0],
            "finished": await self._oldest(),
            "several": ",".join(newest),
            "middle": await self._middle(),
            "after": await self._oldest(),
        }
        return {
            name: await meter.read(statement, values.format(**names)) for name, (statement, values) in READS.items()
        }

    async def _newest(self, count: int) -> list[str]:
        rows = await self.owner.fetch("SELECT id::text FROM ingot.jobs ORDER BY id DESC LIMIT $1 OFFSET 20", count)
        return [row[0] for row in rows]

    async def _oldest(self) -> str:
        return str(await self.owner.fetchval("SELECT id::text FROM ingot.jobs ORDER BY id LIMIT 1 OFFSET 100"))

    async def _middle(self) -> str:
        middle = (
            "SELECT job::text FROM ingot.outcomes ORDER BY job LIMIT 1 OFFSET (SELECT count(*) FROM ingot.outcomes) / 2"
        )
        return str(await self.owner.fetchval(middle))


class Meter:
    """Counts the pages that statements touch in one session, without those a session loads once."""

    def __init__(self, session: Raw, tenant: str) -> None:
        self.session = session
        self._tenant = tenant

    async def call(self, call: str, *values: Any) -> int:
        """The maximum number of pages that a call touches in several runs, each rolled back."""
        touched: list[int] = []
        for _ in range(1 + RUNS):
            await self.session.execute("BEGIN")
            touched.append(await self._explain(call, *values))
            await self.session.execute("ROLLBACK")
        return max(touched[1:])

    async def read(self, statement: str, values: str) -> int:
        """The same for a prepared statement, run often enough for a generic plan."""
        await self.session.execute(f"PREPARE reading AS {statement}")
        await self.session.execute(f"BEGIN; SET LOCAL ingot.tenant = '{self._tenant}'")
        touched = [await self._explain(f"EXECUTE reading {values and f'({values})'}") for _ in range(READ_RUNS)]
        await self.session.execute("COMMIT; DEALLOCATE reading")
        return max(touched[1:])

    async def _explain(self, statement: str, *values: Any) -> int:
        text = await self.session.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *values)
        (found,) = msgspec.json.decode(text)
        return int(found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The URL of a separate server without jobs."""
    with own_server(OWN_SETTINGS) as server:
        yield server.url


async def make_store(cluster: str, *, finished: int, queued: int) -> Store:
    """Make a database with many jobs of one tenant, half of the queued ones scheduled, without statistics."""
    name, tenant = f"jobs_{finished}", new_id()
    admin = await asyncpg.connect(cluster)
    await admin.execute(f"CREATE DATABASE {name} TEMPLATE {PLAIN_TEMPLATE}")
    await admin.close()
    owner = await asyncpg.connect(with_database(cluster, name))
    await owner.execute(f"SELECT ingot.create_tenant($1, 'default', 1, 'UTC', '{{}}', {ACT_SQL})", tenant)
    async with owner.transaction():
        fixed = {"start": START, "first_position": FIRST_POSITION, "together": FINISHED_AT_ONCE, "rare": RARE}
        await owner.execute(FILL.format(tenant=tenant, finished=finished, queued=queued, **fixed))
    await owner.execute("VACUUM")
    return Store(with_database(cluster, name, "ingot_server"), owner, tenant)


@pytest.fixture(scope="module")
def measured(cluster: str) -> dict[str, dict[str, int]]:
    """The pages of every call in a small store, in a large one, and in a large one without statistics."""
    return asyncio.run(measure(cluster))


async def measure(cluster: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    small, big = await make_store(cluster, **SMALL), await make_store(cluster, **BIG)
    await small.owner.execute("VACUUM ANALYZE")
    found["small"] = await small.measure()
    found["big without statistics"] = await big.measure()
    await big.owner.execute("VACUUM ANALYZE")
    found["big"] = await big.measure()
    found["newcomer"] = await big.measure_newcomer()
    await small.owner.close()
    await big.owner.close()
    return found


def calls_with_more_pages(measured: dict[str, dict[str, int]], store: str) -> dict[str, tuple[int, int]]:
    """The calls that touch more pages in this store than in the small one, with both numbers."""
    small = measured["small"]
    return {
        name: (small[name], pages)
        for name, pages in measured[store].items()
        if pages > small[name] * MORE_MAX + MORE_PAGES_MAX
    }


def without(found: dict[str, tuple[int, int]], *names: str) -> dict[str, tuple[int, int]]:
    return {name: pages for name, pages in found.items() if name not in names}


def test_many_finished_jobs_add_only_index_depth_to_calls(measured: dict[str, dict[str, int]]) -> None:
    assert without(calls_with_more_pages(measured, "big"), SCAN, SUMMARY) == {}


def test_functions_use_an_index_without_statistics(measured: dict[str, dict[str, int]]) -> None:
    assert without(calls_with_more_pages(measured, "big without statistics"), *READS) == {}


def test_a_sequential_scan_is_detected(measured: dict[str, dict[str, int]]) -> None:
    small, big = calls_with_more_pages(measured, "big")[SCAN]
    assert big > 100 * small


def test_a_summary_touches_no_more_pages_with_many_queued_jobs(measured: dict[str, dict[str, int]]) -> None:
    assert SUMMARY not in calls_with_more_pages(measured, "big")


def test_reads_use_an_index_without_statistics(measured: dict[str, dict[str, int]]) -> None:
    assert without(calls_with_more_pages(measured, "big without statistics"), SCAN, SUMMARY) == {}


def test_lists_of_a_new_tenant_do_not_read_jobs_of_others(measured: dict[str, dict[str, int]]) -> None:
    assert {name: pages for name, pages in measured["newcomer"].items() if pages > NEWCOMER_PAGES_MAX} == {}
