"""Requests and answers of those who run the place."""

from __future__ import annotations

from typing import Annotated

from ingot.identity.credentials import Token, TokenLimits, WorkerCredential
from ingot.identity.grants import GRANTS_MAX, Grant
from ingot.identity.model import WEIGHT_MAX, Limits
from ingot.identity.people import Role
from ingot.identity.tokens import DESCRIPTION_CHARS_MAX, TYPE_CHARS_MAX, TYPES_MAX
from ingot.jobs import checks
from ingot.jobs.model import (
    CRASH_CAP_DEFAULT,
    MAX_ATTEMPTS_DEFAULT,
    PRIORITY_DEFAULT,
    TIMEOUT_SECONDS_DEFAULT,
    Backoff,
)
from ingot.kernel.pages import PAGE_ROWS_DEFAULT
from ingot.kernel.values import NUMBER_MAX
from ingot.wire.jobs import Limit, Request
from ingot.wire.values import Attempts, CredentialId, Moment, Priority, Slug, between, text_up_to, up_to

Weight = Annotated[int, between(1, WEIGHT_MAX)]
Timeout = Annotated[float, between(0.001, checks.SECONDS_MAX)]
Running = Annotated[int, between(1, checks.RUNNING_MAX)]
Version = Annotated[int, between(1, NUMBER_MAX)]
Retention = Annotated[float, between(0, checks.RETENTION_SECONDS_MAX)]
Description = Annotated[str, text_up_to(DESCRIPTION_CHARS_MAX)]
Grants = Annotated[list[Grant], up_to(GRANTS_MAX, least=1)]
Types = Annotated[tuple[Annotated[str, text_up_to(TYPE_CHARS_MAX)], ...], up_to(TYPES_MAX)]


class PageQuery(Request, frozen=True, kw_only=True):
    """Where to go on, and how far."""

    cursor: str | None = None
    limit: Limit = PAGE_ROWS_DEFAULT


class TokensQuery(PageQuery, frozen=True, kw_only=True):
    """Which tokens to list."""

    operator: bool = False


class WorkersQuery(PageQuery, frozen=True, kw_only=True):
    """Which worker credentials to list."""

    shared: bool = False


class NewTenant(Request, frozen=True, kw_only=True):
    """A tenant to be made."""

    slug: Slug
    weight: Weight = 1
    time_zone: str = "UTC"
    limits: Limits = Limits()
    groups: dict[str, Role] | None = None


class TenantChange(Request, frozen=True, kw_only=True):
    """What to change of a tenant; what is left out stays."""

    slug: Slug | None = None
    weight: Weight | None = None
    time_zone: str | None = None
    limits: Limits | None = None
    groups: dict[str, Role] | None = None


class DefinitionBody(Request, frozen=True, kw_only=True):
    """What jobs of a type get. With `shared`, which needs an operator, it holds for all tenants."""

    shared: bool = False
    timeout_seconds: Timeout = TIMEOUT_SECONDS_DEFAULT
    max_attempts: Attempts = MAX_ATTEMPTS_DEFAULT
    crash_cap: Attempts = CRASH_CAP_DEFAULT
    priority: Priority = PRIORITY_DEFAULT
    backoff: Backoff = Backoff()
    max_running: Running | None = None
    limit_key: str | None = None
    max_running_per_key: Running | None = None
    reuse: bool = False
    version: Version = 1
    retention_seconds: Retention | None = None
    keep_history: bool = False


class TokenOrder(Request, frozen=True, kw_only=True):
    """A token to be made. With `operator`, which needs one, it acts in every tenant."""

    description: Description
    grants: Grants
    limits: TokenLimits = TokenLimits()
    expires_at: Moment | None = None
    operator: bool = False


class TokenShown(Token, frozen=True, kw_only=True):
    """A token with its text, which is shown this once."""

    token: str


class WorkerOrder(Request, frozen=True, kw_only=True):
    """A worker credential to be made. With `shared`, which needs an operator, it serves every tenant."""

    id: CredentialId
    types: Types = ()
    shared: bool = False


class WorkerShown(WorkerCredential, frozen=True, kw_only=True):
    """A worker credential with its secret, which is shown this once."""

    secret: str
