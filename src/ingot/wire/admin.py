"""Requests and answers of those who run the place."""

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
    """Where to go on, and how far."""

    cursor: str | None = None
    limit: PageLimit = PAGE_ROWS_DEFAULT


class TokensQuery(PageQuery, frozen=True, kw_only=True):
    """Which tokens to list."""

    operator: bool = False


class WorkerCredentialsQuery(PageQuery, frozen=True, kw_only=True):
    """Which worker credentials to list."""

    shared: bool = False


class CreateTenantRequest(RequestStruct, frozen=True, kw_only=True):
    """A tenant to be made."""

    slug: Slug
    weight: Weight = 1
    time_zone: str = "UTC"
    limits: Limits = Limits()
    groups: dict[str, Role] | None = None


class ChangeTenantRequest(RequestStruct, frozen=True, kw_only=True):
    """What to change of a tenant; what is left out stays."""

    slug: Slug | None = None
    weight: Weight | None = None
    time_zone: str | None = None
    limits: Limits | None = None
    groups: dict[str, Role] | None = None


class PutDefinitionRequest(RequestStruct, frozen=True, kw_only=True):
    """What jobs of a type get. With `shared`, which needs an operator, it holds for all tenants."""

    shared: bool = False
    timeout_seconds: TimeoutSeconds = TIMEOUT_SECONDS_DEFAULT
    max_attempts: AttemptCount = MAX_ATTEMPTS_DEFAULT
    crash_cap: AttemptCount = CRASH_CAP_DEFAULT
    priority: Priority = PRIORITY_DEFAULT
    backoff: Backoff = Backoff()
    max_running: RunningLimit | None = None
    limit_key: str | None = None
    max_running_per_key: RunningLimit | None = None
    reuse: bool = False
    version: DefinitionVersion = 1
    retention_seconds: RetentionSeconds | None = None
    keep_history: bool = False


class CreateTokenRequest(RequestStruct, frozen=True, kw_only=True):
    """A token to be made. With `operator`, which needs one, it acts in every tenant."""

    description: Description
    grants: GrantList
    limits: TokenLimits = TokenLimits()
    expires_at: Timestamp | None = None
    operator: bool = False


class CreatedToken(Token, frozen=True, kw_only=True):
    """A token with its text, which is shown this once."""

    token: str


class CreateWorkerCredentialRequest(RequestStruct, frozen=True, kw_only=True):
    """A worker credential to be made. With `shared`, which needs an operator, it serves every tenant."""

    id: CredentialId
    types: CredentialTypes = ()
    shared: bool = False


class WorkerCredentialWithSecret(WorkerCredential, frozen=True, kw_only=True):
    """A worker credential with its secret, which is shown this once."""

    secret: str
