"""Reading the audit log. The functions that change something write it."""

from __future__ import annotations

from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.context import Context
from ingot.engines.postgres.identity import check_tenant_id
from ingot.engines.postgres.memory import ABOVE_ALL_IDS
from ingot.events.audit import Entry, ListActs


async def list_acts(context: Context, command: ListActs) -> list[Entry]:
    """Entries, newest first."""
    which = command.which
    check_tenant_id(which.tenant)
    row = (which.tenant, which.action, which.who, which.target, command.before or ABOVE_ALL_IDS, command.limit)
    return await context.find_all(Entry, CALL.list_acts, *row)
