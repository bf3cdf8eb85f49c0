"""Databases that tests of the PostgreSQL engine need, each with its own kind of company."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app_database import AppDatabase, open_app_database
from tests.engines.postgres.blob_cluster import BlobCluster, open_cluster
from tests.engines.postgres.interleaving import Meeting, open_meeting
from tests.two_tenant_database import TenantPair, open_tenant_pair


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[TenantPair]:
    """Two tenants with something in every table."""
    async with open_tenant_pair(tmp_path / "data") as made:
        yield made


@pytest.fixture
async def cluster() -> AsyncIterator[BlobCluster]:
    """One tenant with blobs, and as many servers as a test asks for."""
    async with open_cluster() as made:
        yield made


@pytest.fixture
async def meeting() -> AsyncIterator[Meeting]:
    """Two connections that meet at one job, and one that watches."""
    async with open_meeting() as made:
        yield made


@pytest.fixture
async def app_db() -> AsyncIterator[AppDatabase]:
    """An application with a role and a table of its own beside our schema."""
    async with open_app_database() as made:
        yield made
