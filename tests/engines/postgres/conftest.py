"""Databases that tests of the PostgreSQL engine need, each with its own kind of company."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engines.postgres.blob_cluster import BlobCluster, open_cluster
from tests.engines.postgres.interleaving import Meeting, open_meeting
from tests.shop import Shop, open_shop
from tests.town import Town, open_town


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    """Two tenants with something in every table."""
    async with open_town(tmp_path / "data") as made:
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
async def shop() -> AsyncIterator[Shop]:
    """An application with a role and a table of its own beside our schema."""
    async with open_shop() as made:
        yield made
