"""What tests of retention have in common."""

from __future__ import annotations

from typing import Any

from ingot.jobs import Definition, JobStatus
from tests.factories import Bench

HOUR = 3600.0
FINISHED = [JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]


async def keep(bench: Bench, seconds: float | None, type: str = "noop", **options: Any) -> None:
    """Say how long jobs of a type are kept."""
    await bench.jobs.define(Definition(type=type, retention_seconds=seconds, **options))


async def finish(bench: Bench, count: int, type: str = "noop", **options: Any) -> list[str]:
    """Make so many jobs that have succeeded, one after the other."""
    return [(await bench.make_job_in(JobStatus.SUCCEEDED, type, **options)).id for _ in range(count)]


async def there(bench: Bench, tenant: str | None = None) -> list[str]:
    """The ids of all jobs there are, oldest first."""
    return [job.id for job in (await bench.jobs.list(tenant or bench.tenant, limit=1000)).items][::-1]


async def collect_all(bench: Bench, limit: int = 1000) -> int:
    """Collect until there is nothing more; how many jobs were removed."""
    removed = 0
    for _ in range(1000):
        collected = await bench.jobs.collect(limit)
        assert collected.removed <= limit
        removed += collected.removed
        if not collected.more:
            return removed
    raise AssertionError("collecting has no end")
