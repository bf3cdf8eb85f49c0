"""Removing tenants: at once for everybody who asks, and by and by what they held."""

from __future__ import annotations

from typing import Final

from ingot.engines.postgres.connection import CALL_SECONDS_MAX
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL, json_text
from ingot.engines.postgres.tenants import check_tenant_id
from ingot.identity.model import Tenant
from ingot.identity.ports import ClearTenants, ClearTenantsResult, RemoveTenant
from ingot.kernel.clock import MICROS

SETTLED_AFTER_MICROS: Final = round(2 * CALL_SECONDS_MAX * MICROS)  # Whatever had begun before is over by then.


async def remove_tenant(context: Context, command: RemoveTenant) -> Tenant:
    """Take a tenant away: who acted in it is out, and what it held is nobody's."""
    check_tenant_id(command.id)
    removed = await context.fetch(Tenant, CALL.remove_tenant, command.id, json_text(command.act))
    context.lane_cache.forget_tenant(command.id)
    return removed


async def clear_tenants(context: Context, command: ClearTenants) -> ClearTenantsResult:
    """Take away some of what removed tenants held, of one after the other."""
    *found, last = await context.database.call(CALL.clear_tenants, command.limit, SETTLED_AFTER_MICROS)
    rows, gone = sum(row["cleared"] for row in found), tuple(row["tenant"] for row in found if row["gone"])
    return ClearTenantsResult(rows=rows, cleared_tenants=gone, remaining_tenants=last["cleared"], has_more=rows > 0)
