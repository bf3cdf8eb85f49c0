"""Statements about blobs use an index: thousands of other rows do not slow them down."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import apsw
import apsw.ext

from ingot.engines.sqlite.blob_reads import METRIC_ROWS_MAX
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.kernel.clock import ManualClock
from tests.engines.sqlite.plans.every_blob_statement import run_every_blob_statement
from tests.engines.sqlite.plans.meter import metered
from tests.factories import open_bench

SMALL: Final = METRIC_ROWS_MAX + 1000
BIG: Final = 50_000
MORE_STEPS_MAX: Final = 1.1
NEVER: Final = 2**60
# For each other blob: keys before and after those of the calls, an open and a finished upload, a tombstone, trash.
# The number of unfinished uploads of a tenant is limited, so most of them belong to another tenant.
FILL: Final = """
    BEGIN;
    CREATE TEMP TABLE others AS WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {blobs})
        SELECT n, unhex(printf('%064x', n)) AS id FROM n;
    INSERT INTO blobs SELECT n, 1, id, id, 1, 'other/' || n, 0, {never}, NULL, 0 FROM others;
    INSERT INTO blob_checks SELECT n, x'00' FROM others;
    INSERT INTO keys SELECT 1, 'a/' || n, n, 'a/b', NULL, 'token:other', 0, 'x' FROM others;
    INSERT INTO keys SELECT 1, 'z/' || n, n, 'a/b', NULL, 'token:other', 0, 'x' FROM others;
    INSERT INTO usage SELECT 1, '', 2 * {blobs}, 0, 2 * {blobs}, 2 * {blobs}, 2 * {blobs};
    INSERT INTO usage SELECT 1, 'token:' || n, 0, 0, 0, 0, 0 FROM others;
    INSERT INTO uploads (tenant, id, state, epoch, owner, reserved, received, content_type, created_at, expires_at)
        SELECT iif(n <= 1000, 1, 999), 'other' || n, 'open', 1, 'token:other', 0, 0, 'a/b', 0, {never} FROM others;
    INSERT INTO uploads (tenant, id, state, epoch, owner, reserved, received, size, blob_id, sha256, content_type,
            created_at, expires_at, done_at)
        SELECT 1, 'done' || n, 'done', 1, 'token:other', 0, 0, 1, id, id, 'a/b', 0, {never}, 0 FROM others;
    INSERT INTO tombstones SELECT n, 0, 1, 'token:other', 1 FROM others;
    INSERT INTO trash SELECT n, 'trash/' || n, NULL, 1, 'token:other', 1, 0, 0 FROM others;
    UPDATE blob_totals SET blobs = {blobs}, bytes = {blobs};
    COMMIT;
"""


async def steps_among(folder: Path, blobs: int) -> dict[str, int]:
    """The maximum number of steps of each statement with this many other blobs."""
    clock = ManualClock()
    async with open_bench("sqlite", folder, clock):
        pass
    connection = apsw.Connection(str(folder / FILE_NAME))
    connection.execute(FILL.format(blobs=blobs, never=NEVER))
    connection.close()
    with metered() as meter:
        async with open_bench("sqlite", folder, clock) as bench:
            meter.steps.clear()
            await run_every_blob_statement(bench)
    shutil.rmtree(folder)
    assert meter.automatic_indexes == set()
    return {name: max(steps) for name, steps in meter.steps.items()}


async def test_statements_about_blobs_take_no_more_steps_with_many_blobs(tmp_path: Path) -> None:
    small, big = await steps_among(tmp_path / "small", SMALL), await steps_among(tmp_path / "big", BIG)
    assert {name: (small[name], steps) for name, steps in big.items() if steps > small[name] * MORE_STEPS_MAX} == {}
    assert {"page_of_keys", "uploads_to_sweep", "is_blob_referenced", "keys_of_owner", "blob_metrics"} <= big.keys()


async def test_a_list_of_keys_searches_a_range_of_the_primary_key(tmp_path: Path) -> None:
    async with open_bench("sqlite", tmp_path / "data"):
        pass
    connection = apsw.Connection(str(tmp_path / "data" / FILE_NAME))
    plan = apsw.ext.query_info(connection, SQL.page_of_keys, explain_query_plan=True).query_plan
    assert "SEARCH keys USING PRIMARY KEY (tenant=? AND key>? AND key<?)" in str(plan)
    assert "TEMP B-TREE" not in str(plan)
    connection.close()
