"""Waiting for an event with a time limit."""

from __future__ import annotations

import asyncio


async def wait_until(event: asyncio.Event, deadline: float) -> bool:
    """Wait until the event is set or the deadline has passed, and return whether it is set.

    The deadline is a time of the event loop's clock. This replaces `asyncio.wait_for`, which swallows a cancellation
    on Python 3.11 when the event is set at the same moment.
    """
    try:
        async with asyncio.timeout_at(deadline):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set, for at most `seconds`, and return whether it is set."""
    return await wait_until(event, asyncio.get_running_loop().time() + seconds)
