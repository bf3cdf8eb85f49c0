"""The commands of identity that engines implement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ingot.events.audit import Act
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Limits, Tenant
from ingot.identity.people import Invitation, Member, Person, Role, Session, TenantRole, User
from ingot.kernel.commands import Command, Store


class CreateTenant(Command[Tenant], frozen=True, kw_only=True):
    """Create this tenant. Raises `TenantExists` if its slug is taken."""

    tenant: Tenant
    act: Act


class ChangeTenant(Command[Tenant], frozen=True, kw_only=True):
    """Change a tenant. Fields that are `None` keep their value.

    Raises `TenantNotFound`, or `TenantExists` if the new slug is taken.
    """

    id: str
    slug: str | None = None
    weight: int | None = None
    time_zone: str | None = None
    limits: Limits | None = None
    groups: dict[str, Role] | None = None
    act: Act


class RemoveTenant(Command[Tenant], frozen=True, kw_only=True):
    """Remove a tenant and return it. Raises `TenantNotFound`.

    From then on, the tenant is not found and its slug is free, its tokens and worker credentials are deleted, its jobs
    are not handed out, and nothing new is accepted for it. `ClearTenants` deletes the rest; the audit log is kept.
    """

    id: str
    act: Act


class ClearTenantsResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a round: deleted rows, tenants that have no data left, and how many removed tenants remain.

    With `has_more`, more rows can be deleted at once. Otherwise the remaining tenants wait for attempts to end.
    """

    rows: int = 0
    cleared_tenants: tuple[str, ...] = ()
    remaining_tenants: int = 0
    has_more: bool = False


class ClearTenants(Command[ClearTenantsResult], frozen=True, kw_only=True):
    """Delete up to about `limit` rows of removed tenants. Several processes can do this at the same time.

    Running jobs are canceled, and deleted after their attempts have ended.
    """

    limit: int


class GetTenant(Command[Tenant | None], frozen=True, kw_only=True):
    """Return the tenant with this ID or slug, or `None`."""

    id_or_slug: str


class ListTenants(Command[list[Tenant]], frozen=True, kw_only=True):
    """Return tenants ordered by slug, beginning after the slug `after`; all of them, or up to `limit`."""

    after: str = ""
    limit: int | None = None


class TenantStore(Store, Protocol):
    """An engine that stores tenants and notifies of removed ones."""

    def on_tenant_removed(self, callback: Callable[[str], None]) -> None:
        """Call `callback(tenant_id)` on the event loop, once for each tenant, soon after any process has removed it.

        The call is only a hint.
        """


class CreateToken(Command[Token], frozen=True, kw_only=True):
    """Store a token with the digest of its text, and return it. The store sets `created_at`.

    Raises `TenantNotFound`, `UserNotFound` if its person does not exist or is disabled, or `TooManyTokens` if the
    person or the tenant has too many tokens that are neither revoked nor expired.
    """

    token: Token
    digest: bytes
    act: Act


class RevokeToken(Command[Token], frozen=True, kw_only=True):
    """Revoke a token and return it. A token that is already revoked does not change. Raises `TokenNotFound`.

    With `tenant`, only a token of this tenant is found.
    """

    id: str
    tenant: str | None
    act: Act


class CreateWorkerCredential(Command[WorkerCredential], frozen=True, kw_only=True):
    """Store a worker credential with the digest of its secret, and return it.

    Raises `TenantNotFound`, or `CredentialExists` if any tenant has a credential with this ID.
    """

    credential: WorkerCredential
    digest: bytes
    act: Act


class ChangeWorkerCredential(Command[WorkerCredential], frozen=True, kw_only=True):
    """Enable or disable a worker credential, or replace its secret, and return it. Raises `CredentialNotFound`.

    With `tenant`, only a credential of this tenant is found. If the credential is disabled or gets a new secret, the
    jobs of its workers are released.
    """

    id: str
    tenant: str | None
    enabled: bool | None = None
    digest: bytes | None = None
    ending: str | None = None
    act: Act

    @property
    def audit_action(self) -> str:
        """The name of this change in the audit log."""
        if self.digest is not None:
            return "worker_credential.regenerated"
        return "worker_credential.enabled" if self.enabled else "worker_credential.disabled"


class RecordLastUsed(Command[None], frozen=True, kw_only=True):
    """Record when credentials were last used, by ID. Earlier instants than the stored ones change nothing."""

    tokens: dict[str, int]
    workers: dict[str, int]
    sessions: dict[str, int] = msgspec.field(default_factory=dict)


class UserWithRoles(msgspec.Struct, frozen=True, kw_only=True):
    """A person with their current roles: at most one per tenant."""

    user: User
    roles: tuple[TenantRole, ...]


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token with the digest of its text, and the person to whom it belongs, if any."""

    token: Token
    digest: bytes
    owner: UserWithRoles | None = None


class StoredWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A worker credential with the digest of its secret."""

    credential: WorkerCredential
    digest: bytes


class FindToken(Command[StoredToken | None], frozen=True, kw_only=True):
    """Return the token with this ID, or `None`."""

    token_id: str


class ListTokens(Command[list[Token]], frozen=True, kw_only=True):
    """Return tokens of a tenant, or operator tokens if `tenant` is `None`, newest first, beginning below `before`."""

    tenant: str | None
    before: str | None
    limit: int


class FindWorkerCredential(Command[StoredWorkerCredential | None], frozen=True, kw_only=True):
    """Return the worker credential with this ID, or `None`."""

    credential_id: str


class IsWorkerNameTaken(Command[bool], frozen=True, kw_only=True):
    """Return whether a worker credential or a worker role of the database has this name."""

    name: str


class ListWorkerCredentials(Command[list[WorkerCredential]], frozen=True, kw_only=True):
    """Return worker credentials of a tenant, or shared ones if `tenant` is `None`, by ID, beginning after `after`."""

    tenant: str | None
    after: str | None
    limit: int


class BeginLogin(Command[None], frozen=True, kw_only=True):
    """Store a login, which can be completed once, with the secret of this digest, until it expires.

    With `is_link`, it is a sign-in link for the operator. `next_page` is the page to show after the sign-in. Expired
    logins are deleted.
    """

    digest: bytes
    expires_at: int
    next_page: str = "/"
    is_link: bool = False
    act: Act | None = None  # Set for a link, because creating one is audited.


class ConsumeLogin(Command[str | None], frozen=True, kw_only=True):
    """Remove a login and return its next page, or `None` if there is no such login or it has expired."""

    digest: bytes
    is_link: bool = False


class SignIn(Command[User], frozen=True, kw_only=True):
    """Create a session for a person, and store the person as the provider describes them now.

    The session with `replaced_digest`, which the browser had before, ends. If it was a session of the same person, the
    new one acts in the same tenant. Otherwise it acts in the tenant that the person chose last. A person who has never
    chosen one, and has a role in exactly one tenant, chooses it by signing in.

    The audit log names the person as the author. Raises `SignInRefused` if the person is disabled.
    """

    person: Person
    user_id: str  # Used if the person signs in for the first time.
    session_id: str
    digest: bytes
    expires_at: int
    address: str | None
    agent: str | None
    replaced_digest: bytes | None = None
    act: Act


class DenySignIn(Command[None], frozen=True, kw_only=True):
    """Mark a person as refused, store their groups, and end their sessions.

    Nothing is stored about a person who has never signed in. The audit log names the person as the author.
    """

    person: Person
    act: Act


class EndSession(Command[None], frozen=True, kw_only=True):
    """End a session. With `user`, only a session of this person is found. Raises `SessionNotFound`."""

    id: str
    user: str | None
    act: Act


class SetUserEnabled(Command[User], frozen=True, kw_only=True):
    """Enable or disable a person. Disabling ends their sessions and revokes their tokens. Raises `UserNotFound`."""

    id: str
    enabled: bool
    act: Act


class PutMember(Command[Member], frozen=True, kw_only=True):
    """Invite the person `user`, or the person with the verified `email`, to a role in a tenant.

    A person with a role of their own in the tenant gets the new role at once. Whether the person exists makes no
    difference. `email` is normalized. A new invitation gets the ID `invitation_id`, and a repeated one its full
    duration. Raises `TenantNotFound` or `TooManyInvitations`.
    """

    tenant: str
    role: Role
    user: str | None = None
    email: str | None = None
    invitation_id: str
    act: Act


class ChangeMember(Command[Member], frozen=True, kw_only=True):
    """Change the role that was given to a person, or that of an invitation.

    Raises `TenantNotFound`, `MemberNotFound`, or `MemberByGroup` if the person has roles only through groups.
    """

    tenant: str
    id: str
    role: Role
    act: Act


class AcceptInvitation(Command[Member], frozen=True, kw_only=True):
    """Give a person the role of an invitation, if it is for them or for their verified email, and remove it.

    Of the new role and a role that the person has, the higher one counts. Roles by group apply again to a person who
    had left the tenant. No session acts in another tenant than before. Raises `InvitationNotFound`.
    """

    id: str
    user: str
    act: Act


class DeclineInvitation(Command[None], frozen=True, kw_only=True):
    """Remove an invitation that is for this person or for their verified email. Raises `InvitationNotFound`."""

    id: str
    user: str
    act: Act


class ListInvitations(Command[list[Invitation]], frozen=True, kw_only=True):
    """Return the invitations of a person and of their verified email, by ID, up to a fixed number."""

    user: str


class LeaveTenant(Command[Member], frozen=True, kw_only=True):
    """Remove all roles of a person in a tenant, and revoke their tokens there. Returns the former member.

    Roles by group no longer apply to the person in the tenant until they accept an invitation to it. Raises
    `TenantNotFound` or `MemberNotFound`.
    """

    tenant: str
    user: str
    act: Act


class ChooseTenant(Command[None], frozen=True, kw_only=True):
    """Let a session of a person act in a tenant, and new sessions of the person, too. Raises `TenantNotFound`."""

    session: str
    user: str
    tenant: str


class RemoveMember(Command[Member], frozen=True, kw_only=True):
    """Remove the role that was given to a person, or an invitation, and revoke the person's tokens in the tenant.

    Raises `MemberNotFound`, or `MemberByGroup` if the person has roles only through groups.
    """

    tenant: str
    id: str
    act: Act


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session and the person who is signed in with it."""

    session: Session
    owner: UserWithRoles


class FindSession(Command[StoredSession | None], frozen=True, kw_only=True):
    """Return the session with this digest, or `None` if it has ended or expired, or its person is disabled."""

    digest: bytes


class ListSessions(Command[list[Session]], frozen=True, kw_only=True):
    """Return the valid sessions of a person, newest first, up to a fixed number."""

    user: str


class FindUser(Command[UserWithRoles | None], frozen=True, kw_only=True):
    """Return the person with this ID, or `None`."""

    user_id: str


class ListUsers(Command[list[User]], frozen=True, kw_only=True):
    """Return people, or only those with this email, newest first, beginning below the ID `before`."""

    email: str | None
    before: str | None
    limit: int


class FindMember(Command[Member | None], frozen=True, kw_only=True):
    """Return the member with this ID of a person or invitation, or `None`."""

    tenant: str
    member_id: str


class ListMembers(Command[list[Member]], frozen=True, kw_only=True):
    """Return members and invitations of a tenant, by ID, beginning after the ID `after`."""

    tenant: str
    after: str | None
    limit: int


class ListUserTokens(Command[list[Token]], frozen=True, kw_only=True):
    """Return the tokens of a person in all tenants, newest first, beginning below the ID `before`."""

    user: str
    before: str | None
    limit: int
