"""A server on PostgreSQL, and roles for workers that connect to its database."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from ingot.engines.postgres import make_worker_role
from ingot.settings import Settings
from tests.http.serving import Served, serving
from tests.postgres import Database, database_for, with_database


@asynccontextmanager
async def serving_postgres(folder: Path) -> AsyncIterator[Served]:
    """Run a server on the database of a folder."""
    database = await database_for(folder)
    async with serving(folder, Settings(database_url=database.server_url)) as served:
        served.database = database
        yield served


@asynccontextmanager
async def worker_role(database: Database, tenant: str, name: str = "press") -> AsyncIterator[str]:
    """Create a worker role of a tenant, and yield its URL. Each test process has its own roles in the cluster."""
    role = f"{name}_{os.getpid()}"
    password = await make_worker_role(database.owner_url, role, tenant)
    try:
        yield with_database(database.owner_url, database.name, f"{role}:{password}")
    finally:
        owner = await asyncpg.connect(database.owner_url)
        await owner.execute("DELETE FROM ingot.worker_roles WHERE role = $1", role)
        await owner.execute(f"DROP ROLE {role}")
        await owner.close()
