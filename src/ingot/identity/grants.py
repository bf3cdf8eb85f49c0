"""Grants: what a caller may do, with what. Both are compared segment by segment, never letter by letter."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from ingot.kernel.errors import InvalidInput
from ingot.kernel.validation import check_instance, check_length, check_list, check_text

ANY: Final = "*"
RECORD_RESOURCES: Final = ("secrets",)  # Kinds of records with grants of their own: `secrets.read`, `secrets.write`.
ACTIONS: Final = frozenset(
    {
        "jobs.create",  # enqueue, alone and in batches
        "jobs.read",  # look at jobs, attempts, logs, summaries, definitions
        "jobs.manage",  # cancel, retry, change, pause
        "workers.run",  # claim, renew and settle
        "workers.read",
        "workers.manage",  # drain and remove
        "events.read",
        "events.create",
        "blobs.read",  # read and list keys, blobs, usage
        "blobs.write",  # set keys, upload
        "blobs.delete",
        "ops.read",  # the figures of the whole server
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
RESOURCE_ROOTS: Final = ("jobs", "events", "keys", "db", *RECORD_RESOURCES)  # What the name of a thing begins with.
ACTION_FAMILIES: Final = frozenset(action.split(".")[0] for action in ACTIONS)
GRANTS_MAX: Final = 100
RESOURCE_CHARS_MAX: Final = 300
_SEPARATOR = re.compile(r"([/.])")  # What stands between them counts: a.b is not a/b.


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leave to do something with some things.

    `action` is one of `ACTIONS`, a family of them as in `jobs.*`, or `*`. `resource` names things by the beginning of
    their name, in whole segments between `/` and `.`: `jobs/report` covers `jobs/report.daily`, and not
    `jobs/reports`. It begins with one of `ROOTS`, or is `*`, everything in the tenant.
    """

    action: str
    """Permitted action, such as `jobs.read`; `jobs.*` for a family of actions, or `*` for all."""
    resource: str = ANY
    """Beginning of the names that the grant covers, in whole segments, such as `jobs/greet`; `*` for everything."""

    def covers(self, action: str, resource: str) -> bool:
        """Whether this allows all of that. Both may be patterns themselves."""
        return _action_covers(self.action, action) and _resource_covers(self.resource, resource)


GRANT_ALL: Final = Grant(action=ANY)


def allows(grants: Iterable[Grant], action: str, resource: str = ANY) -> bool:
    """Whether one of these grants allows this."""
    return any(grant.covers(action, resource) for grant in grants)


def intersect_grants(some: Iterable[Grant], others: Sequence[Grant]) -> tuple[Grant, ...]:
    """What both allow. Of two patterns that meet one lies within the other, so that the narrower of each is common."""
    found: dict[Grant, None] = {}
    for one in some:
        for other in others:
            action, resource = _narrower(_action_covers, one.action, other.action), None
            if action is not None:
                resource = _narrower(_resource_covers, one.resource, other.resource)
            if action is not None and resource is not None:
                found[Grant(action=action, resource=resource)] = None
    return tuple(found)


def allowed_prefixes(root: str, grants: Iterable[Grant], action: str) -> tuple[str, ...] | None:
    """The beginnings of the names below a root on which these grants allow an action; `None` when that is on all."""
    found: dict[str, None] = {}
    for grant in grants:
        if not _action_covers(grant.action, action):
            continue
        resource = grant.resource.rstrip("/")
        if resource in (ANY, root):
            return None
        if resource.startswith(f"{root}/"):
            found[resource.removeprefix(f"{root}/")] = None
    return tuple(found)


def check_grants(value: object) -> tuple[Grant, ...]:
    """Grants that can be given. Raises `InvalidInput`."""
    given = check_list(value, name="grants")
    if not 1 <= len(given) <= GRANTS_MAX:
        raise InvalidInput(f"there are {len(given)} grants; it goes from 1 to {GRANTS_MAX}")
    return tuple(_check_grant(check_instance(one, Grant, name="grant")) for one in given)


def _check_grant(grant: Grant) -> Grant:
    action = check_text(grant.action, name="action")
    family, _, rest = action.partition(".")
    if action != ANY and action not in ACTIONS and not (rest == ANY and family in ACTION_FAMILIES):
        known = ", ".join(sorted(ACTIONS))
        raise InvalidInput(f"there is no action {action[:64]!r}", hint=f"It is one of {known}, or jobs.*, or *.")
    resource = check_length(check_text(grant.resource, name="resource"), name="resource", chars_max=RESOURCE_CHARS_MAX)
    if resource != ANY and ANY in resource:
        raise InvalidInput(
            f"the resource {resource[:64]!r} has a * in it", hint="Give the beginning of the name, or * alone for all."
        )
    if resource != ANY and resource.partition("/")[0] not in RESOURCE_ROOTS:
        raise InvalidInput(
            f"the resource {resource[:64]!r} names nothing",
            hint=f"Use * for everything, or start with {', '.join(f'{root}/' for root in RESOURCE_ROOTS)}.",
        )
    return grant


def _narrower(covers: Callable[[str, str], bool], one: str, other: str) -> str | None:
    if covers(one, other):
        return other
    return one if covers(other, one) else None


def _action_covers(own: str, other: str) -> bool:
    if own in (ANY, other):
        return True
    family, _, rest = own.partition(".")
    return rest == ANY and other.partition(".")[0] == family


def _resource_covers(own: str, other: str) -> bool:
    if own in (ANY, other):
        return True
    if other == ANY:
        return False
    return _starts_with(_SEPARATOR.split(other), _SEPARATOR.split(own.rstrip("/")))


def _starts_with(segments: Sequence[str], first: Sequence[str]) -> bool:
    return segments[: len(first)] == first
