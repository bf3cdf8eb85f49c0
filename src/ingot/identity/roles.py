"""The permissions of people, by their roles in tenants."""

from __future__ import annotations

from typing import Final

from ingot.identity.credentials import Caller, Forbidden
from ingot.identity.grants import GRANT_ALL, Grant
from ingot.identity.people import ROLE_GRANTS, PeopleRules, TenantRole
from ingot.identity.ports import StoredSession, UserWithRoles

NO_TENANT: Final = ""


def grants_in_tenant(owner: UserWithRoles, tenant: str | None, rules: PeopleRules) -> tuple[Grant, ...]:
    """Return the grants of a person in a tenant, or in all tenants if `tenant` is `None`."""
    if not owner.user.enabled or not rules.may_sign_in(owner.user):
        return ()
    if rules.is_operator(owner.user):
        return (GRANT_ALL,)
    return next((ROLE_GRANTS[role.role] for role in owner.roles if role.tenant == tenant), ())


def session_caller(stored: StoredSession, tenant: str | None, rules: PeopleRules) -> Caller:
    """Return the caller of a session in the tenant with this ID or slug. Raises `Forbidden` without a role in it."""
    if rules.is_operator(stored.owner.user):
        return _build_caller(stored, None, (GRANT_ALL,))
    if (role := _find_role(stored.owner, tenant)) is None:
        return _build_caller(stored, NO_TENANT, ())
    return _build_caller(stored, role.tenant, ROLE_GRANTS[role.role])


def _find_role(owner: UserWithRoles, tenant: str | None) -> TenantRole | None:
    if tenant is None:
        return owner.roles[0] if len(owner.roles) == 1 else None
    for role in owner.roles:
        if tenant in (role.tenant, role.slug):
            return role
    raise Forbidden("you have no role in this tenant", hint=_tenants_hint(owner))


def _tenants_hint(owner: UserWithRoles) -> str:
    if not owner.roles:
        return "Ask an admin of the tenant or an operator for a role."
    return f"You have roles in these tenants: {', '.join(role.slug for role in owner.roles)}."


def no_tenant_error(caller: Caller) -> Forbidden:
    """Return the error for a person who has no role in a tenant, or has not selected one of several tenants."""
    if not caller.roles:
        return Forbidden(
            "you are signed in, but you have no role in any tenant",
            hint="Ask an admin of a tenant or an operator for a role.",
        )
    slugs = ", ".join(role.slug for role in caller.roles)
    return Forbidden("you have roles in several tenants", hint=f"Set the header Ingot-Tenant to one of them: {slugs}.")


def _build_caller(stored: StoredSession, tenant: str | None, grants: tuple[Grant, ...]) -> Caller:
    user = stored.owner.user
    return Caller(
        id=user.id,
        kind="user",
        tenant=tenant,
        grants=grants,
        user=user,
        roles=stored.owner.roles,
        session=stored.session,
        label=user.label,
    )
