"""Credentials: tokens of programs, credentials of workers, and the callers that they identify."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from ingot.identity.grants import ANY, Grant, allows
from ingot.identity.people import Session, TenantRole, User
from ingot.kernel.errors import Conflict, IngotError, NotFound, TooMany

PERSON_TOKENS_MAX: Final = 100  # Valid tokens of one person in all tenants.
TENANT_TOKENS_MAX: Final = 10_000  # Valid tokens of one tenant, and of all operators.


class Unauthorized(IngotError):
    """The credential is missing or not valid."""

    code = "unauthorized"
    status = 401
    hint = (
        "Send `Authorization: Bearer ingot_…`, or X-Worker-ID and X-Worker-Secret. People sign in at /auth/login. "
        "The operator's token is in data/operator.token on the server."
    )


class SessionStale(Unauthorized):
    """The provider has to confirm the session again."""

    code = "session_stale"
    hint = "Reload the page. If you are still signed in at the provider, it redirects you back at once."


class Forbidden(IngotError):
    """The caller is not permitted to do this."""

    code = "forbidden"
    status = 403
    hint = "Use a token with a grant for this action and resource."


class TenantNotChosen(Forbidden):
    """The session acts in no tenant."""

    code = "tenant_not_chosen"
    hint = "Choose a tenant on the page /me or with POST /api/v1/me/tenants/{tenant}/choose."


class TooManyTokens(TooMany):
    """There are too many tokens that are neither revoked nor expired."""

    code = "too_many_tokens"
    hint = "Revoke tokens that are no longer needed. GET /api/v1/me/tokens and GET /api/v1/admin/tokens list them."


class TokenNotFound(NotFound):
    """There is no such token."""

    code = "token_not_found"


class CredentialNotFound(NotFound):
    """There is no such worker credential."""

    code = "worker_credential_not_found"


class CredentialExists(Conflict):
    """A worker credential with this ID already exists."""

    code = "worker_credential_exists"
    hint = "Choose another ID, or regenerate the secret of the existing credential."


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of a token: its requests per second, its requests at once after a pause, and its bytes of blobs."""

    rate: float | None = None
    """Maximum number of requests per second."""
    burst: int | None = None
    """Maximum number of requests at once after a pause."""
    quota_bytes: int | None = None
    """Maximum number of bytes of blobs that the token may keep in its tenant."""

    @property
    def effective_burst(self) -> float:
        """The burst that applies if there is a rate: by default the requests of one second, at least one."""
        return self.burst or max(1.0, self.rate or 0.0)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its text, which is shown only when the token is created. `ending` is the end of the text.

    A token without a tenant is an operator token, for all tenants. A token with a `user` belongs to that person: it
    never permits more than the person may do, and is revoked when the person is disabled.
    """

    id: str
    """ID of the token."""
    tenant: str | None
    """ID of the tenant; `null` for an operator token."""
    description: str
    """Purpose of the token."""
    grants: tuple[Grant, ...]
    """Grants of the token."""
    ending: str
    """Last characters of the token, to recognize it by."""
    created_at: datetime
    """When the token was created."""
    limits: TokenLimits = TokenLimits()
    """Limits of the token."""
    user: str | None = None
    """ID of the person who created the token. It never allows more than this person may do."""
    created_by: str | None = None
    """Caller that created the token, such as `token:` or `user:` and an ID."""
    expires_at: datetime | None = None
    """When the token expires; `null` if it does not."""
    last_used_at: datetime | None = None
    """When the token was last used."""
    revoked_at: datetime | None = None
    """When the token was revoked."""


class WorkerCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A worker credential without its secret. Workers of a credential without a tenant serve all tenants in turn.

    With `types`, workers may run only jobs of these types; otherwise of all types.
    """

    id: str
    """ID of the credential. The IDs of its workers begin with it."""
    tenant: str | None
    """ID of the tenant; `null` if the workers serve all tenants."""
    ending: str
    """Last characters of the secret, to recognize it by."""
    created_at: datetime
    """When the credential was created."""
    types: tuple[str, ...] = ()
    """Job types that its workers may run; all types if empty."""
    enabled: bool = True
    """Whether its workers can authenticate."""
    created_by: str | None = None
    """Caller that created the credential, such as `token:` or `user:` and an ID."""
    regenerated_at: datetime | None = None
    """When the secret was last replaced."""
    last_used_at: datetime | None = None
    """When the credential was last used."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The token, worker credential or person behind a request.

    `tenant` is `None` for a caller that acts in all tenants: an operator or a shared worker. It is empty for a person
    without a role in any tenant, and for a person with roles in several tenants who has not selected one. `user` is the
    signed-in person or the owner of the token, and `session` the session of a signed-in person.
    """

    id: str
    kind: Literal["token", "worker", "user"]
    tenant: str | None
    grants: tuple[Grant, ...]
    user: User | None = None
    roles: tuple[TenantRole, ...] = ()
    session: Session | None = None
    types: tuple[str, ...] = ()  # Job types that a worker may run; all types if empty.
    limits: TokenLimits = TokenLimits()
    expires_at: datetime | None = None
    label: str | None = None  # Name to show to people.

    @property
    def principal(self) -> str:
        """The name under which the caller is stored as the owner or author of something."""
        return f"{self.kind}:{self.id}"

    @property
    def is_operator(self) -> bool:
        """Whether the caller acts in all tenants and is not a worker."""
        return self.tenant is None and self.kind != "worker"

    def may(self, action: str, resource: str = ANY) -> bool:
        """Return whether the grants permit an action on a resource."""
        return allows(self.grants, action, resource)

    def has_grant_for(self, action: str) -> bool:
        """Return whether the grants permit an action on any resource."""
        return any(grant.covers(action, grant.resource) for grant in self.grants)

    def require(self, action: str, resource: str = ANY) -> None:
        """Raise `Forbidden` unless the grants permit an action on a resource."""
        if not self.may(action, resource):
            raise self.missing_grant_error(f"{action} on {resource[:64]}")

    def missing_grant_error(self, permission: str) -> Forbidden:
        """Return the error for a missing permission, with a hint that depends on the kind of the caller."""
        if self.kind == "user":
            return Forbidden(
                f"your role has no grant for {permission}",
                hint="Ask an admin of the tenant or an operator for another role.",
            )
        if self.user is not None:
            return Forbidden(
                f"the token or its owner has no grant for {permission}",
                hint="A token permits no more than its owner may do at that moment. GET /api/v1/me shows its grants.",
            )
        return Forbidden(f"the credential has no grant for {permission}")
