"""Requirements for every table and function of the schema.

The tests query the system catalog, so that they cover new tables and functions.
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.engines.postgres.tenant_visibility import rolled_back
from tests.two_tenant_database import TenantPair

FUNCTIONS_WITHOUT_SEARCH_PATH: Final = """
    SELECT proname FROM pg_proc
    WHERE pronamespace = 'ingot'::regnamespace AND prosecdef
        AND coalesce('search_path=pg_catalog, pg_temp' <> ALL (proconfig), true)
"""
PUBLIC_FUNCTIONS: Final = """
    SELECT DISTINCT p.proname FROM pg_proc AS p
    CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
    WHERE p.pronamespace = 'ingot'::regnamespace AND a.grantee = 0
"""
UNPROTECTED_TABLES: Final = """
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


async def test_security_definer_functions_have_a_fixed_search_path_and_no_public_grant(pair: TenantPair) -> None:
    admin = await pair.connect()
    assert await admin.fetch(FUNCTIONS_WITHOUT_SEARCH_PATH) == []
    assert await admin.fetch(PUBLIC_FUNCTIONS) == []
    owners = await admin.fetch(
        "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'ingot'::regnamespace AND prosecdef"
    )
    assert [row[0] for row in owners] == ["ingot_owner"]


async def test_every_table_with_a_tenant_has_a_row_security_policy_for_one_tenant(pair: TenantPair) -> None:
    admin = await pair.connect()
    assert await admin.fetch(UNPROTECTED_TABLES) == []


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
async def test_an_unprotected_new_table_is_detected(pair: TenantPair, change: str) -> None:
    admin = await pair.connect()
    async with rolled_back(admin):
        await admin.execute(f"CREATE TABLE ingot.mine (tenant uuid NOT NULL); {change}")
        assert [row[0] for row in await admin.fetch(UNPROTECTED_TABLES)] == ["mine"]


async def test_a_new_table_with_its_policy_is_accepted(pair: TenantPair) -> None:
    admin = await pair.connect()
    async with rolled_back(admin):
        await admin.execute(f"CREATE TABLE ingot.mine (tenant uuid NOT NULL); {FORCED}")
        assert await admin.fetch(UNPROTECTED_TABLES) == []
        await admin.execute(
            f"{POLICY} TO ingot_server USING (tenant = {ONE}); GRANT SELECT ON ingot.mine TO ingot_server"
        )
        assert await admin.fetch(UNPROTECTED_TABLES) == []


@pytest.mark.parametrize(
    ("options", "query"),
    [
        ("SECURITY DEFINER", FUNCTIONS_WITHOUT_SEARCH_PATH),
        ("SECURITY DEFINER SET search_path = pg_temp, pg_catalog", FUNCTIONS_WITHOUT_SEARCH_PATH),
        ("SECURITY DEFINER SET search_path = pg_catalog, pg_temp", PUBLIC_FUNCTIONS),
        ("SECURITY INVOKER", PUBLIC_FUNCTIONS),
    ],
)
async def test_an_unprotected_new_function_is_detected(pair: TenantPair, options: str, query: str) -> None:
    admin = await pair.connect()
    async with rolled_back(admin):
        await admin.execute(f"CREATE FUNCTION ingot.mine() RETURNS integer LANGUAGE sql {options} AS 'SELECT 1'")
        assert [row[0] for row in await admin.fetch(query)] == ["mine"]
