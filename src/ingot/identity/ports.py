"""What identity asks of an engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from ingot.events.audit import Act
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.model import Limits, Tenant
from ingot.identity.people import Member, Person, Role, Session, TenantRole, User


class CreateTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Make this tenant."""

    tenant: Tenant
    act: Act


class ChangeTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Give the tenant with this id these values. What is `None` stays as it was."""

    id: str
    slug: str | None = None
    weight: int | None = None
    time_zone: str | None = None
    limits: Limits | None = None
    groups: dict[str, Role] | None = None
    act: Act


class RemoveTenant(msgspec.Struct, frozen=True, kw_only=True):
    """Take away the tenant with this id, and let nobody act in it any more."""

    id: str
    act: Act


class ClearTenants(msgspec.Struct, frozen=True, kw_only=True):
    """Take away up to about `limit` rows of what removed tenants have left behind."""

    limit: int


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """What a round took away, of whom nothing is left now, and how many tenants still have something or may get it.

    With `more` there is more to take away at once; otherwise what is left waits for attempts to end.
    """

    rows: int = 0
    gone: tuple[str, ...] = ()
    left: int = 0
    more: bool = False


class TenantStore(Protocol):
    """Where tenants are kept. Every write is durable when the call returns, and on record when it changed something."""

    def create_tenant(self, command: CreateTenant) -> Awaitable[Tenant]:
        """Make a tenant. Raises `TenantExists` when its slug is taken; then nothing changes."""

    def change_tenant(self, command: ChangeTenant) -> Awaitable[Tenant]:
        """Change some of a tenant's values. Raises `TenantNotFound`, or `TenantExists` when the new slug is taken."""

    def get_tenant(self, id_or_slug: str) -> Awaitable[Tenant | None]:
        """The tenant with this id or slug, or `None`."""

    def list_tenants(self, *, after: str = "", limit: int | None = None) -> Awaitable[list[Tenant]]:
        """Tenants by slug, from behind one; all of them, or so many."""

    def remove_tenant(self, command: RemoveTenant) -> Awaitable[Tenant]:
        """Remove a tenant, and answer what it was. Raises `TenantNotFound`.

        From then on it is not found, its slug is free, its tokens and worker credentials are gone, none of its jobs is
        handed out and nothing new is accepted for it. What it held is cleared by and by; its acts stay on record.
        """

    def clear_tenants(self, command: ClearTenants) -> Awaitable[Cleared]:
        """Take away a bounded part of what removed tenants held: all of it but running jobs, which are asked to stop.

        They go as finished ones do, once their attempts have ended. Safe to do at several places at once.
        """

    def on_removed(self, tell: Callable[[str], None]) -> None:
        """Call `tell(tenant)` on the event loop when a tenant is known to be removed, wherever that was done.

        Soon after it was, and once for each; only a hint.
        """


class CreateToken(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this token. `digest` is all that is kept of its text. The time it was made is the store's."""

    token: Token
    digest: bytes
    act: Act


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True):
    """The token holds no longer. `tenant` restricts whose it may be; `None` is any."""

    id: str
    tenant: str | None
    act: Act


class CreateWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """Keep this credential. `digest` is all that is kept of its secret."""

    credential: WorkerCredential
    digest: bytes
    act: Act


class ChangeWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """Enable or disable a credential, or give it another secret. `tenant` restricts whose it may be; `None` is any.

    With a credential that is disabled or gets another secret, its workers are out: what they run is given back.
    """

    id: str
    tenant: str | None
    enabled: bool | None = None
    digest: bytes | None = None
    ending: str | None = None
    act: Act

    @property
    def action(self) -> str:
        """What it is called on record."""
        if self.digest is not None:
            return "worker_credential.regenerated"
        return "worker_credential.enabled" if self.enabled else "worker_credential.disabled"


class NoteUse(msgspec.Struct, frozen=True, kw_only=True):
    """These credentials were used, at the latest at these instants."""

    tokens: dict[str, int]
    workers: dict[str, int]
    sessions: dict[str, int] = {}


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A person, with the roles they have now, one for each tenant they have one in."""

    user: User
    roles: tuple[TenantRole, ...]


class FoundToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token and what is kept of its text; of one that a person made, who that is."""

    token: Token
    digest: bytes
    owner: Owner | None = None


class FoundWorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A worker credential and what is kept of its secret."""

    credential: WorkerCredential
    digest: bytes


class CredentialStore(Protocol):
    """Where credentials are kept. Every write is durable when the call returns.

    What it changed is on record then, but for uses.
    """

    def create_token(self, command: CreateToken) -> Awaitable[Token]:
        """Keep a token. Raises `TenantNotFound`, or `UserNotFound` for a person who is not there or not let in."""

    def revoke_token(self, command: RevokeToken) -> Awaitable[Token]:
        """Revoke a token; one that was revoked before stays as it is. Raises `TokenNotFound`."""

    def find_token(self, token_id: str) -> Awaitable[FoundToken | None]:
        """The token with this id, or `None`."""

    def list_tokens(self, tenant: str | None, *, before: str | None, limit: int) -> Awaitable[list[Token]]:
        """Tokens of a tenant, or those of the operator for `None`, newest first, from below the id `before`."""

    def create_worker_credential(self, command: CreateWorkerCredential) -> Awaitable[WorkerCredential]:
        """Keep a credential. Raises `CredentialExists`, whoever has it, or `TenantNotFound`."""

    def change_worker_credential(self, command: ChangeWorkerCredential) -> Awaitable[WorkerCredential]:
        """Change a credential. Raises `CredentialNotFound`."""

    def find_worker_credential(self, credential_id: str) -> Awaitable[FoundWorkerCredential | None]:
        """The credential with this id, or `None`."""

    def is_worker_name(self, name: str) -> Awaitable[bool]:
        """Whether the workers of a credential, or of a role of the database, go by this name."""

    def list_worker_credentials(
        self, tenant: str | None, *, after: str | None, limit: int
    ) -> Awaitable[list[WorkerCredential]]:
        """Credentials of a tenant, or the shared ones for `None`, by id, from behind `after`."""

    def note_use(self, command: NoteUse) -> Awaitable[None]:
        """Remember when credentials were last used. An earlier instant than is known changes nothing."""


class BeginLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody has set out to sign in, and will come back with the secret of this digest, once, and in time.

    `link` is for one that the operator made: who comes with it is the operator. `next` is where to go then.
    """

    digest: bytes
    expires_at: int
    next: str = "/"
    link: bool = False
    act: Act | None = None  # Of a link: that it was made is on record.


class TakeLogin(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody has come back with this digest."""

    digest: bytes
    link: bool = False


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """Sign a person in: what is known of them is what their provider says now, and invitations to their email theirs.

    The session gets this id, and is found by the digest of its secret. `replaces` is the digest of the one that the
    browser had before, which ends. On record it is the person themselves who did it.
    """

    person: Person
    user_id: str  # For who has never been here.
    session_id: str
    digest: bytes
    expires_at: int
    address: str | None
    agent: str | None
    replaces: bytes | None = None
    act: Act


class TurnAway(msgspec.Struct, frozen=True, kw_only=True):
    """A person is in no group any more that may come in: who is known here is in these alone, and their sessions end.

    On record it is the person themselves who did it.
    """

    person: Person
    act: Act


class EndSession(msgspec.Struct, frozen=True, kw_only=True):
    """End a session. `user` restricts whose it may be; `None` is anybody's."""

    id: str
    user: str | None
    act: Act


class EnableUser(msgspec.Struct, frozen=True, kw_only=True):
    """Let a person in, or out: then their sessions and tokens end."""

    id: str
    enabled: bool
    act: Act


class PutMember(msgspec.Struct, frozen=True, kw_only=True):
    """Give a role in a tenant, of their own, to a person, or to who will sign in with an email.

    `user` is a person's id; or `email` is given, in lower case, and `invitation` is the id it gets when it is new.
    """

    tenant: str
    role: Role
    user: str | None = None
    email: str | None = None
    invitation: str
    act: Act


class RemoveMember(msgspec.Struct, frozen=True, kw_only=True):
    """Take the role of a person, or an invitation, from a tenant. The tokens that the person has there end."""

    tenant: str
    id: str
    act: Act


class FoundSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session and who is signed in with it."""

    session: Session
    owner: Owner


class PeopleStore(Protocol):
    """Where people are kept. Every write is durable when the call returns."""

    def begin_login(self, command: BeginLogin) -> Awaitable[None]:
        """Remember that somebody set out; what has expired is forgotten."""

    def take_login(self, command: TakeLogin) -> Awaitable[str | None]:
        """Where to go after a sign-in that was begun, and is now over; `None` for one that is not known any more."""

    def sign_in(self, command: SignIn) -> Awaitable[User]:
        """Make a session. Raises `SignInRefused` for a person who is not enabled; then nothing changes."""

    def turn_away(self, command: TurnAway) -> Awaitable[None]:
        """Keep the groups of a person who may not come in, and end their sessions; of who was never here nothing."""

    def find_session(self, digest: bytes) -> Awaitable[FoundSession | None]:
        """The session with this digest, or `None` when it ended, has expired, or its person is not enabled."""

    def end_session(self, command: EndSession) -> Awaitable[None]:
        """End a session. Raises `SessionNotFound`."""

    def list_sessions(self, user: str) -> Awaitable[list[Session]]:
        """The sessions of a person that hold, newest first; a bounded number of them."""

    def enable_user(self, command: EnableUser) -> Awaitable[User]:
        """Let a person in or out. Raises `UserNotFound`."""

    def find_user(self, user_id: str) -> Awaitable[Owner | None]:
        """The person with this id, or `None`."""

    def list_users(self, *, email: str | None, before: str | None, limit: int) -> Awaitable[list[User]]:
        """People, those with this email or all, newest first, from below the id `before`."""

    def put_member(self, command: PutMember) -> Awaitable[Member]:
        """Give a role. Raises `TenantNotFound` or `UserNotFound`."""

    def remove_member(self, command: RemoveMember) -> Awaitable[Member]:
        """Take a role. Raises `MemberNotFound`, or `MemberByGroup` where there is none of their own to take."""

    def find_member(self, tenant: str, member_id: str) -> Awaitable[Member | None]:
        """The member with this id, of a person or an invitation, or `None`."""

    def list_members(self, tenant: str, *, after: str | None, limit: int) -> Awaitable[list[Member]]:
        """Everybody with a role in a tenant, invitations too, by id, from behind `after`."""

    def list_people_tokens(self, user: str, *, before: str | None, limit: int) -> Awaitable[list[Token]]:
        """Tokens that a person made, in all tenants, newest first, from below the id `before`."""
