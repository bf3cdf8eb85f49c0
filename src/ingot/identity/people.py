"""People, their sessions, and their roles in tenants."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from ingot.identity.grants import RECORD_RESOURCES, Grant
from ingot.kernel.errors import Conflict, IngotError, NotFound, TooMany

Role = Literal["admin", "member", "viewer"]
ROLES: Final[tuple[Role, ...]] = ("viewer", "member", "admin")  # Each role includes the permissions of those before it.
LOCAL_ISSUER: Final = "ingot"  # The issuer of the person who signs in with an operator's link, without a provider.
LOCAL_SUBJECT: Final = "operator"
INVITATION_MICROS: Final = 14 * 86_400 * 1_000_000  # How long an invitation can be accepted.
INVITATIONS_MAX: Final = 1000  # Invitations of a tenant that have neither been accepted nor expired.
OWN_INVITATIONS_MAX: Final = 100  # Invitations that a person sees at once.
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
    """The sign-in was refused.

    `person` is set if the provider identified the person. The sign-in is then refused because of what the provider
    reports about them, which ends their other sessions, too.
    """

    code = "sign_in_refused"
    status = 401
    hint = "Start again at /auth/login. If the error persists, ask the operator of this server."
    person: Person | None = None


class UserNotFound(NotFound):
    """There is no such person."""

    code = "user_not_found"
    hint = "Use the ID that the person's page /me shows. Operators can find it with GET /api/v1/admin/users?email=."


class MemberNotFound(NotFound):
    """There is no such member in the tenant."""

    code = "member_not_found"


class MemberByGroup(Conflict):
    """The person has this role through a group."""

    code = "member_by_group"
    hint = (
        "Remove the group from the groups of the tenant, invite the person to another role with "
        "POST /api/v1/admin/members, or disable the person with POST /api/v1/admin/users/{id}/disable."
    )


class InvitationNotFound(NotFound):
    """There is no such invitation for this person."""

    code = "invitation_not_found"
    hint = "It may have expired or been revoked. GET /api/v1/me/invitations lists your invitations."


class TooManyInvitations(TooMany):
    """The tenant has too many invitations that have not been accepted."""

    code = "too_many_invitations"
    hint = "Revoke invitations with DELETE /api/v1/admin/members/{id}, or wait until they expire."


class SessionNotFound(NotFound):
    """There is no such session."""

    code = "session_not_found"


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """A human as the provider describes them. Issuer and subject identify people; an email does not."""

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
        """The text under which the person is displayed."""
        return self.email or self.name or self.subject


class User(Person, frozen=True, kw_only=True):
    """A person who has signed in at this server. A person who is not `enabled` cannot sign in.

    If a sign-in is `refused`, the tokens of the person permit nothing until a sign-in succeeds.
    """

    id: str
    """ID of the person."""
    enabled: bool = True
    """Whether the person can sign in."""
    refused: bool = False
    """Whether their last sign-in was refused because of what the provider reported, such as missing groups."""
    created_at: datetime
    """When the person first signed in."""
    signed_in_at: datetime
    """When the person last signed in."""

    @property
    def is_local(self) -> bool:
        """Whether this is the operator, who signs in with a link instead of a provider."""
        return self.issuer == LOCAL_ISSUER


class PeopleRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of this server for people: the trusted provider, the operators, and the duration of sessions.

    A session ends `session_seconds` after the sign-in, or when it was unused for `idle_seconds`. After `renew_seconds`,
    the provider has to confirm it. Tokens of people are valid for `token_days` after their last sign-in, because the
    provider does not report when somebody leaves.
    """

    issuer: str | None = None
    allowed_groups: frozenset[str] = frozenset()  # If empty, everybody may sign in.
    admin_groups: frozenset[str] = frozenset()
    session_seconds: float = 43_200.0
    idle_seconds: float = 7_200.0
    renew_seconds: float = 3_600.0
    token_days: float = 90.0

    def may_sign_in(self, user: User) -> bool:
        """Return whether the person is local, or the current provider reported them as allowed at the last sign-in."""
        return user.is_local or (user.issuer == self.issuer and not user.refused and self._is_in_allowed_group(user))

    def is_operator(self, user: User) -> bool:
        """Return whether the person acts in all tenants."""
        return user.is_local or (self.may_sign_in(user) and not self.admin_groups.isdisjoint(user.groups))

    def _is_in_allowed_group(self, user: User) -> bool:
        allowed = self.allowed_groups.union(self.admin_groups)
        return not self.allowed_groups or not allowed.isdisjoint(user.groups)


class TenantRole(msgspec.Struct, frozen=True, kw_only=True):
    """The highest role of a person in a tenant."""

    tenant: str
    """ID of the tenant."""
    slug: str
    """Readable name of the tenant."""
    role: Role
    """Highest role of the person in the tenant."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """A browser in which a person is signed in. Information from the provider is as old as the session."""

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
    tenant: str | None = None
    """ID of the tenant in which the session acts; `null` if none was chosen, and for operators."""


class RoleSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a role comes from: a group, or without `group`, it was given to the person."""

    role: Role
    """The role."""
    group: str | None = None
    """Group that the role comes from. Left out if the role was given to the person."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A person with a role in a tenant, or an invitation, which grants nothing before it is accepted.

    `id` is the ID of the person or invitation. `role` is the highest role of `sources`. An invitation shows only the
    email or the ID with which it was created, and nothing about the person.
    """

    id: str
    """ID of the person or of the invitation."""
    role: Role
    """Highest role of the member in the tenant."""
    sources: tuple[RoleSource, ...]
    """Where the role comes from."""
    user: str | None = None
    """ID of the person; `null` for an invitation by email."""
    email: str | None = None
    """Email address, as reported by the identity provider; for an invitation, the invited address."""
    name: str | None = None
    """Name, as reported by the identity provider."""
    picture: str | None = None
    """URL of a picture, as reported by the identity provider."""
    invited: bool = False
    """Whether this is an invitation that has not been accepted yet."""
    expires_at: datetime | None = None
    """When the invitation expires; `null` for a person with a role."""


class Invitation(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation as the invited person sees it."""

    id: str
    """ID of the invitation."""
    tenant: str
    """ID of the tenant."""
    slug: str
    """Readable name of the tenant."""
    role: Role
    """Role that the person gets by accepting."""
    created_at: datetime
    """When the invitation was created."""
    expires_at: datetime
    """When the invitation expires."""


def normalize_email(email: str) -> str:
    """Return an email in the form in which emails are compared: in lower case if it is ASCII, otherwise unchanged.

    Lowering other characters could turn one address into another: the Kelvin sign (U+212A) becomes an ASCII k.
    """
    return email.lower() if email.isascii() else email
