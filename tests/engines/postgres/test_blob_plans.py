"""Calls about blobs touch few pages, however many keys, blobs, uploads, files and tombstones exist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import pytest

from ingot.blobs.ports import ListKeys
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.sql import SQL
from ingot.kernel.clock import MICROS
from ingot.kernel.ids import new_id
from tests.engines.postgres.blob_cluster import BlobCluster, open_cluster
from tests.engines.postgres.tenant_visibility import rolled_back

KEYS: Final = 100_000
PAGES_MAX: Final = 250  # Enough for a few index lookups; a sequential scan reads thousands.
RUNS: Final = 6  # The first five runs use custom plans.


@pytest.fixture
async def cluster() -> AsyncIterator[BlobCluster]:
    """A cluster in a new database, because plans depend on statistics."""
    async with open_cluster(is_new=True) as opened:
        yield opened


FILL: Final = """
    INSERT INTO ingot.blobs (holder, digest, sha256, size, place, verified_at)
    SELECT '{tenant}', sha256(n::text::bytea), sha256(n::text::bytea), 1, 'place ' || n, n
    FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.blob_contents (holder, digest, checks)
    SELECT '{tenant}', sha256(n::text::bytea), '' FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.keys (tenant, key, blob, sha256, size, content_type, owner, uploaded_at, upload)
    SELECT '{tenant}', 'k/' || n, sha256(n::text::bytea), '', 1, 'a/b', 'token:' || n % 50, 0, gen_random_uuid()
    FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.uploads (tenant, id, state, epoch, owner, reserved, received, blob, content_type, created_at,
        expires_at)
    SELECT '{tenant}', gen_random_uuid(), 'open', 0, 'token:' || n % 50, 1, 0, sha256(n::text::bytea), 'a/b', 0,
        {later} + n
    FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.uploads (tenant, id, state, epoch, owner, reserved, received, size, blob, content_type, job,
        fence, file, name, created_at, expires_at, done_at)
    SELECT '{tenant}', gen_random_uuid(), 'done', 0, 'token:' || n % 50, 0, 1, 1, sha256(n::text::bytea), 'a/b',
        gen_random_uuid(), CASE n % 2 WHEN 0 THEN 1 END, CASE n % 2 WHEN 0 THEN 'log' ELSE 'input' END, 'a', 0,
        {later} + n, 0
    FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, since)
    SELECT '{tenant}', gen_random_uuid(), (ARRAY['output', 'input', 'checkpoint'])[n % 3 + 1], 'a',
        sha256(n::text::bytea), '', 1, 'a/b', 'token:' || n % 50, 0
    FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.tombstones (holder, digest, at, owner, size)
    SELECT '{tenant}', sha256(n::text::bytea), n, 'token:' || n % 50, 1 FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.trash (place, holder, owner, size)
    SELECT 'old ' || n, '{tenant}', 'token:' || n % 50, 1 FROM generate_series(1, {keys}) AS n;
    INSERT INTO ingot.usage (tenant, owner, bytes, reserved, keys, key_bytes, deleted)
    SELECT tenant, o.owner, sum(size), {keys} / CASE WHEN o.owner = '' THEN 1 ELSE 50 END, count(*), sum(size),
        2 * sum(size)
    FROM ingot.keys CROSS JOIN LATERAL (VALUES (''), (owner)) AS o (owner) GROUP BY 1, 2
    ON CONFLICT (tenant, owner) DO UPDATE SET bytes = excluded.bytes, reserved = excluded.reserved,
        keys = excluded.keys, key_bytes = excluded.key_bytes, deleted = excluded.deleted;
"""
CALLS: Final[dict[str, str]] = {
    "put": """SELECT * FROM ingot.put_blobs(ARRAY[gen_random_uuid()], ARRAY[$1::uuid], '{token:1}', '{new}', '{NULL}',
        ARRAY[sha256('new')], ARRAY[sha256('new')], '{5}', '{place}', '{NULL}', '{""}', '{a/b}', '{NULL}', '{NULL}')""",
    "put the same": """SELECT * FROM ingot.put_blobs(ARRAY[gen_random_uuid()], ARRAY[$1::uuid], '{token:1}', '{same}',
        '{NULL}', ARRAY[sha256('77')], ARRAY[sha256('77')], '{1}', '{place}', '{NULL}', '{""}', '{a/b}', '{NULL}',
        '{NULL}')""",
    "delete": "SELECT * FROM ingot.delete_keys(ARRAY[$1::uuid], '{k/500}', '{NULL}')",
    "open": "SELECT * FROM ingot.open_key($1::uuid, 'k/500')",
    "open a blob": "SELECT * FROM ingot.open_blob($1::uuid, sha256('500'), 100)",
    "collect": "SELECT ingot.collect_blob_of($1::uuid, sha256('500'), 0, false)",
    "collect in the previous release": "SELECT ingot.collect_blob(sha256('500'), 0), $1::uuid",
    "condemned": "SELECT ingot.list_tombstoned(0, 10, $1::uuid, sha256('500'))",
    "condemned in the previous release": "SELECT ingot.list_collectable(0, 10, sha256('500')), $1::uuid",
    "trash": "SELECT ingot.list_trash(10, ''), $1::uuid",
    "empty the trash": "SELECT ingot.forget_trash('here', '{old 500,old 700}'), $1::uuid",
    "known places": "SELECT ingot.known_storage_keys('{place 500,old 500,nowhere,place 50000,old 70000}'), $1::uuid",
    "scrub": "SELECT ingot.list_to_scrub(1000000, 10), $1::uuid",
    "note a scrub": """SELECT ingot.record_tenant_scrub('here', ARRAY[$1::uuid, $1::uuid],
        ARRAY[sha256('500'), sha256('700')], '{place 500,NULL}', '{f,t}')""",
    "sweep": "SELECT ingot.sweep_uploads(5), $1::uuid",
    "verifying": "SELECT ingot.list_verifying(10), $1::uuid",
    "enqueue": """SELECT * FROM ingot.enqueue('{0}', ARRAY[gen_random_uuid()], ARRAY[$1::uuid], '{new}',
        ARRAY['1'::bytea], '{NULL}', '{NULL}', '{NULL}', '{0}', '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{manual}',
        '{NULL}', '{NULL}', '{NULL}', '{NULL}', '{0}', '{}', '{}', '{}', '{}',
        files => json_build_array(json_build_object('command', 0, 'job', gen_random_uuid(), 'tenant', $1,
        'owner', 'token:1', 'kind', 'input', 'name', 'a', 'blob', encode(sha256('500'), 'hex'))))""",
    "settle": """SELECT * FROM ingot.settle(ARRAY[gen_random_uuid()], '{1}', ARRAY[$1::uuid], NULL, NULL, NULL, NULL,
        NULL, NULL)""",
    "release": "SELECT ingot.release_dependents(ARRAY[gen_random_uuid()], 10), $1::uuid",
    "open a file": "SELECT ingot.open_file(gen_random_uuid(), 'input', 'a'), $1::uuid",
    "figures": "SELECT ingot.blob_metrics(10), $1::uuid",
    "usage": "SELECT * FROM ingot.get_usage($1::uuid, '')",
}


async def pages_touched(session: Raw, statement: str, *values: Any) -> int:
    """The number of pages a statement touches."""
    text = await session.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", *values)
    (plan,) = msgspec.json.decode(text)
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def fill(cluster: BlobCluster) -> None:
    """Insert many rows into every table of blobs."""
    owner = await cluster.session(server=False)
    later = cluster.bench.clock.micros() + 1000 * MICROS
    async with owner.transaction():
        await owner.execute(FILL.format(keys=KEYS, tenant=cluster.tenant, later=later))


async def test_every_call_touches_few_pages_in_large_tables(cluster: BlobCluster) -> None:
    await fill(cluster)
    session, touched = await cluster.session(), {}
    for name, call in CALLS.items():
        for _ in range(RUNS):
            async with rolled_back(session):
                touched[name] = await pages_touched(session, call, cluster.tenant)
    for prefix, after, end in (("", "", None), ("k/5", "k/50", "k/6"), ("k/5000", "", "k/5001"), ("x", "", "y")):
        statement = SQL.page_of_keys if end is None else SQL.page_of_keys_below
        values = (cluster.tenant, prefix, after, 10, *(() if end is None else (end,)))
        for _ in range(RUNS):
            async with rolled_back(session):
                await session.execute(f"SET LOCAL ingot.tenant = '{cluster.tenant}'")
                touched[f"keys from {prefix}"] = await pages_touched(session, statement, *values)
    for statement in (SQL.files_of_job, SQL.open_uploads):
        for _ in range(RUNS):
            async with rolled_back(session):
                await session.execute(f"SET LOCAL ingot.tenant = '{cluster.tenant}'")
                touched[statement] = await pages_touched(session, statement, new_id())
    assert {name: number for name, number in touched.items() if number > PAGES_MAX} == {}
    keys = await cluster.blobs.store.run(ListKeys(tenant=cluster.tenant, prefix="k/5000", after="", limit=100))
    assert [key.key for key in keys] == ["k/5000", *(f"k/5000{n}" for n in range(10))]
