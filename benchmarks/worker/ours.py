"""Ingot over HTTP: `ingot worker`, and jobs asked for with the client."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from benchmarks.postgres.adapter import version_of
from benchmarks.queue.adapter import payload
from benchmarks.worker.adapter import TYPE, Place, System
from benchmarks.worker.app import CONCURRENCY
from ingot.client import AsyncClient
from ingot.jobs.model import JobStatus

WORKER = [sys.executable, "-m", "ingot", "worker", "--app", "benchmarks.worker.app:worker"]
OPEN = (JobStatus.QUEUED, JobStatus.RUNNING)


class Ours:
    """A client of the server."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def put(self, number: int) -> None:
        await self._client.submit(TYPE, payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._client.submit_many(TYPE, [payload(number) for number in numbers])

    async def unsettled(self) -> bool:
        counts = (await self._client.summary()).counts
        return any(counts.get(status, 0) for status in OPEN)


@asynccontextmanager
async def submitting(place: Place) -> AsyncIterator[Ours]:
    async with AsyncClient(place.url, token=place.token) as client:
        yield Ours(client)


def command(place: Place) -> tuple[list[str], Mapping[str, str]]:
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
