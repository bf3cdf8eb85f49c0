"""Roles: what people may do, and in which tenant."""

from __future__ import annotations

from typing import Final

from ingot.identity.credentials import Caller, Forbidden
from ingot.identity.grants import GRANT_ALL, Grant
from ingot.identity.people import ROLE_GRANTS, PeopleRules, TenantRole
from ingot.identity.ports import StoredSession, UserWithRoles

NO_TENANT: Final = ""


def grants_in_tenant(owner: UserWithRoles, tenant: str | None, rules: PeopleRules) -> tuple[Grant, ...]:
    """What a person may do in a tenant, or, for `None`, in all of them."""
    if not owner.user.enabled or not rules.may_sign_in(owner.user):
        return ()
    if rules.is_operator(owner.user):
        return (GRANT_ALL,)
    return next((ROLE_GRANTS[one.role] for one in owner.roles if one.tenant == tenant), ())


def session_caller(found: StoredSession, tenant: str | None, rules: PeopleRules) -> Caller:
    """Who is signed in, in the tenant with this id or slug. Raises `Forbidden` for one that is not theirs."""
    if rules.is_operator(found.owner.user):
        return _build_caller(found, None, (GRANT_ALL,))
    if (role := _find_role(found.owner, tenant)) is None:
        return _build_caller(found, NO_TENANT, ())
    return _build_caller(found, role.tenant, ROLE_GRANTS[role.role])


def _find_role(owner: UserWithRoles, tenant: str | None) -> TenantRole | None:
    if tenant is None:
        return owner.roles[0] if len(owner.roles) == 1 else None
    for role in owner.roles:
        if tenant in (role.tenant, role.slug):
            return role
    raise Forbidden("you have no role in this tenant", hint=_tenants_hint(owner))


def _tenants_hint(owner: UserWithRoles) -> str:
    if not owner.roles:
        return "Ask an admin of the tenant for a role, or an operator."
    return f"Your tenants are {', '.join(role.slug for role in owner.roles)}."


def no_tenant_error(caller: Caller) -> Forbidden:
    """Why a person who is in no tenant cannot do something."""
    if not caller.roles:
        return Forbidden(
            "you are signed in, and have no role in any tenant",
            hint="Ask an admin of the tenant for a role, or an operator.",
        )
    slugs = ", ".join(role.slug for role in caller.roles)
    return Forbidden("you have roles in several tenants", hint=f"Say in which with the header Ingot-Tenant: {slugs}.")


def _build_caller(found: StoredSession, tenant: str | None, grants: tuple[Grant, ...]) -> Caller:
    user = found.owner.user
    return Caller(
        id=user.id,
        kind="user",
        tenant=tenant,
        grants=grants,
        user=user,
        roles=found.owner.roles,
        session=found.session,
        label=user.label,
    )
