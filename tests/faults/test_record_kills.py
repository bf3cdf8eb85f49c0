"""Kills of processes that change records: acknowledged changes and exactly their audit entries are stored."""

from __future__ import annotations

import asyncio
import random
import sys
from itertools import chain
from pathlib import Path

import pytest

from ingot.events.audit_service import Audit
from ingot.identity.secret_values import Secrets
from ingot.identity.tenants import Tenants
from ingot.kernel.clock import SystemClock
from ingot.kernel.pages import PAGE_ROWS_MAX
from ingot.settings import Settings
from ingot.wiring.stores import open_store
from tests.postgres import database_for
from tests.processes import started_async

ROUNDS = 4
FORKSERVER = 2
NAMES = ("a", "b", "c")
KEY = bytes(32)
CHILD = """
import asyncio, itertools, sys
from pathlib import Path
from ingot.identity.secret_values import NewSecret, Secrets
from ingot.identity.tenants import Tenants
from ingot.kernel.clock import SystemClock
from ingot.records.model import RecordChanged
from ingot.settings import Settings
from ingot.wiring.stores import open_store

async def change(secrets, tenant, name, value):
    known = {one.name: one.version for one in await secrets.all(tenant)}
    try:
        made = await secrets.write(tenant, name, NewSecret(value=value), if_version=known.get(name, 0))
    except RecordChanged:
        return
    print(name, made.version, value, flush=True)

async def main():
    store = await open_store(Settings(data=Path(sys.argv[1]), database_url=sys.argv[2] or None), SystemClock())
    tenant = (await Tenants(store).ensure_default()).id
    for number in itertools.count():
        value = f"{sys.argv[3]} {number}"
        await asyncio.gather(*(change(Secrets(store, [bytes(32)]), tenant, name, value) for name in "abc"))

asyncio.run(main())
"""


async def change_until_killed(settings: Settings, run: str, changes: int) -> list[tuple[str, int, str]]:
    """Let a process change records, kill it after `changes`, and return all changes that it acknowledged."""
    arguments = (settings.data, settings.database_url or "", run)
    async with started_async(sys.executable, "-c", CHILD, *arguments, stdout=asyncio.subprocess.PIPE) as child:
        assert child.stdout is not None
        output = b"".join([await child.stdout.readline() for _ in range(changes)])
        assert output.count(b"\n") == changes, "the child failed"
        child.kill()
        output += await child.stdout.read()
    whole = output[: output.rindex(b"\n")].decode().split("\n")
    return [(name, int(version), value) for name, version, value in (line.split(" ", 2) for line in whole)]


async def check(settings: Settings, last_acknowledged: dict[str, tuple[int, str]]) -> None:
    """Check that every acknowledged change is stored, at most one more per process, and one audit entry per version."""
    store = await open_store(settings, SystemClock())
    try:
        tenant, secrets = (await Tenants(store).ensure_default()).id, Secrets(store, [KEY])
        entries = (await Audit(store).list(tenant, action="secret.put", limit=PAGE_ROWS_MAX)).items
        for name, (version, value) in last_acknowledged.items():
            record = await secrets.get(tenant, name)
            assert version <= record.version <= version + FORKSERVER
            if record.version == version:
                assert await secrets.reveal(tenant, name) == value
            assert sum(entry.target == f"secret/{name}" for entry in entries) == record.version
    finally:
        await store.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_acknowledged_changes_of_records_survive_kills(engine: str, tmp_path: Path) -> None:
    url = None if engine == "sqlite" else (await database_for(tmp_path)).server_url
    settings, chance = Settings(data=tmp_path, database_url=url), random.Random(7)
    last_acknowledged: dict[str, tuple[int, str]] = {}
    for run in range(ROUNDS):
        servers = 1 if engine == "sqlite" else FORKSERVER  # On PostgreSQL both change the same records.
        runs = (change_until_killed(settings, f"{run}-{n}", chance.randint(5, 20)) for n in range(servers))
        for name, version, value in sorted(chain.from_iterable(await asyncio.gather(*runs)), key=lambda one: one[1]):
            assert last_acknowledged.get(name, (0, ""))[0] < version, "two changes have the same version"
            last_acknowledged[name] = version, value
        await check(settings, last_acknowledged)
    assert last_acknowledged.keys() == set(NAMES)
