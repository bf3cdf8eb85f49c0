"""A worker at work on a server, over HTTP or on its database."""

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
async def working(served: Served, worker: Worker, **options: Any) -> AsyncIterator[Runner]:
    """A worker at work, on a credential or a role of its own."""
    async with boards_of(served) as boards:
        runner = Runner(worker, boards, **options)
        stopping = asyncio.Event()
        running = asyncio.create_task(runner.run(stopping))
        try:
            yield runner
        finally:
            stopping.set()
            await running


@asynccontextmanager
async def boards_of(served: Served) -> AsyncIterator[Callable[[], JobSource]]:
    """How a worker reaches the server: over HTTP, or through the database that the server is on."""
    tenant = served.ingot.default_tenant.id
    if served.database is None:
        made = await served.ingot.credentials.create_worker_credential(tenant, "press")
        place = resolve_server_address(served.url, worker=("press/1", made.secret))
        yield lambda: HttpJobSource(place, "press/1")
        return
    async with worker_role(served.database, tenant) as url:
        entrance = WorkerLogin(url=url, instance="1", lease_seconds=180)
        yield lambda: PostgresJobSource(entrance)
