"""Definitions that servers ensure while an operator changes them: the change of the operator is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import msgspec
import pytest

from ingot.jobs import Definition
from tests.factories import open_bench
from tests.postgres import ACT_SQL, database_for
from tests.waiting import eventually

COUNT_BLOCKED_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
PUT = f"""SELECT ingot.put_record('definition', '00000000-0000-0000-0000-000000000000', 'pdf', $1, NULL, NULL, 100,
    {ACT_SQL}, 'definition.put', 'definition/pdf')"""
REQUIRED = Definition(type="pdf", reuse=True, version=2)


@pytest.mark.parametrize("before", [False, True])
async def test_a_concurrent_change_by_an_operator_is_not_overwritten(tmp_path: Path, before: bool) -> None:
    async with open_bench("postgres", tmp_path / "data") as one, open_bench("postgres", tmp_path / "data") as other:
        if before:
            await one.jobs.define(Definition(type="pdf"))
        changed = Definition(type="pdf", max_running=3)
        url = (await database_for(tmp_path / "data")).owner_url
        operator, watcher = await asyncpg.connect(url), await asyncpg.connect(url)
        try:
            await operator.execute("BEGIN")
            await operator.execute(PUT, msgspec.json.encode(changed).decode())
            ensuring = [asyncio.ensure_future(bench.jobs.ensure_definition(REQUIRED)) for bench in (one, other)]

            async def all_wait() -> bool:
                return bool(
                    await watcher.fetchval(COUNT_BLOCKED_SESSIONS) >= len(ensuring)
                )  # Statistics are fixed within a transaction.

            await eventually(all_wait)
            await operator.execute("COMMIT")
            found = await asyncio.gather(*ensuring)
        finally:
            await operator.close()
            await watcher.close()
        raised = msgspec.structs.replace(changed, version=2)
        assert [*found, await one.jobs.definition("pdf")] == [raised] * 3
        assert len((await one.audit.list(None, action="definition.put")).items) == 2 + before
