"""Reads of the audit log. Commands write it with `Transaction.audit`."""

from __future__ import annotations

from ingot.engines.sqlite.readers import ABOVE_ALL_TEXTS, Reader
from ingot.engines.sqlite.sql import SQL
from ingot.events.audit import Entry, ListAuditEntries


def list_audit_entries(reader: Reader, command: ListAuditEntries) -> list[Entry]:
    """Read a page of entries, newest first."""
    entry_filter = command.filter
    reader.writer_state.check_tenant(entry_filter.tenant)
    values = (
        command.before or ABOVE_ALL_TEXTS,
        entry_filter.action,
        entry_filter.who,
        entry_filter.target,
        command.limit,
    )
    if entry_filter.tenant is None:
        return reader.read(list[Entry], SQL.audit_entries, *values)
    return reader.read(list[Entry], SQL.audit_entries_of_tenant, entry_filter.tenant, *values)
