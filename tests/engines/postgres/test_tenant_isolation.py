"""PostgreSQL itself isolates tenants, whatever the calling code forgets.

The tests connect with each role and check its privileges.
"""

from __future__ import annotations

from typing import Final

import asyncpg
import pytest

from ingot.engines.postgres.connection import as_tenant
from ingot.engines.postgres.lane_cache import NIL_ID
from ingot.jobs import JobStatus
from ingot.kernel.ids import new_id
from tests.engines.postgres.tenant_visibility import READABLE, rows_of
from tests.two_tenant_database import REFUSED, TenantPair, is_refused, store_with_one_connection, tables_of

HIDDEN: Final = [
    "app_roles",
    "askers",
    "audit",
    "blob_contents",
    "blob_totals",
    "blobs",
    "buckets",
    "dedupe_keys",
    "definitions",
    "departures",
    "event_keys",
    "idempotency_keys",
    "invitations",
    "logins",
    "members",
    "object_store",
    "pauses",
    "record_changes",
    "removed_tenants",
    "reuse_keys",
    "secret_key",
    "servers",
    "sessions",
    "tenant_groups",
    "tenant_types",
    "tenants",
    "tokens",
    "tombstones",
    "trash",
    "type_counts",
    "usage_owed",
    "user_groups",
    "users",
    "worker_credentials",
    "worker_roles",
    "workers",
]
# Tables without a column for the tenant, and a column of each.
WITHOUT_A_TENANT: Final = {
    "object_store": "id",
    "blob_contents": "checks",
    "blob_totals": "blobs",
    "blobs": "size",
    "home": "server",
    "logins": "next",
    "migrations": "number",
    "record_changes": "changes",
    "secret_key": "fingerprint",
    "servers": "store",
    "tenants": "id",
    "tombstones": "at",
    "trash": "place",
    "user_groups": "name",
}
SERVER_FUNCTIONS: Final = {
    "accept_invitation",
    "append_logs",
    "at_home",
    "batch_totals",
    "begin_login",
    "begin_upload",
    "blob_metrics",
    "cancel",
    "change",
    "change_member",
    "change_tenant",
    "change_worker_credential",
    "check_leases",
    "check_secret_key",
    "choose_tenant",
    "claim",
    "clear_tenants",
    "clock",
    "close_batches",
    "collect_blob",
    "collect_blob_of",
    "collect_jobs",
    "consume_login",
    "count_workers",
    "create_tenant",
    "create_token",
    "create_worker_credential",
    "decline_invitation",
    "delete_keys",
    "delete_old_events",
    "delete_record",
    "delete_trash",
    "describe_transactions",
    "drain_worker",
    "enable_user",
    "end_long_transactions",
    "end_session",
    "end_upload",
    "ended_parents",
    "enqueue",
    "event_position",
    "expect_capacity",
    "expect_types",
    "expired_leases",
    "find_attempts",
    "find_definition",
    "find_limits",
    "find_member",
    "find_rules",
    "find_session",
    "find_tenants",
    "find_token",
    "find_user",
    "find_worker",
    "find_worker_credential",
    "finish_uploads",
    "fold_batches",
    "fold_counts",
    "forget_trash",
    "free_types",
    "get_sealed",
    "get_usage",
    "is_locked_by_app",
    "is_worker_name",
    "known_storage_keys",
    "lane_heads",
    "leases_of_worker",
    "leave_tenant",
    "list_audit_entries",
    "list_collectable",
    "list_draining",
    "list_invitations",
    "list_members",
    "list_sessions",
    "list_tenants",
    "list_to_scrub",
    "list_tokens",
    "list_tombstoned",
    "list_trash",
    "list_user_tokens",
    "list_users",
    "list_verifying",
    "list_worker_credentials",
    "list_workers",
    "maintain_workers",
    "newest_ended_job",
    "next_due",
    "next_expiry",
    "notify_ready",
    "object_store_conflict",
    "open_blob",
    "open_file",
    "open_key",
    "poll",
    "position_offset",
    "promote",
    "publish",
    "purge_keys",
    "put_blobs",
    "put_member",
    "put_record",
    "queue_depths",
    "record_askers",
    "record_heartbeat",
    "record_scrub",
    "record_scrub_of",
    "record_tenant_scrub",
    "record_use",
    "register_object_store",
    "register_server",
    "register_worker",
    "reject_sign_in",
    "release_dependents",
    "remove_member",
    "remove_tenant",
    "remove_worker",
    "renew",
    "renew_server",
    "resolve_orders",
    "retention_cutoffs",
    "retry",
    "revoke_token",
    "server_started_at",
    "settle",
    "sign_in",
    "sweep",
    "sweep_uploads",
    "take_over_upload",
    "unregister_server",
    "update_upload",
    "workers_of_type",
}
WORKER_FUNCTIONS: Final = {
    "worker_append_logs",
    "worker_claim",
    "worker_hear",
    "worker_hello",
    "worker_leave",
    "worker_look",
    "worker_ready",
    "worker_register",
    "worker_renew",
    "worker_settle",
}
APP_FUNCTIONS: Final = {"enqueue_jobs", "enqueue_json", "publish_event", "publish_json"}


# -- visible rows -------------------------------------------------------------------------------------------


async def test_a_tenant_sees_exactly_its_own_rows_in_every_table(pair: TenantPair) -> None:
    server = await pair.as_server()
    for tenant in pair.tenants:
        async with as_tenant(server, tenant):
            assert await rows_of(server) == {name: {tenant} for name in READABLE}


@pytest.mark.parametrize("value", [None, ""])
async def test_a_session_without_a_tenant_sees_no_rows(pair: TenantPair, value: str | None) -> None:
    server = await pair.as_server()
    if value is not None:
        await server.execute(f"SET ingot.tenant = '{value}'")
    assert await rows_of(server) == {name: set() for name in READABLE}
    for name in READABLE:
        assert await server.execute(f"COPY (SELECT tenant FROM ingot.{name}) TO STDOUT") == "COPY 0"


async def test_the_nil_tenant_sees_only_shared_records(pair: TenantPair) -> None:
    server = await pair.as_server()
    async with as_tenant(server, NIL_ID):
        assert await rows_of(server) == {name: {NIL_ID} if name == "records" else set() for name in READABLE}


async def test_a_sealed_value_cannot_be_read(pair: TenantPair) -> None:
    server = await pair.as_server()
    await server.execute(f"SET ingot.tenant = '{pair.tenants[0]}'")
    assert await is_refused(server, "SELECT sealed FROM ingot.records")
    assert await is_refused(server, "SELECT * FROM ingot.records")


async def test_an_unknown_tenant_sees_no_rows(pair: TenantPair) -> None:
    server = await pair.as_server()
    async with as_tenant(server, new_id()):
        assert await rows_of(server) == {name: set() for name in READABLE}


@pytest.mark.parametrize("value", ["everybody", "' OR true --", "%"])
async def test_a_tenant_setting_that_is_not_a_uuid_is_an_error(pair: TenantPair, value: str) -> None:
    server = await pair.as_server()
    await server.execute("SELECT set_config('ingot.tenant', $1, false)", value)
    for name in READABLE:
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await server.fetch(f"SELECT tenant FROM ingot.{name}")


async def test_the_tenant_is_reset_at_the_end_of_its_transaction(pair: TenantPair) -> None:
    server = await pair.as_server()
    async with as_tenant(server, pair.tenants[0]):
        pass
    assert await rows_of(server) == {name: set() for name in READABLE}


async def test_a_session_that_changes_the_tenant_still_sees_one_tenant_at_a_time(pair: TenantPair) -> None:
    """The setting protects against mistakes of our code: a role that can run any SQL can select another tenant."""
    first, second = pair.tenants
    server = await pair.as_server()
    async with as_tenant(server, first):
        await server.execute(f"SET LOCAL ingot.tenant = '{second}'")
        assert await rows_of(server) == {name: {second} for name in READABLE}
    async with as_tenant(server, first):
        query = "SELECT tenant::text FROM ingot.jobs, (SELECT set_config('ingot.tenant', $1, true) OFFSET 0) AS s"
        seen = {row[0] for row in await server.fetch(query, second)}
        assert seen in ({first}, {second})


async def test_a_function_in_a_condition_receives_no_rows_of_another_tenant(pair: TenantPair) -> None:
    """A function of the reader in a condition would receive hidden rows if it ran before the policy."""
    first, second = pair.tenants
    server = await pair.as_server()
    await server.execute("""
        CREATE FUNCTION pg_temp.peek(seen uuid) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$
        BEGIN RAISE NOTICE '%', seen; RETURN true; END $$
    """)
    notices: list[str] = []
    server.add_log_listener(lambda _, message: notices.append(str(message)))
    async with as_tenant(server, first):
        for name in READABLE:
            await server.fetch(f"SELECT FROM ingot.{name} WHERE pg_temp.peek(tenant)")
    await server.fetch("SELECT 1")
    assert notices != []
    assert [message for message in notices if second in message] == []


# -- privileges ---------------------------------------------------------------------------------------------


async def test_the_server_role_cannot_switch_to_another_role(pair: TenantPair) -> None:
    server = await pair.as_server()
    for role in ("ingot_owner", "ingot_worker", "postgres"):
        assert await is_refused(server, f"SET ROLE {role}")
        assert await is_refused(server, f"SET SESSION AUTHORIZATION {role}")
    assert await server.fetchval("SELECT current_user") == "ingot_server"


async def test_row_security_cannot_be_switched_off(pair: TenantPair) -> None:
    server = await pair.as_server()
    await server.execute("SET row_security = off")
    for name in READABLE:
        for tenant in ("", pair.tenants[0]):
            await server.execute(f"SET ingot.tenant = '{tenant}'")
            with pytest.raises(REFUSED, match="row-level security"):
                await server.fetch(f"SELECT * FROM ingot.{name}")


async def test_the_server_role_cannot_write_to_tables(pair: TenantPair) -> None:
    server = await pair.as_server()
    await server.execute(f"SET ingot.tenant = '{pair.tenants[0]}'")
    allowed = []
    for name in await tables_of(pair):
        column = WITHOUT_A_TENANT.get(name, "tenant")
        statements = [f"SELECT * FROM ingot.{name} FOR UPDATE", f"LOCK TABLE ingot.{name} IN EXCLUSIVE MODE"]
        if name not in ("attempts", "definitions", "job_rows", "pauses"):
            statements += [
                f"UPDATE ingot.{name} SET {column} = {column}",
                f"DELETE FROM ingot.{name}",
                f"INSERT INTO ingot.{name} DEFAULT VALUES",
                f"TRUNCATE ingot.{name}",
                f"COPY ingot.{name} FROM PROGRAM 'true'",
                f"COPY ingot.{name} TO PROGRAM 'cat'",
                f"ALTER TABLE ingot.{name} DISABLE ROW LEVEL SECURITY",
                f"CREATE POLICY mine ON ingot.{name} USING (true)",
                f"DROP TABLE ingot.{name}",
            ]
            with pytest.raises(REFUSED):
                await server.copy_records_to_table(name, schema_name="ingot", records=[(None,)], columns=[column])
        allowed += [statement for statement in statements if not await is_refused(server, statement)]
    assert allowed == []


async def test_the_server_role_cannot_create_objects_or_use_sequences(pair: TenantPair) -> None:
    server = await pair.as_server()
    for statement in (
        "CREATE TABLE ingot.mine (a integer)",
        "CREATE VIEW ingot.mine AS SELECT 1",
        "CREATE FUNCTION ingot.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "SELECT nextval('ingot.fences')",
        "SELECT setval('ingot.fences', 4294967297)",
        "SELECT * FROM ingot.fences",
        "ALTER FUNCTION ingot.claim SECURITY INVOKER",
    ):
        assert await is_refused(server, statement), statement


async def test_tables_behind_functions_cannot_be_read_directly(pair: TenantPair) -> None:
    server = await pair.as_server()
    await server.execute(f"SET ingot.tenant = '{pair.tenants[0]}'")
    for name in HIDDEN:
        assert await is_refused(server, f"SELECT * FROM ingot.{name}"), name
        assert await is_refused(server, f"COPY ingot.{name} TO STDOUT"), name
    assert sorted([*READABLE, *HIDDEN, "migrations", "home"]) == await tables_of(pair)


async def test_each_role_can_execute_exactly_its_functions(pair: TenantPair) -> None:
    admin = await pair.connect()
    allowed = {
        role: {
            row[0]
            for row in await admin.fetch(
                "SELECT proname FROM pg_proc WHERE pronamespace = 'ingot'::regnamespace"
                " AND has_function_privilege($1, oid, 'EXECUTE')",
                role,
            )
        }
        for role in ("ingot_server", "ingot_worker", "ingot_app")
    }
    assert allowed == {"ingot_server": SERVER_FUNCTIONS, "ingot_worker": WORKER_FUNCTIONS, "ingot_app": APP_FUNCTIONS}


async def test_functions_without_a_grant_are_refused(pair: TenantPair) -> None:
    server = await pair.as_server()
    for call in (
        "SELECT ingot.retry_transaction()",
        "SELECT ingot.refuse('IN001', 'no')",
        "SELECT ingot.random_fraction()",
        "SELECT ingot.worker_tenant()",
        "SELECT ingot.backoff(1, 1, 1, 1, 0)",
        "SELECT ingot.expect(true, 'all is well')",
        "SELECT * FROM ingot.worker_claim('{}', 'w', NULL, NULL, 1, 1)",
        "SELECT * FROM ingot.worker_hello()",
        "SELECT ingot.worker_name('w')",
    ):
        assert await is_refused(server, call), call


async def test_a_lease_cannot_be_settled_as_lost_before_it_expires(pair: TenantPair) -> None:
    claim = await pair.bench.make_claim("mine")
    lost = "SELECT * FROM ingot.settle($1, $2, NULL, '{lost}', NULL, NULL, NULL, NULL, NULL)"
    async with store_with_one_connection(pair) as store:
        assert await store.database.call(lost, [claim.job.id], [claim.fence]) == []
    assert (await pair.bench.reload(claim)).status is JobStatus.RUNNING


async def test_the_owner_cannot_log_in_and_no_role_bypasses_row_security(pair: TenantPair) -> None:
    for role in ("ingot_owner", "ingot_worker"):
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await pair.connect(role)
    admin = await pair.connect()
    rows = await admin.fetch("""
        SELECT rolname FROM pg_roles WHERE rolname LIKE 'ingot\\_%'
            AND (rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication)
    """)
    assert [row[0] for row in rows] == []
    for member, role in [("ingot_server", "ingot_owner"), ("ingot_worker", "ingot_owner")]:
        assert not await admin.fetchval("SELECT pg_has_role($1, $2, 'MEMBER')", member, role)


async def test_a_role_without_grants_can_do_nothing(pair: TenantPair) -> None:
    without_grants = await pair.connect(await pair.make_role(""))
    await without_grants.execute(f"SET ingot.tenant = '{pair.tenants[0]}'")
    for name in await tables_of(pair):
        assert await is_refused(without_grants, f"SELECT * FROM ingot.{name}"), name
    for call in ("ingot.clock()", "ingot.find_tenants(NULL, NULL)", "ingot.poll()", "ingot.fold_counts(1)"):
        assert await is_refused(without_grants, f"SELECT * FROM {call}"), call
    admin = await pair.connect()
    name = await without_grants.fetchval("SELECT current_user")
    await admin.execute(f"GRANT USAGE ON SCHEMA ingot TO {name}")
    callable_now = await without_grants.fetch(
        "SELECT proname FROM pg_proc"
        " WHERE pronamespace = 'ingot'::regnamespace AND has_function_privilege(oid, 'EXECUTE')"
    )
    assert callable_now == []
    assert await is_refused(without_grants, "SELECT ingot.clock()")
