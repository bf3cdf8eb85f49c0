"""The process that claims and settles without a server, with the same jobs in the same batches."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.queue.adapter import component, payload
from benchmarks.server.load import LoadResult
from ingot.jobs.job_options import new_job
from ingot.jobs.model import Done, Settle
from ingot.settings import Settings
from ingot.wiring import services


async def work(folder: Path, count: int, callers: int) -> LoadResult:
    """Claim and settle batches until no job is left."""
    async with services.open(settings=Settings(data=folder)) as ingot:
        jobs, tenant = ingot.jobs, ingot.default_tenant.id
        for start in range(0, count, 1000):
            await jobs.enqueue_many([new_job(tenant, "noop", payload(start + step)) for step in range(1000)])

        async def call() -> None:
            while claims := await jobs.claim("w", ["noop"], limit=100, tenant=tenant):
                await jobs.settle_many([Settle(job_id=c.job.id, fence=c.fence, outcome=Done()) for c in claims])

        began = time.perf_counter()
        await asyncio.gather(*[call() for _ in range(callers)])
        return LoadResult(count / (time.perf_counter() - began))


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))).decode())
