"""Reading the audit log. The commands that change something write it (`Transaction.audit`)."""

from __future__ import annotations

from ingot.engines.sqlite.readers import ABOVE_ALL_TEXTS, Reader
from ingot.engines.sqlite.sql import SQL
from ingot.events.audit import Entry, ListActs


def list_acts(reader: Reader, command: ListActs) -> list[Entry]:
    """Read a page of acts, newest first."""
    which = command.which
    reader.memory.check_tenant(which.tenant)
    wanted = (command.before or ABOVE_ALL_TEXTS, which.action, which.who, which.target, command.limit)
    if which.tenant is None:
        return reader.read(list[Entry], SQL.acts_of_all, *wanted)
    return reader.read(list[Entry], SQL.acts_of_tenant, which.tenant, *wanted)
