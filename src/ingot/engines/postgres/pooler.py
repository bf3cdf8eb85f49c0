"""Recognizing a connection pooler that runs the transactions of one client on different server connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import asyncpg

from ingot.kernel.errors import StoreMisconfigured

ROUNDS: Final = 3
PROBE_SECONDS_MAX: Final = 10.0


def transaction_pooler_error() -> StoreMisconfigured:
    """Return the error for a process that does not know of the pooler."""
    return StoreMisconfigured(
        "A proxy between Ingot and the database uses different connections for different transactions.",
        hint="Set INGOT_DATABASE_POOLED=true.",
    )


async def reject_transaction_pooler(connection: Any, url: str) -> None:
    """Raise `StoreMisconfigured` if a pooler runs the transactions of this connection on different server connections.

    A pooler sends each client a process ID of its own. If it pools transactions, one client uses several processes of
    the database server, or two clients use the same one.
    """
    if await _server_process(connection) == connection.get_server_pid():
        return
    with suppress(TimeoutError):  # A pooler of sessions may have no server connection left for the second client.
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            if await _shares_server_processes(connection, url):
                raise transaction_pooler_error()


async def _shares_server_processes(connection: Any, url: str) -> bool:
    other = await asyncpg.connect(url, statement_cache_size=0)
    try:
        ours, theirs = set[int](), set[int]()
        for _ in range(ROUNDS):
            ours.add(await _server_process(connection))
            theirs |= {await _server_process(other), await _server_process(other)}
        return max(len(ours), len(theirs)) > 1 or ours == theirs
    finally:
        other.terminate()


async def _server_process(connection: Any) -> int:
    """Return the ID of the server process that runs a transaction of this connection."""
    async with connection.transaction():
        process: int = await connection.fetchval("SELECT pg_backend_pid()")
    return process
