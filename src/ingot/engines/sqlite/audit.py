"""Reading the audit log. The commands that change something write it (`Transaction.audit`)."""

from __future__ import annotations

from ingot.engines.sqlite.readers import ABOVE_ALL_TEXTS, Reader
from ingot.engines.sqlite.sql import SQL
from ingot.events.audit import Entry, ListAuditEntries


def list_audit_entries(reader: Reader, command: ListAuditEntries) -> list[Entry]:
    """Read a page of acts, newest first."""
    which = command.filter
    reader.writer_state.check_tenant(which.tenant)
    wanted = (command.before or ABOVE_ALL_TEXTS, which.action, which.who, which.target, command.limit)
    if which.tenant is None:
        return reader.read(list[Entry], SQL.audit_entries, *wanted)
    return reader.read(list[Entry], SQL.audit_entries_of_tenant, which.tenant, *wanted)
