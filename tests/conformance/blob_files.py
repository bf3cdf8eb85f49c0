"""A blob that is a file of a job."""

from __future__ import annotations

from pathlib import Path

import asyncpg

from ingot.engines.postgres import PostgresStore
from ingot.jobs import Job
from tests.conformance.blob_fixture import OWNER, BlobFixture, id_of
from tests.postgres import database_for

DATA = b"kept or not"
BLOB = id_of(DATA)
SIZE = len(DATA)
JOB_FILE_POSTGRES = """
    WITH file AS (
        INSERT INTO ingot.job_files (tenant, job, kind, name, blob, sha256, size, content_type, owner, since)
        SELECT j.tenant, j.id, $2, 'a.txt', b.digest, b.sha256, b.size, 'text/plain', $4, $5
        FROM ingot.jobs AS j, ingot.blobs AS b WHERE j.id = $1 AND b.digest = $3 RETURNING *
    )
    UPDATE ingot.usage AS u SET bytes = bytes + f.size FROM file AS f
    WHERE u.tenant = f.tenant AND u.owner IN ('', f.owner)
"""
JOB_FILE_SQLITE = """
    INSERT INTO job_files (tenant, job, kind, name, blob, content_type, owner, since)
    SELECT s.tenant, s.number, ?2, 'a.txt', b.number, 'text/plain', ?4, ?5
    FROM states AS s, blobs AS b WHERE s.id = ?1 AND b.id = ?3
"""
COUNT_SQLITE = """
    UPDATE usage SET bytes = bytes + ?3
    WHERE tenant = (SELECT tenant FROM states WHERE id = ?1) AND owner IN ('', ?2)
"""


async def give_file(blobs: BlobFixture, folder: Path, job: Job, kind: str = "input") -> None:
    """Make the blob a file of a job, past the code: nothing writes these yet."""
    now = blobs.bench.clock.micros()
    row = (job.id, kind, bytes.fromhex(BLOB), OWNER, now)
    if isinstance(blobs.bench.store, PostgresStore):
        owner = await asyncpg.connect((await database_for(folder / "data")).owner_url)
        await owner.execute(JOB_FILE_POSTGRES, *row)
        await owner.close()
    else:
        connection = blobs.bench.sqlite.connection
        connection.execute(JOB_FILE_SQLITE, row)
        connection.execute(COUNT_SQLITE, (job.id, OWNER, SIZE))
