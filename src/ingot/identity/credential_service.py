"""Creating, listing, changing and revoking tokens and worker credentials."""

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
    """A new token with its text, which is shown only once."""

    token: Token
    text: str


class NewWorkerCredential(NoRepr, frozen=True, kw_only=True):
    """A worker credential with its new secret, which is shown only once."""

    credential: WorkerCredential
    secret: str


class Credentials:
    """The service for tokens and worker credentials."""

    def __init__(self, store: Store, authenticator: Authenticator, clock: Clock) -> None:
        self._store = store
        self._authenticator = authenticator
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
        """Create a token for a tenant, or for operators if `tenant` is `None`.

        A token never permits more than `caller`, and inherits its limits and expiry. If the caller is a person, or a
        token of a person, the new token belongs to that person. Raises `InvalidInput`, `TenantNotFound` or `Forbidden`.
        """
        checked = check_grants(grants)
        if caller is not None:
            for grant in checked:
                caller.require(grant.action, grant.resource)
            if tenant is None and not caller.is_operator:
                raise Forbidden("only an operator can create tokens for all tenants")
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

    async def ensure_operator_token(self, configured: str | None) -> NewToken | None:
        """Create an operator token if there is none, or the configured one if it is missing.

        Returns `None` if the token exists already. Raises `InvalidInput` if the configured text is not a token.
        """
        if configured is not None:
            token_id = credential_secrets.parse_token_id(configured)
            if token_id is None:
                raise InvalidInput(
                    "INGOT_OPERATOR_TOKEN is not a valid token",
                    hint="Remove INGOT_OPERATOR_TOKEN. The first start then writes a new token to operator.token.",
                )
            if await self._store.run(FindToken(token_id=token_id)) is not None:
                return None
        elif await self._store.run(ListTokens(tenant=None, before=None, limit=1)):
            return None
        text = configured or credential_secrets.new_token(new_id())
        return await self._create(text, None, tenant=None, description="the first operator", grants=(GRANT_ALL,))

    async def _create(self, text: str, act: Act | None, **fields: Any) -> NewToken:
        token = Token(
            id=credential_secrets.parse_token_id(text) or "",
            ending=credential_secrets.ending(text),
            created_at=to_datetime(self._clock.micros()),
            **fields,
        )
        created = await self._store.run(
            CreateToken(token=token, digest=credential_secrets.digest(text), act=new_act(act))
        )
        return NewToken(token=created, text=text)

    async def revoke_token(
        self, tenant: str | None, token_id: str, *, user: str | None = None, act: Act | None = None
    ) -> Token:
        """Revoke a token of a tenant, or of any tenant if `tenant` is `None`; with `user`, only a token of that person.

        This process rejects the token at once, and others within seconds. Raises `TokenNotFound`.
        """
        if not is_id(check_text(token_id, name="token ID")):
            raise TokenNotFound(f"there is no token {token_id[:64]!r}")
        if user is not None and (await self.get_token(tenant, token_id)).user != user:
            raise TokenNotFound(f"you have no token {token_id!r}")
        return await self._authenticator.run_and_invalidate(RevokeToken(id=token_id, tenant=tenant, act=new_act(act)))

    async def get_token(self, tenant: str | None, token_id: str) -> Token:
        """Return the token with this ID, of a tenant or of any if `tenant` is `None`. Raises `TokenNotFound`."""
        stored = (
            await self._store.run(FindToken(token_id=token_id))
            if is_id(check_text(token_id, name="token ID"))
            else None
        )
        if stored is None or tenant not in (None, stored.token.tenant):
            raise TokenNotFound(f"there is no token {token_id[:64]!r}")
        return stored.token

    async def list_tokens(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[Token]:
        """List the tokens of a tenant, or those of operators if `tenant` is `None`, newest first."""
        bound_to = ("tokens", tenant)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        tokens = await self._store.run(ListTokens(tenant=tenant, before=before, limit=check_limit(limit)))
        return page_by_id(tokens, limit=limit, bound_to=bound_to)

    async def list_user_tokens(
        self, user: str, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[Token]:
        """List the tokens of a person in all tenants, newest first."""
        bound_to = ("tokens of", user)
        before = decode_cursor_position(cursor, bound_to=bound_to)
        tokens = await self._store.run(ListUserTokens(user=user, before=before, limit=check_limit(limit)))
        return page_by_id(tokens, limit=limit, bound_to=bound_to)

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
        """Create a worker credential of a tenant, or a shared one if `tenant` is `None`.

        `caller` needs grants to run jobs of all these types itself, and must have no limits and no expiry, because
        worker credentials have none. Raises `CredentialExists`, `InvalidInput` or `Forbidden`.
        """
        if caller is not None:
            _require_run_grants(caller, _check_types(types))
            _require_unlimited(caller)
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
        """Return the credential with this ID, of a tenant or of any if `tenant` is `None`.

        Raises `CredentialNotFound`.
        """
        stored = await self._store.run(FindWorkerCredential(credential_id=_check_credential_id(credential_id)))
        if stored is None or tenant not in (None, stored.credential.tenant):
            raise CredentialNotFound(f"there is no worker credential {credential_id[:64]!r}")
        return stored.credential

    async def regenerate_worker_credential(
        self, tenant: str | None, credential_id: str, *, caller: Caller | None = None, act: Act | None = None
    ) -> NewWorkerCredential:
        """Replace the secret of a credential. The old secret is rejected from then on.

        `caller` must be able to create such a credential. Raises `CredentialNotFound` or `Forbidden`.
        """
        stored = await self._store.run(FindWorkerCredential(credential_id=_check_credential_id(credential_id)))
        if caller is not None and stored is not None and tenant in (None, stored.credential.tenant):
            _require_run_grants(caller, stored.credential.types)
            _require_unlimited(caller)
        secret = credential_secrets.new_secret(credential_secrets.WORKER_PREFIX)
        credential = await self._authenticator.run_and_invalidate(
            ChangeWorkerCredential(
                id=_check_credential_id(credential_id),
                tenant=tenant,
                digest=credential_secrets.digest(secret),
                ending=credential_secrets.ending(secret),
                act=new_act(act),
            )
        )
        return NewWorkerCredential(credential=credential, secret=secret)

    async def enable_worker_credential(
        self, tenant: str | None, credential_id: str, *, enabled: bool, act: Act | None = None
    ) -> WorkerCredential:
        """Enable or disable a credential. Disabling releases the jobs of its workers. Raises `CredentialNotFound`."""
        return await self._authenticator.run_and_invalidate(
            ChangeWorkerCredential(
                id=_check_credential_id(credential_id), tenant=tenant, enabled=enabled, act=new_act(act)
            )
        )

    async def list_worker_credentials(
        self, tenant: str | None, *, cursor: str | None = None, limit: int = PAGE_ROWS_DEFAULT
    ) -> Page[WorkerCredential]:
        """List the worker credentials of a tenant, or the shared ones if `tenant` is `None`, by ID."""
        bound_to = ("worker credentials", tenant)
        after = decode_cursor_position(cursor, bound_to=bound_to, is_valid=_is_credential_id)
        credentials = await self._store.run(ListWorkerCredentials(tenant=tenant, after=after, limit=check_limit(limit)))
        return page_by_id(credentials, limit=limit, bound_to=bound_to)

    def _check_expiry(self, moment: datetime | None) -> datetime | None:
        if moment is None:
            return None
        if moment.tzinfo is None:
            raise InvalidInput("expires_at has no UTC offset", hint="Write it as 2027-01-31T12:00:00Z.")
        if to_micros(moment) <= self._clock.micros():
            raise InvalidInput(f"expires_at must be in the future, got {moment.isoformat()}")
        return moment.astimezone(UTC)


def _check_limits(limits: TokenLimits) -> TokenLimits:
    if limits.rate is not None:
        check_number(limits.rate, name="limits.rate", minimum=0, maximum=NUMBER_MAX)
    if limits.burst is not None:
        check_integer(limits.burst, name="limits.burst", minimum=1, maximum=NUMBER_MAX)
    if limits.quota_bytes is not None:
        check_integer(limits.quota_bytes, name="limits.quota_bytes", minimum=0, maximum=NUMBER_MAX)
    return limits


def _cap_to_caller(
    caller: Caller, limits: TokenLimits, expires_at: datetime | None
) -> tuple[TokenLimits, datetime | None]:
    """Return the limits and expiry of a token that `caller` creates. Values that are not set are those of the caller.

    Raises `Forbidden` for values beyond those of the caller.
    """
    if caller.expires_at is not None:
        if expires_at is not None and expires_at > caller.expires_at:
            raise Forbidden(
                f"a token cannot expire later than the one that creates it: {caller.expires_at.isoformat()}",
                hint="Set an earlier expires_at, or leave it out.",
            )
        expires_at = expires_at or caller.expires_at
    limits = _cap_rate(caller.limits, limits)
    if caller.limits.quota_bytes is not None:
        if limits.quota_bytes is not None and limits.quota_bytes > caller.limits.quota_bytes:
            raise Forbidden(
                f"a token cannot have a higher quota than the one that creates it: {caller.limits.quota_bytes} bytes",
                hint="Set a lower limits.quota_bytes, or leave it out.",
            )
        if limits.quota_bytes is None:
            limits = msgspec.structs.replace(limits, quota_bytes=caller.limits.quota_bytes)
    return limits, expires_at


def _cap_rate(own: TokenLimits, limits: TokenLimits) -> TokenLimits:
    """Return limits whose rate and burst are within those of the caller that creates a token.

    Raises `Forbidden` if they were set to higher values.
    """
    if own.rate is None:
        return limits
    if limits.rate is not None and limits.rate > own.rate:
        raise Forbidden(
            f"a token cannot have a higher rate than the one that creates it: {own.rate:g}",
            hint="Set a lower limits.rate, or leave it out.",
        )
    if limits.burst is not None and limits.burst > own.effective_burst:
        raise Forbidden(
            f"a token cannot have a larger burst than the one that creates it: {own.effective_burst:g}",
            hint="Set a smaller limits.burst, or leave it out.",
        )
    if limits.rate is None:
        return msgspec.structs.replace(limits, rate=own.rate, burst=limits.burst or own.burst)
    if limits.effective_burst > own.effective_burst:
        return msgspec.structs.replace(limits, burst=own.burst)
    return limits


def _require_unlimited(caller: Caller) -> None:
    """Raise `Forbidden` for a caller with limits or an expiry, which a worker credential cannot have."""
    if caller.limits != NO_LIMITS or caller.expires_at is not None:
        raise Forbidden(
            "a caller with limits or an expiry cannot create secrets of workers, because these have neither",
            hint="Use a token without limits and expires_at, or ask an admin of the tenant.",
        )


def _require_run_grants(caller: Caller, types: tuple[str, ...]) -> None:
    """Raise `Forbidden` unless the caller may run jobs of these types, or of all types if there are none."""
    for resource in [f"jobs/{type}" for type in types] or [ANY]:
        caller.require("workers.run", resource)


def _check_new_credential_id(value: object) -> str:
    if not _CREDENTIAL_ID.fullmatch(check_text(value, name="worker ID", hint=CREDENTIAL_HINT)):
        raise InvalidInput(f"the worker ID {str(value)[:64]!r} is not valid", hint=CREDENTIAL_HINT)
    return str(value)


def _is_credential_id(value: str) -> bool:
    return _CREDENTIAL_ID.fullmatch(value) is not None


def _check_credential_id(value: object) -> str:
    if not _CREDENTIAL_ID.fullmatch(check_text(value, name="worker ID")):
        raise CredentialNotFound(f"there is no worker credential {str(value)[:64]!r}")
    return str(value)


def _check_types(value: object) -> tuple[str, ...]:
    types = check_list(value, name="types")
    if len(types) > TYPES_MAX:
        raise InvalidInput(f"types must have at most {TYPES_MAX} elements, got {len(types)}")
    return tuple(
        check_storable(check_length(check_text(type, name="type"), name="type", chars_max=TYPE_CHARS_MAX), name="type")
        for type in types
    )
