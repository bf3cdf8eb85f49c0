"""Grants: which actions a caller may perform on which resources. Names are compared by whole segments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from ingot.kernel.errors import InvalidInput
from ingot.kernel.validation import check_instance, check_length, check_list, check_text

ANY: Final = "*"
RECORD_RESOURCES: Final = ("secrets",)  # Record kinds with actions of their own: `secrets.read` and `secrets.write`.
ACTIONS: Final = frozenset(
    {
        "jobs.create",  # enqueue, alone and in batches
        "jobs.read",  # read jobs, attempts, logs, summaries, definitions
        "jobs.manage",  # cancel, retry, change, pause
        "workers.run",  # claim, renew and settle
        "workers.read",
        "workers.manage",  # drain and remove
        "events.read",
        "events.create",
        "blobs.read",  # read and list keys, blobs, usage
        "blobs.write",  # set keys, upload
        "blobs.delete",
        "ops.read",  # metrics of the whole server
        "admin.tenants",
        "admin.members",
        "admin.audit",
        "admin.definitions",
        "admin.tokens",
        "admin.workers",
        "admin.blobs",  # purge, collect
        *(f"{plural}.{verb}" for plural in RECORD_RESOURCES for verb in ("read", "write")),
    }
)
RESOURCE_ROOTS: Final = ("jobs", "events", "keys", "db", *RECORD_RESOURCES)  # The first segments of resources.
ACTION_FAMILIES: Final = frozenset(action.split(".")[0] for action in ACTIONS)
GRANTS_MAX: Final = 100
RESOURCE_CHARS_MAX: Final = 300
_SEPARATOR = re.compile(r"([/.])")  # The group keeps separators in the result of `split`, so that a.b differs from a/b.


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Permission for an action on resources.

    `action` is one of `ACTIONS`, a family such as `jobs.*`, or `*` for all actions. `resource` is the beginning of a
    name that starts with one of `RESOURCE_ROOTS`, or `*` for everything in the tenant. It covers whole segments between
    `/` and `.`: `jobs/report` covers `jobs/report.daily`, but not `jobs/reports`.
    """

    action: str
    """Permitted action, such as `jobs.read`; `jobs.*` for a family of actions, or `*` for all."""
    resource: str = ANY
    """Beginning of the names that the grant covers, in whole segments, such as `jobs/greet`; `*` for everything."""

    def covers(self, action: str, resource: str) -> bool:
        """Return whether this grant permits an action on a resource. Both can be patterns."""
        return _action_covers(self.action, action) and _resource_covers(self.resource, resource)


GRANT_ALL: Final = Grant(action=ANY)


def allows(grants: Iterable[Grant], action: str, resource: str = ANY) -> bool:
    """Return whether one of the grants permits an action on a resource."""
    return any(grant.covers(action, resource) for grant in grants)


def intersect_grants(grants: Iterable[Grant], others: Sequence[Grant]) -> tuple[Grant, ...]:
    """Return grants that permit what both lists permit.

    Two patterns that overlap always contain one another, so the narrower pattern is the intersection.
    """
    common: dict[Grant, None] = {}
    for grant in grants:
        for other in others:
            action, resource = _narrower(_action_covers, grant.action, other.action), None
            if action is not None:
                resource = _narrower(_resource_covers, grant.resource, other.resource)
            if action is not None and resource is not None:
                common[Grant(action=action, resource=resource)] = None
    return tuple(common)


def allowed_prefixes(root: str, grants: Iterable[Grant], action: str) -> tuple[str, ...] | None:
    """Return the prefixes of names below a root for which the grants permit an action, or `None` for all names."""
    prefixes: dict[str, None] = {}
    for grant in grants:
        if not _action_covers(grant.action, action):
            continue
        resource = grant.resource.rstrip("/")
        if resource in (ANY, root):
            return None
        if resource.startswith(f"{root}/"):
            prefixes[resource.removeprefix(f"{root}/")] = None
    return tuple(prefixes)


def check_grants(value: object) -> tuple[Grant, ...]:
    """Return valid grants. Raises `InvalidInput`."""
    grants = check_list(value, name="grants")
    if not 1 <= len(grants) <= GRANTS_MAX:
        raise InvalidInput(f"grants must have 1 to {GRANTS_MAX} elements, got {len(grants)}")
    return tuple(_check_grant(check_instance(grant, Grant, name="grant")) for grant in grants)


def _check_grant(grant: Grant) -> Grant:
    action = check_text(grant.action, name="action")
    family, _, verb = action.partition(".")
    if action != ANY and action not in ACTIONS and not (verb == ANY and family in ACTION_FAMILIES):
        actions = ", ".join(sorted(ACTIONS))
        raise InvalidInput(
            f"there is no action {action[:64]!r}",
            hint=f"Use one of {actions}, a family such as jobs.*, or * for all actions.",
        )
    resource = check_length(check_text(grant.resource, name="resource"), name="resource", chars_max=RESOURCE_CHARS_MAX)
    if resource != ANY and ANY in resource:
        raise InvalidInput(
            f"the resource {resource[:64]!r} contains a *",
            hint="Use the beginning of a name, such as jobs/report, or only * for everything.",
        )
    if resource != ANY and resource.partition("/")[0] not in RESOURCE_ROOTS:
        raise InvalidInput(
            f"the resource {resource[:64]!r} does not start with a known kind of resource",
            hint=f"Use * for everything, or start with {', '.join(f'{root}/' for root in RESOURCE_ROOTS)}.",
        )
    return grant


def _narrower(covers: Callable[[str, str], bool], left: str, right: str) -> str | None:
    if covers(left, right):
        return right
    return left if covers(right, left) else None


def _action_covers(pattern: str, action: str) -> bool:
    if pattern in (ANY, action):
        return True
    family, _, verb = pattern.partition(".")
    return verb == ANY and action.partition(".")[0] == family


def _resource_covers(pattern: str, resource: str) -> bool:
    if pattern in (ANY, resource):
        return True
    if resource == ANY:
        return False
    return _starts_with(_SEPARATOR.split(resource), _SEPARATOR.split(pattern.rstrip("/")))


def _starts_with(segments: Sequence[str], prefix: Sequence[str]) -> bool:
    return segments[: len(prefix)] == prefix
