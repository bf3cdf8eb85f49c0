"""Requests and responses of administration: tenants, definitions, tokens and worker credentials."""

from __future__ import annotations

from typing import Annotated

from ingot.identity.credential_service import DESCRIPTION_CHARS_MAX, TYPE_CHARS_MAX, TYPES_MAX
from ingot.identity.credentials import Token, TokenLimits, WorkerCredential
from ingot.identity.grants import GRANTS_MAX, Grant
from ingot.identity.model import WEIGHT_MAX, Limits
from ingot.identity.people import Role
from ingot.jobs import checks
from ingot.jobs.model import (
    CRASH_CAP_DEFAULT,
    MAX_ATTEMPTS_DEFAULT,
    PRIORITY_DEFAULT,
    TIMEOUT_SECONDS_DEFAULT,
    Backoff,
)
from ingot.kernel.pages import PAGE_ROWS_DEFAULT
from ingot.kernel.validation import NUMBER_MAX
from ingot.wire.field_types import (
    AttemptCount,
    CredentialId,
    Priority,
    Slug,
    Timestamp,
    between,
    entries_up_to,
    text_up_to,
)
from ingot.wire.jobs import PageLimit, RequestStruct

Weight = Annotated[int, between(1, WEIGHT_MAX)]
TimeoutSeconds = Annotated[float, between(0.001, checks.SECONDS_MAX)]
RunningLimit = Annotated[int, between(1, checks.RUNNING_MAX)]
DefinitionVersion = Annotated[int, between(1, NUMBER_MAX)]
RetentionSeconds = Annotated[float, between(0, checks.RETENTION_SECONDS_MAX)]
Description = Annotated[str, text_up_to(DESCRIPTION_CHARS_MAX)]
GrantList = Annotated[list[Grant], entries_up_to(GRANTS_MAX, least=1)]
CredentialTypes = Annotated[tuple[Annotated[str, text_up_to(TYPE_CHARS_MAX)], ...], entries_up_to(TYPES_MAX)]


class PageQuery(RequestStruct, frozen=True, kw_only=True):
    """A page of a list."""

    cursor: str | None = None
    """The `next_cursor` of the previous response, to continue the list."""
    limit: PageLimit = PAGE_ROWS_DEFAULT
    """Maximum number of items."""


class TokensQuery(PageQuery, frozen=True, kw_only=True):
    """The tokens to list."""

    operator: bool = False
    """Whether to list the operator tokens instead. Operators only."""


class WorkerCredentialsQuery(PageQuery, frozen=True, kw_only=True):
    """The worker credentials to list."""

    shared: bool = False
    """Whether to list the credentials of shared workers instead. Operators only."""


class CreateTenantRequest(RequestStruct, frozen=True, kw_only=True):
    """A new tenant."""

    slug: Slug
    """Readable name of the tenant, as used in the header `Ingot-Tenant`."""
    weight: Weight = 1
    """Share of worker capacity relative to other tenants: weight 2 gets twice as many turns as weight 1."""
    time_zone: str = "UTC"
    """Time zone of the tenant, such as `Europe/Vienna`."""
    limits: Limits = Limits()
    """Limits of the tenant."""
    groups: dict[str, Role] | None = None
    """Groups of the identity provider, each with the role that its people get in the tenant."""


class ChangeTenantRequest(RequestStruct, frozen=True, kw_only=True):
    """Changes of a tenant. Fields that are left out stay as they are."""

    slug: Slug | None = None
    """Readable name of the tenant, as used in the header `Ingot-Tenant`."""
    weight: Weight | None = None
    """Share of worker capacity relative to other tenants: weight 2 gets twice as many turns as weight 1."""
    time_zone: str | None = None
    """Time zone of the tenant, such as `Europe/Vienna`."""
    limits: Limits | None = None
    """Limits of the tenant. They replace all previous limits."""
    groups: dict[str, Role] | None = None
    """Groups of the identity provider, each with the role that its people get in the tenant."""


class PutDefinitionRequest(RequestStruct, frozen=True, kw_only=True):
    """The definition of a job type: defaults and limits of its jobs."""

    shared: bool = False
    """Whether the definition applies to all tenants. Operators only."""
    timeout_seconds: TimeoutSeconds = TIMEOUT_SECONDS_DEFAULT
    """Maximum duration of an attempt in seconds. The worker enforces it."""
    max_attempts: AttemptCount = MAX_ATTEMPTS_DEFAULT
    """Number of failures after which a job is dead."""
    crash_cap: AttemptCount = CRASH_CAP_DEFAULT
    """Number of crashes after which a job is dead."""
    priority: Priority = PRIORITY_DEFAULT
    """Default priority, from 1 (critical) to 5 (background)."""
    backoff: Backoff = Backoff()
    """Pause before the next attempt after a failure."""
    max_running: RunningLimit | None = None
    """Maximum number of jobs of this type that run at once in a tenant."""
    limit_key: str | None = None
    """Template of payload fields, such as `{account.id}`. Jobs with the same values share a limit."""
    max_running_per_key: RunningLimit | None = None
    """Maximum number of jobs with the same `limit_key` that run at once."""
    reuse: bool = False
    """Whether a request for the same work returns the existing job."""
    version: DefinitionVersion = 1
    """Version of the work. Jobs are only reused under the same version."""
    retention_seconds: RetentionSeconds | None = None
    """How long finished jobs are kept, in seconds; `null` to use the limit of the tenant."""
    keep_history: bool = False
    """Whether to keep a short entry about each removed job."""


class CreateTokenRequest(RequestStruct, frozen=True, kw_only=True):
    """A new token."""

    description: Description
    """Purpose of the token."""
    grants: GrantList
    """Grants of the token."""
    limits: TokenLimits = TokenLimits()
    """Limits of the token."""
    expires_at: Timestamp | None = None
    """When the token expires; `null` for never."""
    operator: bool = False
    """Whether the token acts in all tenants. Operators only."""


class CreatedToken(Token, frozen=True, kw_only=True):
    """A created token with its text, which is shown only once."""

    token: str
    """The token, to be sent as `Authorization: Bearer`. It is shown only once."""


class CreateWorkerCredentialRequest(RequestStruct, frozen=True, kw_only=True):
    """A new worker credential."""

    id: CredentialId
    """ID of the credential. The IDs of its workers begin with it."""
    types: CredentialTypes = ()
    """Job types that its workers may run; all types if empty."""
    shared: bool = False
    """Whether its workers serve all tenants. Operators only."""


class WorkerCredentialWithSecret(WorkerCredential, frozen=True, kw_only=True):
    """A worker credential with its secret, which is shown only once."""

    secret: str
    """The secret, to be sent as `X-Worker-Secret`. It is shown only once."""
