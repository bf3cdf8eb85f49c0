"""`ingot database` as the owner of a PostgreSQL database types it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import asyncpg
import pytest

import ingot
from ingot.settings import Settings
from tests.postgres import Database, empty_database
from tests.system.programs import Done, run_ingot

pytestmark = pytest.mark.postgres


def typed(folder: Path, *words: str, **environment: str) -> Done:
    known = {name: text for name, text in os.environ.items() if not name.startswith("INGOT")}
    return run_ingot(*words, cwd=folder, env={**known, **environment})


@pytest.fixture
def database() -> Database:
    return asyncio.run(empty_database())


async def ask(database: Database, statement: str) -> object:
    connection = await asyncpg.connect(database.owner_url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def first_start(database: Database) -> None:
    async with ingot.open(settings=Settings(database_url=database.server_url), maintenance=False):
        pass


def test_an_owner_prepares_a_database_for_servers_workers_and_applications(database: Database, tmp_path: Path) -> None:
    def owner(*words: str) -> Done:
        return typed(tmp_path, "database", *words, INGOT_DATABASE_OWNER_URL=database.owner_url)

    press, shop = f"press_{os.getpid()}", f"shop_{os.getpid()}"
    before = owner("worker-role", press)
    assert (before.code, before.stdout) == (1, "")
    assert "ingot database migrate" in before.stderr
    assert "migrations" in owner("migrate").stderr
    assert "up to date" in owner("migrate").stderr
    nobodys = owner("worker-role", press, "--tenant", "nobody")
    assert (nobodys.code, nobodys.stderr.splitlines()[0]) == (3, "ingot: there is no tenant 'nobody'")

    asyncio.run(first_start(database))
    try:
        made = owner("worker-role", press)
        assert made.code == 0, made.stderr
        name, _, url = made.stdout.strip().partition("=")
        assert name == "INGOT_DATABASE_URL"
        well = typed(tmp_path, "doctor", INGOT_DATABASE_URL=url)
        assert "INGOT_DATABASE_URL can be used by a worker" in well.stdout
        asyncio.run(ask(database, f"CREATE ROLE {shop} LOGIN"))
        assert shop in owner("let-in", shop).stderr
        held = f"SELECT count(*) FROM ingot.app_roles WHERE role = '{shop}'"
        assert asyncio.run(ask(database, held)) == 1
        assert owner("let-out", shop).code == 0
        assert asyncio.run(ask(database, held)) == 0
    finally:
        asyncio.run(ask(database, f"DROP ROLE IF EXISTS {press}"))
        asyncio.run(ask(database, f"DROP ROLE IF EXISTS {shop}"))


@pytest.mark.parametrize(
    ("words", "url", "code", "said"),
    [
        (["migrate"], "", 1, "INGOT_DATABASE_OWNER_URL is not set"),
        (["migrate"], "mysql://db/ingot", 1, "INGOT_DATABASE_OWNER_URL must begin with postgresql://"),
        (["worker-role", "Ada Lovelace"], "postgresql://nobody@127.0.0.1:1/ingot", 2, "cannot be used"),
    ],
)
def test_database_commands_explain_invalid_settings(
    tmp_path: Path, words: list[str], url: str, code: int, said: str
) -> None:
    done = typed(tmp_path, "database", *words, INGOT_DATABASE_OWNER_URL=url)
    assert (done.code, said in done.stderr) == (code, True), done.stderr
