"""Rows of people, as both engines read them."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.identity.people import Session, TenantRole, User, compared
from ingot.identity.ports import FoundSession, Owner
from ingot.kernel.clock import to_datetime

EXPIRED_ROWS_MAX: Final = 100  # Forgotten at a time: more than one comes, so they do not pile up.
SESSIONS_MAX: Final = 100  # Of one person in a list.


class UserRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `users`, with its groups."""

    id: str
    issuer: str
    subject: str
    email: str | None
    email_verified: bool
    name: str | None
    picture: str | None
    groups: tuple[str, ...]
    enabled: bool
    created_at: int
    signed_in_at: int

    def user(self) -> User:
        """The person."""
        return User(
            id=self.id,
            issuer=self.issuer,
            subject=self.subject,
            email=self.email,
            email_verified=self.email_verified,
            name=self.name,
            picture=self.picture,
            groups=tuple(sorted(self.groups)),
            enabled=self.enabled,
            created_at=to_datetime(self.created_at),
            signed_in_at=to_datetime(self.signed_in_at),
        )


class OwnerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A person and their roles."""

    user: UserRow
    roles: tuple[TenantRole, ...]

    def owner(self) -> Owner:
        """The person with the roles they have."""
        return Owner(user=self.user.user(), roles=self.roles)


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `sessions`, without its digest."""

    id: str
    user: str
    created_at: int
    expires_at: int
    last_used_at: int
    address: str | None
    agent: str | None

    def session(self) -> Session:
        """The session."""
        return Session(
            id=self.id,
            user=self.user,
            created_at=to_datetime(self.created_at),
            expires_at=to_datetime(self.expires_at),
            last_used_at=to_datetime(self.last_used_at),
            address=self.address,
            agent=self.agent,
        )


class FoundSessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session and who is signed in with it."""

    session: SessionRow
    owner: OwnerRow

    def found(self) -> FoundSession:
        """Both."""
        return FoundSession(session=self.session.session(), owner=self.owner.owner())


def lower(email: str | None) -> str | None:
    """An email as it is compared."""
    return None if email is None else compared(email)
