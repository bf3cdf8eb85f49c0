"""Grants: they cover resources by whole segments, and actions by name or family."""

from __future__ import annotations

import pytest

from ingot.identity.grants import ACTIONS, GRANT_ALL, Grant, allows, check_grants
from ingot.kernel.errors import InvalidInput


@pytest.mark.parametrize(
    ("resource", "requested", "allowed"),
    [
        ("*", "jobs/pdf", True),
        ("jobs/pdf", "jobs/pdf", True),
        ("jobs/report", "jobs/report.daily", True),
        ("jobs/report.daily", "jobs/report", False),
        ("jobs/report", "jobs/reports", False),
        ("db/notes/tasks", "db/notes/tasks/1", True),
        ("db/notes/tasks", "db/notes/tasks-private", False),
        ("db/notes/", "db/notes/tasks", True),
        ("jobs", "jobs/pdf", True),
        ("jobs/pdf", "*", False),
        ("events/job", "events/job.created", True),
        ("events/job.c", "events/job.created", False),
        ("keys/acme.com", "keys/acme.com/logo.png", True),
        ("keys/acme.com", "keys/acme/com/logo.png", False),
        ("keys/acme/com", "keys/acme.com", False),
    ],
)
def test_a_grant_covers_resources_that_begin_with_its_segments(resource: str, requested: str, allowed: bool) -> None:
    assert Grant(action="jobs.read", resource=resource).covers("jobs.read", requested) is allowed


@pytest.mark.parametrize(
    ("action", "requested", "allowed"),
    [
        ("*", "admin.tokens", True),
        ("jobs.*", "jobs.create", True),
        ("jobs.*", "jobs.*", True),
        ("jobs.read", "jobs.*", False),
        ("jobs.*", "*", False),
        ("jobs.read", "jobs.create", False),
        ("jobs.*", "events.read", False),
    ],
)
def test_a_grant_covers_its_action_or_family(action: str, requested: str, allowed: bool) -> None:
    assert Grant(action=action).covers(requested, "jobs/pdf") is allowed


def test_one_grant_must_cover_both_action_and_resource() -> None:
    grants = [Grant(action="jobs.read", resource="jobs/a"), Grant(action="jobs.create", resource="jobs/b")]
    assert allows(grants, "jobs.read", "jobs/a")
    assert not allows(grants, "jobs.read", "jobs/b")
    assert not allows([], "jobs.read", "jobs/a")
    assert all(allows([GRANT_ALL], action, "jobs/a") for action in ACTIONS)


@pytest.mark.parametrize(
    "invalid",
    [
        [],
        "jobs.read",
        [{"action": "jobs.read"}],
        [Grant(action="jobs.raed")],
        [Grant(action="jobs")],
        [Grant(action="nobody.*")],
        [Grant(action="jobs.read", resource="")],
        [Grant(action="jobs.read", resource="jobs/*")],
        [Grant(action="jobs.read", resource="greet")],
        [Grant(action="jobs.read", resource="job/greet")],
        [Grant(action="jobs.read", resource="jobs.greet")],
        [Grant(action="jobs.read", resource="/jobs/greet")],
        [Grant(action="jobs.read", resource="x" * 301)],
        [GRANT_ALL] * 101,
    ],
)
def test_invalid_grants_are_rejected(invalid: object) -> None:
    with pytest.raises(InvalidInput):
        check_grants(invalid)


@pytest.mark.parametrize("resource", ["*", "jobs", "jobs/", "jobs/greet", "events/job", "keys/a/b", "db/notes"])
def test_valid_resources_are_accepted(resource: str) -> None:
    (grant,) = check_grants([Grant(action="jobs.read", resource=resource)])
    assert grant.resource == resource
