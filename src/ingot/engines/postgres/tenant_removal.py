"""Removal of tenants. A removed tenant disappears at once; its rows are deleted gradually."""

from __future__ import annotations

from typing import Final

from ingot.engines.postgres.command_scope import CALL_SECONDS_MAX
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.tenants import check_tenant_id
from ingot.identity.model import Tenant
from ingot.identity.ports import ClearTenants, ClearTenantsResult, RemoveTenant
from ingot.kernel.clock import MICROS

# A tenant without rows for this long stays empty, because all calls that began before its removal have ended. The
# database may still run a statement for some time after its call has ended.
CALLS_ENDED_AFTER_MICROS: Final = round(5 * CALL_SECONDS_MAX * MICROS)


async def remove_tenant(context: Context, command: RemoveTenant) -> Tenant:
    """See `RemoveTenant`."""
    check_tenant_id(command.id)
    tenant = await context.fetch(Tenant, CALL.remove_tenant, command.id, json_text(command.act))
    context.lane_cache.forget_tenant(command.id)
    return tenant


async def clear_tenants(context: Context, command: ClearTenants) -> ClearTenantsResult:
    """See `ClearTenants`."""
    # The last row holds the number of tenants that remain, in the column of deleted rows.
    *tenants, remaining = await context.database.call(CALL.clear_tenants, command.limit, CALLS_ENDED_AFTER_MICROS)
    deleted_rows = sum(tenant["rows_cleared"] for tenant in tenants)
    return ClearTenantsResult(
        rows=deleted_rows,
        cleared_tenants=tuple(tenant["tenant"] for tenant in tenants if tenant["removed"]),
        remaining_tenants=remaining["rows_cleared"],
        has_more=deleted_rows > 0,
    )
