"""Tenants and the limits they live under."""

from __future__ import annotations

import msgspec

from ingot.identity.people import Role
from ingot.kernel.errors import Conflict, NotFound

WEIGHT_DEFAULT = 1
WEIGHT_MAX = 1000
FRACTIONAL_LIMITS = frozenset({"rate", "query_seconds", "retention_seconds"})


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a tenant may use; `None` is without limit.

    `rate` is how many jobs it may enqueue in a second, and `burst` how many at once after a while without any; without
    a burst it is what comes in one second. `retention_seconds` is how long its finished jobs are kept, where their
    definition does not say it.
    """

    rate: float | None = None
    burst: int | None = None
    quota_bytes: int | None = None
    max_unfinished_jobs: int | None = None
    max_running_jobs: int | None = None
    query_seconds: float | None = None
    query_rows: int | None = None
    query_bytes: int | None = None
    retention_seconds: float | None = None


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """The unit of isolation: every row, blob, document and event belongs to exactly one.

    `groups` are those of the identity provider whose people have a role here.
    """

    id: str
    slug: str
    weight: int = WEIGHT_DEFAULT
    time_zone: str = "UTC"
    limits: Limits = Limits()
    groups: dict[str, Role] = {}


class TenantNotFound(NotFound):
    """There is no such tenant."""

    code = "tenant_not_found"
    hint = (
        "Over HTTP a tenant is named by its slug, and made with POST /api/v1/admin/tenants; "
        "in Python calls take its id, which `tenants.get(slug)` has, and `tenants.create(slug)` makes one."
    )


class TenantExists(Conflict):
    """A tenant with this slug exists already."""

    code = "tenant_exists"
    hint = "Choose another slug, or use the tenant that is there."
