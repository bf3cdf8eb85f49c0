"""Making, finding and changing tenants."""

from __future__ import annotations

import re
from contextlib import suppress
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from ingot.identity.model import LIMIT_MAX, WEIGHT_MAX, Limits, Tenant, TenantExists, TenantNotFound
from ingot.identity.ports import ChangeTenant, CreateTenant, TenantStore
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id, new_id

DEFAULT_SLUG = "default"
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class Tenants:
    """The tenants of this store."""

    def __init__(self, store: TenantStore) -> None:
        self._store = store

    async def create(
        self, slug: str, *, weight: int = 1, time_zone: str = "UTC", limits: Limits | None = None
    ) -> Tenant:
        """Make a tenant. Raises `TenantExists` or `InvalidInput`."""
        tenant = Tenant(id=new_id(), slug=slug, weight=weight, time_zone=time_zone, limits=limits or Limits())
        return await self._store.create_tenant(CreateTenant(tenant=_checked(tenant)))

    async def get(self, id_or_slug: str) -> Tenant:
        """The tenant with this id or slug. Raises `TenantNotFound`."""
        known = is_id(id_or_slug) or _SLUG.fullmatch(id_or_slug)
        tenant = await self._store.get_tenant(id_or_slug) if known else None
        if tenant is None:
            raise TenantNotFound(f"there is no tenant {id_or_slug[:64]!r}")
        return tenant

    async def list(self) -> list[Tenant]:
        """All tenants, by slug."""
        return await self._store.list_tenants()

    async def change(
        self,
        id_or_slug: str,
        *,
        slug: str | None = None,
        weight: int | None = None,
        time_zone: str | None = None,
        limits: Limits | None = None,
    ) -> Tenant:
        """Change what is named and keep the rest. Raises `TenantNotFound`, `TenantExists` or `InvalidInput`."""
        old = await self.get(id_or_slug)
        new = Tenant(
            id=old.id,
            slug=old.slug if slug is None else slug,
            weight=old.weight if weight is None else weight,
            time_zone=old.time_zone if time_zone is None else time_zone,
            limits=old.limits if limits is None else limits,
        )
        return await self._store.change_tenant(ChangeTenant(tenant=_checked(new)))

    async def ensure_default(self) -> Tenant:
        """The tenant `default`, made at first start."""
        with suppress(TenantNotFound):
            return await self.get(DEFAULT_SLUG)
        with suppress(TenantExists):
            return await self.create(DEFAULT_SLUG)
        return await self.get(DEFAULT_SLUG)


def _checked(tenant: Tenant) -> Tenant:
    if not _SLUG.fullmatch(tenant.slug):
        raise InvalidInput(
            f"the slug {tenant.slug!r} is not usable",
            hint="Use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends.",
        )
    if not 1 <= tenant.weight <= WEIGHT_MAX:
        raise InvalidInput(f"weight is {tenant.weight}; it goes from 1 to {WEIGHT_MAX}")
    try:
        ZoneInfo(tenant.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInput(
            f"there is no time zone {tenant.time_zone!r}", hint="Use a name such as Europe/Berlin or UTC."
        ) from error
    for name, value in msgspec.structs.asdict(tenant.limits).items():
        if value is not None and not 0 <= value <= LIMIT_MAX:
            raise InvalidInput(f"limits.{name} is {value}; it goes from 0 to {LIMIT_MAX}")
    return tenant
