"""curl as a client."""

from __future__ import annotations

from tests.components import expect_marker
from tests.processes import started_async


async def curl(*arguments: str) -> str:
    """Run curl, and return its output."""
    expect_marker("curl")
    async with started_async("curl", "-sS", *arguments, stdout=-1, stderr=-1) as running:
        out, err = await running.communicate()
    assert running.returncode == 0, err
    return out.decode()
