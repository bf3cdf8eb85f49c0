"""Authentication: finds the caller that a credential identifies."""

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

CREDENTIAL_CACHE_SECONDS: Final = 2.0  # Other processes reject a revoked credential after this time at the latest.
CREDENTIAL_CACHE_ENTRIES_MAX: Final = 10_000
USED_CREDENTIALS_MAX: Final = 10_000  # Per kind and recording interval. Uses of further credentials are not recorded.
WORKER_GRANTS: Final = (Grant(action="workers.run"), Grant(action="workers.read"))

DAY_MICROS: Final = 86_400 * MICROS
T = TypeVar("T")
BeforeLookup = Callable[[], None]


def _no_op() -> None:
    """Do nothing before a lookup."""


class CacheEntry(msgspec.Struct, Generic[T]):
    """A cached result, and the instant until which it is used."""

    value: T
    expires_at: int


class CredentialCache(Generic[T]):
    """Recent results of store lookups, by the digest of the credential. Evicts the entry with the oldest lookup."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: OrderedDict[bytes, CacheEntry[T]] = OrderedDict()

    async def get(self, key: bytes, find: Callable[[BeforeLookup], Awaitable[T]], before_lookup: BeforeLookup) -> T:
        """Return the cached result, or call `find`, which raises `Unauthorized` for a credential that is not valid.

        `find` gets `before_lookup` only if the credential has no entry. An expired entry shows that the
        credential was valid before, so it is not a guess, and its next lookup is not limited.
        """
        now = self._clock.micros()
        entry = self._entries.get(key)
        if entry is None or entry.expires_at <= now:
            try:
                value = await find(before_lookup if entry is None else _no_op)
            except Unauthorized:
                self._entries.pop(key, None)
                raise
            entry = self._entries[key] = CacheEntry(value, now + round(CREDENTIAL_CACHE_SECONDS * MICROS))
            self._entries.move_to_end(key)
            if len(self._entries) > CREDENTIAL_CACHE_ENTRIES_MAX:
                self._entries.popitem(last=False)
        return entry.value

    def invalidate(self) -> None:
        """Expire all entries, so that the next use of each credential is looked up."""
        for entry in self._entries.values():
            entry.expires_at = 0


class Authenticator:
    """Finds callers by their credentials. Results are cached for `CREDENTIAL_CACHE_SECONDS`."""

    def __init__(self, store: Store, clock: Clock, rules: PeopleRules | None = None) -> None:
        self._store = store
        self._clock = clock
        self.rules = rules or PeopleRules()
        self._callers: CredentialCache[Caller] = CredentialCache(clock)
        self._sessions: CredentialCache[StoredSession] = CredentialCache(clock)
        # By worker name: whether it is taken, and the instant until which this is cached.
        self._worker_names: OrderedDict[str, tuple[bool, int]] = OrderedDict()
        self._last_used: dict[str, dict[str, int]] = {"token": {}, "worker": {}, "session": {}}

    async def authenticate_token(self, token: str, before_lookup: BeforeLookup = _no_op) -> Caller:
        """Return the caller with this token. Raises `Unauthorized`.

        `before_lookup` is called before the store is queried for a credential that is not cached. It can raise to limit
        failed attempts.
        """
        caller = await self._callers.get(
            credential_secrets.digest(token),
            lambda before_lookup: self._find_token(token, before_lookup),
            before_lookup,
        )
        now = self._clock.micros()
        if caller.expires_at is not None and to_micros(caller.expires_at) <= now:
            raise Unauthorized("the token has expired", hint="Create a new token.")
        self._record_use("token", caller.id, now)
        return caller

    async def authenticate_worker(self, worker_id: str, secret: str, before_lookup: BeforeLookup = _no_op) -> Caller:
        """Return the caller with this worker credential. Raises `Unauthorized`.

        `worker_id` is the ID of the credential, optionally followed by `/` and an instance.
        """
        credential = worker_id.partition("/")[0]
        key = credential_secrets.digest(f"{credential}\n{secret}")
        caller = await self._callers.get(
            key, lambda before_lookup: self._find_worker(credential, secret, before_lookup), before_lookup
        )
        self._record_use("worker", caller.id, self._clock.micros())
        return caller

    async def authenticate_session(
        self, secret: str, tenant: str | None = None, before_lookup: BeforeLookup = _no_op
    ) -> Caller:
        """Return the person whose session has this secret, in the tenant with this ID or slug.

        Without `tenant`, the person acts in the tenant of the session, or in none if it was not chosen or the person
        has no role there any more. Raises `Unauthorized`, `SessionStale` if the provider has to confirm the person
        again, or `Forbidden` if they have no role in `tenant`.
        """
        stored = await self._sessions.get(
            credential_secrets.digest(secret),
            lambda before_lookup: self._find_session(secret, before_lookup),
            before_lookup,
        )
        now, session = self._clock.micros(), stored.session
        used = max(to_micros(session.last_used_at), self._last_used["session"].get(session.id, 0))
        if to_micros(session.expires_at) <= now or used + round(self.rules.idle_seconds * MICROS) <= now:
            raise Unauthorized("the session has expired", hint="Sign in again at /auth/login.")
        renew_at = to_micros(session.created_at) + round(self.rules.renew_seconds * MICROS)
        if not stored.owner.user.is_local and renew_at <= now:
            raise SessionStale
        self._record_use("session", session.id, now)
        return session_caller(stored, tenant, self.rules)

    async def run_and_invalidate(self, command: Command[T]) -> T:
        """Run a command that changes permissions or credentials, then invalidate the caches."""
        result = await self._store.run(command)
        self.invalidate()
        return result

    def invalidate(self) -> None:
        """Invalidate the caches after a change of a credential, person or role."""
        self._callers.invalidate()
        self._sessions.invalidate()

    def take_last_used(self) -> RecordLastUsed:
        """Return the uses of credentials since the last call, and forget them."""
        used = RecordLastUsed(
            tokens=self._last_used["token"], workers=self._last_used["worker"], sessions=self._last_used["session"]
        )
        self._last_used = {"token": {}, "worker": {}, "session": {}}
        return used

    async def is_worker_name_taken(self, worker_id: str) -> bool:
        """Return whether a worker credential or worker role of any tenant has this ID, or its part before a `/`."""
        name, now = worker_id.partition("/")[0], self._clock.micros()
        is_taken, expires_at = self._worker_names.get(name, (False, 0))
        if expires_at <= now:
            is_taken = await self._store.run(IsWorkerNameTaken(name=name))
            self._worker_names[name] = is_taken, now + round(CREDENTIAL_CACHE_SECONDS * MICROS)
            if len(self._worker_names) > CREDENTIAL_CACHE_ENTRIES_MAX:
                self._worker_names.popitem(last=False)
        return is_taken

    def _record_use(self, kind: str, id: str, now: int) -> None:
        used = self._last_used[kind]
        if len(used) < USED_CREDENTIALS_MAX or id in used:
            used[id] = now

    async def _find_token(self, text: str, before_lookup: BeforeLookup) -> Caller:
        stored = None
        if (token_id := credential_secrets.parse_token_id(text)) is not None:
            before_lookup()
            stored = await self._store.run(FindToken(token_id=token_id))
        if stored is None or not credential_secrets.matches(text, stored.digest) or stored.token.revoked_at is not None:
            raise Unauthorized("the token does not exist or was revoked")
        token = stored.token
        return Caller(
            id=token.id,
            kind="token",
            tenant=token.tenant,
            grants=token.grants
            if stored.owner is None
            else self._effective_grants(token.grants, token.tenant, stored.owner),
            user=None if stored.owner is None else stored.owner.user,
            limits=token.limits,
            expires_at=token.expires_at,
            label=token.description,
        )

    def _effective_grants(
        self, grants: tuple[Grant, ...], tenant: str | None, owner: UserWithRoles
    ) -> tuple[Grant, ...]:
        """Reduce the grants of a token to what its owner may do now. Raises `Unauthorized` if none is left."""
        signed_in_since = self._clock.micros() - round(self.rules.token_days * DAY_MICROS)
        if not owner.user.is_local and to_micros(owner.user.signed_in_at) < signed_in_since:
            raise Unauthorized(
                f"the owner of the token has not signed in for {self.rules.token_days:g} days",
                hint="The token is valid again once its owner has signed in at /auth/login.",
            )
        effective = intersect_grants(grants, grants_in_tenant(owner, tenant, self.rules))
        if not effective:
            raise Unauthorized(
                "the owner of the token no longer has any of its grants",
                hint="An admin of the tenant or an operator can give the owner a role.",
            )
        return effective

    async def _find_worker(self, credential_id: str, secret: str, before_lookup: BeforeLookup) -> Caller:
        stored = None
        if credential_secrets.is_well_formed(secret, credential_secrets.WORKER_PREFIX):
            before_lookup()
            stored = await self._store.run(FindWorkerCredential(credential_id=credential_id))
        if stored is None or not credential_secrets.matches(secret, stored.digest) or not stored.credential.enabled:
            raise Unauthorized(
                "the worker credential does not exist, is disabled, or has a different secret",
                hint="Check X-Worker-ID and X-Worker-Secret, or INGOT_WORKER_ID and INGOT_WORKER_SECRET of a worker.",
            )
        credential = stored.credential
        return Caller(
            id=credential.id,
            kind="worker",
            tenant=credential.tenant,
            grants=WORKER_GRANTS,
            types=credential.types,
            limits=TokenLimits(),
            label=credential.id,
        )

    async def _find_session(self, secret: str, before_lookup: BeforeLookup) -> StoredSession:
        stored = None
        if credential_secrets.is_well_formed(secret, credential_secrets.SESSION_PREFIX):
            before_lookup()
            stored = await self._store.run(FindSession(digest=credential_secrets.digest(secret)))
        if stored is None or not self.rules.may_sign_in(stored.owner.user):
            raise Unauthorized("the session does not exist or has ended", hint="Sign in again at /auth/login.")
        return stored
