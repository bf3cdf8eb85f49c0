"""Waiting for an event, but not for ever."""

from __future__ import annotations

import asyncio


async def wait_until(event: asyncio.Event, deadline: float) -> bool:
    """Wait for an event until an instant of the loop's clock; return whether it was set by then.

    Not `asyncio.wait_for`: on Python 3.11 it swallows a cancel that comes together with the event.
    """
    try:
        async with asyncio.timeout_at(deadline):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event for so long; return whether it was set by then."""
    return await wait_until(event, asyncio.get_running_loop().time() + seconds)
