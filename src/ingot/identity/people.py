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
    subject: str
    email: str | None = None
    email_verified: bool = False
    name: str | None = None
    picture: str | None = None
    groups: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How people know them."""
        return self.email or self.name or self.subject


class User(Person, frozen=True, kw_only=True):
    """A person who has signed in here. One who is not `enabled` is let in no more."""

    id: str
    enabled: bool = True
    created_at: datetime
    signed_in_at: datetime

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
    slug: str
    role: Role


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A browser in which somebody is signed in. What the provider said of them is as old as the session."""

    id: str
    user: str
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime
    address: str | None = None
    agent: str | None = None


class RoleSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a role comes from: from a group, or, without one, given to the person."""

    role: Role
    group: str | None = None


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody with a role in a tenant. An invitation has no `user` yet: who signs in with its email becomes it.

    `id` is that of the person, or of the invitation. `role` is the highest of `sources`.
    """

    id: str
    role: Role
    sources: tuple[RoleSource, ...]
    user: str | None = None
    email: str | None = None
    name: str | None = None
    picture: str | None = None
    invited: bool = False


def normalize_email(email: str) -> str:
    """An email as it is compared: in lower case where everybody makes its letters small alike.

    Elsewhere letters become others: the sign of Kelvin becomes a k, and its owner somebody else.
    """
    return email.lower() if email.isascii() else email
