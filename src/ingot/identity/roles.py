"""The permissions of people, by their roles in tenants."""

from __future__ import annotations

from typing import Final

from ingot.identity.credentials import Caller, Forbidden, TenantNotChosen
from ingot.identity.grants import GRANT_ALL, Grant
from ingot.identity.people import ROLE_GRANTS, PeopleRules, TenantRole
from ingot.identity.ports import StoredSession, UserWithRoles

NO_TENANT: Final = ""
HINT_TENANTS_MAX: Final = 20  # Tenants that a hint lists.


def grants_in_tenant(owner: UserWithRoles, tenant: str | None, rules: PeopleRules) -> tuple[Grant, ...]:
    """Return the grants of a person in a tenant, or in all tenants if `tenant` is `None`."""
    if not owner.user.enabled or not rules.may_sign_in(owner.user):
        return ()
    if rules.is_operator(owner.user):
        return (GRANT_ALL,)
    return next((ROLE_GRANTS[role.role] for role in owner.roles if role.tenant == tenant), ())


def session_caller(stored: StoredSession, tenant: str | None, rules: PeopleRules) -> Caller:
    """Return the caller of a session in the tenant with this ID or slug. Raises `Forbidden` without a role in it.

    Without `tenant`, the person acts in the tenant of the session, and never in another one.
    """
    if rules.is_operator(stored.owner.user):
        return _build_caller(stored, None, (GRANT_ALL,))
    if tenant is not None:
        role: TenantRole | None = find_role(stored.owner.roles, tenant)
    else:
        role = next((role for role in stored.owner.roles if role.tenant == stored.session.tenant), None)
    if role is None:
        return _build_caller(stored, NO_TENANT, ())
    return _build_caller(stored, role.tenant, ROLE_GRANTS[role.role])


def find_role(roles: tuple[TenantRole, ...], tenant: str) -> TenantRole:
    """Return the role in the tenant with this ID or slug. Raises `Forbidden`."""
    for role in roles:
        if tenant in (role.tenant, role.slug):
            return role
    raise Forbidden("you have no role in this tenant", hint=_tenants_hint(roles))


def _tenants_hint(roles: tuple[TenantRole, ...]) -> str:
    if not roles:
        return "Ask an admin of the tenant or an operator for a role."
    return f"You have roles in these tenants: {_slugs_of(roles)}."


def _slugs_of(roles: tuple[TenantRole, ...]) -> str:
    slugs = ", ".join(role.slug for role in roles[:HINT_TENANTS_MAX])
    return slugs if len(roles) <= HINT_TENANTS_MAX else f"{slugs} and others, listed by GET /api/v1/me"


def no_tenant_error(caller: Caller) -> Forbidden:
    """Return the error for a person who has no role in any tenant, or whose session acts in no tenant."""
    if not caller.roles:
        return Forbidden(
            "you are signed in, but you have no role in any tenant",
            hint="Ask an admin of a tenant for an invitation, and accept it on the page /me.",
        )
    has_lost_role = caller.session is not None and caller.session.tenant is not None
    return TenantNotChosen(
        "you no longer have a role in the tenant of this session" if has_lost_role else TenantNotChosen.title(),
        hint=f"Choose a tenant on the page /me or with POST /api/v1/me/tenants/{{tenant}}/choose, or set the header "
        f"Ingot-Tenant for one request. Your tenants: {_slugs_of(caller.roles)}.",
    )


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
