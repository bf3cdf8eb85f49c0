"""What tests of applications in the database have in common."""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec
import pytest

from ingot.engines.postgres.connection import PlainConnection as Raw
from tests.app_database import enqueue, rolled_back


async def refusal(app: Raw, *jobs: Any) -> tuple[str | None, dict[str, Any]]:
    """The state and the detail with which an application is refused; its transaction goes on."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        async with rolled_back(app):
            await enqueue(app, *jobs)
    assert isinstance(caught.value, asyncpg.PostgresError)
    assert caught.value.hint
    return caught.value.sqlstate, msgspec.json.decode(caught.value.detail or "{}")
