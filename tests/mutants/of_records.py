"""Planted bugs about records and secrets."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RECORDS = "tests/conformance/test_records.py"
SECRETS = "tests/http/test_secrets.py"

MUTANTS = [
    Mutant(
        name="a version that SQLite does not look at",
        breaks="of many that expect the same version one wins",
        file="engines/sqlite/records.py",
        old="if command.if_version is not None and command.if_version != current:",
        new="if command.if_version is not None and command.if_version > current:",
        caught_by=f"{RECORDS}::test_a_wrong_if_version_returns_the_current_one_and_changes_nothing",
    ),
    Mutant(
        name="writers of records on PostgreSQL that do not take turns",
        breaks="of many that expect the same version one wins",
        file="engines/postgres/functions/records.sql",
        old="    caller text := act::json ->> 'who';\nBEGIN\n    PERFORM ingot.expect_tenant(of_tenant);\n"
        "    PERFORM FROM ingot.record_changes FOR UPDATE;\n",
        new="    caller text := act::json ->> 'who';\nBEGIN\n    PERFORM ingot.expect_tenant(of_tenant);\n",
        caught_by=f"{RECORDS}::test_only_one_of_many_concurrent_puts_with_one_if_version_succeeds",
    ),
    Mutant(
        name="a put that is sent again and refused",
        breaks="a command that is sent again finds what it did",
        file="engines/postgres/functions/records.sql",
        old="    IF NOT EXISTS (SELECT FROM ingot.audit AS a WHERE a.id = (act::json ->> 'id')::uuid) THEN",
        new="    IF true THEN",
        caught_by=f"{RECORDS}::test_a_resent_put_returns_the_same_record",
    ),
    Mutant(
        name="records without a limit",
        breaks="a tenant has so many records of a kind and no more",
        file="engines/sqlite/records.py",
        old="tx.execute(SQL.count_records, *key).get >= command.records_max",
        new="tx.execute(SQL.count_records, *key).get > command.records_max",
        caught_by=f"{RECORDS}::test_a_tenant_can_have_at_most_records_max_records_of_a_kind",
    ),
    Mutant(
        name="records that outlive their tenant",
        breaks="what a tenant held goes with it",
        file="engines/sqlite/tenant_removal.py",
        old="    SQL.remove_records,\n",
        new="",
        caught_by="tests/conformance/test_removal.py",
    ),
    Mutant(
        name="records of other tenants on PostgreSQL",
        breaks="tenants are isolated twice",
        file="engines/postgres/migrations/0015_records.sql",
        old="    USING (tenant = nullif(current_setting('ingot.tenant', true), '')::uuid);",
        new="    USING (true);",
        caught_by="tests/engines/postgres/test_tenant_isolation.py",
    ),
    Mutant(
        name="changes of records that nobody is told of",
        breaks="other servers are told of a change within a second",
        file="engines/postgres/functions/records.sql",
        old="    UPDATE ingot.record_changes AS c SET changes = c.changes + 1;\n",
        new="",
        caught_by=f"{RECORDS}::test_another_server_is_notified_of_changes",
    ),
    Mutant(
        name="a secret that is stored as it came",
        breaks="a value of a secret is encrypted",
        file="identity/secret_values.py",
        old="_load_cipher(self._keys[self.key_id]).encrypt(nonce, value, _associated_data(tenant, name))",
        new="value",
        caught_by=f"{SECRETS}::test_a_secret_value_is_in_no_response_log_or_file",
    ),
    Mutant(
        name="a secret that can be moved to another name",
        breaks="a value is bound to its tenant and name",
        file="identity/secret_values.py",
        old="    return msgspec.json.encode((tenant, name))",
        new="    return msgspec.json.encode((tenant,))",
        caught_by=f"{SECRETS}::test_a_sealed_value_cannot_be_read_under_another_name",
    ),
    Mutant(
        name="a list of records that shows more than is granted",
        breaks="a narrow grant never reaches further than it says",
        file="api/records.py",
        old='is_visible=lambda name: request.caller.may(f"{self._plural}.read", self._resource(name)),',
        new="is_visible=lambda name: True,",
        caught_by=f"{SECRETS}::test_a_grant_for_one_secret_permits_only_that_secret",
    ),
]
