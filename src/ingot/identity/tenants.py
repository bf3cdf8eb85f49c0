"""Making, finding and changing tenants."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from ingot.events.audit import Act, new_act
from ingot.identity.members import check_role
from ingot.identity.model import FRACTIONAL_LIMITS, WEIGHT_MAX, Limits, Tenant, TenantExists, TenantNotFound
from ingot.identity.people import Role
from ingot.identity.ports import ChangeTenant, CreateTenant, GetTenant, ListTenants, RemoveTenant, TenantStore
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id, new_id
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor, encode_cursor
from ingot.kernel.validation import (
    NUMBER_MAX,
    check_field_types,
    check_instance,
    check_integer,
    check_length,
    check_number,
    check_storable,
    check_text,
)

DEFAULT_SLUG = "default"
SLUG_HINT = "Use 1 to 63 lower-case letters, digits and hyphens, with a letter or digit at both ends."
GROUPS_MAX = 100
GROUP_CHARS_MAX = 256
TIME_ZONE_HINT = "Use a name such as Europe/Berlin or UTC."
_SLUG = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class Tenants:
    """The tenants of this store."""

    def __init__(self, store: TenantStore) -> None:
        self._store = store
        self._change_callbacks: list[Callable[[], None]] = []

    async def create(
        self,
        slug: str,
        *,
        weight: int = 1,
        time_zone: str = "UTC",
        limits: Limits | None = None,
        groups: dict[str, Role] | None = None,
        act: Act | None = None,
    ) -> Tenant:
        """Make a tenant. Raises `TenantExists` or `InvalidInput`."""
        tenant = Tenant(
            id=new_id(),
            slug=slug,
            weight=weight,
            time_zone=time_zone,
            limits=Limits() if limits is None else limits,
            groups={} if groups is None else groups,
        )
        return self._notify_changed(await self._store.run(CreateTenant(tenant=_check_tenant(tenant), act=new_act(act))))

    async def get(self, id_or_slug: str) -> Tenant:
        """The tenant with this id or slug. Raises `TenantNotFound`."""
        check_text(id_or_slug, name="id or slug", hint="Pass tenant.id or tenant.slug, a text.")
        known = is_id(id_or_slug) or _SLUG.fullmatch(id_or_slug)
        tenant = await self._store.run(GetTenant(id_or_slug=id_or_slug)) if known else None
        if tenant is None:
            raise TenantNotFound(f"there is no tenant {id_or_slug[:64]!r}")
        return tenant

    async def list(self) -> list[Tenant]:
        """All tenants, by slug."""
        return await self._store.run(ListTenants())

    async def page(self, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> Page[Tenant]:
        """A page of all tenants, by slug."""
        bound_to = ("tenants",)
        after = "" if cursor is None else decode_cursor(check_text(cursor, name="cursor"), bound_to=bound_to)
        found = await self._store.run(ListTenants(after=check_storable(after, name="cursor"), limit=check_limit(limit)))
        more = encode_cursor(found[-1].slug, bound_to=bound_to) if len(found) == limit else None
        return Page(items=found, next_cursor=more)

    async def change(
        self,
        id_or_slug: str,
        *,
        slug: str | None = None,
        weight: int | None = None,
        time_zone: str | None = None,
        limits: Limits | None = None,
        groups: dict[str, Role] | None = None,
        act: Act | None = None,
    ) -> Tenant:
        """Change what is named and keep the rest. Raises `TenantNotFound`, `TenantExists` or `InvalidInput`."""
        old = await self.get(id_or_slug)
        if old.slug == DEFAULT_SLUG and slug not in (None, DEFAULT_SLUG):
            raise InvalidInput("the tenant `default` keeps its slug", hint="Make another tenant; nothing was changed.")
        wanted = {"slug": slug, "weight": weight, "time_zone": time_zone, "limits": limits, "groups": groups}
        given = {name: value for name, value in wanted.items() if value is not None}
        _check_tenant(msgspec.structs.replace(old, **given))
        command = ChangeTenant(id=old.id, act=new_act(act), **given)  # type: ignore[arg-type]
        return self._notify_changed(await self._store.run(command))

    async def remove(self, id_or_slug: str, *, act: Act | None = None) -> Tenant:
        """Remove a tenant and all it holds; answers what it was. Raises `TenantNotFound` or `InvalidInput`.

        From then on nobody acts in it, and its slug is free. What it held goes away in the background.
        """
        tenant = await self.get(id_or_slug)
        if tenant.slug == DEFAULT_SLUG:
            raise InvalidInput("the tenant `default` stays", hint="Remove another one; nothing was changed.")
        return await self._store.run(RemoveTenant(id=tenant.id, act=new_act(act)))

    def on_changed(self, tell: Callable[[], None]) -> None:
        """Call `tell()` after a tenant was made or changed here: its groups may give people other roles."""
        self._change_callbacks.append(tell)

    def on_removed(self, tell: Callable[[str], None]) -> None:
        """Call `tell(tenant)` soon after a tenant was removed, wherever that was done. Only a hint."""
        self._store.on_tenant_removed(tell)

    async def ensure_default(self) -> Tenant:
        """The tenant `default`, made at first start."""
        with suppress(TenantNotFound):
            return await self.get(DEFAULT_SLUG)
        with suppress(TenantExists):
            return await self.create(DEFAULT_SLUG)
        return await self.get(DEFAULT_SLUG)

    def _notify_changed(self, tenant: Tenant) -> Tenant:
        for tell in self._change_callbacks:
            tell()
        return tenant


def _check_tenant(tenant: Tenant) -> Tenant:
    """The tenant with every value usable and of its declared type, so that what is stored can be read again."""
    check_text(tenant.slug, name="slug", hint=SLUG_HINT)
    if not _SLUG.fullmatch(tenant.slug):
        raise InvalidInput(f"the slug {tenant.slug[:64]!r} is not usable", hint=SLUG_HINT)
    check_integer(tenant.weight, name="weight", minimum=1, maximum=WEIGHT_MAX)
    check_text(tenant.time_zone, name="time zone", hint=TIME_ZONE_HINT)
    if tenant.time_zone != "UTC":  # Known everywhere, also where there is no time-zone database.
        try:
            ZoneInfo(tenant.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise InvalidInput(f"there is no time zone {tenant.time_zone[:64]!r}", hint=TIME_ZONE_HINT) from error
    for name, value in msgspec.structs.asdict(check_instance(tenant.limits, Limits, name="limits")).items():
        if value is not None:
            check = check_number if name in FRACTIONAL_LIMITS else check_integer
            check(value, name=f"limits.{name}", minimum=0, maximum=NUMBER_MAX)
    _check_groups(tenant.groups)
    return check_field_types(tenant)


def _check_groups(groups: object) -> None:
    if not isinstance(groups, dict):
        raise InvalidInput(
            f"groups is a {type(groups).__name__}; it names groups and the roles of their people",
            hint='Write it as {"engineers": "member"}.',
        )
    if len(groups) > GROUPS_MAX:
        raise InvalidInput(f"there are {len(groups)} groups; it goes up to {GROUPS_MAX}")
    for name, role in groups.items():
        check_length(check_text(name, name="group"), name="group", chars_max=GROUP_CHARS_MAX)
        check_role(role)
