"""Objects that tenants shared until blobs belonged to tenants."""

from __future__ import annotations

from pathlib import Path

import apsw

from ingot.blobs.ports import CollectBlob, ListTrash
from ingot.engines.sqlite.migrate import migrations
from tests.conformance.blob_fixture import BlobFixture, content_of, id_of
from tests.factories import open_bench

DATA, SMALL, GONE = b"an object", b"small", b"gone"
DIVIDES_BLOBS = 18


def database_with_shared_blobs() -> apsw.Connection:
    """A database of an earlier version: two tenants share an object and an inline blob, and nobody has a third."""
    connection = apsw.Connection(":memory:")
    for migration in migrations():
        if migration.number < DIVIDES_BLOBS:
            connection.execute(migration.text)
    for number, data, place in ((1, DATA, "place-1"), (2, SMALL, None), (3, GONE, "place-3")):
        values = number, bytes.fromhex(id_of(data)), len(data), place
        connection.execute("INSERT INTO blobs VALUES (?, ?, zeroblob(32), ?, ?, 0, 7)", values)
        connection.execute("INSERT INTO blob_checks VALUES (?, x'00')", (number,))
    connection.execute("INSERT INTO blob_bytes VALUES (2, ?)", (SMALL,))
    connection.execute("INSERT INTO tombstones VALUES (3, 9), (1, 5)")
    for tenant in (1, 2):
        for key, blob in (("large", 1), ("small", 2)):
            connection.execute(
                "INSERT INTO keys VALUES (?, ?, ?, 'a/b', NULL, 'token:ann', 1, 'u')", (tenant, key, blob)
            )
    return connection


def test_shared_blobs_are_divided_and_keep_their_object() -> None:
    connection = database_with_shared_blobs()
    for migration in migrations():
        if migration.number >= DIVIDES_BLOBS:
            connection.execute(migration.text)
    keys = connection.execute(
        "SELECT k.tenant, k.key, b.holder, lower(hex(b.id)), b.place, y.bytes, length(c.checks) FROM keys AS k "
        "JOIN blobs AS b ON b.number = k.blob JOIN blob_checks AS c ON c.blob = b.number "
        "LEFT JOIN blob_bytes AS y ON y.blob = b.number ORDER BY k.tenant, k.key"
    ).fetchall()
    assert keys == [
        row
        for tenant in (1, 2)
        for row in (
            (tenant, "large", tenant, id_of(DATA), "place-1", None, 1),
            (tenant, "small", tenant, id_of(SMALL), None, SMALL, 1),
        )
    ]
    tombstones = (
        "SELECT lower(hex(b.id)), t.at, t.holder, t.size FROM tombstones AS t JOIN blobs AS b ON b.number = t.blob"
    )
    assert connection.execute(tombstones).fetchall() == [(id_of(GONE), 9, None, 0)]


async def test_an_object_that_tenants_shared_is_deleted_with_its_last_blob(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path) as bench:
        tenants = [BlobFixture(bench), BlobFixture(bench, (await bench.tenants.create("other")).id)]
        for number, each in enumerate(tenants):
            await each.put("k", content_of(DATA, f"place-{number}"))
        bench.sqlite.connection.execute("UPDATE blobs SET place = 'place-0'")
        await tenants[0].delete("k")
        collect = [CollectBlob(holder=each.tenant, blob_id=id_of(DATA), grace=0) for each in tenants]
        assert await bench.store.run(collect[0]) == len(DATA)
        assert (await bench.store.run(ListTrash(limit=9)), await tenants[0].deleted()) == ([], 0)
        await tenants[1].delete("k")
        assert await bench.store.run(collect[1]) == len(DATA)
        assert (await tenants[1].trash(), await tenants[1].deleted()) == (["place-0"], len(DATA))
