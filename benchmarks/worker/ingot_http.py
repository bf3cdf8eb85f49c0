"""Ingot over HTTP: `ingot worker`, and jobs asked for with the client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from benchmarks.postgres.adapter import version_of
from benchmarks.queue.adapter import payload
from benchmarks.worker.adapter import TYPE, System, SystemAddress
from benchmarks.worker.app import CONCURRENCY
from ingot.client import AsyncClient, Client
from ingot.jobs.model import JobStatus

WORKER = [sys.executable, "-m", "ingot", "worker", "--app", "benchmarks.worker.app:worker"]
OPEN = (JobStatus.QUEUED, JobStatus.RUNNING)


class IngotSubmitter:
    """Clients of the server: one that does not await for jobs that come one by one, as from a script."""

    def __init__(self, client: AsyncClient, script: Client) -> None:
        self._client = client
        self._script = script

    async def put(self, number: int) -> None:
        self._script.submit(TYPE, payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._client.submit_many(TYPE, [payload(number) for number in numbers])

    async def unsettled(self) -> bool:
        counts = (await self._client.summary()).counts
        return any(counts.get(status, 0) for status in OPEN)


@asynccontextmanager
async def submitting(place: SystemAddress) -> AsyncIterator[IngotSubmitter]:
    with Client(place.url, token=place.token) as script:
        async with AsyncClient(place.url, token=place.token) as client:
            yield IngotSubmitter(client, script)


def command(place: SystemAddress) -> tuple[list[str], Mapping[str, str]]:
    return WORKER, {"INGOT_SERVER_URL": place.url, "INGOT_TOKEN": place.token}


SYSTEM = System(
    name="ingot",
    version=version_of("ingot"),
    jobs=30_000,
    how=f"ingot worker, an async handler with concurrency {CONCURRENCY}; submit_many of 100, 4 callers",
    callers=4,
    batch_jobs=100,
    submitting=submitting,
    command=command,
)
