"""curl as a client."""

from __future__ import annotations

import asyncio


async def curl(*words: str) -> str:
    """What curl says."""
    running = await asyncio.create_subprocess_exec("curl", "-sS", *words, stdout=-1, stderr=-1)
    out, err = await running.communicate()
    assert running.returncode == 0, err
    return out.decode()
