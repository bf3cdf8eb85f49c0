"""Errors of calls by applications in the database."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres.connection import PlainConnection as Raw
from tests.app_database import enqueue, rolled_back


async def error_of(app: Raw, *jobs: Any) -> tuple[str | None, dict[str, Any]]:
    """The SQLSTATE and the detail of a refused call; the transaction stays usable."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        async with rolled_back(app):
            await enqueue(app, *jobs)
    assert isinstance(caught.value, asyncpg.PostgresError)
    assert caught.value.hint
    return caught.value.sqlstate, msgspec.json.decode(caught.value.detail or "{}")
