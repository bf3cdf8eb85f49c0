"""Who is asking: from what a request carries to the caller it makes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import msgspec

from ingot.identity import credential_secrets
from ingot.identity.credentials import Caller, SessionStale, TokenLimits, Unauthorized
from ingot.identity.grants import Grant, intersect_grants
from ingot.identity.people import PeopleRules
from ingot.identity.ports import (
    FindSession,
    FindToken,
    FindWorkerCredential,
    IsWorkerNameTaken,
    RecordLastUsed,
    StoredSession,
    UserWithRoles,
)
from ingot.identity.roles import grants_in_tenant, session_caller
from ingot.kernel.clock import MICROS, Clock, to_micros
from ingot.kernel.commands import Command, Store

CREDENTIAL_CACHE_SECONDS: Final = 2.0  # A revoked credential is refused after this time, everywhere.
CREDENTIAL_CACHE_ENTRIES_MAX: Final = 10_000
USED_CREDENTIALS_MAX: Final = 10_000  # Of each kind. Who is left out is noted when it calls again later.
WORKER_GRANTS: Final = (Grant(action="workers.run"), Grant(action="workers.read"))

DAY_MICROS: Final = 86_400 * MICROS
T = TypeVar("T")
BeforeLookup = Callable[[], None]


def _no_op() -> None:
    """Asking costs nothing."""


class CacheEntry(msgspec.Struct, Generic[T]):
    """Who was found, and until when that is taken for true."""

    value: T
    expires_at: int


class CredentialCache(Generic[T]):
    """Those who were found lately, by a digest of what they came with. Who was not seen for longest is forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[bytes, CacheEntry[T]] = OrderedDict()

    async def get(self, key: bytes, find: Callable[[BeforeLookup], Awaitable[T]], asking: BeforeLookup) -> T:
        """Who comes with this. `asking` is called before the store is asked for one that is not known."""
        now = self._clock.micros()
        known = self._entries.get(key)
        if known is None or known.expires_at <= now:
            try:
                found = await find(asking if known is None else _no_op)
            except Unauthorized:
                self._entries.pop(key, None)
                raise
            known = self._entries[key] = CacheEntry(found, now + round(CREDENTIAL_CACHE_SECONDS * MICROS))
            self._entries.move_to_end(key)
            if len(self._entries) > CREDENTIAL_CACHE_ENTRIES_MAX:
                self._entries.popitem(last=False)
        return known.value

    def invalidate(self) -> None:
        """Each is found anew when it comes next."""
        for known in self._entries.values():
            known.expires_at = 0


class Authenticator:
    """Finds callers by their credentials, and remembers them for a moment."""

    def __init__(self, store: Store, clock: Clock, rules: PeopleRules | None = None) -> None:
        self._store = store
        self._clock = clock
        self.rules = rules or PeopleRules()
        self._callers: CredentialCache[Caller] = CredentialCache(clock)
        self._sessions: CredentialCache[StoredSession] = CredentialCache(clock)
        self._worker_names: OrderedDict[str, tuple[bool, int]] = OrderedDict()  # Of workers, and until when that holds.
        self._last_used: dict[str, dict[str, int]] = {"token": {}, "worker": {}, "session": {}}

    async def authenticate_token(self, token: str, asking: BeforeLookup = _no_op) -> Caller:
        """The caller with this token. Raises `Unauthorized`.

        `asking` is called before the store is asked for one that is not known; what it raises is raised.
        """
        caller = await self._callers.get(
            credential_secrets.digest(token), lambda ask: self._find_token(token, ask), asking
        )
        now = self._clock.micros()
        if caller.expires_at is not None and to_micros(caller.expires_at) <= now:
            raise Unauthorized("the token has expired")
        self._record_use("token", caller.id, now)
        return caller

    async def authenticate_worker(self, worker_id: str, secret: str, asking: BeforeLookup = _no_op) -> Caller:
        """The worker with this id and secret. Its id is that of the credential, or that and an instance behind `/`.

        Raises `Unauthorized`.
        """
        credential = worker_id.partition("/")[0]
        key = credential_secrets.digest(f"{credential}\n{secret}")
        caller = await self._callers.get(key, lambda ask: self._find_worker(credential, secret, ask), asking)
        self._record_use("worker", caller.id, self._clock.micros())
        return caller

    async def authenticate_session(
        self, secret: str, tenant: str | None = None, asking: BeforeLookup = _no_op
    ) -> Caller:
        """The person whose session has this secret, in the tenant with this id or slug.

        Without a tenant it is the one that they have a role in, if there is just one. Raises `Unauthorized`, or
        `SessionStale` when the provider must be asked anew, or `Forbidden` for a tenant that is not theirs.
        """
        found = await self._sessions.get(
            credential_secrets.digest(secret), lambda ask: self._find_session(secret, ask), asking
        )
        now, session = self._clock.micros(), found.session
        used = max(to_micros(session.last_used_at), self._last_used["session"].get(session.id, 0))
        if to_micros(session.expires_at) <= now or used + round(self.rules.idle_seconds * MICROS) <= now:
            raise Unauthorized("the session has expired", hint="Sign in again at /auth/login.")
        renewed = to_micros(session.created_at) + round(self.rules.renew_seconds * MICROS)
        if not found.owner.user.is_local and renewed <= now:
            raise SessionStale
        self._record_use("session", session.id, now)
        return session_caller(found, tenant, self.rules)

    async def change(self, command: Command[T]) -> T:
        """Run a command that changes what somebody may do. Callers are found anew when they come next."""
        answer = await self._store.run(command)
        self.invalidate()
        return answer

    def invalidate(self) -> None:
        """A credential, a person or a role has changed: each is found anew when it comes next."""
        self._callers.invalidate()
        self._sessions.invalidate()

    def take_last_used(self) -> RecordLastUsed:
        """Which credentials were used since this was last asked."""
        used = RecordLastUsed(
            tokens=self._last_used["token"], workers=self._last_used["worker"], sessions=self._last_used["session"]
        )
        self._last_used = {"token": {}, "worker": {}, "session": {}}
        return used

    async def is_worker_name_taken(self, worker_id: str) -> bool:
        """Whether this is the id of a worker credential or role, or of one of its instances, whosever it is."""
        name, now = worker_id.partition("/")[0], self._clock.micros()
        there, until = self._worker_names.get(name, (False, 0))
        if until <= now:
            there = await self._store.run(IsWorkerNameTaken(name=name))
            self._worker_names[name] = there, now + round(CREDENTIAL_CACHE_SECONDS * MICROS)
            if len(self._worker_names) > CREDENTIAL_CACHE_ENTRIES_MAX:
                self._worker_names.popitem(last=False)
        return there

    def _record_use(self, kind: str, id: str, now: int) -> None:
        used = self._last_used[kind]
        if len(used) < USED_CREDENTIALS_MAX or id in used:
            used[id] = now

    async def _find_token(self, token: str, asking: BeforeLookup) -> Caller:
        found = None
        if (token_id := credential_secrets.parse_token_id(token)) is not None:
            asking()
            found = await self._store.run(FindToken(token_id=token_id))
        if found is None or not credential_secrets.matches(token, found.digest) or found.token.revoked_at is not None:
            raise Unauthorized("there is no such token, or it was revoked")
        known = found.token
        return Caller(
            id=known.id,
            kind="token",
            tenant=known.tenant,
            grants=known.grants
            if found.owner is None
            else self._effective_grants(known.grants, known.tenant, found.owner),
            user=None if found.owner is None else found.owner.user,
            limits=known.limits,
            expires_at=known.expires_at,
            label=known.description,
        )

    def _effective_grants(
        self, grants: tuple[Grant, ...], tenant: str | None, owner: UserWithRoles
    ) -> tuple[Grant, ...]:
        """What is left of the grants of a token with what its owner may do now."""
        oldest = self._clock.micros() - round(self.rules.token_days * DAY_MICROS)
        if not owner.user.is_local and to_micros(owner.user.signed_in_at) < oldest:
            raise Unauthorized(
                "who made the token has not signed in for long", hint="They sign in once, and it holds again."
            )
        left = intersect_grants(grants, grants_in_tenant(owner, tenant, self.rules))
        if not left:
            raise Unauthorized("who made the token may do nothing of it any more")
        return left

    async def _find_worker(self, worker_id: str, secret: str, asking: BeforeLookup) -> Caller:
        found = None
        if credential_secrets.is_well_formed(secret, credential_secrets.WORKER_PREFIX):
            asking()
            found = await self._store.run(FindWorkerCredential(credential_id=worker_id))
        if found is None or not credential_secrets.matches(secret, found.digest) or not found.credential.enabled:
            raise Unauthorized("there is no such worker, its secret is another one, or it is disabled")
        known = found.credential
        return Caller(
            id=known.id,
            kind="worker",
            tenant=known.tenant,
            grants=WORKER_GRANTS,
            types=known.types,
            limits=TokenLimits(),
            label=known.id,
        )

    async def _find_session(self, secret: str, asking: BeforeLookup) -> StoredSession:
        found = None
        if credential_secrets.is_well_formed(secret, credential_secrets.SESSION_PREFIX):
            asking()
            found = await self._store.run(FindSession(digest=credential_secrets.digest(secret)))
        if found is None or not self.rules.may_sign_in(found.owner.user):
            raise Unauthorized("there is no such session, or it has ended", hint="Sign in again at /auth/login.")
        return found
