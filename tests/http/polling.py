"""Waiting for something to become true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait up to five seconds until this holds, and fail otherwise."""
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come to hold")
