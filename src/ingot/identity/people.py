"""People: who they are, how they are signed in, and which role they have in which tenant."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from ingot.identity.grants import RECORD_RESOURCES, Grant
from ingot.kernel.errors import Conflict, IngotError, NotFound

Role = Literal["admin", "member", "viewer"]
ROLES: Final[tuple[Role, ...]] = ("viewer", "member", "admin")  # Each may do what those before it may.
LOCAL_ISSUER: Final = "ingot"  # Of who signed in with a link of the operator: no provider knows them.
LOCAL_SUBJECT: Final = "operator"
_VIEWER_ACTIONS: Final = ("jobs.read", "workers.read", "events.read", "blobs.read")
_ADMIN_ACTIONS: Final = (
    "jobs.*",
    "workers.*",
    "events.*",
    "blobs.*",
    "admin.*",
    *(f"{plural}.*" for plural in RECORD_RESOURCES),
)
ROLE_GRANTS: Final[dict[Role, tuple[Grant, ...]]] = {
    "viewer": tuple(Grant(action=action) for action in _VIEWER_ACTIONS),
    "member": tuple(
        Grant(action=action) for action in (*_VIEWER_ACTIONS, "jobs.create", "blobs.write", "blobs.delete")
    ),
    "admin": tuple(Grant(action=action) for action in _ADMIN_ACTIONS),
}


class SignInRefused(IngotError):
    """The person is not signed in.

    `person` is who they are, when the provider told it and they are in no group that may come in.
    """

    code = "sign_in_refused"
    status = 401
    hint = "Begin again at /auth/login; when it stays, ask who runs this server."
    person: Person | None = None


class UserNotFound(NotFound):
    """There is no such person."""

    code = "user_not_found"
    hint = "Give the id that their page /me shows; operators find it with GET /api/v1/admin/users?email=."


class MemberNotFound(NotFound):
    """Nobody with this id has a role in the tenant."""

    code = "member_not_found"


class MemberByGroup(Conflict):
    """The role comes from a group, and is not the person's own."""

    code = "member_by_group"
    hint = (
        "Take the group out of the tenant's groups, or put the person out with POST /api/v1/admin/users/{id}/disable."
    )


class SessionNotFound(NotFound):
    """There is no such session."""

    code = "session_not_found"


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Who a provider says somebody is. Issuer and subject tell people apart; an email does not."""

    issuer: str
    """URL of the identity provider; `ingot` for the local operator, who signs in with a link."""
    subject: str
    """ID of the person at the identity provider."""
    email: str | None = None
    """Email address, as reported by the identity provider."""
    email_verified: bool = False
    """Whether the identity provider has verified the email address."""
    name: str | None = None
    """Name, as reported by the identity provider."""
    picture: str | None = None
    """URL of a picture, as reported by the identity provider."""
    groups: tuple[str, ...] = ()
    """Groups of the person, as reported by the identity provider."""

    @property
    def label(self) -> str:
        """How people know them."""
        return self.email or self.name or self.subject


class User(Person, frozen=True, kw_only=True):
    """A person who has signed in here. One who is not `enabled` is let in no more."""

    id: str
    """ID of the person."""
    enabled: bool = True
    """Whether the person can sign in."""
    created_at: datetime
    """When the person first signed in."""
    signed_in_at: datetime
    """When the person last signed in."""

    @property
    def is_local(self) -> bool:
        """Whether no provider knows them: who came with a link of the operator."""
        return self.issuer == LOCAL_ISSUER


class PeopleRules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for people on this server: whose word counts, who is an operator, how long a session holds.

    A session ends after so many seconds, or when it was not used for some; before that, what the provider said is
    taken for true for `renew_seconds`. A token that a person made holds no longer than `token_days` after they last
    signed in: who has left the company is not told to us.
    """

    issuer: str | None = None
    allowed_groups: frozenset[str] = frozenset()  # None of them: everybody.
    admin_groups: frozenset[str] = frozenset()
    session_seconds: float = 43_200.0
    idle_seconds: float = 7_200.0
    renew_seconds: float = 3_600.0
    token_days: float = 90.0

    def may_sign_in(self, user: User) -> bool:
        """Whether the provider that knew them is the one that there is now, and one of their groups may come in."""
        return user.is_local or (user.issuer == self.issuer and self._is_in_allowed_group(user))

    def is_operator(self, user: User) -> bool:
        """Whether they act in every tenant."""
        return user.is_local or (self.may_sign_in(user) and not self.admin_groups.isdisjoint(user.groups))

    def _is_in_allowed_group(self, user: User) -> bool:
        allowed = self.allowed_groups.union(self.admin_groups)
        return not self.allowed_groups or not allowed.isdisjoint(user.groups)


class TenantRole(msgspec.Struct, frozen=True, kw_only=True):
    """The role of somebody in a tenant: the highest of those they have there."""

    tenant: str
    """ID of the tenant."""
    slug: str
    """Readable name of the tenant."""
    role: Role
    """Highest role of the person in the tenant."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A browser in which somebody is signed in. What the provider said of them is as old as the session."""

    id: str
    """ID of the session."""
    user: str
    """ID of the person."""
    created_at: datetime
    """When the person signed in."""
    expires_at: datetime
    """When the session ends at the latest."""
    last_used_at: datetime
    """When the session was last used."""
    address: str | None = None
    """IP address from which the person signed in."""
    agent: str | None = None
    """User agent of the browser."""


class RoleSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a role comes from: from a group, or, without one, given to the person."""

    role: Role
    """The role."""
    group: str | None = None
    """Group that the role comes from. Left out if the role was given to the person."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody with a role in a tenant. An invitation has no `user` yet: who signs in with its email becomes it.

    `id` is that of the person, or of the invitation. `role` is the highest of `sources`.
    """

    id: str
    """ID of the person or of the invitation."""
    role: Role
    """Highest role of the member in the tenant."""
    sources: tuple[RoleSource, ...]
    """Where the role comes from."""
    user: str | None = None
    """ID of the person; `null` for an invitation."""
    email: str | None = None
    """Email address, as reported by the identity provider; for an invitation, the invited address."""
    name: str | None = None
    """Name, as reported by the identity provider."""
    picture: str | None = None
    """URL of a picture, as reported by the identity provider."""
    invited: bool = False
    """Whether this is an invitation that nobody has accepted yet."""


def normalize_email(email: str) -> str:
    """An email as it is compared: in lower case where everybody makes its letters small alike.

    Elsewhere letters become others: the sign of Kelvin becomes a k, and its owner somebody else.
    """
    return email.lower() if email.isascii() else email
