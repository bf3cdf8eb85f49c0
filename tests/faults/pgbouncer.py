"""A real PgBouncer in front of a PostgreSQL server, which assigns a server connection to one transaction at a time."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.components import COMPONENTS, expect_marker, find_program
from tests.faults.postgres_cluster import DATABASE
from tests.postgres import install_debian
from tests.postgres.server import USERS
from tests.processes import started_async
from tests.waiting import eventually

PORT = 6432
SERVER_CONNECTIONS = 2
STOP_SECONDS_MAX = 30.0
PREPARED_SINCE = (1, 21)


def program() -> str:
    """Return the path of PgBouncer. Raises an error that explains how to install it."""
    expect_marker("pgbouncer")
    path = find_program("pgbouncer")
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian("pgbouncer")
        path = find_program("pgbouncer")
    assert path is not None, COMPONENTS["pgbouncer"].sentence
    return path


def settings(folder: Path, server: Path, user: str, mode: str) -> str:
    """Return settings with few enough server connections for clients of transactions to change between them."""
    version = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    supports_prepared = tuple(map(int, version.split(".")[:2])) >= PREPARED_SINCE
    return f"""
[databases]
{DATABASE} = host={server} dbname={DATABASE} user={user}

[pgbouncer]
listen_addr =
listen_port = {PORT}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {SERVER_CONNECTIONS}
max_client_conn = 200
{"max_prepared_statements = 0" if supports_prepared else ""}
"""


@asynccontextmanager
async def open_bouncer(server: Path, *, user: str = "ingot_server", mode: str = "transaction") -> AsyncIterator[str]:
    """Start PgBouncer, which pools connections of this user, and yield the URL of the database behind it."""
    folder = Path(tempfile.mkdtemp(prefix="ingot-bouncer-", dir="/var/tmp"))
    owner_name = None
    if os.geteuid() == 0:
        users = {entry.pw_name: entry for entry in pwd.getpwall()}
        owner = next(users[name] for name in USERS if name in users)
        owner_name = owner.pw_name
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    os.chmod(folder, 0o755)
    file = folder / "pgbouncer.ini"
    await asyncio.to_thread(file.write_text, settings(folder, server, user, mode))
    log = await asyncio.to_thread((folder / "log").open, "wb")
    try:
        async with started_async(program(), file, user=owner_name, cwd=folder, stdout=log, stderr=log) as process:

            async def listens() -> bool:
                assert process.returncode is None, (folder / "log").read_text()[-500:]
                return (folder / f".s.PGSQL.{PORT}").exists()

            await eventually(listens)
            yield f"postgresql://{user}@/{DATABASE}?host={folder}&port={PORT}"
            process.terminate()
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
    finally:
        log.close()
        shutil.rmtree(folder, ignore_errors=True)
