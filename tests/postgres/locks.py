"""Waiting until a session is blocked by another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tests.waiting import eventually

if TYPE_CHECKING:
    from asyncpg import Connection, Record

BLOCKED: Final = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"


async def until_blocked(
    observer: Connection[Record], holder: Connection[Record], call: asyncio.Future[Any] | None = None
) -> None:
    """Wait until a session waits for a lock of `holder`, as `observer` sees it, or until the call is done."""

    async def is_blocked() -> bool:
        is_done = call is not None and call.done()
        return is_done or await observer.fetchval(BLOCKED, holder.get_server_pid()) > 0

    await eventually(is_blocked)
