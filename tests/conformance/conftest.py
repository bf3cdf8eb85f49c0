"""Every test of the conformance suite runs on every engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.factories import ENGINES, Bench, open_bench


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The name of the engine under test."""
    return str(request.param)


@pytest.fixture
async def bench(engine: str, tmp_path: Path) -> AsyncIterator[Bench]:
    """An open store with one tenant and a clock that tests move."""
    async with open_bench(engine, tmp_path / "data") as bench:
        yield bench
