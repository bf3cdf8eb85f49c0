"""Planted bugs that let a narrow grant reach further than it says."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GRANTS = "tests/http/test_narrow_grants.py"
NARROW = "a narrow grant never reaches further than it says"
BLOB_ID = "knowing the ID of a blob grants nothing"

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
        old="                return visible, visible[-1].id if visible else after\n",
        new="                return visible, events[-1].id if events else after\n",
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
    Mutant(
        name="an upload that is done because another caller has the bytes",
        breaks=BLOB_ID,
        file="blobs/uploads.py",
        old="blob_id=incoming.blob_id, scope=incoming.scope)",
        new="blob_id=incoming.blob_id)",
        caught_by=f"{GRANTS}::test_an_upload_needs_the_bytes_if_its_sender_cannot_read_the_blob",
    ),
    Mutant(
        name="an attempt that refers to everything that its worker can read",
        breaks=BLOB_ID,
        file="api/blob_scopes.py",
        old="    return msgspec.structs.replace(NOTHING, job_id=job_id)",
        new="    return BlobScope(job_id=job_id)",
        caught_by=f"{GRANTS}::test_an_attempt_can_only_refer_to_files_of_its_job",
    ),
    Mutant(
        name="an input that its sender cannot read",
        breaks=BLOB_ID,
        file="api/order_access.py",
        old="    for blob_id in filter(is_digest, blob_ids):",
        new="    for blob_id in ():",
        caught_by=f"{GRANTS}::test_a_job_cannot_refer_to_a_blob_that_its_creator_cannot_read",
    ),
    Mutant(
        name="files of others in the scope of an owner on SQLite",
        breaks=BLOB_ID,
        file="engines/sqlite/sql/blobs.sql",
        old="OR f.owner = ?8 OR s.id = ?9)",
        new="OR f.owner >= ?8 OR s.id = ?9)",
        caught_by="tests/conformance/test_blob_scope.py::test_the_scope_of_an_owner_includes_only_its_own_references",
    ),
    Mutant(
        name="files of others in the scope of an owner on PostgreSQL",
        breaks=BLOB_ID,
        file="engines/postgres/functions/blob_collect.sql",
        old="of_types IS NULL OR f.owner = of_owner OR f.job = of_job",
        new="of_types IS NULL OR f.owner >= of_owner OR f.job = of_job",
        caught_by="tests/conformance/test_blob_scope.py::test_the_scope_of_an_owner_includes_only_its_own_references",
    ),
    Mutant(
        name="the result of an existing job for a caller that only creates",
        breaks=NARROW,
        file="api/order_access.py",
        old="    if enqueued.created or _may_read(request, job):",
        new="    if not enqueued.reused or _may_read(request, job):",
        caught_by=f"{GRANTS}::test_a_repeated_request_reveals_only_the_id_and_the_status_to_a_creator",
    ),
]
