"""Objects that tenants shared until blobs belonged to tenants, in a database of an earlier version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg
import pytest

from ingot.engines.postgres.connection import PlainConnection
from ingot.engines.postgres.migrate import ROLES, migrate
from ingot.engines.postgres.revision import migrations
from ingot.engines.postgres.sql import SQL
from tests.conformance.blob_fixture import id_of
from tests.postgres import own_server, with_database

DATA, SMALL, GONE = b"an object", b"small", b"gone"
DIVIDES_BLOBS = 23
TENANTS = ("019a0000-0000-7000-8000-000000000001", "019a0000-0000-7000-8000-000000000002")
NOBODY = "00000000-0000-0000-0000-000000000000"


class OldDatabase(NamedTuple):
    """The URL of a database, and a connection to it."""

    url: str
    connection: PlainConnection


@pytest.fixture
async def old() -> AsyncIterator[OldDatabase]:
    """A database of an earlier version: two tenants share an object and an inline blob, and nobody has a third."""
    with own_server(fresh=True) as server:
        owner = await asyncpg.connect(server.url)
        await owner.execute("CREATE DATABASE old")
        await owner.close()
        connection = await asyncpg.connect(with_database(server.url, "old"))
        try:
            for role, login in ROLES.items():
                await connection.execute(f"CREATE ROLE {role} {login}")
            await connection.execute("CREATE SCHEMA ingot AUTHORIZATION ingot_owner; SET ROLE ingot_owner")
            await connection.execute(SQL.create_migrations_table)
            for migration in migrations():
                if migration.number < DIVIDES_BLOBS:
                    await connection.execute(migration.text)
                    await connection.execute(SQL.record_migration, migration.number, migration.name)
            await _fill(connection)
            yield OldDatabase(with_database(server.url, "old"), connection)
        finally:
            await connection.close()


async def _fill(connection: PlainConnection) -> None:
    for data, place, inline in ((DATA, "place-1", None), (SMALL, None, SMALL), (GONE, "place-3", None)):
        digest = bytes.fromhex(id_of(data))
        await connection.execute(
            "INSERT INTO ingot.blobs (digest, sha256, size, place, verified_at) VALUES ($1, $1, $2, $3, 7)",
            digest,
            len(data),
            place,
        )
        await connection.execute(
            "INSERT INTO ingot.blob_contents (digest, inline, checks) VALUES ($1, $2, $3)", digest, inline, b"0"
        )
        if data == GONE:
            await connection.execute("INSERT INTO ingot.tombstones (digest, at) VALUES ($1, 9), ($1, 8)", digest)
            continue
        await connection.execute("INSERT INTO ingot.tombstones (digest, at) VALUES ($1, 5)", digest)
        for tenant in TENANTS:
            await connection.execute(
                "INSERT INTO ingot.keys (tenant, key, blob, sha256, size, content_type, owner, uploaded_at, upload) "
                "VALUES ($1, $2, $3, $3, $4, 'a/b', 'token:ann', 1, gen_random_uuid())",
                tenant,
                "small" if data == SMALL else "large",
                digest,
                len(data),
            )


async def test_shared_blobs_are_divided_and_keep_their_object(old: OldDatabase) -> None:
    assert DIVIDES_BLOBS in [migration.number for migration in await migrate(old.url)]
    connection = old.connection
    keys = await connection.fetch(
        "SELECT k.tenant::text, k.key, encode(b.digest, 'hex'), b.place, b.verified_at, c.inline, c.checks "
        "FROM ingot.keys AS k JOIN ingot.blobs AS b ON b.holder = k.tenant AND b.digest = k.blob "
        "JOIN ingot.blob_contents AS c ON c.holder = k.tenant AND c.digest = k.blob ORDER BY 1, 2"
    )
    assert [tuple(row) for row in keys] == [
        row
        for tenant in TENANTS
        for row in (
            (tenant, "large", id_of(DATA), "place-1", 7, None, b"0"),
            (tenant, "small", id_of(SMALL), None, 7, SMALL, b"0"),
        )
    ]
    assert await connection.fetchval("SELECT count(*) FROM ingot.blobs") == 5
    tombstones = await connection.fetch(
        "SELECT holder::text, encode(digest, 'hex'), at, owner, size FROM ingot.tombstones"
    )
    assert [tuple(row) for row in tombstones] == [(NOBODY, id_of(GONE), 9, "", 0)]
