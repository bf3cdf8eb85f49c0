"""Who is asking: from what a request carries to the caller it makes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from ingot.identity import secrets
from ingot.identity.credentials import Caller, TokenLimits, Unauthorized
from ingot.identity.grants import Grant
from ingot.identity.ports import CredentialStore, NoteUse
from ingot.kernel.clock import MICROS, Clock, to_micros

KNOWN_SECONDS: Final = 2.0  # A revoked credential is refused after this time, everywhere.
KNOWN_MAX: Final = 10_000
USED_MAX: Final = 10_000  # Of each kind. Who is left out is noted when it calls again later.
WORKER_GRANTS: Final = (Grant(action="workers.run"), Grant(action="workers.read"))


class Known(msgspec.Struct):
    """A caller that was found, and until when that is taken for true."""

    caller: Caller
    until: int


class Access:
    """Finds callers by their credentials, and remembers them for a moment."""

    def __init__(self, store: CredentialStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[bytes, Known] = OrderedDict()
        self._names: OrderedDict[str, tuple[bool, int]] = OrderedDict()  # Of workers, and until when that holds.
        self._used: dict[str, dict[str, int]] = {"token": {}, "worker": {}}

    async def of_token(self, token: str, asking: Callable[[], None] = lambda: None) -> Caller:
        """The caller with this token. Raises `Unauthorized`.

        `asking` is called before the store is asked for one that is not known; what it raises is raised.
        """
        return await self._remembered(secrets.digest(token), lambda ask: self._find_token(token, ask), asking)

    async def of_worker(self, worker_id: str, secret: str, asking: Callable[[], None] = lambda: None) -> Caller:
        """The worker with this id and secret. Its id is that of the credential, or that and an instance behind `/`.

        Raises `Unauthorized`.
        """
        credential = worker_id.partition("/")[0]
        key = secrets.digest(f"{credential}\n{secret}")
        return await self._remembered(key, lambda ask: self._find_worker(credential, secret, ask), asking)

    def forget(self) -> None:
        """A credential has changed: each is found anew when it comes next."""
        for known in self._known.values():
            known.until = 0

    def take_used(self) -> NoteUse:
        """Which credentials were used since this was last asked."""
        used = NoteUse(tokens=self._used["token"], workers=self._used["worker"])
        self._used = {"token": {}, "worker": {}}
        return used

    async def _remembered(
        self, key: bytes, find: Callable[[Callable[[], None]], Awaitable[Caller]], asking: Callable[[], None]
    ) -> Caller:
        now = self._clock.micros()
        known = self._known.get(key)
        if known is None or known.until <= now:
            try:
                caller = await find(asking if known is None else lambda: None)
            except Unauthorized:
                self._known.pop(key, None)
                raise
            known = self._known[key] = Known(caller, now + round(KNOWN_SECONDS * MICROS))
            self._known.move_to_end(key)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        if known.caller.expires_at is not None and to_micros(known.caller.expires_at) <= now:
            raise Unauthorized("the token has expired")
        used = self._used[known.caller.kind]
        if len(used) < USED_MAX or known.caller.id in used:
            used[known.caller.id] = now
        return known.caller

    async def is_credential(self, worker_id: str) -> bool:
        """Whether this is the id of a worker credential, or of one of its instances, whosever it is."""
        name, now = worker_id.partition("/")[0], self._clock.micros()
        there, until = self._names.get(name, (False, 0))
        if until <= now:
            there = await self._store.find_worker_credential(name) is not None
            self._names[name] = there, now + round(KNOWN_SECONDS * MICROS)
            if len(self._names) > KNOWN_MAX:
                self._names.popitem(last=False)
        return there

    async def _find_token(self, token: str, asking: Callable[[], None]) -> Caller:
        found = None
        if (token_id := secrets.id_of_token(token)) is not None:
            asking()
            found = await self._store.find_token(token_id)
        if found is None or not secrets.matches(token, found.digest) or found.token.revoked_at is not None:
            raise Unauthorized("there is no such token, or it was revoked")
        known = found.token
        return Caller(
            id=known.id,
            kind="token",
            tenant=known.tenant,
            grants=known.grants,
            limits=known.limits,
            expires_at=known.expires_at,
            label=known.description,
        )

    async def _find_worker(self, worker_id: str, secret: str, asking: Callable[[], None]) -> Caller:
        found = None
        if secrets.is_worker_secret(secret):
            asking()
            found = await self._store.find_worker_credential(worker_id)
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
