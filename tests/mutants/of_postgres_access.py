"""Planted bugs of who may see and do what, on PostgreSQL."""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.selections import AUDIT, PEOPLE, REMOVAL, REMOVAL_RACES

MUTANTS = [
    Mutant(
        name="policy open while no tenant is set",
        breaks="T2: no tenant set, zero rows",
        file="engines/postgres/migrations/0001_initial.sql",
        old="'USING (tenant = nullif(",
        new="'USING (nullif(current_setting(''ingot.tenant'', true), '''') IS NULL OR tenant = nullif(",
        caught_by="tests/engines/postgres/test_tenant_isolation.py::test_a_session_without_a_tenant_sees_no_rows",
    ),
    Mutant(
        name="worker role that serves any tenant",
        breaks="decision 9: the tenant of a direct worker is that of its role",
        file="engines/postgres/functions/worker.sql",
        old="tenant_id uuid := (",
        new="tenant_id uuid := coalesce(current_setting('ingot.tenant', true)::uuid, ",
        caught_by="tests/engines/postgres/test_workers.py::test_a_worker_role_cannot_access_jobs_of_another_tenant",
    ),
    Mutant(
        name="a tenant that revokes the tokens of another",
        breaks="T1: what one tenant does has no effect on another",
        file="engines/postgres/functions/credentials.sql",
        old="WHERE t.id = of_id AND (of_tenant IS NULL OR t.tenant = of_tenant) FOR UPDATE;",
        new="WHERE t.id = of_id FOR UPDATE;",
        caught_by="tests/conformance/test_credentials.py::test_a_token_cannot_be_revoked_by_another_tenant",
    ),
    Mutant(
        name="a worker that is put out with those whose names begin like its own",
        breaks="a worker credential has no effect on another",
        file="engines/postgres/functions/credentials.sql",
        old="starts_with(l.worker_id, worker || '/')",
        new="starts_with(l.worker_id, worker)",
        caught_by="tests/conformance/test_release.py::test_jobs_of_all_instances_of_a_credential_are_released",
    ),
    Mutant(
        name="a worker that settles what those with longer names claimed",
        breaks="a worker credential has no effect on another",
        file="engines/postgres/functions/settle.sql",
        old="starts_with(worker_id, required_worker || '/')",
        new="starts_with(worker_id, required_worker)",
        caught_by="tests/conformance/test_attempt_worker.py"
        "::test_another_workers_attempt_can_neither_be_renewed_nor_settled[postgres-pres]",
    ),
    Mutant(
        name="an entry that tells of an older state",
        breaks="an entry tells how the thing was when it was changed",
        file="engines/postgres/functions/tenants.sql",
        old="FROM ingot.tenants AS t WHERE t.id = of_tenant FOR NO KEY UPDATE;",
        new="FROM ingot.tenants AS t WHERE t.id = of_tenant;",
        caught_by=f"{AUDIT}::test_concurrent_changes_are_recorded_as_an_unbroken_sequence[postgres-tenant]",
    ),
    Mutant(
        name="a digest on record",
        breaks="nothing that proves somebody is in the audit log",
        file="engines/postgres/functions/credentials.sql",
        old="'created_at', ingot.iso_timestamp(t.created_at), 'limits'",
        new="'digest', encode(t.digest, 'hex'), 'created_at', ingot.iso_timestamp(t.created_at), 'limits'",
        caught_by=f"{AUDIT}::test_no_credential_or_digest_is_recorded[postgres]",
    ),
    Mutant(
        name="an audit log that its owner changes",
        breaks="nothing in the audit log is ever changed or taken away",
        file="engines/postgres/migrations/0006_audit.sql",
        old="CREATE POLICY owner_adds ON ingot.audit FOR INSERT TO ingot_owner WITH CHECK (true);",
        new="CREATE POLICY owner_adds ON ingot.audit FOR ALL TO ingot_owner USING (true);",
        caught_by=f"{AUDIT}::test_recorded_entries_cannot_be_changed_or_deleted",
    ),
    Mutant(
        name="an invitation taken by an email that nobody verified",
        breaks="a role comes with an email only when the provider has verified it",
        file="engines/postgres/functions/people.sql",
        old="    IF (person->>'email_verified')::boolean THEN\n",
        new="    IF true THEN\n",
        caught_by=f"{PEOPLE}::test_an_unverified_email_does_not_match_an_invitation",
    ),
    Mutant(
        name="a token made while its person is let out",
        breaks="removing a person ends their sessions and tokens",
        file="engines/postgres/functions/people.sql",
        old=" AND (u.enabled OR NOT must_be_enabled) FOR SHARE",
        new=" AND (u.enabled OR NOT must_be_enabled)",
        caught_by="tests/engines/postgres/test_people.py::test_a_user_being_disabled_gets_no_session_and_no_token",
    ),
    Mutant(
        name="a sign-in of who is not let in",
        breaks="who is disabled does not sign in",
        file="engines/postgres/functions/people.sql",
        old="    WHERE u.enabled\n    RETURNING",
        new="    RETURNING",
        caught_by=f"{PEOPLE}::test_a_sign_in_of_a_disabled_user_is_refused_and_changes_nothing",
    ),
    Mutant(
        name="tokens of who was removed from a tenant",
        breaks="removing a member ends their tokens there",
        file="engines/postgres/functions/people.sql",
        old="""        UPDATE ingot.tokens AS t SET revoked_at = now
        WHERE t."user" = of_id AND t.tenant = of_tenant AND t.revoked_at IS NULL;
""",
        new="",
        caught_by="tests/conformance/test_members.py::test_a_removed_member_loses_role_and_tokens_only_in_that_tenant",
    ),
    Mutant(
        name="a server that has not heard of a removal hands out its jobs",
        breaks="no work of a removed tenant is done",
        file="engines/postgres/functions/claim.sql",
        old="IF EXISTS (SELECT FROM ingot.removed_tenants) THEN",
        new="IF false THEN",
        caught_by=f"{REMOVAL_RACES}::test_a_process_without_notification_hands_out_no_jobs_of_the_tenant",
    ),
    Mutant(
        name="a table is forgotten when a tenant is removed",
        breaks="nothing is left of a removed tenant but what is on record",
        file="engines/postgres/functions/tenant_removal.sql",
        old="        'history',\n",
        new="",
        caught_by=f"{REMOVAL}::test_clearing_leaves_only_audit_entries",
    ),
    Mutant(
        name="a removed tenant is gone although somebody may still add to it",
        breaks="nothing is left of a removed tenant but what is on record",
        file="engines/postgres/tenant_removal.py",
        old="round(5 * CALL_SECONDS_MAX * MICROS)",
        new="0",
        caught_by=f"{REMOVAL_RACES}::test_rows_of_a_transaction_open_during_the_removal_are_cleared",
    ),
    Mutant(
        name="a job is removed under a claim that is under way",
        breaks="a running job goes with its tenant only when its attempt has ended",
        file="engines/postgres/functions/tenant_removal.sql",
        old="SELECT i FROM unnest(ids) AS i WHERE NOT EXISTS (SELECT FROM ingot.leases AS l WHERE l.id = i)",
        new="SELECT i FROM unnest(ids) AS i",
        caught_by=f"{REMOVAL_RACES}::test_an_uncommitted_claim_keeps_its_job",
    ),
    Mutant(
        name="an application whose role is the one that logged in, whatever was set",
        breaks="decision 9: a role works in its own tenant",
        file="engines/postgres/functions/app.sql",
        old="CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role')::name END",
        new="session_user",
        caught_by="tests/engines/postgres/test_app_refusals.py::test_the_tenant_is_that_of_the_role_set_in_the_session",
    ),
]
