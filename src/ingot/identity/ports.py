"""What identity asks of an engine."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

import msgspec

from ingot.identity.model import Limits, Tenant


class CreateTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Make this tenant."""

    tenant: Tenant


class ChangeTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Give the tenant with this id these values. What is `None` stays as it was."""

    id: str
    slug: str | None = None
    weight: int | None = None
    time_zone: str | None = None
    limits: Limits | None = None


class TenantStore(Protocol):
    """Where tenants are kept. Every write is durable when the call returns."""

    def create_tenant(self, command: CreateTenant) -> Awaitable[Tenant]:
        """Make a tenant. Raises `TenantExists` when its slug is taken; then nothing changes."""

    def change_tenant(self, command: ChangeTenant) -> Awaitable[Tenant]:
        """Change some of a tenant's values. Raises `TenantNotFound`, or `TenantExists` when the new slug is taken."""

    def get_tenant(self, id_or_slug: str) -> Awaitable[Tenant | None]:
        """The tenant with this id or slug, or `None`."""

    def list_tenants(self) -> Awaitable[list[Tenant]]:
        """All tenants, by slug."""
