"""Registered servers, and the object store that they use."""

from __future__ import annotations

from ingot.blobs import ports
from ingot.blobs.model import StoreIdentity
from ingot.blobs.servers import GONE_AFTER_MICROS
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL


async def register_object_store(context: Context, command: ports.RegisterObjectStore) -> StoreIdentity:
    """See `RegisterObjectStore`."""
    (row,) = await context.database.call(
        CALL.register_server, command.server, command.store_id, command.exclusive, GONE_AFTER_MICROS, command.grace
    )
    return StoreIdentity(store_id=row["store_id"], database_id=row["database"], in_use=row["in_use"])


async def renew_server(context: Context, command: ports.RenewServer) -> int:
    """See `RenewServer`."""
    ((ended,),) = await context.database.call(
        CALL.renew_server, command.server, command.store_id, GONE_AFTER_MICROS, command.limit
    )
    return int(ended)


async def unregister_server(context: Context, command: ports.UnregisterServer) -> None:
    """See `UnregisterServer`."""
    await context.database.call(CALL.unregister_server, command.server)
