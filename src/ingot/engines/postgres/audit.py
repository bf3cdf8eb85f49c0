"""The audit log."""

from __future__ import annotations

import msgspec

from ingot.engines.postgres.calls import CALL
from ingot.engines.postgres.context import Context
from ingot.events.audit import Act, Entry, ListActs
from ingot.identity.model import TenantNotFound
from ingot.kernel.ids import is_id

ABOVE_ALL = "ffffffff-ffff-ffff-ffff-ffffffffffff"


async def list_acts(context: Context, command: ListActs) -> list[Entry]:
    """Entries, newest first."""
    which = command.which
    if which.tenant is not None and not is_id(which.tenant):
        raise TenantNotFound(f"there is no tenant {which.tenant[:64]!r}")
    row = (which.tenant, which.action, which.who, which.target, command.before or ABOVE_ALL, command.limit)
    return await context.find_all(Entry, CALL.list_acts, *row)


def act_text(act: Act) -> str:
    """The act as the functions take it."""
    return msgspec.json.encode(act).decode()
