"""Databases for tests of the PostgreSQL engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app_database import AppDatabase, open_app_database
from tests.engines.postgres.blob_cluster import BlobCluster, open_cluster
from tests.engines.postgres.interleaving import Interleaving, open_interleaving
from tests.two_tenant_database import TenantPair, open_tenant_pair


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[TenantPair]:
    """Two tenants with something in every table."""
    async with open_tenant_pair(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
async def cluster() -> AsyncIterator[BlobCluster]:
    """One tenant with blobs; tests open more servers."""
    async with open_cluster() as opened:
        yield opened


@pytest.fixture
async def interleaving() -> AsyncIterator[Interleaving]:
    """Two connections whose calls overlap, and one of the owner."""
    async with open_interleaving() as opened:
        yield opened


@pytest.fixture
async def app_db() -> AsyncIterator[AppDatabase]:
    """An application with its own role and table in the database."""
    async with open_app_database() as opened:
        yield opened
