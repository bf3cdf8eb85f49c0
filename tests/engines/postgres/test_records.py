"""Records on PostgreSQL: writers wait for each other for a limited time."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from ingot.kernel.errors import StoreBusy
from tests.factories import open_bench
from tests.postgres import database_for


async def test_a_put_fails_when_another_writer_holds_the_lock_for_too_long(tmp_path: Path) -> None:
    async with open_bench("postgres", tmp_path / "data") as bench:
        holder = await asyncpg.connect((await database_for(tmp_path / "data")).owner_url)
        try:
            await holder.execute("BEGIN")
            await holder.execute("SELECT FROM ingot.record_changes FOR UPDATE")
            with pytest.raises(StoreBusy):
                await bench.jobs.pause(bench.tenant, "mail")
            await holder.execute("ROLLBACK")
        finally:
            await holder.close()
        assert await bench.jobs.pauses(bench.tenant) == []
        await bench.jobs.pause(bench.tenant, "mail")
