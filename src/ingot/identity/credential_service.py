"""Making, listing and revoking credentials."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ingot.events.audit import Act, new_act
from ingot.identity import credential_secrets
from ingot.identity.authenticator import Authenticator
from ingot.identity.credentials import (
    Caller,
    CredentialNotFound,
    Forbidden,
    Token,
    TokenLimits,
    TokenNotFound,
    WorkerCredential,
)
from ingot.identity.grants import ANY, GRANT_ALL, Grant, check_grants
from ingot.identity.ports import (
    ChangeWorkerCredential,
    CreateToken,
    CreateWorkerCredential,
    FindToken,
    FindWorkerCredential,
    ListTokens,
    ListUserTokens,
    ListWorkerCredentials,
    RevokeToken,
)
from ingot.kernel.clock import Clock, to_datetime, to_micros
from ingot.kernel.commands import Store
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import is_id, new_id
from ingot.kernel.pages import PAGE_ROWS_DEFAULT, Page, check_limit, decode_cursor_position, page_by_id
from ingot.kernel.redaction import NoRepr
from ingot.kernel.validation import (
    NUMBER_MAX,
    check_integer,
    check_length,
    check_list,
    check_number,
    check_storable,
    check_text,
)

NO_LIMITS: Final = TokenLimits()
DESCRIPTION_CHARS_MAX: Final = 200
TYPES_MAX: Final = 256
TYPE_CHARS_MAX: Final = 200
CREDENTIAL_HINT: Final = "Use 1 to 64 letters, digits, dots, hyphens and underscores, with a letter or digit first."
_CREDENTIAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NewToken(NoRepr, frozen=True, kw_only=True):
    """A token, with its text, which is shown this once."""

    token: Token
    text: str


class NewWorkerCredential(NoRepr, frozen=True, kw_only=True):
    """A worker credential, with its secret, which is shown this once."""

    credential: WorkerCredential
    secret: str


class Credentials:
    """The tokens and worker credentials of this store."""

    def __init__(self, store: Store, access: Authenticator, clock: Clock) -> None:
        self._store = store
        self._authenticator = access
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
        caller: Caller | None = None,
        act: Act | None = None,
    ) -> NewToken:
        """Make a token for a tenant, or for the operator. `by` gives only what it has: raises `Forbidden` otherwise.

        What a person makes, also with a token of theirs, is theirs.

        Raises `InvalidInput` or `TenantNotFound`.
        """
        checked = check_grants(grants)
        if caller is not None:
            for grant in checked:
                caller.require(grant.action, grant.resource)
            if tenant is None and not caller.is_operator:
                raise Forbidden("only an operator makes tokens for all tenants")
            limits, expires_at = _cap_to_caller(caller, limits, expires_at)
        return await self._create(
            credential_secrets.new_token(new_id()),
            act,
            tenant=tenant,
            description=check_length(
                check_text(description, name="description"), name="description", chars_max=DESCRIPTION_CHARS_MAX
            ),
            grants=checked,
            limits=_check_limits(limits),
            user=None if caller is None or caller.user is None else caller.user.id,
            created_by=None if caller is None else caller.principal,
            expires_at=self._check_expiry(expires_at),
        )

    async def ensure_operator_token(self, given: str | None) -> NewToken | None:
        """The operator's token, made when there is none, or the given one; `None` when there is one already."""
        if given is not None:
            token_id = credential_secrets.parse_token_id(given)
            if token_id is None:
                raise InvalidInput(
                    "the operator's token is not written as a token is",
                    hint="Leave INGOT_OPERATOR_TOKEN out: the first start makes one and writes it to operator.token.",
                )
            if await self._store.run(FindToken(token_id=token_id)) is not None:
                return None
        elif await self._store.run(ListTokens(tenant=None, before=None, limit=1)):
            return None
        full = given or credential_secrets.new_token(new_id())
        return await self._create(full, None, tenant=None, description="the first operator", grants=(GRANT_ALL,))

    async def _create(self, full: str, act: Act | None, **known: Any) -> NewToken:
        token = Token(
            id=credential_secrets.parse_token_id(full) or "",
            ending=credential_secrets.ending(full),
            created_at=to_datetime(self._clock.micros()),
            **known,
        )
        kept = await self._store.run(CreateToken(token=token, digest=credential_secrets.digest(full), act=new_act(act)))
        return NewToken(token=kept, text=full)

    async def revoke_token(
        self, tenant: str | None, token_id: str, *, user: str | None = None, act: Act | None = None
    ) -> Token:
        """End a token of a tenant, or of any; with a `user` only one of theirs. Raises `TokenNotFound`.

        It ends here at once, and elsewhere within seconds.
        """
        if not is_id(check_text(token_id, name="token id")):
            raise TokenNotFound(f"there is no token {token_id[:64]!r}")
        if user is not None and (await self.get_token(tenant, token_id)).user != user:
            raise TokenNotFound(f"there is no token {token_id!r} of yours")
        return await self._authenticator.change(RevokeToken(id=token_id, tenant=tenant, act=new_act(act)))

    async def get_token(self, tenant: str | None, token_id: str) -> Token:
        """The token with this id, of a tenant or of any. Raises `TokenNotFound`."""
        found = (
            await self._store.run(FindToken(token_id=token_id))
            if is_id(check_text(token_id, name="token id"))
            else None
        )
        if found is None or tenant not in (None, found.token.tenant):
            raise TokenNotFound(f"there is no token {token_id[:64]!r}")
        return found.token

    async def list_tokens(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[Token]:
        """A page of the tokens of a tenant, or of the operator's, newest first."""
        bound_to = ("tokens", tenant)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        found = await self._store.run(ListTokens(tenant=tenant, before=before, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    async def list_user_tokens(
        self, user: str, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[Token]:
        """A page of the tokens that a person made, in all tenants, newest first."""
        bound_to = ("tokens of", user)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        found = await self._store.run(ListUserTokens(user=user, before=before, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    # -- workers --------------------------------------------------------------------------------------------

    async def create_worker_credential(
        self,
        tenant: str | None,
        credential_id: str,
        *,
        types: list[str] | tuple[str, ...] = (),
        caller: Caller | None = None,
        act: Act | None = None,
    ) -> NewWorkerCredential:
        """Make a credential for workers of a tenant, or a shared one. `by` gives only what it has.

        Raises `CredentialExists`, `InvalidInput` or `Forbidden`.
        """
        if caller is not None:
            _require_run_grants(caller, _check_types(types))
        secret = credential_secrets.new_secret(credential_secrets.WORKER_PREFIX)
        credential = WorkerCredential(
            id=_check_new_credential_id(credential_id),
            tenant=tenant,
            types=_check_types(types),
            ending=credential_secrets.ending(secret),
            created_at=to_datetime(self._clock.micros()),
            created_by=None if caller is None else caller.principal,
        )
        command = CreateWorkerCredential(
            credential=credential, digest=credential_secrets.digest(secret), act=new_act(act)
        )
        return NewWorkerCredential(credential=await self._store.run(command), secret=secret)

    async def get_worker_credential(self, tenant: str | None, credential_id: str) -> WorkerCredential:
        """The credential with this id, of a tenant or of any. Raises `CredentialNotFound`."""
        found = await self._store.run(FindWorkerCredential(credential_id=_check_credential_id(credential_id)))
        if found is None or tenant not in (None, found.credential.tenant):
            raise CredentialNotFound(f"there is no worker credential {credential_id[:64]!r}")
        return found.credential

    async def regenerate_worker_credential(
        self, tenant: str | None, credential_id: str, *, caller: Caller | None = None, act: Act | None = None
    ) -> NewWorkerCredential:
        """Give a credential another secret; the old one ends. `by` gets one only for what it may run itself.

        Raises `CredentialNotFound` or `Forbidden`.
        """
        known = await self._store.run(FindWorkerCredential(credential_id=_check_credential_id(credential_id)))
        if caller is not None and known is not None and tenant in (None, known.credential.tenant):
            _require_run_grants(caller, known.credential.types)
        secret = credential_secrets.new_secret(credential_secrets.WORKER_PREFIX)
        changed = await self._authenticator.change(
            ChangeWorkerCredential(
                id=_check_credential_id(credential_id),
                tenant=tenant,
                digest=credential_secrets.digest(secret),
                ending=credential_secrets.ending(secret),
                act=new_act(act),
            )
        )
        return NewWorkerCredential(credential=changed, secret=secret)

    async def enable_worker_credential(
        self, tenant: str | None, credential_id: str, *, enabled: bool, act: Act | None = None
    ) -> WorkerCredential:
        """Let the workers of a credential in, or out: what they run is given back. Raises `CredentialNotFound`."""
        return await self._authenticator.change(
            ChangeWorkerCredential(
                id=_check_credential_id(credential_id), tenant=tenant, enabled=enabled, act=new_act(act)
            )
        )

    async def list_worker_credentials(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[WorkerCredential]:
        """A page of the credentials of a tenant, or of the shared ones, by id."""
        bound_to = ("worker credentials", tenant)
        after = decode_cursor_position(cursor, bound_to=bound_to, is_valid=_is_credential_id)
        found = await self._store.run(ListWorkerCredentials(tenant=tenant, after=after, limit=check_limit(limit)))
        return page_by_id(found, limit=limit, bound_to=bound_to)

    def _check_expiry(self, moment: datetime | None) -> datetime | None:
        if moment is None:
            return None
        if moment.tzinfo is None:
            raise InvalidInput("expires_at has no offset", hint="Write it as 2027-01-31T12:00:00Z.")
        if to_micros(moment) <= self._clock.micros():
            raise InvalidInput("expires_at is in the past")
        return moment.astimezone(UTC)


def _check_limits(limits: TokenLimits) -> TokenLimits:
    if limits.rate is not None:
        check_number(limits.rate, name="limits.rate", minimum=0, maximum=NUMBER_MAX)
    if limits.burst is not None:
        check_integer(limits.burst, name="limits.burst", minimum=1, maximum=NUMBER_MAX)
    if limits.quota_bytes is not None:
        check_integer(limits.quota_bytes, name="limits.quota_bytes", minimum=0, maximum=NUMBER_MAX)
    return limits


def _cap_to_caller(by: Caller, limits: TokenLimits, expires_at: datetime | None) -> tuple[TokenLimits, datetime | None]:
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


def _require_run_grants(by: Caller, types: tuple[str, ...]) -> None:
    """Raises `Forbidden` unless a caller may itself run what workers for these types may; for none of them, all."""
    for resource in [f"jobs/{type}" for type in types] or [ANY]:
        by.require("workers.run", resource)


def _check_new_credential_id(value: object) -> str:
    if not _CREDENTIAL_ID.fullmatch(check_text(value, name="worker id", hint=CREDENTIAL_HINT)):
        raise InvalidInput(f"the worker id {str(value)[:64]!r} is not usable", hint=CREDENTIAL_HINT)
    return str(value)


def _is_credential_id(value: str) -> bool:
    return _CREDENTIAL_ID.fullmatch(value) is not None


def _check_credential_id(value: object) -> str:
    if not _CREDENTIAL_ID.fullmatch(check_text(value, name="worker id")):
        raise CredentialNotFound(f"there is no worker credential {str(value)[:64]!r}")
    return str(value)


def _check_types(value: object) -> tuple[str, ...]:
    types = check_list(value, name="types")
    if len(types) > TYPES_MAX:
        raise InvalidInput(f"there are {len(types)} types; it goes up to {TYPES_MAX}")
    return tuple(
        check_storable(check_length(check_text(one, name="type"), name="type", chars_max=TYPE_CHARS_MAX), name="type")
        for one in types
    )
