"""Blobs in SQLite: concurrent commands share commits, and usage counts job files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from structlog.testing import capture_logs

from ingot.blobs.model import Key
from ingot.blobs.ports import CollectBlob, DeleteKey, FindBlob, GetBlobMetrics, PutBlob
from ingot.jobs import Claim, Definition
from ingot.kernel.errors import StoreError
from ingot.kernel.ids import new_id
from tests.conformance.blob_fixture import HOUR, OWNER, BlobFixture, content_of, id_of
from tests.engines.sqlite.plans.meter import metered
from tests.factories import open_bench

PUTS: Final = 1000
AT_ONCE: Final = 32

# The usage of each owner of a tenant, counted row by row.
RECOUNT: Final = """
SELECT tenant, owner, sum(bytes), sum(reserved), sum(keys), sum(key_bytes) FROM (
    SELECT k.tenant, k.owner, b.size AS bytes, 0 AS reserved, 1 AS keys, b.size AS key_bytes
    FROM keys AS k JOIN blobs AS b ON b.number = k.blob
    UNION ALL
    SELECT tenant, owner, iif(state = 'done' AND key IS NULL, size, 0), reserved, 0, 0 FROM uploads
    UNION ALL
    SELECT f.tenant, f.owner, b.size, 0, 0, 0 FROM job_files AS f JOIN blobs AS b ON b.number = f.blob
) GROUP BY tenant, owner HAVING sum(bytes) + sum(reserved) + sum(keys) > 0 ORDER BY 1, 2
"""


TOTAL: Final = """
SELECT tenant, '', sum(bytes), sum(reserved), sum(keys), sum(key_bytes) FROM usage WHERE owner <> '' GROUP BY tenant
"""


class CommitRecorder:
    """Records the number of commands of each commit."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def committed(self, engine: str, kind: str, commands: int) -> None:
        """Record a commit."""
        self.sizes.append(commands)

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[BlobFixture]:
    """The blobs of a tenant in SQLite."""
    async with open_bench("sqlite", tmp_path / "data") as bench:
        yield BlobFixture(bench)


def put(tenant: str, number: int) -> PutBlob:
    """A command that puts a blob of 1 KiB under its own key."""
    content = content_of(number.to_bytes(4) * 256)
    return PutBlob(id=new_id(), tenant=tenant, owner=OWNER, key=f"k/{number:04}", content=content)


async def test_a_thousand_small_blobs_share_few_commits(tmp_path: Path) -> None:
    with metered() as meter:
        async with open_bench("sqlite", tmp_path / "data") as bench:
            blobs, commits = BlobFixture(bench), CommitRecorder()
            bench.store.coalesce_commands()
            bench.store.add_listener(commits)
            meter.steps.clear()
            numbers = iter(range(PUTS))

            async def put_some() -> None:
                for number in numbers:
                    await blobs.store.run(put(blobs.tenant, number))

            await asyncio.gather(*[put_some() for _ in range(AT_ONCE)])
            assert sum(commits.sizes) == PUTS
            assert len(commits.sizes) <= PUTS // 8
            statements = sum(map(len, meter.steps.values()))
            assert statements <= 25 * len(commits.sizes)
            assert await blobs.usage() == (PUTS * 1024, 0, PUTS)
            assert len(await blobs.news("blob.stored")) == PUTS


async def test_a_put_that_fails_does_not_affect_others_of_its_commit(blobs: BlobFixture) -> None:
    bad = msgspec.structs.replace(put(blobs.tenant, 3), original_name=b"bytes")
    blobs.bench.store.coalesce_commands()
    commands = [put(blobs.tenant, 1), bad, put(blobs.tenant, 2)]
    with capture_logs():
        answers = await asyncio.gather(*map(blobs.store.run, commands), return_exceptions=True)
    assert [type(answer) for answer in answers] == [Key, StoreError, Key]
    await blobs.check()
    assert await blobs.usage() == (2048, 0, 2)
    assert len(await blobs.news("blob.stored")) == 2
    figures = await blobs.store.run(GetBlobMetrics())
    assert (figures.blobs, figures.bytes) == (2, 2048)


# -- job files ----------------------------------------------------------------------------------------------


def add_file(blobs: BlobFixture, claim: Claim, data: bytes, *, kind: str = "output", name: str = "a") -> None:
    """Add a file to a job, and count it in usage."""
    connection = blobs.bench.sqlite.connection
    connection.execute(
        "INSERT INTO job_files SELECT s.tenant, s.number, ?, ?, b.number, 'text/plain', ?, s.fence, 7 "
        "FROM states AS s, blobs AS b WHERE s.id = ? AND b.id = ?",
        (kind, name, OWNER, claim.job.id, bytes.fromhex(id_of(data))),
    )
    for owner in ("", OWNER):
        connection.execute(
            "INSERT INTO usage VALUES (?1, ?2, ?3, 0, 0, 0, 0) ON CONFLICT DO UPDATE SET bytes = bytes + ?3",
            (number_of(blobs), owner, len(data)),
        )


def number_of(blobs: BlobFixture) -> int:
    """The number of the tenant in the database."""
    return blobs.bench.sqlite.writer_state.tenants[blobs.tenant]


def check(blobs: BlobFixture) -> None:
    """Check that usage equals a recount of the tables."""
    connection = blobs.bench.sqlite.connection
    columns = "tenant, owner, bytes, reserved, keys, key_bytes"
    usage = list(
        connection.execute(
            f"SELECT {columns} FROM usage WHERE owner <> '' AND bytes + reserved + keys > 0 ORDER BY tenant, owner"
        )
    )
    assert usage == list(connection.execute(RECOUNT))
    total = list(connection.execute(f"SELECT {columns} FROM usage WHERE owner = ''"))
    assert total == list(connection.execute(TOTAL))


async def claim_with_file(blobs: BlobFixture, data: bytes) -> Claim:
    """Make a running job with this file, whose blob has no other reference."""
    claim = await blobs.bench.make_claim("filed")
    await blobs.put("k", data)
    add_file(blobs, claim, data)
    check(blobs)
    await blobs.store.run(DeleteKey(tenant=blobs.tenant, key="k"))
    check(blobs)
    return claim


async def test_a_job_file_keeps_its_blob(blobs: BlobFixture) -> None:
    claim = await claim_with_file(blobs, b"12345")
    blobs.bench.clock.advance(days=1)
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"12345"), grace=0)) is None
    assert await blobs.condemned() == set()
    assert await blobs.references(id_of(b"12345")) == 1
    found = await blobs.store.run(FindBlob(tenant=blobs.tenant, blob_id=id_of(b"12345")))
    assert found is not None
    (reference,) = found[1]
    assert (reference.kind, reference.name) == ("output", "a")
    assert (reference.job_id, reference.job_type) == (claim.job.id, "filed")
    other = (await blobs.bench.tenants.create("other")).id
    assert await blobs.store.run(FindBlob(tenant=other, blob_id=id_of(b"12345"))) is None


async def test_files_of_a_job_are_removed_with_it(blobs: BlobFixture) -> None:
    await blobs.bench.jobs.define(Definition(type="filed", retention_seconds=0))
    claim = await claim_with_file(blobs, b"12345")
    add_file(blobs, claim, b"12345", kind="input", name="b")
    check(blobs)
    await blobs.bench.jobs.complete(claim)
    assert (await blobs.bench.jobs.collect(10)).removed == 1
    check(blobs)
    assert await blobs.usage() == (0, 0, 0)
    assert await blobs.condemned() == {id_of(b"12345")}
    blobs.bench.clock.advance(days=1)
    assert await blobs.store.run(CollectBlob(holder=blobs.tenant, blob_id=id_of(b"12345"), grace=HOUR)) == 5


async def test_a_collected_blob_leaves_no_rows(blobs: BlobFixture) -> None:
    for content in (content_of(b"small"), content_of(b"large", "place-1")):
        await blobs.put("k", content)
        await blobs.delete("k")
    assert await blobs.collect(grace=0) == [5, 5]
    await blobs.forget("place-1")
    connection = blobs.bench.sqlite.connection
    for table in ("blobs", "blob_bytes", "blob_checks", "tombstones", "keys", "usage"):
        assert connection.execute(f"SELECT count(*) FROM {table}").get == 0, table
