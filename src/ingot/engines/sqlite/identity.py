"""Tenants and definitions: small tables that change rarely."""

from __future__ import annotations

import apsw

from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.transaction import Transaction, as_json
from ingot.identity.model import Tenant, TenantExists, TenantNotFound
from ingot.identity.ports import ChangeTenant, CreateTenant
from ingot.jobs.model import Definition
from ingot.jobs.ports import PutDefinition


def create_tenant(tx: Transaction, command: CreateTenant) -> Tenant:
    """Make a tenant."""
    tenant = command.tenant
    number = max(tx.memory.tenants.values(), default=0) + 1
    row = (number, tenant.id, tenant.slug, tenant.weight, tenant.time_zone, as_json(tenant.limits))
    try:
        tx.execute(SQL.insert_tenants, *row)
    except apsw.ConstraintError:
        raise TenantExists(f"there is a tenant {tenant.slug!r} already") from None
    tx.memory.tenants[tenant.id] = number
    return tenant


def change_tenant(tx: Transaction, command: ChangeTenant) -> Tenant:
    """Replace a tenant's values."""
    tenant = command.tenant
    if tenant.id not in tx.memory.tenants:
        raise TenantNotFound
    row = (tenant.slug, tenant.weight, tenant.time_zone, as_json(tenant.limits), tenant.id)
    try:
        tx.execute(SQL.update_tenant, *row)
    except apsw.ConstraintError:
        raise TenantExists(f"there is a tenant {tenant.slug!r} already") from None
    return tenant


def put_definition(tx: Transaction, command: PutDefinition) -> Definition:
    """Make or replace a definition."""
    definition = command.definition
    if definition.tenant is not None and definition.tenant not in tx.memory.tenants:
        raise TenantNotFound
    tx.execute(SQL.put_definition, definition.tenant or "", definition.type, as_json(definition))
    tx.memory.definitions[definition.tenant, definition.type] = definition
    return definition
