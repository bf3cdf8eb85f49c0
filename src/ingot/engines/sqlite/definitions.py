"""Definitions: a small table that changes rarely."""

from __future__ import annotations

from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity.model import TenantNotFound
from ingot.jobs.model import Definition
from ingot.jobs.ports import PutDefinition


def put_definition(tx: Transaction, command: PutDefinition) -> Definition:
    """Make or replace a definition."""
    definition = command.definition
    if definition.tenant is not None and definition.tenant not in tx.memory.tenants:
        raise TenantNotFound
    tx.execute(SQL.put_definition, definition.tenant or "", definition.type, as_json(definition))
    tx.memory.definitions[definition.tenant, definition.type] = definition
    return definition
