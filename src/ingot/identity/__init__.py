"""Identity: who there is. For now the tenants, the unit of isolation."""

from ingot.identity.model import Limits, Tenant, TenantExists, TenantNotFound
from ingot.identity.tenants import Tenants

__all__ = ["Limits", "Tenant", "TenantExists", "TenantNotFound", "Tenants"]
