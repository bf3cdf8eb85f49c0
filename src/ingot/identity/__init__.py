"""Identity: tenants, people, credentials, and what callers may do."""

from ingot.identity.model import Limits, Tenant, TenantExists, TenantNotFound
from ingot.identity.tenants import Tenants

__all__ = ["Limits", "Tenant", "TenantExists", "TenantNotFound", "Tenants"]
