"""What lies in the tables of a store, read past the code under test: found in the catalogue, so none is forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from ingot.engines.postgres import PostgresStore
from tests.factories import Bench
from tests.postgres import database_for, server_url, with_database

OF_TENANTS = """
SELECT c.relname FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant'
WHERE c.relnamespace = 'ingot'::regnamespace AND c.relkind = 'r' ORDER BY c.relname
"""
# Rows that belong to a job name it, or are it.
OF_JOBS = """
SELECT c.relname, CASE WHEN a.attname = 'job' THEN 'job' ELSE 'id' END
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname IN ('job', 'dedupe_key')
WHERE c.relnamespace = 'ingot'::regnamespace AND c.relkind = 'r'
"""
A_JOB_FILE = """
INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, since)
SELECT k.tenant, j.id, 'input', 'a', k.blob, k.sha256, k.size, k.content_type, k.owner, 0
FROM ingot.keys AS k JOIN ingot.jobs AS j ON j.tenant = k.tenant WHERE k.tenant = $1 LIMIT 1
"""
# What keeps a blob, once for each: keys, files of jobs, and uploads under way or done for neither.
REFERENCES = """
SELECT blob FROM {schema}keys UNION ALL SELECT blob FROM {schema}job_files UNION ALL SELECT {of_uploads}
FROM {schema}uploads
WHERE state IN ('open', 'verifying') OR (state = 'done' AND key IS NULL AND coalesce(file, 'output') = 'output')
"""
REFERENCES_IN_POSTGRES = f"""
SELECT encode(blob, 'hex'), count(*) FROM ({REFERENCES.format(schema="ingot.", of_uploads="blob")}) AS r
WHERE blob IS NOT NULL GROUP BY 1
"""
REFERENCES_IN_SQLITE = f"""
SELECT lower(hex(coalesce(b.id, r.blob))), count(*)
FROM ({REFERENCES.format(schema="", of_uploads="blob_id")}) AS r LEFT JOIN blobs AS b ON b.number = r.blob
WHERE r.blob IS NOT NULL GROUP BY 1
"""


# Deleted bytes by owner, of blobs that nothing refers to and of objects to delete.
DELETED_IN_POSTGRES = """
SELECT owner, sum(size)::bigint FROM (
    SELECT t.owner, b.size FROM ingot.tombstones AS t JOIN ingot.blobs AS b ON
        b.holder = t.holder AND b.digest = t.digest
    WHERE t.holder = $1
    UNION ALL
    SELECT o.owner, o.size FROM ingot.trash AS o WHERE o.holder = $1
) AS d GROUP BY owner
"""
DELETED_IN_SQLITE = """
SELECT owner, sum(size) FROM (
    SELECT t.owner, b.size FROM tombstones AS t JOIN blobs AS b ON b.number = t.blob
    WHERE t.holder = ?1 AND b.holder = ?1
    UNION ALL
    SELECT o.owner, o.size FROM trash AS o WHERE o.holder = ?1
) GROUP BY owner
"""
# Blobs whose tombstone is missing although nothing refers to them, or there although something does.
MISPLACED_TOMBSTONES_IN_POSTGRES = """
SELECT count(*) FROM ingot.blobs AS b WHERE b.holder = $1
AND (ingot.count_references(b.holder, b.digest) > 0)
    = EXISTS (SELECT FROM ingot.tombstones AS t WHERE t.holder = b.holder AND t.digest = b.digest)
"""
MISPLACED_TOMBSTONES_IN_SQLITE = """
SELECT count(*) FROM blobs AS b WHERE b.holder = ?1
AND (
    EXISTS (SELECT 1 FROM keys AS k WHERE k.blob = b.number)
    OR EXISTS (SELECT 1 FROM job_files AS f WHERE f.blob = b.number)
    OR EXISTS (
        SELECT 1 FROM uploads AS u WHERE u.blob_id = b.id AND u.tenant = b.holder AND u.state = 'done' AND u.key IS NULL
            AND coalesce(u.file, 'output') = 'output'
    )
) = EXISTS (SELECT 1 FROM tombstones AS t WHERE t.blob = b.number)
"""


class Filled(msgspec.Struct):
    """Tables that have a column for the tenant: those with a row of it, and those without."""

    filled: list[str]
    empty: list[str]


async def fill_the_rest(bench: Bench, folder: Path, tenant: str) -> None:
    """Put rows of a tenant, in which nothing else is put in a test, into their tables."""
    if isinstance(bench.store, PostgresStore):
        for fold in ("SELECT ingot.fold_counts(10000)", "SELECT * FROM ingot.fold_batches(10000)"):
            await bench.store.database.call(fold)
        await bench.make_job(tenant=tenant, batch="together")
        async with _owner(folder) as owner:
            await owner.execute("INSERT INTO ingot.worker_roles VALUES ('a_worker', $1)", tenant)
            await owner.execute("INSERT INTO ingot.app_roles VALUES ('an_app', $1)", tenant)
            await owner.execute("INSERT INTO ingot.event_floors VALUES ($1, 0)", tenant)
            await owner.execute("INSERT INTO ingot.askers VALUES ('noop', $1, 0)", tenant)
            await owner.execute(A_JOB_FILE, tenant)
            await owner.execute("INSERT INTO ingot.usage_owed VALUES ($1, 'role/shop', 1)", tenant)
    else:
        number = bench.sqlite.writer_state.tenants[tenant]
        bench.sqlite.connection.execute("INSERT INTO event_floors VALUES (?, 0, 0)", (number,))
        bench.sqlite.connection.execute(
            "INSERT INTO job_files SELECT s.tenant, s.number, 'input', 'a', k.blob, 'a/b', k.owner, NULL, 0 "
            "FROM states AS s, keys AS k WHERE s.tenant = ?1 AND k.tenant = ?1 LIMIT 1",
            (number,),
        )


async def tables_of_tenant(bench: Bench, folder: Path, tenant: str) -> Filled:
    """Which tables have rows of a tenant, or, when it is not there any more, of nobody who is."""
    if isinstance(bench.store, PostgresStore):
        async with _owner(folder) as owner:
            names = [row[0] for row in await owner.fetch(OF_TENANTS)]
            found = {
                name: await owner.fetchval(f"SELECT EXISTS (SELECT FROM ingot.{name} WHERE tenant = $1)", tenant)
                for name in names
            }
    else:
        connection = bench.sqlite.connection
        known = dict(connection.execute("SELECT id, number FROM tenants"))
        rows = connection.execute(
            "SELECT m.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c "
            "WHERE m.type = 'table' AND c.name = 'tenant' ORDER BY 1"
        )
        found = {}
        for (name,) in list(rows):
            values = {value for (value,) in connection.execute(f"SELECT DISTINCT tenant FROM {name}")}
            own = {tenant, known[tenant]} if tenant in known else values - {None, 0, "", *known, *known.values()}
            found[name] = bool(values & own)
    return Filled([name for name in found if found[name]], [name for name in found if not found[name]])


async def orphans(bench: Bench, folder: Path) -> list[str]:
    """Tables with rows of a job that is not there."""
    if isinstance(bench.store, PostgresStore):
        async with _owner(folder) as owner:
            return [
                name
                for name, column in await owner.fetch(OF_JOBS)
                if await owner.fetchval(
                    f"SELECT EXISTS (SELECT FROM ingot.{name} WHERE {column} NOT IN (SELECT id FROM ingot.jobs))"
                )
            ]
    connection = bench.sqlite.connection
    rows = connection.execute(
        "SELECT m.name, c.name FROM sqlite_schema AS m, pragma_table_info(m.name) AS c "
        "WHERE m.type = 'table' AND (c.name = 'job' OR (m.name, c.name) = ('jobs', 'number'))"
    )
    return [
        name
        for name, column in list(rows)
        if connection.execute(
            f"SELECT EXISTS (SELECT 1 FROM {name} WHERE {column} NOT IN (SELECT number FROM states))"
        ).get
    ]


async def count_references(bench: Bench) -> Counter[str]:
    """How many references there are to each blob that has any, by its id."""
    if isinstance(bench.store, PostgresStore):
        ((name,),) = await bench.store.database.call("SELECT current_database()")
        async with _connected(with_database(server_url(), name)) as owner:
            return Counter(dict(await owner.fetch(REFERENCES_IN_POSTGRES)))
    return Counter(dict(bench.sqlite.connection.execute(REFERENCES_IN_SQLITE)))


async def count_deleted(bench: Bench, tenant: str) -> Counter[str]:
    """The deleted bytes of a tenant that are still stored, by owner. Every blob without a reference has a tombstone."""
    if isinstance(bench.store, PostgresStore):
        ((name,),) = await bench.store.database.call("SELECT current_database()")
        async with _connected(with_database(server_url(), name)) as owner:
            assert await owner.fetchval(MISPLACED_TOMBSTONES_IN_POSTGRES, tenant) == 0
            return Counter(dict(await owner.fetch(DELETED_IN_POSTGRES, tenant)))
    number = bench.sqlite.writer_state.tenant_numbers.get(tenant)
    connection = bench.sqlite.connection
    assert connection.execute(MISPLACED_TOMBSTONES_IN_SQLITE, (number,)).get == 0
    return Counter(dict(connection.execute(DELETED_IN_SQLITE, (number,))))


@asynccontextmanager
async def _owner(folder: Path) -> AsyncIterator[Any]:
    async with _connected((await database_for(folder / "data")).owner_url) as connection:
        yield connection


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()
