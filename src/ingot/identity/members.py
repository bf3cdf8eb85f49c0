"""Members of tenants: giving and removing roles."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.events.audit import Act, new_act
from ingot.identity.authenticator import Authenticator
from ingot.identity.credentials import Caller, Forbidden
from ingot.identity.people import (
    ROLES,
    Invitation,
    InvitationNotFound,
    Member,
    MemberNotFound,
    Role,
    TenantRole,
    UserNotFound,
    normalize_email,
)
from ingot.identity.ports import (
    AcceptInvitation,
    ChangeMember,
    ChooseTenant,
    DeclineInvitation,
    FindMember,
    LeaveTenant,
    ListInvitations,
    ListMembers,
    PutMember,
    RemoveMember,
)
from ingot.identity.roles import find_role
from ingot.kernel.commands import Store
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id, new_id
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.validation import check_length, check_text, format_value

EMAIL_CHARS_MAX: Final = 254
EMAIL_HINT: Final = "Write it as name@example.com."
MEMBER_HINT: Final = "Set `user` to the ID of a person, or `email` to the email with which somebody will sign in."


class Members:
    """The service for members and invitations."""

    def __init__(self, store: Store, authenticator: Authenticator) -> None:
        self._store = store
        self._authenticator = authenticator

    async def put(
        self, tenant: str, *, role: Role, user: str | None = None, email: str | None = None, act: Act
    ) -> Member:
        """Invite a person to a role in a tenant, by their ID or by a verified email.

        An invitation grants nothing before the person accepts it. A role that the person already has, other than roles
        by group, is replaced at once. Raises `UserNotFound` for a text that is no ID, `TenantNotFound`, `InvalidInput`
        or `TooManyInvitations`.
        """
        if (user is None) == (email is None):
            raise InvalidInput("exactly one of user and email must be set", hint=MEMBER_HINT)
        if user is not None and not is_id(check_text(user, name="user")):
            raise UserNotFound(f"there is no person {user[:64]!r}")
        invited_email = None if email is None else check_email(email)
        return await self._authenticator.run_and_invalidate(
            PutMember(
                tenant=tenant,
                role=check_role(role),
                user=user,
                email=invited_email,
                invitation_id=new_id(),
                act=new_act(act),
            )
        )

    async def change(self, tenant: str, member_id: str, *, role: Role, act: Act) -> Member:
        """Change the role that was given to a member, or that of an invitation.

        Raises `MemberNotFound`, `MemberByGroup`, `TenantNotFound` or `InvalidInput`.
        """
        command = ChangeMember(tenant=tenant, id=_check_member_id(member_id), role=check_role(role), act=new_act(act))
        return await self._authenticator.run_and_invalidate(command)

    async def remove(self, tenant: str, member_id: str, *, act: Act) -> Member:
        """Remove the role that was given to a member, or an invitation, and revoke the person's tokens in the tenant.

        Raises `MemberNotFound`, `TenantNotFound`, or `MemberByGroup` if the person has roles only through groups.
        """
        return await self._authenticator.run_and_invalidate(
            RemoveMember(tenant=tenant, id=_check_member_id(member_id), act=new_act(act))
        )

    async def invitations(self, user: str) -> list[Invitation]:
        """Return the invitations that a person can accept, oldest first."""
        return await self._store.run(ListInvitations(user=user))

    async def accept(self, invitation_id: str, *, user: str, act: Act) -> Member:
        """Accept an invitation to a person or their verified email. Raises `InvitationNotFound`."""
        command = AcceptInvitation(id=_check_invitation_id(invitation_id), user=user, act=new_act(act))
        return await self._authenticator.run_and_invalidate(command)

    async def decline(self, invitation_id: str, *, user: str, act: Act) -> None:
        """Decline an invitation to a person or their verified email. Raises `InvitationNotFound`."""
        checked_id = _check_invitation_id(invitation_id)
        # Admins of the tenant read the entry, and learn nothing about a person who does not join it.
        unnamed = msgspec.structs.replace(act, who=f"invitation:{checked_id}", name=None, address=None)
        await self._store.run(DeclineInvitation(id=checked_id, user=user, act=new_act(unnamed)))

    async def leave(self, caller: Caller, tenant: str, *, act: Act) -> Member:
        """End the membership of a person in the tenant with this ID or slug, including roles by group.

        Their tokens there are revoked. Raises `Forbidden` if they have no role in the tenant.
        """
        user, _ = _signed_in(caller)
        role = find_role(caller.roles, tenant)
        command = LeaveTenant(tenant=role.tenant, user=user, act=new_act(act))
        return await self._authenticator.run_and_invalidate(command)

    async def choose_tenant(self, caller: Caller, tenant: str) -> TenantRole:
        """Let the session of a person, and their later ones, act in the tenant with this ID or slug.

        Raises `Forbidden` if they have no role in the tenant.
        """
        user, session = _signed_in(caller)
        role = find_role(caller.roles, tenant)
        await self._authenticator.run_and_invalidate(ChooseTenant(session=session, user=user, tenant=role.tenant))
        return role

    async def get(self, tenant: str, member_id: str) -> Member:
        """Return the member with this ID. Raises `MemberNotFound` or `TenantNotFound`."""
        member = await self._store.run(FindMember(tenant=tenant, member_id=_check_member_id(member_id)))
        if member is None:
            raise MemberNotFound(f"there is no member {member_id[:64]!r} in this tenant")
        return member

    async def list(self, tenant: str, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> Page[Member]:
        """List the members and invitations of a tenant, by ID."""
        bound_to = ("members", tenant)
        after = decode_cursor_position(cursor, bound_to=bound_to)
        members = await self._store.run(ListMembers(tenant=tenant, after=after, limit=check_limit(limit)))
        return page_by_id(members, limit=limit, bound_to=bound_to)


def check_role(value: object) -> Role:
    """Return a valid role. Raises `InvalidInput`."""
    for role in ROLES:
        if value == role:
            return role
    raise InvalidInput(f"role must be one of {', '.join(ROLES)}, got {format_value(value)}")


def check_email(value: object) -> str:
    """Return a normalized email. Raises `InvalidInput`."""
    email = check_length(check_text(value, name="email", hint=EMAIL_HINT), name="email", chars_max=EMAIL_CHARS_MAX)
    name, _, domain = email.partition("@")
    if not name or not domain or "@" in domain or not email.isprintable() or " " in email:
        raise InvalidInput(f"the email {email[:64]!r} is not valid", hint=EMAIL_HINT)
    return normalize_email(email)


def _signed_in(caller: Caller) -> tuple[str, str]:
    """Return the IDs of the person who is signed in and of the session. Raises `Forbidden`."""
    if caller.user is None or caller.session is None:
        raise Forbidden("only a person who is signed in can do this", hint="Sign in at /auth/login.")
    return caller.user.id, caller.session.id


def _check_invitation_id(value: object) -> str:
    if not is_id(check_text(value, name="invitation ID")):
        raise InvitationNotFound(f"there is no invitation {str(value)[:64]!r} for you")
    return str(value)


def _check_member_id(value: object) -> str:
    if not is_id(check_text(value, name="member ID")):
        raise MemberNotFound(f"there is no member {str(value)[:64]!r} in this tenant")
    return str(value)
