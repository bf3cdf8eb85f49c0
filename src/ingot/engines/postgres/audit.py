"""Reading of the audit log. The SQL functions that make a change write its entry."""

from __future__ import annotations

from ingot.engines.postgres.context import Context
from ingot.engines.postgres.function_calls import CALL
from ingot.engines.postgres.lane_cache import ABOVE_ALL_IDS
from ingot.engines.postgres.tenants import check_tenant_id
from ingot.events.audit import Entry, ListAuditEntries


async def list_audit_entries(context: Context, command: ListAuditEntries) -> list[Entry]:
    """See `ListAuditEntries`."""
    where = command.filter
    check_tenant_id(where.tenant)
    arguments = (where.tenant, where.action, where.who, where.target, command.before or ABOVE_ALL_IDS, command.limit)
    return await context.find_all(Entry, CALL.list_audit_entries, *arguments)
