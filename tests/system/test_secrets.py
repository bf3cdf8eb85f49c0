"""Secrets, planted everywhere that one comes in or is made, are found in nothing that a server lets out."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import quote

import apsw
import asyncpg
import pytest

from ingot.cli.serve import TOKEN_FILE
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.identity import credential_secrets
from ingot.kernel.ids import new_id
from ingot.kernel.secret_key import SECRET_KEY_FILE as SECRET_FILE
from tests.postgres import database_for
from tests.processes import started_async
from tests.providers.fake_provider import CALLBACK, open_fake_provider
from tests.span_receiver import receiving
from tests.system.canaries import Canaries
from tests.system.programs import PYTHON_INGOT, run_ingot
from tests.system.secret_scenarios import (
    Place,
    fail_to_sign_in,
    fail_within,
    find_no_provider,
    look_everywhere,
    make_tokens,
    make_workers,
    misplace,
    sign_in,
    use_links,
    use_session,
)

PLANTED_MIN = 100
BROKEN = ("tokens", "worker_credentials", "sessions", "logins")
URL = re.compile(r"http://127\.0\.0\.1:\d+")


class Kept:
    """Where a server keeps what it knows."""

    def __init__(self, folder: Path, owner_url: str | None) -> None:
        self.folder = folder
        self.owner_url = owner_url

    def operator(self, canaries: Canaries) -> str:
        """The token that the first start made. Its file is there to show it."""
        token = (self.folder / TOKEN_FILE).read_bytes()
        shown = canaries.let_out("the operator's file", token)
        return canaries.keep(token.decode().strip(), "the operator's token", shown_in=shown)

    async def rename(self, old: str, new: str) -> None:
        """Take tables away, or put them back, without the server knowing."""
        if self.owner_url is None:
            with closing(apsw.Connection(str(self.folder / FILE_NAME))) as connection:
                for name in BROKEN:
                    connection.execute(f"ALTER TABLE {old.format(name)} RENAME TO {new.format(name)}")
            return
        owner = await asyncpg.connect(self.owner_url)
        try:
            for name in BROKEN:
                await owner.execute(f"ALTER TABLE ingot.{old.format(name)} RENAME TO {new.format(name)}")
        finally:
            await owner.close()

    async def look(self, canaries: Canaries) -> None:
        """All that there is."""
        for file in self.folder.rglob("*") if self.folder.exists() else ():
            if file.is_file() and file.name not in (TOKEN_FILE, SECRET_FILE):
                canaries.let_out(f"the file {file.name}", file.read_bytes())
        if self.owner_url is None:
            return
        owner = await asyncpg.connect(self.owner_url)
        try:
            tables = await owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'ingot'")
            for (table,) in tables:
                rows = await owner.fetch(f"SELECT t::text FROM ingot.{table} AS t")
                canaries.let_out(f"the table {table}", "\n".join(text for (text,) in rows).encode())
        finally:
            await owner.close()


@asynccontextmanager
async def running(canaries: Canaries, environment: dict[str, str]) -> AsyncIterator[str]:
    """A server at the level `debug`, stopped at the end; where it is. What it logs is looked through then."""
    everything = {**os.environ, **environment}
    command = [*PYTHON_INGOT, "serve", "--port", "0"]  # Started cold: the command line is looked at too.
    async with started_async(*command, stderr=asyncio.subprocess.PIPE, env=everything) as process:
        assert process.stderr is not None
        lines: list[str] = []
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def read(written: asyncio.StreamReader) -> None:
            async for line in written:
                lines.append(line.decode())
                if not begun.done() and "serving" in lines[-1]:
                    begun.set_result(URL.findall(lines[-1])[0])

        reading = asyncio.create_task(read(process.stderr))
        try:
            yield await asyncio.wait_for(begun, 30)
            canaries.let_out("the command line", _command_line(process.pid))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0, lines[-20:]
        finally:
            if process.returncode is None:
                process.kill()
            await reading
    assert len(lines) > 200
    canaries.let_out("the log", "".join(lines).encode())


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def with_password(url: str, password: str) -> str:
    """The same URL with a password for its role; the server of the tests asks for none."""
    scheme, rest = url.split("://", 1)
    role, _, place = rest.partition("@")
    return url if ":" in role else f"{scheme}://{role}:{quote(password, safe='')}@{place}"


@pytest.mark.long
@pytest.mark.parametrize(("engine", "form"), [("sqlite", "json"), ("sqlite", "text"), ("postgres", "json")])
async def test_a_server_exposes_none_of_the_planted_secrets(tmp_path: Path, engine: str, form: str) -> None:
    canaries = Canaries()
    kept = Kept(tmp_path / "data", None)
    environment = {"INGOT_DATA": str(kept.folder), "INGOT_LOG_LEVEL": "debug", "INGOT_LOG_FORMAT": form}
    environment["INGOT_TRUSTED_PROXIES"] = "127.0.0.1"
    if form == "json":
        environment["INGOT_OPERATOR_TOKEN"] = canaries.keep(
            credential_secrets.new_token(new_id()), "the operator's token"
        )
    environment["INGOT_OIDC_CLIENT_SECRET"] = canaries.keep(f"canary/+{new_id()}", "the secret of the client")
    if engine == "postgres":
        database = await database_for(kept.folder)
        kept.owner_url = database.owner_url
        for name, url in (("URL", database.server_url), ("OWNER_URL", database.owner_url)):
            environment[f"INGOT_DATABASE_{name}"] = with_password(url, canaries.new(f"the password in DATABASE_{name}"))
    with receiving() as received:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = received.url
        environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"x-api-key={canaries.new('the key for spans')}"
        async with open_fake_provider() as idp:
            environment |= {"INGOT_OIDC_ISSUER": idp.issuer, "INGOT_OIDC_CLIENT_ID": "ingot"}
            environment |= {"INGOT_OIDC_REDIRECT_URL": CALLBACK, "INGOT_OIDC_ADMIN_GROUPS": "staff"}
            async with running(canaries, environment) as url:
                operator = environment.get("INGOT_OPERATOR_TOKEN") or kept.operator(canaries)
                place = Place(url, canaries, idp, operator)
                async with place.client:
                    await visit(place, kept)
                await kept.look(canaries)
    await kept.look(canaries)
    assert len(received.spans) > 100
    canaries.let_out("the spans", "\n".join(map(str, received.spans)).encode())
    assert len(canaries.planted) >= PLANTED_MIN
    assert canaries.leaks() == []


async def visit(place: Place, kept: Kept) -> None:
    """Plant secrets everywhere, and look everywhere."""
    await find_no_provider(place)
    tokens, workers = await make_tokens(place), await make_workers(place)
    headers = await use_links(place)
    await use_session(place, headers)
    headers = await sign_in(place)
    await use_session(place, headers)
    await fail_to_sign_in(place)
    made = {
        "a token that nobody made": credential_secrets.new_token(new_id()),
        "a worker's secret that nobody made": credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        "a session that nobody made": credential_secrets.new_secret(credential_secrets.SESSION_PREFIX),
        "a link that nobody made": credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX),
    }
    odd = [place.canaries.keep(secret, what) for what, secret in made.items()]
    for secret in (*odd, tokens[0], workers[1]):
        await misplace(place, secret)
    await look_everywhere(place, headers)
    await fail_within(place, [*odd, tokens[-1]], kept.rename)
    ended, _ = await place.ask("POST", "/auth/logout", headers)
    assert ended.status_code == 303
    await place.ask("GET", "/api/v1/me", headers)


WRONG: dict[str, dict[str, str]] = {
    "a token that is none": {"INGOT_OPERATOR_TOKEN": "{}"},
    "a token that was cut": {"INGOT_OPERATOR_TOKEN": credential_secrets.new_token(new_id())[:-1]},
    "another kind of database": {"INGOT_DATABASE_URL": "mysql://me:{}@127.0.0.1:1/x"},
    "a database that is away": {"INGOT_DATABASE_URL": "postgresql://me:{}@127.0.0.1:1/x"},
    "a database that cannot be read": {"INGOT_DATABASE_URL": "postgresql://me:{}@127.0.0.1:port/x?sslmode={}"},
    "an owner that is away": {
        "INGOT_DATABASE_URL": "postgresql://me:{}@127.0.0.1:1/x",
        "INGOT_DATABASE_OWNER_URL": "postgresql://owner:{}@127.0.0.1:1/x",
    },
    "a provider with a password": {"INGOT_OIDC_ISSUER": "https://me:{}@id.example", "INGOT_OIDC_CLIENT_ID": "x"},
    "a secret without a provider": {"INGOT_OIDC_CLIENT_SECRET": "{}"},
    "spans to nowhere": {"OTEL_EXPORTER_OTLP_ENDPOINT": "me:{}@127.0.0.1"},
    "a folder that is a file": {
        "INGOT_DATA": "/dev/null",
        "INGOT_OPERATOR_TOKEN": credential_secrets.new_token(new_id()),
    },
}


@pytest.mark.parametrize("what", WRONG)
def test_a_failed_start_prints_no_secret(tmp_path: Path, what: str) -> None:
    canaries = Canaries()
    secret = canaries.new("a secret")
    given = {name: value.format(secret, secret) for name, value in WRONG[what].items()}
    if (token := given.get("INGOT_OPERATOR_TOKEN")) is not None:
        canaries.keep(token, "the operator's token")
    everything = {**os.environ, "INGOT_DATA": str(tmp_path / "data"), "INGOT_LOG_LEVEL": "debug", **given}
    done = run_ingot("serve", "--port", "0", env=everything)
    assert done.code != 0
    assert done.stderr
    canaries.let_out("what it said", (done.stdout + done.stderr).encode())
    assert canaries.leaks() == []
