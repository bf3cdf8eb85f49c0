"""Planted bugs that let a narrow grant reach further than it says."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GRANTS = "tests/http/test_narrow_grants.py"
NARROW = "a narrow grant never reaches further than it says"

MUTANTS = [
    Mutant(
        name="a cursor that is not bound to its caller",
        breaks=NARROW,
        file="http/page_cursors.py",
        old='return "cursor", request.tenant, request.caller.principal, route.path',
        new='return "cursor", request.tenant, route.path',
        caught_by=f"{GRANTS}::test_a_cursor_reveals_nothing_and_cannot_be_forged_or_used_elsewhere",
    ),
    Mutant(
        name="cursors that are not encrypted",
        breaks=NARROW,
        file="http/page_cursors.py",
        old="    if page.next_cursor is None:\n",
        new="    if page:\n",
        caught_by=f"{GRANTS}::test_a_cursor_reveals_nothing_and_cannot_be_forged_or_used_elsewhere",
    ),
    Mutant(
        name="a list that reveals how many events the caller may not see",
        breaks=NARROW,
        file="api/events.py",
        old="return visible, events[-1].id if len(events) == query_limit else after",
        new="return visible, events[-1].id if events else after",
        caught_by=f"{GRANTS}::test_a_list_of_events_is_the_same_whatever_events_the_caller_may_not_see",
    ),
    Mutant(
        name="blob events that need no grant for the key",
        breaks=NARROW,
        file="events/permissions.py",
        old='        return "blobs.read", f"keys/{data.key}"',
        new="        return None",
        caught_by=f"{GRANTS}::test_events_of_blobs_are_shown_only_to_callers_that_may_read_them",
    ),
    Mutant(
        name="keys beside the granted segment",
        breaks=NARROW,
        file="api/keys.py",
        old='within=allowed_prefixes("keys", request.caller.grants, "blobs.read"),',
        new="within=None,",
        caught_by=f"{GRANTS}::test_a_list_of_keys_is_the_same_whatever_keys_the_caller_may_not_see",
    ),
]
