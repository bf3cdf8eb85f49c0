"""The commands of `ingot database`, which the owner of a PostgreSQL database runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import asyncpg
import pytest

import ingot
from ingot.settings import Settings
from tests.postgres import Database, empty_database
from tests.system.programs import CommandResult, run_ingot

pytestmark = pytest.mark.postgres


def run_command(folder: Path, *arguments: str, **environment: str) -> CommandResult:
    variables = {name: text for name, text in os.environ.items() if not name.startswith("INGOT")}
    return run_ingot(*arguments, cwd=folder, env={**variables, **environment})


@pytest.fixture
def database() -> Database:
    return asyncio.run(empty_database())


async def fetch_value(database: Database, statement: str) -> object:
    connection = await asyncpg.connect(database.owner_url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def first_start(database: Database) -> None:
    async with ingot.open(settings=Settings(database_url=database.server_url), maintenance=False):
        pass


def test_an_owner_prepares_a_database_for_servers_workers_and_applications(database: Database, tmp_path: Path) -> None:
    def owner(*arguments: str) -> CommandResult:
        return run_command(tmp_path, "database", *arguments, INGOT_DATABASE_OWNER_URL=database.owner_url)

    press, shop = f"press_{os.getpid()}", f"shop_{os.getpid()}"
    before = owner("worker-role", press)
    assert (before.code, before.stdout) == (1, "")
    assert "ingot database migrate" in before.stderr
    assert "migrations" in owner("migrate").stderr
    assert "up to date" in owner("migrate").stderr
    unknown_tenant = owner("worker-role", press, "--tenant", "nobody")
    assert (unknown_tenant.code, unknown_tenant.stderr.splitlines()[0]) == (3, "ingot: there is no tenant 'nobody'")

    asyncio.run(first_start(database))
    try:
        created = owner("worker-role", press)
        assert created.code == 0, created.stderr
        name, _, url = created.stdout.strip().partition("=")
        assert name == "INGOT_DATABASE_URL"
        doctor = run_command(tmp_path, "doctor", INGOT_DATABASE_URL=url)
        assert "INGOT_DATABASE_URL can be used by a worker" in doctor.stdout
        asyncio.run(fetch_value(database, f"CREATE ROLE {shop} LOGIN"))
        assert shop in owner("grant-app", shop).stderr
        has_access = f"SELECT count(*) FROM ingot.app_roles WHERE role = '{shop}'"
        assert asyncio.run(fetch_value(database, has_access)) == 1
        asyncio.run(fetch_value(database, "REVOKE pg_signal_backend FROM ingot_owner"))
        try:
            doctor = run_command(tmp_path, "doctor", INGOT_DATABASE_URL=database.server_url)
        finally:
            asyncio.run(fetch_value(database, "GRANT pg_signal_backend TO ingot_owner"))
        assert f"servers cannot end long transactions of these roles: {shop}\n" in doctor.stdout
        assert owner("revoke-app", shop).code == 0
        assert asyncio.run(fetch_value(database, has_access)) == 0
    finally:
        asyncio.run(fetch_value(database, f"DROP ROLE IF EXISTS {press}"))
        asyncio.run(fetch_value(database, f"DROP ROLE IF EXISTS {shop}"))


@pytest.mark.parametrize(
    ("arguments", "url", "code", "message"),
    [
        (["migrate"], "", 1, "INGOT_DATABASE_OWNER_URL is not set"),
        (["migrate"], "mysql://db/ingot", 1, "INGOT_DATABASE_OWNER_URL must begin with postgresql://"),
        (["worker-role", "Ada Lovelace"], "postgresql://nobody@127.0.0.1:1/ingot", 2, "cannot be used"),
    ],
)
def test_database_commands_explain_invalid_settings(
    tmp_path: Path, arguments: list[str], url: str, code: int, message: str
) -> None:
    done = run_command(tmp_path, "database", *arguments, INGOT_DATABASE_OWNER_URL=url)
    assert (done.code, message in done.stderr) == (code, True), done.stderr
