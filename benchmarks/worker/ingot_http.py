"""Ingot over HTTP: `ingot worker`, and jobs submitted with the client."""

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
    """Two clients of the server: a synchronous one for single jobs, as in a script, and an async one for many."""

    def __init__(self, async_client: AsyncClient, client: Client) -> None:
        self._async_client = async_client
        self._client = client

    async def put(self, number: int) -> None:
        self._client.submit(TYPE, payload(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._async_client.submit_many(TYPE, [payload(number) for number in numbers])

    async def unsettled(self) -> bool:
        counts = (await self._async_client.summary()).counts
        return any(counts.get(status, 0) for status in OPEN)


@asynccontextmanager
async def submitting(address: SystemAddress) -> AsyncIterator[IngotSubmitter]:
    with Client(address.url, token=address.token) as client:
        async with AsyncClient(address.url, token=address.token) as async_client:
            yield IngotSubmitter(async_client, client)


def command(address: SystemAddress) -> tuple[list[str], Mapping[str, str]]:
    return WORKER, {"INGOT_SERVER_URL": address.url, "INGOT_TOKEN": address.token}


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
