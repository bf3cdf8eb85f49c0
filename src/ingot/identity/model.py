"""Tenants and their limits."""

from __future__ import annotations

import msgspec

from ingot.identity.people import Role
from ingot.kernel.errors import Conflict, NotFound

WEIGHT_DEFAULT = 1
WEIGHT_MAX = 1000
JOB_TYPES_DEFAULT = 10_000  # Far more than people use. Only types that contain an ID or a time reach it.
FRACTIONAL_LIMITS = frozenset({"rate", "query_seconds", "retention_seconds"})


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The limits of a tenant. `None` means no limit, except for `max_job_types`.

    `rate` is the number of jobs that it may enqueue per second, and `burst` the number at once after a pause, by
    default the number of one second. `retention_seconds` applies to finished jobs whose definition has no retention.
    """

    rate: float | None = None
    """Maximum number of jobs that the tenant can enqueue per second."""
    burst: int | None = None
    """Maximum number of jobs that the tenant can enqueue at once after a pause. The default is one second of `rate`."""
    quota_bytes: int | None = None
    """Maximum number of bytes of blobs that the tenant can keep."""
    max_unfinished_jobs: int | None = None
    """Maximum number of unfinished jobs."""
    max_job_types: int | None = None
    """Maximum number of types of which the tenant can have jobs. The default is 10,000."""
    max_running_jobs: int | None = None
    """Maximum number of jobs that run at once."""
    query_seconds: float | None = None
    """Maximum duration of a document query in seconds."""
    query_rows: int | None = None
    """Maximum number of rows that a document query returns."""
    query_bytes: int | None = None
    """Maximum number of bytes that a document query returns."""
    retention_seconds: float | None = None
    """How long finished jobs are kept, in seconds, unless the definition of their type sets it."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """The unit of isolation: every row, blob, document and event belongs to exactly one tenant.

    `groups` maps groups of the identity provider to the roles of their members in this tenant.
    """

    id: str
    """ID of the tenant."""
    slug: str
    """Readable name of the tenant, as used in the header `Ingot-Tenant`."""
    weight: int = WEIGHT_DEFAULT
    """Share of worker capacity relative to other tenants: weight 2 gets twice as many turns as weight 1."""
    time_zone: str = "UTC"
    """Time zone of the tenant, such as `Europe/Vienna`."""
    limits: Limits = Limits()
    """Limits of the tenant."""
    groups: dict[str, Role] = {}
    """Groups of the identity provider, each with the role that its people have in the tenant."""


class TenantNotFound(NotFound):
    """There is no such tenant."""

    code = "tenant_not_found"
    hint = (
        "HTTP requests use the slug of a tenant; POST /api/v1/admin/tenants creates one. "
        "Python calls use the ID of a tenant, which `tenants.get(slug)` returns; `tenants.create(slug)` creates one."
    )


class TenantExists(Conflict):
    """A tenant with this slug already exists."""

    code = "tenant_exists"
    hint = "Choose another slug, or use the existing tenant."
