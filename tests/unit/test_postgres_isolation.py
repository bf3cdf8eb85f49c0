"""Tenants are isolated by PostgreSQL itself, whatever the code above it forgets.

What a role may do is asked of the server by that role, and what must hold for every table and every function is asked
of the catalogue, so that a new one without its policy or its fixed search path is found here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import pytest
from asyncpg.pool import PoolConnectionProxy

from ingot.engines.postgres import PostgresStore
from ingot.engines.postgres.connection import PlainConnection as Raw
from ingot.engines.postgres.connection import Record, as_tenant
from ingot.jobs import Done, JobNotFound, JobStatus
from ingot.jobs.ports import CancelJob, JobFilter
from ingot.kernel.errors import IngotError, StoreError
from ingot.kernel.ids import new_id
from tests.factories import LEASE_SECONDS, Bench
from tests.town import REFUSED, Town, refused, store_with_one_connection, tables_of

READABLE: Final = [
    "attempts",
    "batch_deltas",
    "batches",
    "blocked",
    "canceled",
    "count_deltas",
    "counts",
    "endings",
    "event_floors",
    "events",
    "history",
    "job_files",
    "job_rows",
    "jobs",
    "keys",
    "later",
    "leases",
    "logs",
    "outcomes",
    "pauses",
    "ready",
    "tags",
    "uploads",
    "usage",
    "waits",
]
HIDDEN: Final = [
    "app_roles",
    "askers",
    "audit",
    "blob_contents",
    "blobs",
    "buckets",
    "dedupe_keys",
    "definitions",
    "event_keys",
    "idempotency_keys",
    "invitations",
    "logins",
    "members",
    "object_store",
    "removed_tenants",
    "reuse_keys",
    "secret_key",
    "sessions",
    "tenant_groups",
    "tenants",
    "tokens",
    "tombstones",
    "trash",
    "usage_owed",
    "user_groups",
    "users",
    "worker_credentials",
    "worker_roles",
    "workers",
]
# A column of each that is nobody's, or of all.
WITHOUT_A_TENANT: Final = {
    "object_store": "id",
    "blob_contents": "checks",
    "blobs": "size",
    "home": "server",
    "logins": "next",
    "migrations": "number",
    "secret_key": "fingerprint",
    "sessions": "id",
    "tenants": "id",
    "tombstones": "at",
    "trash": "place",
    "user_groups": "name",
    "users": "id",
}
OF_SERVER: Final = {
    "append_logs",
    "at_home",
    "begin_login",
    "begin_upload",
    "blob_figures",
    "cancel",
    "change",
    "change_tenant",
    "change_worker_credential",
    "check_leases",
    "claim",
    "clear_tenants",
    "clock",
    "close_batches",
    "collect",
    "collect_blob",
    "create_tenant",
    "create_token",
    "create_worker_credential",
    "delete_keys",
    "depths",
    "drain_worker",
    "enable_user",
    "end_session",
    "end_upload",
    "ended_parents",
    "enqueue",
    "expect_room",
    "expired",
    "find_attempts",
    "find_definitions",
    "find_limits",
    "find_member",
    "find_orders",
    "find_session",
    "find_tenants",
    "find_token",
    "find_user",
    "find_worker",
    "find_worker_credential",
    "finish_uploads",
    "fold_batches",
    "fold_counts",
    "forget_events",
    "forget_trash",
    "get_usage",
    "heads",
    "hear_worker",
    "is_held",
    "is_worker_name",
    "keep_objects",
    "keep_secret_key",
    "keeping",
    "known_places",
    "leases_of_worker",
    "list_acts",
    "list_condemned",
    "list_draining",
    "list_members",
    "list_people_tokens",
    "list_sessions",
    "list_tenants",
    "list_to_scrub",
    "list_tokens",
    "list_trash",
    "list_users",
    "list_verifying",
    "list_worker_credentials",
    "list_workers",
    "look",
    "newest_ended",
    "next_due",
    "next_expiry",
    "note_askers",
    "note_scrub",
    "note_upload",
    "note_use",
    "open_blob",
    "open_file",
    "open_key",
    "pause",
    "position",
    "promote",
    "publish",
    "purge_keys",
    "put_blobs",
    "put_definition",
    "put_member",
    "register_worker",
    "release",
    "remove_member",
    "remove_tenant",
    "remove_worker",
    "renew",
    "resume",
    "retry",
    "revoke_token",
    "settle",
    "shift",
    "sign_in",
    "sums_of_batch",
    "sweep",
    "sweep_uploads",
    "take_login",
    "take_upload",
    "tell",
    "tend_workers",
    "turn_away",
    "up_since",
}
OF_WORKER: Final = {
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
OF_APP: Final = {"enqueue_jobs", "enqueue_json", "publish_event", "publish_json"}
FUNCTIONS_WITHOUT_A_FIXED_PATH: Final = """
    SELECT proname FROM pg_proc
    WHERE pronamespace = 'ingot'::regnamespace AND prosecdef
        AND coalesce('search_path=pg_catalog, pg_temp' <> ALL (proconfig), true)
"""
FUNCTIONS_FOR_EVERYBODY: Final = """
    SELECT DISTINCT p.proname FROM pg_proc AS p
    CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    WHERE p.pronamespace = 'ingot'::regnamespace AND a.grantee = 0
"""
OPEN_TABLES: Final = """
    SELECT c.relname FROM pg_class AS c
    WHERE c.relnamespace = 'ingot'::regnamespace AND c.relkind IN ('r', 'p', 'm', 'f')
        AND EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'tenant')
        AND NOT (
            c.relrowsecurity AND c.relforcerowsecurity
            AND NOT EXISTS (SELECT FROM pg_policy AS p WHERE p.polrelid = c.oid AND p.polroles = '{0}')
            AND CASE WHEN has_any_column_privilege('ingot_server', c.oid, 'SELECT') THEN (
                SELECT count(*) = 1 AND bool_and(
                    pg_get_expr(p.polqual, p.polrelid)
                    = '(tenant = (NULLIF(current_setting(''ingot.tenant''::text, true), ''''::text))::uuid)'
                )
                FROM pg_policy AS p WHERE p.polrelid = c.oid AND 'ingot_server'::regrole = ANY (p.polroles)
            ) ELSE true END
        )
"""
LEASE: Final = int(LEASE_SECONDS * 1_000_000)


async def rows_of(connection: Raw | PoolConnectionProxy[Record]) -> dict[str, set[str]]:
    """Whose rows a connection sees in everything it can read."""
    return {
        name: {row[0] for row in await connection.fetch(f"SELECT DISTINCT tenant::text FROM ingot.{name}")}
        for name in READABLE
    }


# -- what the server's role sees ----------------------------------------------------------------------------


async def test_each_tenant_sees_rows_of_its_own_in_every_table_and_no_others(town: Town) -> None:
    server = await town.server()
    for tenant in town.tenants:
        async with as_tenant(server, tenant):
            assert await rows_of(server) == {name: {tenant} for name in READABLE}


@pytest.mark.parametrize("value", [None, "", "00000000-0000-0000-0000-000000000000"])
async def test_without_a_tenant_there_is_nothing_to_see(town: Town, value: str | None) -> None:
    server = await town.server()
    if value is not None:
        await server.execute(f"SET ingot.tenant = '{value}'")
    assert await rows_of(server) == {name: set() for name in READABLE}
    for name in READABLE:
        assert await server.execute(f"COPY (SELECT * FROM ingot.{name}) TO STDOUT") == "COPY 0"


async def test_a_tenant_that_is_not_there_sees_nothing(town: Town) -> None:
    server = await town.server()
    async with as_tenant(server, new_id()):
        assert await rows_of(server) == {name: set() for name in READABLE}


@pytest.mark.parametrize("value", ["everybody", "' OR true --", "%"])
async def test_a_tenant_that_is_no_id_is_an_error(town: Town, value: str) -> None:
    server = await town.server()
    await server.execute("SELECT set_config('ingot.tenant', $1, false)", value)
    for name in READABLE:
        with pytest.raises(asyncpg.InvalidTextRepresentationError):
            await server.fetch(f"SELECT tenant FROM ingot.{name}")


async def test_the_tenant_is_forgotten_at_the_end_of_its_transaction(town: Town) -> None:
    server = await town.server()
    async with as_tenant(server, town.tenants[0]):
        pass
    assert await rows_of(server) == {name: set() for name in READABLE}


async def test_who_can_run_any_statement_can_change_the_tenant_and_still_sees_one_at_a_time(town: Town) -> None:
    """The setting is a safety net below our own code, not a wall: a role with free SQL can name another tenant."""
    first, second = town.tenants
    server = await town.server()
    async with as_tenant(server, first):
        await server.execute(f"SET LOCAL ingot.tenant = '{second}'")
        assert await rows_of(server) == {name: {second} for name in READABLE}
    async with as_tenant(server, first):
        query = "SELECT tenant::text FROM ingot.jobs, (SELECT set_config('ingot.tenant', $1, true) OFFSET 0) AS s"
        seen = {row[0] for row in await server.fetch(query, second)}
        assert seen in ({first}, {second})


async def test_a_condition_that_looks_at_rows_sees_none_of_another_tenant(town: Town) -> None:
    """A function of the reader's own in a condition would be called with hidden rows if it ran before the policy."""
    first, second = town.tenants
    server = await town.server()
    await server.execute("""
        CREATE FUNCTION pg_temp.peek(seen uuid) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$
        BEGIN RAISE NOTICE '%', seen; RETURN true; END $$
    """)
    told: list[str] = []
    server.add_log_listener(lambda _, message: told.append(str(message)))
    async with as_tenant(server, first):
        for name in READABLE:
            await server.fetch(f"SELECT FROM ingot.{name} WHERE pg_temp.peek(tenant)")
    await server.fetch("SELECT 1")
    assert told != []
    assert [message for message in told if second in message] == []


# -- what the server's role may not do ----------------------------------------------------------------------


async def test_the_server_can_become_nobody_else(town: Town) -> None:
    server = await town.server()
    for role in ("ingot_owner", "ingot_worker", "postgres"):
        assert await refused(server, f"SET ROLE {role}")
        assert await refused(server, f"SET SESSION AUTHORIZATION {role}")
    assert await server.fetchval("SELECT current_user") == "ingot_server"


async def test_row_security_cannot_be_switched_off(town: Town) -> None:
    server = await town.server()
    await server.execute("SET row_security = off")
    for name in READABLE:
        for tenant in ("", town.tenants[0]):
            await server.execute(f"SET ingot.tenant = '{tenant}'")
            with pytest.raises(REFUSED, match="row-level security"):
                await server.fetch(f"SELECT * FROM ingot.{name}")


async def test_the_server_writes_to_no_table(town: Town) -> None:
    server = await town.server()
    await server.execute(f"SET ingot.tenant = '{town.tenants[0]}'")
    allowed = []
    for name in await tables_of(town):
        column = WITHOUT_A_TENANT.get(name, "tenant")
        statements = [f"SELECT * FROM ingot.{name} FOR UPDATE", f"LOCK TABLE ingot.{name} IN EXCLUSIVE MODE"]
        if name not in ("attempts", "job_rows"):
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
        allowed += [statement for statement in statements if not await refused(server, statement)]
    assert allowed == []


async def test_the_server_makes_nothing_in_our_schema_and_takes_no_fence(town: Town) -> None:
    server = await town.server()
    for statement in (
        "CREATE TABLE ingot.mine (a integer)",
        "CREATE VIEW ingot.mine AS SELECT 1",
        "CREATE FUNCTION ingot.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "SELECT nextval('ingot.fences')",
        "SELECT setval('ingot.fences', 4294967297)",
        "SELECT * FROM ingot.fences",
        "ALTER FUNCTION ingot.claim SECURITY INVOKER",
    ):
        assert await refused(server, statement), statement


async def test_what_is_shown_by_functions_only_cannot_be_read(town: Town) -> None:
    server = await town.server()
    await server.execute(f"SET ingot.tenant = '{town.tenants[0]}'")
    for name in HIDDEN:
        assert await refused(server, f"SELECT * FROM ingot.{name}"), name
        assert await refused(server, f"COPY ingot.{name} TO STDOUT"), name
    assert sorted([*READABLE, *HIDDEN, "migrations", "home"]) == await tables_of(town)


async def test_each_role_may_call_what_it_was_given_and_nothing_else(town: Town) -> None:
    admin = await town.connect()
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
    assert allowed == {"ingot_server": OF_SERVER, "ingot_worker": OF_WORKER, "ingot_app": OF_APP}


async def test_a_function_that_was_not_given_is_refused(town: Town) -> None:
    server = await town.server()
    for call in (
        "SELECT ingot.begin_again()",
        "SELECT ingot.refuse('IN001', 'no')",
        "SELECT ingot.spread()",
        "SELECT ingot.worker_tenant()",
        "SELECT ingot.backoff(1, 1, 1, 1, 0)",
        "SELECT ingot.expect(true, 'all is well')",
        "SELECT * FROM ingot.worker_claim('{}', 'w', NULL, NULL, 1, 1)",
        "SELECT * FROM ingot.worker_hello()",
        "SELECT ingot.worker_name('w')",
    ):
        assert await refused(server, call), call


async def test_a_lease_is_not_lost_before_it_has_run_out(town: Town) -> None:
    claim = await town.bench.make_claim("mine")
    lost = "SELECT * FROM ingot.settle($1, $2, NULL, '{lost}', NULL, NULL, NULL, NULL, NULL)"
    async with store_with_one_connection(town) as store:
        assert await store._db.call(lost, [claim.job.id], [claim.fence]) == []
    assert (await town.bench.reload(claim)).status is JobStatus.RUNNING


async def test_the_owner_cannot_log_in_and_no_role_of_ours_is_above_the_rules(town: Town) -> None:
    for role in ("ingot_owner", "ingot_worker"):
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await town.connect(role)
    admin = await town.connect()
    rows = await admin.fetch("""
        SELECT rolname FROM pg_roles WHERE rolname LIKE 'ingot\\_%'
            AND (rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication)
    """)
    assert [row[0] for row in rows] == []
    for member, role in [("ingot_server", "ingot_owner"), ("ingot_worker", "ingot_owner")]:
        assert not await admin.fetchval("SELECT pg_has_role($1, $2, 'MEMBER')", member, role)


async def test_a_role_without_a_grant_can_do_nothing(town: Town) -> None:
    stranger = await town.connect(await town.make_role(""))
    await stranger.execute(f"SET ingot.tenant = '{town.tenants[0]}'")
    for name in await tables_of(town):
        assert await refused(stranger, f"SELECT * FROM ingot.{name}"), name
    for call in ("ingot.clock()", "ingot.find_tenants(NULL, NULL)", "ingot.look()", "ingot.fold_counts(1)"):
        assert await refused(stranger, f"SELECT * FROM {call}"), call
    admin = await town.connect()
    name = await stranger.fetchval("SELECT current_user")
    await admin.execute(f"GRANT USAGE ON SCHEMA ingot TO {name}")
    callable_now = await stranger.fetch(
        "SELECT proname FROM pg_proc"
        " WHERE pronamespace = 'ingot'::regnamespace AND has_function_privilege(oid, 'EXECUTE')"
    )
    assert callable_now == []
    assert await refused(stranger, "SELECT ingot.clock()")


# -- what must hold for whatever comes ----------------------------------------------------------------------


async def test_functions_that_act_as_their_owner_have_a_fixed_path_and_named_callers(town: Town) -> None:
    admin = await town.connect()
    assert await admin.fetch(FUNCTIONS_WITHOUT_A_FIXED_PATH) == []
    assert await admin.fetch(FUNCTIONS_FOR_EVERYBODY) == []
    owners = await admin.fetch(
        "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'ingot'::regnamespace AND prosecdef"
    )
    assert [row[0] for row in owners] == ["ingot_owner"]


async def test_every_table_with_a_tenant_shows_the_server_one_tenant_or_nothing(town: Town) -> None:
    admin = await town.connect()
    assert await admin.fetch(OPEN_TABLES) == []


@asynccontextmanager
async def undone(connection: Raw) -> AsyncIterator[None]:
    """What happens inside is rolled back."""
    change = connection.transaction()
    await change.start()
    try:
        yield
    finally:
        await change.rollback()


FORCED = "ALTER TABLE ingot.mine ENABLE ROW LEVEL SECURITY; ALTER TABLE ingot.mine FORCE ROW LEVEL SECURITY;"
POLICY = "CREATE POLICY tenant ON ingot.mine FOR SELECT"
ONE = "nullif(current_setting('ingot.tenant', true), '')::uuid"


@pytest.mark.parametrize(
    "change",
    [
        "",
        "ALTER TABLE ingot.mine ENABLE ROW LEVEL SECURITY;",
        f"{FORCED} GRANT SELECT ON ingot.mine TO ingot_server;",
        f"{FORCED} GRANT SELECT (tenant) ON ingot.mine TO ingot_server;",
        f"{FORCED} {POLICY} USING (tenant = {ONE});",
        f"{FORCED} {POLICY} TO ingot_server USING (tenant = {ONE} OR {ONE} IS NULL);"
        " GRANT SELECT ON ingot.mine TO ingot_server;",
        f"{FORCED} {POLICY} TO ingot_server USING (tenant = {ONE});"
        " CREATE POLICY more ON ingot.mine TO ingot_server USING (true); GRANT SELECT ON ingot.mine TO ingot_server;",
    ],
)
async def test_a_new_table_that_is_open_is_noticed(town: Town, change: str) -> None:
    admin = await town.connect()
    async with undone(admin):
        await admin.execute(f"CREATE TABLE ingot.mine (tenant uuid NOT NULL); {change}")
        assert [row[0] for row in await admin.fetch(OPEN_TABLES)] == ["mine"]


async def test_a_new_table_with_its_policy_is_fine(town: Town) -> None:
    admin = await town.connect()
    async with undone(admin):
        await admin.execute(f"CREATE TABLE ingot.mine (tenant uuid NOT NULL); {FORCED}")
        assert await admin.fetch(OPEN_TABLES) == []
        await admin.execute(
            f"{POLICY} TO ingot_server USING (tenant = {ONE}); GRANT SELECT ON ingot.mine TO ingot_server"
        )
        assert await admin.fetch(OPEN_TABLES) == []


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ("SECURITY DEFINER", FUNCTIONS_WITHOUT_A_FIXED_PATH),
        ("SECURITY DEFINER SET search_path = pg_temp, pg_catalog", FUNCTIONS_WITHOUT_A_FIXED_PATH),
        ("SECURITY DEFINER SET search_path = pg_catalog, pg_temp", FUNCTIONS_FOR_EVERYBODY),
        ("SECURITY INVOKER", FUNCTIONS_FOR_EVERYBODY),
    ],
)
async def test_a_new_function_that_is_open_is_noticed(town: Town, options: str, query: str) -> None:
    admin = await town.connect()
    async with undone(admin):
        await admin.execute(f"CREATE FUNCTION ingot.mine() RETURNS integer LANGUAGE sql {options} AS 'SELECT 1'")
        assert [row[0] for row in await admin.fetch(query)] == ["mine"]


# -- a pool's connections -----------------------------------------------------------------------------------


async def seen_by(store: PostgresStore) -> tuple[dict[str, set[str]], bool]:
    """What the store's only connection shows by itself, and whether a transaction was left open on it."""
    async with store._db.pool.acquire() as connection:
        in_transaction = connection.is_in_transaction()
        return await rows_of(connection), in_transaction


NOTHING: Final = ({name: set[str]() for name in READABLE}, False)


@pytest.mark.parametrize(
    "failing", ["SELECT 1 / 0", "SELECT nonsense", "SELECT * FROM ingot.tenants", "COMMIT; SELECT"]
)
async def test_a_connection_forgets_its_tenant_after_an_error(town: Town, failing: str) -> None:
    async with store_with_one_connection(town) as store:
        with pytest.raises(StoreError):
            await store._db.read(town.tenants[0], failing)
        assert await seen_by(store) == NOTHING


async def test_a_connection_forgets_its_tenant_after_a_refusal(town: Town) -> None:
    async with store_with_one_connection(town) as store:
        with pytest.raises(JobNotFound):
            await store.cancel(CancelJob(tenant=town.tenants[0], job_id=new_id()))
        assert await seen_by(store) == NOTHING


async def test_a_connection_forgets_its_tenant_when_its_reader_goes_away(town: Town) -> None:
    async with store_with_one_connection(town) as store:
        admin = await town.connect()
        reading = asyncio.create_task(store._db.read(town.tenants[0], "SELECT pg_sleep(60)"))
        asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        while not await admin.fetchval(asleep):
            pass
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await seen_by(store) == NOTHING


async def test_a_text_that_is_no_id_never_gets_into_a_statement(town: Town) -> None:
    async with store_with_one_connection(town) as store:
        for text in ("'; SET ingot.tenant = 'x", "", "A" * 36):
            with pytest.raises(AssertionError):
                await store._db.read(text, "SELECT 1")
        assert await seen_by(store) == NOTHING


async def test_a_connection_that_is_not_reset_keeps_no_tenant(town: Town) -> None:
    async with store_with_one_connection(town) as store:
        for tenant in town.tenants:
            assert len((await store.list_jobs(JobFilter(tenant=tenant), before=None, limit=100))[0]) == 8
        assert await seen_by(store) == NOTHING


# -- not yours is not there ---------------------------------------------------------------------------------


Call = Callable[[Bench, str, str, int], Awaitable[object]]
CALLS: Final[dict[str, Call]] = {
    "get": lambda bench, tenant, job, _: bench.jobs.get(tenant, job),
    "attempts": lambda bench, tenant, job, _: bench.jobs.attempts(tenant, job),
    "cancel": lambda bench, tenant, job, _: bench.jobs.cancel(tenant, job),
    "retry": lambda bench, tenant, job, _: bench.jobs.retry(tenant, job),
    "reschedule": lambda bench, tenant, job, _: bench.jobs.reschedule(tenant, job, priority=1),
    "retag": lambda bench, tenant, job, _: bench.jobs.reschedule(tenant, job, tags=["a"]),
    "heartbeat": lambda bench, tenant, job, fence: bench.jobs.heartbeat(job, fence, tenant=tenant),
    "settle": lambda bench, tenant, job, fence: bench.jobs.settle(job, fence, Done(), tenant=tenant),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.CANCELED])
async def test_a_call_about_a_job_that_is_not_yours_is_answered_as_if_it_were_not_there(
    town: Town, name: str, status: JobStatus
) -> None:
    first, second = town.tenants
    theirs = await town.bench.make_job_in(status, "theirs", tenant=second)
    answers = []
    for job_id, fence in ((theirs.id, theirs.fence), (new_id(), theirs.fence), (theirs.id, theirs.fence + 1)):
        with pytest.raises(IngotError) as caught:
            await CALLS[name](town.bench, first, job_id, fence)
        told = caught.value
        answers.append((type(told), told.code, told.status, told.hint, told.detail.replace(job_id, "?")))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][1] == "job_not_found"
    assert await town.bench.reload(theirs) == theirs


async def test_keys_of_one_tenant_are_no_news_to_another(town: Town) -> None:
    first, second = town.tenants
    await town.bench.make_job("keyed", 1, tenant=second, idempotency_key="secret", dedupe_key="secret")
    made = await town.bench.jobs.enqueue(first, "keyed", 2, idempotency_key="secret", dedupe_key="secret")
    assert made.created
    assert made.job.tenant == first
