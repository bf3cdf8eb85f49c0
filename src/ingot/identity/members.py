"""Giving roles in a tenant, and taking them."""

from __future__ import annotations

from typing import Final

from ingot.events.audit import Act, new_act
from ingot.identity.authenticator import Authenticator
from ingot.identity.people import ROLES, Member, MemberNotFound, Role, UserNotFound, normalize_email
from ingot.identity.ports import FindMember, ListMembers, PutMember, RemoveMember
from ingot.kernel.commands import Store
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id, new_id
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.validation import check_length, check_text, format_value

EMAIL_CHARS_MAX: Final = 254
EMAIL_HINT: Final = "Write it as name@example.com."
MEMBER_HINT: Final = "Give the id of a person in `user`, or in `email` that of somebody who will sign in."


class Members:
    """Who has a role in a tenant."""

    def __init__(self, store: Store, access: Authenticator) -> None:
        self._store = store
        self._authenticator = access

    async def put(
        self, tenant: str, *, role: Role, user: str | None = None, email: str | None = None, act: Act
    ) -> Member:
        """Give a role to a person, or to who will sign in with an email; one that they had of their own is replaced.

        Raises `UserNotFound`, `TenantNotFound` or `InvalidInput`.
        """
        if (user is None) == (email is None):
            raise InvalidInput("it is not said, or said twice, who gets the role", hint=MEMBER_HINT)
        if user is not None and not is_id(check_text(user, name="user")):
            raise UserNotFound(f"there is no person {user[:64]!r}")
        invited = None if email is None else check_email(email)
        return await self._authenticator.change(
            PutMember(
                tenant=tenant, role=check_role(role), user=user, email=invited, invitation_id=new_id(), act=new_act(act)
            )
        )

    async def change(self, tenant: str, member_id: str, *, role: Role, act: Act) -> Member:
        """Give a member, or who an invitation is for, another role of their own.

        Raises `MemberNotFound`, `TenantNotFound` or `InvalidInput`.
        """
        check_role(role)
        member = await self.get(tenant, member_id)
        email = member.email if member.user is None else None
        return await self._authenticator.change(
            PutMember(
                tenant=tenant, role=role, user=member.user, email=email, invitation_id=member.id, act=new_act(act)
            )
        )

    async def remove(self, tenant: str, member_id: str, *, act: Act) -> Member:
        """Take the role of a member, or an invitation; the tokens that the person has there end.

        Raises `MemberNotFound`, `TenantNotFound`, or `MemberByGroup` where there is no role of their own.
        """
        return await self._authenticator.change(
            RemoveMember(tenant=tenant, id=_check_member_id(member_id), act=new_act(act))
        )

    async def get(self, tenant: str, member_id: str) -> Member:
        """The member with this id. Raises `MemberNotFound` or `TenantNotFound`."""
        found = await self._store.run(FindMember(tenant=tenant, member_id=_check_member_id(member_id)))
        if found is None:
            raise MemberNotFound(f"there is no member {member_id[:64]!r} in this tenant")
        return found

    async def list(self, tenant: str, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT) -> Page[Member]:
        """A page of those with a role in a tenant, by id."""
        bound_to = ("members", tenant)
        after = decode_cursor_position(cursor, bound_to=bound_to)
        found = await self._store.run(ListMembers(tenant=tenant, after=after, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)


def check_role(value: object) -> Role:
    """A role that can be given. Raises `InvalidInput`."""
    for role in ROLES:
        if value == role:
            return role
    raise InvalidInput(f"there is no role {format_value(value)}", hint=f"It is one of {', '.join(ROLES)}.")


def check_email(value: object) -> str:
    """An email as it is compared. Raises `InvalidInput`."""
    email = check_length(check_text(value, name="email", hint=EMAIL_HINT), name="email", chars_max=EMAIL_CHARS_MAX)
    name, _, host = email.partition("@")
    if not name or not host or "@" in host or not email.isprintable() or " " in email:
        raise InvalidInput(f"the email {email[:64]!r} is not usable", hint=EMAIL_HINT)
    return normalize_email(email)


def _check_member_id(value: object) -> str:
    if not is_id(check_text(value, name="member id")):
        raise MemberNotFound(f"there is no member {str(value)[:64]!r} in this tenant")
    return str(value)
