"""What grants allow: by whole segments, and never more than was given."""

from __future__ import annotations

import pytest

from ingot.identity.grants import ACTIONS, GRANT_ALL, Grant, allows, check_grants
from ingot.kernel.errors import InvalidInput


@pytest.mark.parametrize(
    ("resource", "asked", "allowed"),
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
def test_a_resource_covers_what_begins_with_its_segments(resource: str, asked: str, allowed: bool) -> None:
    assert Grant(action="jobs.read", resource=resource).covers("jobs.read", asked) is allowed


@pytest.mark.parametrize(
    ("action", "asked", "allowed"),
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
def test_an_action_covers_itself_or_its_family(action: str, asked: str, allowed: bool) -> None:
    assert Grant(action=action).covers(asked, "jobs/pdf") is allowed


def test_one_grant_must_allow_both() -> None:
    grants = [Grant(action="jobs.read", resource="jobs/a"), Grant(action="jobs.create", resource="jobs/b")]
    assert allows(grants, "jobs.read", "jobs/a")
    assert not allows(grants, "jobs.read", "jobs/b")
    assert not allows([], "jobs.read", "jobs/a")
    assert all(allows([GRANT_ALL], action, "jobs/a") for action in ACTIONS)


@pytest.mark.parametrize(
    "bad",
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
def test_grants_that_mean_nothing_are_refused(bad: object) -> None:
    with pytest.raises(InvalidInput):
        check_grants(bad)


@pytest.mark.parametrize("resource", ["*", "jobs", "jobs/", "jobs/greet", "events/job", "keys/a/b", "db/notes"])
def test_a_resource_begins_with_what_there_is(resource: str) -> None:
    (given,) = check_grants([Grant(action="jobs.read", resource=resource)])
    assert given.resource == resource
