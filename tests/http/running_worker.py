"""A running worker, over HTTP or on the database of the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ingot.client.server_address import resolve_server_address
from ingot.worker import Worker
from ingot.worker.http_job_source import HttpJobSource
from ingot.worker.ports import JobSource
from ingot.worker.postgres_job_source import PostgresJobSource, WorkerLogin
from ingot.worker.runner import Runner
from tests.http.serving import Served
from tests.worker_roles import worker_role


@asynccontextmanager
async def running_worker(served: Served, worker: Worker, **options: Any) -> AsyncIterator[Runner]:
    """Run a worker with a new credential or database role."""
    async with job_sources_of(served) as make_source:
        runner = Runner(worker, make_source, **options)
        stopping = asyncio.Event()
        running = asyncio.create_task(runner.run(stopping))
        try:
            yield runner
        finally:
            stopping.set()
            await running


@asynccontextmanager
async def job_sources_of(served: Served) -> AsyncIterator[Callable[[], JobSource]]:
    """A function that creates job sources: over HTTP, or on the database of the server."""
    tenant = served.ingot.default_tenant.id
    if served.database is None:
        created = await served.ingot.credentials.create_worker_credential(tenant, "press")
        address = resolve_server_address(served.url, worker=("press/1", created.secret))
        yield lambda: HttpJobSource(address, "press/1")
        return
    async with worker_role(served.database, tenant) as url:
        login = WorkerLogin(url=url, instance="1", lease_seconds=180)
        yield lambda: PostgresJobSource(login)
