"""Creating, finding, changing and removing tenants."""

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
    """The service for tenants."""

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
        """Create a tenant. Raises `TenantExists` or `InvalidInput`."""
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
        """Return the tenant with this ID or slug. Raises `TenantNotFound`."""
        check_text(id_or_slug, name="id_or_slug", hint="Pass tenant.id or tenant.slug.")
        is_valid = is_id(id_or_slug) or _SLUG.fullmatch(id_or_slug)
        tenant = await self._store.run(GetTenant(id_or_slug=id_or_slug)) if is_valid else None
        if tenant is None:
            raise TenantNotFound(f"there is no tenant {id_or_slug[:64]!r}")
        return tenant

    async def list(self) -> list[Tenant]:
        """Return all tenants, ordered by slug."""
        return await self._store.run(ListTenants())

    async def page(self, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> Page[Tenant]:
        """Return a page of all tenants, ordered by slug."""
        bound_to = ("tenants",)
        after = "" if cursor is None else decode_cursor(check_text(cursor, name="cursor"), bound_to=bound_to)
        tenants = await self._store.run(
            ListTenants(after=check_storable(after, name="cursor"), limit=check_limit(limit))
        )
        next_cursor = encode_cursor(tenants[-1].slug, bound_to=bound_to) if len(tenants) == limit else None
        return Page(items=tenants, next_cursor=next_cursor)

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
        """Change the given fields of a tenant. Raises `TenantNotFound`, `TenantExists` or `InvalidInput`."""
        old = await self.get(id_or_slug)
        if old.slug == DEFAULT_SLUG and slug not in (None, DEFAULT_SLUG):
            raise InvalidInput(
                "the slug of the tenant `default` cannot be changed",
                hint="Create another tenant with this slug. Nothing was changed.",
            )
        fields = {"slug": slug, "weight": weight, "time_zone": time_zone, "limits": limits, "groups": groups}
        changes = {name: value for name, value in fields.items() if value is not None}
        _check_tenant(msgspec.structs.replace(old, **changes))
        command = ChangeTenant(id=old.id, act=new_act(act), **changes)  # type: ignore[arg-type]
        return self._notify_changed(await self._store.run(command))

    async def remove(self, id_or_slug: str, *, act: Act | None = None) -> Tenant:
        """Remove a tenant and return it. Raises `TenantNotFound` or `InvalidInput`.

        From then on, no caller can act in the tenant, and its slug is free. Its data is deleted in the background.
        """
        tenant = await self.get(id_or_slug)
        if tenant.slug == DEFAULT_SLUG:
            raise InvalidInput(
                "the tenant `default` cannot be removed", hint="Every store has this tenant. Nothing was changed."
            )
        return await self._store.run(RemoveTenant(id=tenant.id, act=new_act(act)))

    def on_changed(self, callback: Callable[[], None]) -> None:
        """Call `callback()` after this process has created or changed a tenant, since groups may give other roles."""
        self._change_callbacks.append(callback)

    def on_removed(self, callback: Callable[[str], None]) -> None:
        """Call `callback(tenant_id)` soon after any process has removed a tenant. The call is only a hint."""
        self._store.on_tenant_removed(callback)

    async def ensure_default(self) -> Tenant:
        """Return the tenant `default`, and create it if it is missing."""
        with suppress(TenantNotFound):
            return await self.get(DEFAULT_SLUG)
        with suppress(TenantExists):
            return await self.create(DEFAULT_SLUG)
        return await self.get(DEFAULT_SLUG)

    def _notify_changed(self, tenant: Tenant) -> Tenant:
        for callback in self._change_callbacks:
            callback()
        return tenant


def _check_tenant(tenant: Tenant) -> Tenant:
    """Return the tenant with every value checked and of its declared type, so that it can be read again once stored."""
    check_text(tenant.slug, name="slug", hint=SLUG_HINT)
    if not _SLUG.fullmatch(tenant.slug):
        raise InvalidInput(f"the slug {tenant.slug[:64]!r} is not valid", hint=SLUG_HINT)
    check_integer(tenant.weight, name="weight", minimum=1, maximum=WEIGHT_MAX)
    check_text(tenant.time_zone, name="time zone", hint=TIME_ZONE_HINT)
    if tenant.time_zone != "UTC":  # UTC is valid even without a time-zone database.
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
            f"groups must map names of groups to roles, got {type(groups).__name__}",
            hint='Write it as {"engineers": "member"}.',
        )
    if len(groups) > GROUPS_MAX:
        raise InvalidInput(f"groups must have at most {GROUPS_MAX} entries, got {len(groups)}")
    for name, role in groups.items():
        check_length(check_text(name, name="group"), name="group", chars_max=GROUP_CHARS_MAX)
        check_role(role)
