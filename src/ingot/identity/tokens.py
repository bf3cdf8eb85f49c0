"""Making, listing and revoking credentials."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ingot.events.audit import Act, acting
from ingot.identity import secrets
from ingot.identity.access import Access
from ingot.identity.credentials import (
    Caller,
    CredentialNotFound,
    Forbidden,
    Token,
    TokenLimits,
    TokenNotFound,
    WorkerCredential,
)
from ingot.identity.grants import ALL, ANY, Grant, check_grants
from ingot.identity.ports import (
    ChangeWorkerCredential,
    CreateToken,
    CreateWorkerCredential,
    FindToken,
    FindWorkerCredential,
    ListPeopleTokens,
    ListTokens,
    ListWorkerCredentials,
    RevokeToken,
)
from ingot.kernel.clock import Clock, to_datetime, to_micros
from ingot.kernel.commands import Store
from ingot.kernel.errors import InvalidInput
from ingot.kernel.hidden import Unshown
from ingot.kernel.ids import is_id, new_id
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, page_by_id, read_place
from ingot.kernel.values import NUMBER_MAX, number, several, storable, text, whole_number, within

NO_LIMITS: Final = TokenLimits()
DESCRIPTION_CHARS_MAX: Final = 200
TYPES_MAX: Final = 256
TYPE_CHARS_MAX: Final = 200
CREDENTIAL_HINT: Final = "Use 1 to 64 letters, digits, dots, hyphens and underscores, with a letter or digit first."
_CREDENTIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NewToken(Unshown, frozen=True, kw_only=True):
    """A token, with its text, which is shown this once."""

    token: Token
    text: str


class NewWorkerCredential(Unshown, frozen=True, kw_only=True):
    """A worker credential, with its secret, which is shown this once."""

    credential: WorkerCredential
    secret: str


class Credentials:
    """The tokens and worker credentials of this store."""

    def __init__(self, store: Store, access: Access, clock: Clock) -> None:
        self._store = store
        self._access = access
        self._clock = clock

    # -- tokens ---------------------------------------------------------------------------------------------

    async def create_token(
        self,
        tenant: str | None,
        *,
        description: str,
        grants: list[Grant] | tuple[Grant, ...],
        limits: TokenLimits = NO_LIMITS,
        expires_at: datetime | None = None,
        by: Caller | None = None,
        act: Act | None = None,
    ) -> NewToken:
        """Make a token for a tenant, or for the operator. `by` gives only what it has: raises `Forbidden` otherwise.

        What a person makes, also with a token of theirs, is theirs.

        Raises `InvalidInput` or `TenantNotFound`.
        """
        checked = check_grants(grants)
        if by is not None:
            for grant in checked:
                by.expect(grant.action, grant.resource)
            if tenant is None and not by.is_operator:
                raise Forbidden("only an operator makes tokens for all tenants")
            limits, expires_at = _within(by, limits, expires_at)
        return await self._create(
            secrets.new_token(new_id()),
            act,
            tenant=tenant,
            description=within(
                text(description, what="description"), what="description", chars_max=DESCRIPTION_CHARS_MAX
            ),
            grants=checked,
            limits=_limits(limits),
            user=None if by is None or by.user is None else by.user.id,
            created_by=None if by is None else by.name,
            expires_at=self._later(expires_at),
        )

    async def ensure_operator(self, given: str | None) -> NewToken | None:
        """The operator's token, made when there is none, or the given one; `None` when there is one already."""
        if given is not None:
            token_id = secrets.id_of_token(given)
            if token_id is None:
                raise InvalidInput(
                    "the operator's token is not written as a token is",
                    hint="Leave INGOT_OPERATOR_TOKEN out: the first start makes one and writes it to operator.token.",
                )
            if await self._store.run(FindToken(token_id=token_id)) is not None:
                return None
        elif await self._store.run(ListTokens(tenant=None, before=None, limit=1)):
            return None
        full = given or secrets.new_token(new_id())
        return await self._create(full, None, tenant=None, description="the first operator", grants=(ALL,))

    async def _create(self, full: str, act: Act | None, **known: Any) -> NewToken:
        token = Token(
            id=secrets.id_of_token(full) or "",
            ending=secrets.ending(full),
            created_at=to_datetime(self._clock.micros()),
            **known,
        )
        kept = await self._store.run(CreateToken(token=token, digest=secrets.digest(full), act=acting(act)))
        return NewToken(token=kept, text=full)

    async def revoke_token(
        self, tenant: str | None, token_id: str, *, user: str | None = None, act: Act | None = None
    ) -> Token:
        """End a token of a tenant, or of any; with a `user` only one of theirs. Raises `TokenNotFound`.

        It ends here at once, and elsewhere within seconds.
        """
        if not is_id(text(token_id, what="token id")):
            raise TokenNotFound(f"there is no token {token_id[:64]!r}")
        if user is not None and (await self.get_token(tenant, token_id)).user != user:
            raise TokenNotFound(f"there is no token {token_id!r} of yours")
        return await self._access.change(RevokeToken(id=token_id, tenant=tenant, act=acting(act)))

    async def get_token(self, tenant: str | None, token_id: str) -> Token:
        """The token with this id, of a tenant or of any. Raises `TokenNotFound`."""
        found = await self._store.run(FindToken(token_id=token_id)) if is_id(text(token_id, what="token id")) else None
        if found is None or tenant not in (None, found.token.tenant):
            raise TokenNotFound(f"there is no token {token_id[:64]!r}")
        return found.token

    async def list_tokens(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[Token]:
        """A page of the tokens of a tenant, or of the operator's, newest first."""
        bound_to = ("tokens", tenant)
        before = read_place(cursor, bound_to=bound_to)
        found = await self._store.run(ListTokens(tenant=tenant, before=before, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    async def list_tokens_of(
        self, user: str, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[Token]:
        """A page of the tokens that a person made, in all tenants, newest first."""
        bound_to = ("tokens of", user)
        before = read_place(cursor, bound_to=bound_to)
        found = await self._store.run(ListPeopleTokens(user=user, before=before, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    # -- workers --------------------------------------------------------------------------------------------

    async def create_worker(
        self,
        tenant: str | None,
        credential_id: str,
        *,
        types: list[str] | tuple[str, ...] = (),
        by: Caller | None = None,
        act: Act | None = None,
    ) -> NewWorkerCredential:
        """Make a credential for workers of a tenant, or a shared one. `by` gives only what it has.

        Raises `CredentialExists`, `InvalidInput` or `Forbidden`.
        """
        if by is not None:
            _expect_running(by, _types(types))
        secret = secrets.new_secret(secrets.WORKER_PREFIX)
        credential = WorkerCredential(
            id=_credential_id(credential_id),
            tenant=tenant,
            types=_types(types),
            ending=secrets.ending(secret),
            created_at=to_datetime(self._clock.micros()),
            created_by=None if by is None else by.name,
        )
        command = CreateWorkerCredential(credential=credential, digest=secrets.digest(secret), act=acting(act))
        return NewWorkerCredential(credential=await self._store.run(command), secret=secret)

    async def get_worker(self, tenant: str | None, credential_id: str) -> WorkerCredential:
        """The credential with this id, of a tenant or of any. Raises `CredentialNotFound`."""
        found = await self._store.run(FindWorkerCredential(credential_id=_known_credential(credential_id)))
        if found is None or tenant not in (None, found.credential.tenant):
            raise CredentialNotFound(f"there is no worker credential {credential_id[:64]!r}")
        return found.credential

    async def regenerate_worker(
        self, tenant: str | None, credential_id: str, *, by: Caller | None = None, act: Act | None = None
    ) -> NewWorkerCredential:
        """Give a credential another secret; the old one ends. `by` gets one only for what it may run itself.

        Raises `CredentialNotFound` or `Forbidden`.
        """
        known = await self._store.run(FindWorkerCredential(credential_id=_known_credential(credential_id)))
        if by is not None and known is not None and tenant in (None, known.credential.tenant):
            _expect_running(by, known.credential.types)
        secret = secrets.new_secret(secrets.WORKER_PREFIX)
        changed = await self._access.change(
            ChangeWorkerCredential(
                id=_known_credential(credential_id),
                tenant=tenant,
                digest=secrets.digest(secret),
                ending=secrets.ending(secret),
                act=acting(act),
            )
        )
        return NewWorkerCredential(credential=changed, secret=secret)

    async def enable_worker(
        self, tenant: str | None, credential_id: str, *, enabled: bool, act: Act | None = None
    ) -> WorkerCredential:
        """Let the workers of a credential in, or out: what they run is given back. Raises `CredentialNotFound`."""
        return await self._access.change(
            ChangeWorkerCredential(id=_known_credential(credential_id), tenant=tenant, enabled=enabled, act=acting(act))
        )

    async def list_workers(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[WorkerCredential]:
        """A page of the credentials of a tenant, or of the shared ones, by id."""
        bound_to = ("worker credentials", tenant)
        after = read_place(cursor, bound_to=bound_to, fits=_is_credential_id)
        found = await self._store.run(ListWorkerCredentials(tenant=tenant, after=after, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    def _later(self, moment: datetime | None) -> datetime | None:
        if moment is None:
            return None
        if moment.tzinfo is None:
            raise InvalidInput("expires_at has no offset", hint="Write it as 2027-01-31T12:00:00Z.")
        if to_micros(moment) <= self._clock.micros():
            raise InvalidInput("expires_at is in the past")
        return moment.astimezone(UTC)


def _limits(limits: TokenLimits) -> TokenLimits:
    if limits.rate is not None:
        number(limits.rate, what="limits.rate", least=0, most=NUMBER_MAX)
    if limits.burst is not None:
        whole_number(limits.burst, what="limits.burst", least=1, most=NUMBER_MAX)
    if limits.quota_bytes is not None:
        whole_number(limits.quota_bytes, what="limits.quota_bytes", least=0, most=NUMBER_MAX)
    return limits


def _within(by: Caller, limits: TokenLimits, expires_at: datetime | None) -> tuple[TokenLimits, datetime | None]:
    """What a caller that has bounds gives on: no more, and no longer. Raises `Forbidden`."""
    if by.expires_at is not None:
        if expires_at is not None and expires_at > by.expires_at:
            raise Forbidden("a token does not outlive the one that makes it", hint="Give an earlier expires_at.")
        expires_at = expires_at or by.expires_at
    if by.limits.rate is not None:
        if limits.rate is not None and limits.rate > by.limits.rate:
            raise Forbidden("a token may not make more requests than the one that makes it", hint="Give a lower rate.")
        if limits.rate is None:
            limits = msgspec.structs.replace(limits, rate=by.limits.rate, burst=by.limits.burst)
    if by.limits.quota_bytes is not None:
        if limits.quota_bytes is not None and limits.quota_bytes > by.limits.quota_bytes:
            raise Forbidden("a token may not keep more than the one that makes it", hint="Give a lower quota_bytes.")
        if limits.quota_bytes is None:
            limits = msgspec.structs.replace(limits, quota_bytes=by.limits.quota_bytes)
    return limits, expires_at


def _expect_running(by: Caller, types: tuple[str, ...]) -> None:
    """Raises `Forbidden` unless a caller may itself run what workers for these types may; for none of them, all."""
    for resource in [f"jobs/{type}" for type in types] or [ANY]:
        by.expect("workers.run", resource)


def _credential_id(value: object) -> str:
    if not _CREDENTIAL.fullmatch(text(value, what="worker id", hint=CREDENTIAL_HINT)):
        raise InvalidInput(f"the worker id {str(value)[:64]!r} is not usable", hint=CREDENTIAL_HINT)
    return str(value)


def _is_credential_id(value: str) -> bool:
    return _CREDENTIAL.fullmatch(value) is not None


def _known_credential(value: object) -> str:
    if not _CREDENTIAL.fullmatch(text(value, what="worker id")):
        raise CredentialNotFound(f"there is no worker credential {str(value)[:64]!r}")
    return str(value)


def _types(value: object) -> tuple[str, ...]:
    types = several(value, what="types")
    if len(types) > TYPES_MAX:
        raise InvalidInput(f"there are {len(types)} types; it goes up to {TYPES_MAX}")
    return tuple(
        storable(within(text(one, what="type"), what="type", chars_max=TYPE_CHARS_MAX), what="type") for one in types
    )
