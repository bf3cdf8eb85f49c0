"""What identity asks of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ingot.events.audit import Act
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Limits, Tenant
from ingot.identity.people import Member, Person, Role, Session, TenantRole, User
from ingot.kernel.commands import Command, Store


class CreateTenant(Command[Tenant], frozen=True, kw_only=True):
    """Create this tenant. Raises `TenantExists` when its slug is taken; then nothing changes."""

    tenant: Tenant
    act: Act


class ChangeTenant(Command[Tenant], frozen=True, kw_only=True):
    """Give the tenant with this id these values. What is `None` stays as it was.

    Raises `TenantNotFound`, or `TenantExists` when the new slug is taken.
    """

    id: str
    slug: str | None = None
    weight: int | None = None
    time_zone: str | None = None
    limits: Limits | None = None
    groups: dict[str, Role] | None = None
    act: Act


class RemoveTenant(Command[Tenant], frozen=True, kw_only=True):
    """Remove the tenant with this id, and answer what it was. Raises `TenantNotFound`.

    From then on it is not found, its slug is free, its tokens and worker credentials are gone, none of its jobs is
    handed out and nothing new is accepted for it. What it held is cleared by and by; its acts stay on record.
    """

    id: str
    act: Act


class ClearTenantsResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a round took away, of whom nothing is left now, and how many tenants still have something or may get it.

    With `more` there is more to take away at once; otherwise what is left waits for attempts to end.
    """

    rows: int = 0
    cleared_tenants: tuple[str, ...] = ()
    remaining_tenants: int = 0
    has_more: bool = False


class ClearTenants(Command[ClearTenantsResult], frozen=True, kw_only=True):
    """Remove up to about `limit` rows of what removed tenants held: all but running jobs, which are asked to stop.

    They go as finished ones do, once their attempts have ended. Safe to do at several places at once.
    """

    limit: int


class GetTenant(Command[Tenant | None], frozen=True, kw_only=True):
    """The tenant with this id or slug, or `None`."""

    id_or_slug: str


class ListTenants(Command[list[Tenant]], frozen=True, kw_only=True):
    """Tenants by slug, from behind one; all of them, or so many."""

    after: str = ""
    limit: int | None = None


class TenantStore(Store, Protocol):
    """An engine that keeps tenants, and tells who was removed."""

    def on_tenant_removed(self, tell: Callable[[str], None]) -> None:
        """Call `tell(tenant)` on the event loop when a tenant is known to be removed, wherever that was done.

        Soon after it was, and once for each; only a hint.
        """


class CreateToken(Command[Token], frozen=True, kw_only=True):
    """Keep this token. `digest` is all that is kept of its text. The store sets the time it was created.

    Raises `TenantNotFound`, or `UserNotFound` for a person who does not exist or is not let in.
    """

    token: Token
    digest: bytes
    act: Act


class RevokeToken(Command[Token], frozen=True, kw_only=True):
    """Revoke a token; one that was revoked before stays as it is. Raises `TokenNotFound`.

    `tenant` restricts whose it may be; `None` is any.
    """

    id: str
    tenant: str | None
    act: Act


class CreateWorkerCredential(Command[WorkerCredential], frozen=True, kw_only=True):
    """Keep this credential. `digest` is all that is kept of its secret.

    Raises `CredentialExists`, whoever has it, or `TenantNotFound`.
    """

    credential: WorkerCredential
    digest: bytes
    act: Act


class ChangeWorkerCredential(Command[WorkerCredential], frozen=True, kw_only=True):
    """Enable or disable a credential, or give it another secret. `tenant` restricts whose it may be; `None` is any.

    With a credential that is disabled or gets another secret, its workers are out: what they run is given back.

    Change a credential. Raises `CredentialNotFound`.
    """

    id: str
    tenant: str | None
    enabled: bool | None = None
    digest: bytes | None = None
    ending: str | None = None
    act: Act

    @property
    def audit_action(self) -> str:
        """What it is called on record."""
        if self.digest is not None:
            return "worker_credential.regenerated"
        return "worker_credential.enabled" if self.enabled else "worker_credential.disabled"


class RecordLastUsed(Command[None], frozen=True, kw_only=True):
    """Remember when these credentials were last used. An earlier instant than is known changes nothing."""

    tokens: dict[str, int]
    workers: dict[str, int]
    sessions: dict[str, int] = msgspec.field(default_factory=dict)


class UserWithRoles(msgspec.Struct, frozen=True, kw_only=True):
    """A person, with the roles they have now, one for each tenant they have one in."""

    user: User
    roles: tuple[TenantRole, ...]


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token and what is kept of its text; of one that a person made, who that is."""

    token: Token
    digest: bytes
    owner: UserWithRoles | None = None


class StoredWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A worker credential and what is kept of its secret."""

    credential: WorkerCredential
    digest: bytes


class FindToken(Command[StoredToken | None], frozen=True, kw_only=True):
    """The token with this id, or `None`."""

    token_id: str


class ListTokens(Command[list[Token]], frozen=True, kw_only=True):
    """Tokens of a tenant, or those of the operator for `None`, newest first, from below the id `before`."""

    tenant: str | None
    before: str | None
    limit: int


class FindWorkerCredential(Command[StoredWorkerCredential | None], frozen=True, kw_only=True):
    """The credential with this id, or `None`."""

    credential_id: str


class IsWorkerNameTaken(Command[bool], frozen=True, kw_only=True):
    """Whether the workers of a credential, or of a role of the database, go by this name."""

    name: str


class ListWorkerCredentials(Command[list[WorkerCredential]], frozen=True, kw_only=True):
    """Credentials of a tenant, or the shared ones for `None`, by id, from behind `after`."""

    tenant: str | None
    after: str | None
    limit: int


class BeginLogin(Command[None], frozen=True, kw_only=True):
    """Somebody has set out to sign in, and will come back with the secret of this digest, once, and in time.

    `link` is for one that the operator made: who comes with it is the operator. `next` is where to go then.

    Remember that somebody set out; what has expired is forgotten.
    """

    digest: bytes
    expires_at: int
    next_page: str = "/"
    is_link: bool = False
    act: Act | None = None  # Of a link: that it was made is on record.


class ConsumeLogin(Command[str | None], frozen=True, kw_only=True):
    """End a sign-in that was begun, and answer where to go then; `None` for one that is not known any more."""

    digest: bytes
    is_link: bool = False


class SignIn(Command[User], frozen=True, kw_only=True):
    """Sign a person in: what is known of them is what their provider says now, and invitations to their email theirs.

    The session gets this id, and is found by the digest of its secret. `replaces` is the digest of the one that the
    browser had before, which ends. On record it is the person themselves who did it.

    Make a session. Raises `SignInRefused` for a person who is not enabled; then nothing changes.
    """

    person: Person
    user_id: str  # For who has never been here.
    session_id: str
    digest: bytes
    expires_at: int
    address: str | None
    agent: str | None
    replaced_digest: bytes | None = None
    act: Act


class DenySignIn(Command[None], frozen=True, kw_only=True):
    """A person is in no group any more that may come in: who is known here is in these alone, and their sessions end.

    On record it is the person themselves who did it.

    Keep the groups of a person who may not come in, and end their sessions; of who was never here nothing.
    """

    person: Person
    act: Act


class EndSession(Command[None], frozen=True, kw_only=True):
    """End a session. `user` restricts whose it may be; `None` is anybody's. Raises `SessionNotFound`."""

    id: str
    user: str | None
    act: Act


class SetUserEnabled(Command[User], frozen=True, kw_only=True):
    """Let a person in, or out: then their sessions and tokens end. Raises `UserNotFound`."""

    id: str
    enabled: bool
    act: Act


class PutMember(Command[Member], frozen=True, kw_only=True):
    """Give a role in a tenant, of their own, to a person, or to who will sign in with an email.

    `user` is a person's id; or `email` is given, in lower case, and `invitation` is the id it gets when it is new.

    Give a role. Raises `TenantNotFound` or `UserNotFound`.
    """

    tenant: str
    role: Role
    user: str | None = None
    email: str | None = None
    invitation_id: str
    act: Act


class RemoveMember(Command[Member], frozen=True, kw_only=True):
    """Take the role of a person, or an invitation, from a tenant. The tokens that the person has there end.

    Raises `MemberNotFound`, or `MemberByGroup` where there is no role of their own to take.
    """

    tenant: str
    id: str
    act: Act


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session and who is signed in with it."""

    session: Session
    owner: UserWithRoles


class FindSession(Command[StoredSession | None], frozen=True, kw_only=True):
    """The session with this digest, or `None` when it ended, has expired, or its person is not enabled."""

    digest: bytes


class ListSessions(Command[list[Session]], frozen=True, kw_only=True):
    """The sessions of a person that hold, newest first; a bounded number of them."""

    user: str


class FindUser(Command[UserWithRoles | None], frozen=True, kw_only=True):
    """The person with this id, or `None`."""

    user_id: str


class ListUsers(Command[list[User]], frozen=True, kw_only=True):
    """People, those with this email or all, newest first, from below the id `before`."""

    email: str | None
    before: str | None
    limit: int


class FindMember(Command[Member | None], frozen=True, kw_only=True):
    """The member with this id, of a person or an invitation, or `None`."""

    tenant: str
    member_id: str


class ListMembers(Command[list[Member]], frozen=True, kw_only=True):
    """Everybody with a role in a tenant, invitations too, by id, from behind `after`."""

    tenant: str
    after: str | None
    limit: int


class ListUserTokens(Command[list[Token]], frozen=True, kw_only=True):
    """Tokens that a person made, in all tenants, newest first, from below the id `before`."""

    user: str
    before: str | None
    limit: int
