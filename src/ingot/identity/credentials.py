"""Credentials: tokens of programs, secrets of workers, and the callers they make."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from ingot.identity.grants import ANY, Grant, allows
from ingot.identity.people import Session, TenantRole, User
from ingot.kernel.errors import Conflict, IngotError, NotFound


class Unauthorized(IngotError):
    """The credential is missing or does not hold."""

    code = "unauthorized"
    status = 401
    hint = (
        "Send `Authorization: Bearer ingot_…`, or X-Worker-ID and X-Worker-Secret; people sign in at /auth/login. "
        "The operator's token is in data/operator.token where the server runs."
    )


class SessionStale(Unauthorized):
    """What the provider said of the person is too old."""

    code = "session_stale"
    hint = "Load the page again: the provider is asked anew, and asks nothing itself of who is signed in there."


class Forbidden(IngotError):
    """The credential does not allow this."""

    code = "forbidden"
    status = 403
    hint = "Ask for a token with a grant for this action and resource."


class TokenNotFound(NotFound):
    """There is no such token."""

    code = "token_not_found"


class CredentialNotFound(NotFound):
    """There is no such worker credential."""

    code = "worker_credential_not_found"


class CredentialExists(Conflict):
    """A worker credential with this id exists already."""

    code = "worker_credential_exists"
    hint = "Choose another id, or regenerate the secret of the one that is there."


class TokenLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How many requests a token may make in a second, and how many at once after a while without any.

    `quota_bytes` is how many bytes of blobs it may keep in its tenant.
    """

    rate: float | None = None
    """Maximum number of requests per second."""
    burst: int | None = None
    """Maximum number of requests at once after a pause."""
    quota_bytes: int | None = None
    """Maximum number of bytes of blobs that the token may keep in its tenant."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a token. Its text is shown once, when it is made; `ending` are the last letters of it.

    A token with no tenant is the operator's: it acts in any tenant. One with a `user` was made by a person, never does
    more than they may, and ends with them.
    """

    id: str
    """ID of the token."""
    tenant: str | None
    """ID of the tenant; `null` for an operator token."""
    description: str
    """What the token is for."""
    grants: tuple[Grant, ...]
    """What the token allows."""
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
    """What a worker proves itself with. One with no tenant is shared, and serves every tenant in turn.

    With `types` it may only run jobs of these; with none, of all.
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
    """Who is asking. `tenant` is `None` for who acts in every tenant: an operator, or a shared worker.

    It is empty for a person in no tenant: who has no role in any, or has not said in which of theirs. `user` is the
    person, also behind a token of theirs, and `session` the one they are signed in with.
    """

    id: str
    kind: Literal["token", "worker", "user"]
    tenant: str | None
    grants: tuple[Grant, ...]
    user: User | None = None
    roles: tuple[TenantRole, ...] = ()
    session: Session | None = None
    types: tuple[str, ...] = ()  # Of a worker: what it may run; all when there are none.
    limits: TokenLimits = TokenLimits()
    expires_at: datetime | None = None
    label: str | None = None  # How people know it.

    @property
    def principal(self) -> str:
        """How the caller stands in what it made."""
        return f"{self.kind}:{self.id}"

    @property
    def is_operator(self) -> bool:
        """Whether it may act in every tenant, and makes what holds for all."""
        return self.tenant is None and self.kind != "worker"

    def may(self, action: str, resource: str = ANY) -> bool:
        """Whether its grants allow this."""
        return allows(self.grants, action, resource)

    def has_grant_for(self, action: str) -> bool:
        """Whether its grants allow this on anything at all."""
        return any(grant.covers(action, grant.resource) for grant in self.grants)

    def require(self, action: str, resource: str = ANY) -> None:
        """Raises `Forbidden` unless its grants allow this."""
        if not self.may(action, resource):
            raise self.missing_grant_error(f"{action} on {resource[:64]}")

    def missing_grant_error(self, what: str) -> Forbidden:
        """That it has no grant for this, and who can help: people have roles, and their tokens no more than they."""
        if self.kind == "user":
            return Forbidden(
                f"your role has no grant for {what}",
                hint="Ask an admin of the tenant for another role, or an operator.",
            )
        if self.user is not None:
            return Forbidden(
                f"the token, or the person whose it is, has no grant for {what}",
                hint="A token does no more than its person may at that moment. GET /api/v1/me says what it may.",
            )
        return Forbidden(f"the credential has no grant for {what}")
