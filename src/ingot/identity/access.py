"""Who is asking: from what a request carries to the caller it makes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import msgspec

from ingot.identity import secrets
from ingot.identity.credentials import Caller, SessionStale, TokenLimits, Unauthorized
from ingot.identity.grants import Grant, common
from ingot.identity.people import PeopleRules
from ingot.identity.ports import (
    FindSession,
    FindToken,
    FindWorkerCredential,
    FoundSession,
    IsWorkerName,
    NoteUse,
    Owner,
)
from ingot.identity.roles import caller_of, grants_in
from ingot.kernel.clock import MICROS, Clock, to_micros
from ingot.kernel.commands import Command, Store

KNOWN_SECONDS: Final = 2.0  # A revoked credential is refused after this time, everywhere.
KNOWN_MAX: Final = 10_000
USED_MAX: Final = 10_000  # Of each kind. Who is left out is noted when it calls again later.
WORKER_GRANTS: Final = (Grant(action="workers.run"), Grant(action="workers.read"))

DAY: Final = 86_400 * MICROS
T = TypeVar("T")
Asking = Callable[[], None]


def _nothing() -> None:
    """Asking costs nothing."""


class Known(msgspec.Struct, Generic[T]):
    """Who was found, and until when that is taken for true."""

    found: T
    until: int


class Recent(Generic[T]):
    """Those who were found lately, by a digest of what they came with. Who was not seen for longest is forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, Known[T]] = OrderedDict()

    async def get(self, key: bytes, find: Callable[[Asking], Awaitable[T]], asking: Asking) -> T:
        """Who comes with this. `asking` is called before the store is asked for one that is not known."""
        now = self._clock.micros()
        known = self._known.get(key)
        if known is None or known.until <= now:
            try:
                found = await find(asking if known is None else _nothing)
            except Unauthorized:
                self._known.pop(key, None)
                raise
            known = self._known[key] = Known(found, now + round(KNOWN_SECONDS * MICROS))
            self._known.move_to_end(key)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return known.found

    def forget(self) -> None:
        """Each is found anew when it comes next."""
        for known in self._known.values():
            known.until = 0


class Access:
    """Finds callers by their credentials, and remembers them for a moment."""

    def __init__(self, store: Store, clock: Clock, rules: PeopleRules | None = None) -> None:
        self._store = store
        self._clock = clock
        self.rules = rules or PeopleRules()
        self._callers: Recent[Caller] = Recent(clock)
        self._sessions: Recent[FoundSession] = Recent(clock)
        self._names: OrderedDict[str, tuple[bool, int]] = OrderedDict()  # Of workers, and until when that holds.
        self._used: dict[str, dict[str, int]] = {"token": {}, "worker": {}, "session": {}}

    async def of_token(self, token: str, asking: Asking = _nothing) -> Caller:
        """The caller with this token. Raises `Unauthorized`.

        `asking` is called before the store is asked for one that is not known; what it raises is raised.
        """
        caller = await self._callers.get(secrets.digest(token), lambda ask: self._find_token(token, ask), asking)
        now = self._clock.micros()
        if caller.expires_at is not None and to_micros(caller.expires_at) <= now:
            raise Unauthorized("the token has expired")
        self._note("token", caller.id, now)
        return caller

    async def of_worker(self, worker_id: str, secret: str, asking: Asking = _nothing) -> Caller:
        """The worker with this id and secret. Its id is that of the credential, or that and an instance behind `/`.

        Raises `Unauthorized`.
        """
        credential = worker_id.partition("/")[0]
        key = secrets.digest(f"{credential}\n{secret}")
        caller = await self._callers.get(key, lambda ask: self._find_worker(credential, secret, ask), asking)
        self._note("worker", caller.id, self._clock.micros())
        return caller

    async def of_session(self, secret: str, tenant: str | None = None, asking: Asking = _nothing) -> Caller:
        """The person whose session has this secret, in the tenant with this id or slug.

        Without a tenant it is the one that they have a role in, if there is just one. Raises `Unauthorized`, or
        `SessionStale` when the provider must be asked anew, or `Forbidden` for a tenant that is not theirs.
        """
        found = await self._sessions.get(secrets.digest(secret), lambda ask: self._find_session(secret, ask), asking)
        now, session = self._clock.micros(), found.session
        used = max(to_micros(session.last_used_at), self._used["session"].get(session.id, 0))
        if to_micros(session.expires_at) <= now or used + round(self.rules.idle_seconds * MICROS) <= now:
            raise Unauthorized("the session has expired", hint="Sign in again at /auth/login.")
        renewed = to_micros(session.created_at) + round(self.rules.renew_seconds * MICROS)
        if not found.owner.user.is_local and renewed <= now:
            raise SessionStale
        self._note("session", session.id, now)
        return caller_of(found, tenant, self.rules)

    async def change(self, command: Command[T]) -> T:
        """Run a command that changes what somebody may do. Callers are found anew when they come next."""
        answer = await self._store.run(command)
        self.forget()
        return answer

    def forget(self) -> None:
        """A credential, a person or a role has changed: each is found anew when it comes next."""
        self._callers.forget()
        self._sessions.forget()

    def take_used(self) -> NoteUse:
        """Which credentials were used since this was last asked."""
        used = NoteUse(tokens=self._used["token"], workers=self._used["worker"], sessions=self._used["session"])
        self._used = {"token": {}, "worker": {}, "session": {}}
        return used

    async def is_taken(self, worker_id: str) -> bool:
        """Whether this is the id of a worker credential or role, or of one of its instances, whosever it is."""
        name, now = worker_id.partition("/")[0], self._clock.micros()
        there, until = self._names.get(name, (False, 0))
        if until <= now:
            there = await self._store.run(IsWorkerName(name=name))
            self._names[name] = there, now + round(KNOWN_SECONDS * MICROS)
            if len(self._names) > KNOWN_MAX:
                self._names.popitem(last=False)
        return there

    def _note(self, kind: str, id: str, now: int) -> None:
        used = self._used[kind]
        if len(used) < USED_MAX or id in used:
            used[id] = now

    async def _find_token(self, token: str, asking: Asking) -> Caller:
        found = None
        if (token_id := secrets.id_of_token(token)) is not None:
            asking()
            found = await self._store.run(FindToken(token_id=token_id))
        if found is None or not secrets.matches(token, found.digest) or found.token.revoked_at is not None:
            raise Unauthorized("there is no such token, or it was revoked")
        known = found.token
        return Caller(
            id=known.id,
            kind="token",
            tenant=known.tenant,
            grants=known.grants if found.owner is None else self._bounded(known.grants, known.tenant, found.owner),
            user=None if found.owner is None else found.owner.user,
            limits=known.limits,
            expires_at=known.expires_at,
            label=known.description,
        )

    def _bounded(self, grants: tuple[Grant, ...], tenant: str | None, owner: Owner) -> tuple[Grant, ...]:
        """What is left of the grants of a token with what its owner may do now."""
        oldest = self._clock.micros() - round(self.rules.token_days * DAY)
        if not owner.user.is_local and to_micros(owner.user.signed_in_at) < oldest:
            raise Unauthorized(
                "who made the token has not signed in for long", hint="They sign in once, and it holds again."
            )
        left = common(grants, grants_in(owner, tenant, self.rules))
        if not left:
            raise Unauthorized("who made the token may do nothing of it any more")
        return left

    async def _find_worker(self, worker_id: str, secret: str, asking: Asking) -> Caller:
        found = None
        if secrets.is_well_formed(secret, secrets.WORKER_PREFIX):
            asking()
            found = await self._store.run(FindWorkerCredential(credential_id=worker_id))
        if found is None or not secrets.matches(secret, found.digest) or not found.credential.enabled:
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

    async def _find_session(self, secret: str, asking: Asking) -> FoundSession:
        found = None
        if secrets.is_well_formed(secret, secrets.SESSION_PREFIX):
            asking()
            found = await self._store.run(FindSession(digest=secrets.digest(secret)))
        if found is None or not self.rules.knows(found.owner.user):
            raise Unauthorized("there is no such session, or it has ended", hint="Sign in again at /auth/login.")
        return found
