"""Kills of processes that clear a removed tenant: the next one continues, and other tenants stay unchanged."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import apsw

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.jobs.job_options import new_job
from ingot.settings import Settings
from ingot.wiring import services
from tests.processes import started_async

JOBS = 120
CHILD = """
import asyncio, sys
from pathlib import Path
from ingot.wiring import services
from ingot.identity.ports import ClearTenants
from ingot.settings import Settings

async def main():
    async with services.open(settings=Settings(data=Path(sys.argv[1])), maintenance=False) as ingot:
        left = 1
        while left:
            left = (await ingot.jobs._store.run(ClearTenants(limit=3))).remaining_tenants
            print(left, flush=True)

asyncio.run(main())
"""


async def clear_until_killed(folder: Path, rounds: int) -> bool:
    """Let a process clear for some rounds and kill it. Return whether it had reported that nothing is left."""
    async with started_async(sys.executable, "-c", CHILD, folder, stdout=asyncio.subprocess.PIPE) as child:
        assert child.stdout is not None
        lines: list[bytes] = []
        while len(lines) < rounds and (line := await child.stdout.readline()):
            lines.append(line.strip())
    assert lines, "the child failed"
    return lines[-1] == b"0"


async def test_the_removal_of_a_tenant_continues_after_kills(tmp_path: Path) -> None:
    settings, chance = Settings(data=tmp_path), random.Random(6)
    async with services.open(settings=settings, maintenance=False) as ingot:
        tenants = [ingot.default_tenant, await ingot.tenants.create("acme")]
        for tenant in tenants:
            await ingot.jobs.enqueue_many([new_job(tenant.id, "noop", tags=["red"]) for _ in range(JOBS)])
        events = await ingot.events.read(tenants[0].id, limit=1000)
        await ingot.tenants.remove("acme")
    runs = 1
    while not await clear_until_killed(tmp_path, chance.randint(5, 20)):
        runs += 1
    assert runs > 1
    async with services.open(settings=settings, maintenance=False) as ingot:
        assert await ingot.events.read(ingot.default_tenant.id, limit=1000) == events
        assert sum((await ingot.jobs.summary(ingot.default_tenant.id)).counts.values()) == JOBS
        assert len(await ingot.jobs.claim("w", ["noop"], limit=1000)) == JOBS
    with apsw.Connection(str(tmp_path / FILE_NAME)) as file:
        rows = {
            name: file.execute(f"SELECT count(*) FROM {name}").get for name in ("tenants", "states", "jobs", "tags")
        }
        left = [
            name for name in ("events", "counts") if file.execute(f"SELECT count(*) FROM {name} WHERE tenant > 1").get
        ]
    assert left == []
    assert rows == {"tenants": 1, "states": JOBS, "jobs": JOBS, "tags": JOBS}
