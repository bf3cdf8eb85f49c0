"""Secrets are planted wherever one is sent or created, and must not occur in any output of the server."""

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
    ProbedServer,
    cause_server_errors,
    fail_to_find_provider,
    fail_to_sign_in,
    make_tokens,
    make_workers,
    request_all_pages,
    send_in_wrong_fields,
    sign_in,
    use_links,
    use_session,
)

PLANTED_MIN = 100
BROKEN = ("tokens", "worker_credentials", "sessions", "logins")
URL = re.compile(r"http://127\.0\.0\.1:\d+")


class StoredData:
    """The stored data of a server: its folder, and its database if it has one."""

    def __init__(self, folder: Path, owner_url: str | None) -> None:
        self.folder = folder
        self.owner_url = owner_url

    def operator(self, canaries: Canaries) -> str:
        """Return the token that the first start created. Its file must contain it."""
        token = (self.folder / TOKEN_FILE).read_bytes()
        output = canaries.add_output("the operator's file", token)
        return canaries.add(token.decode().strip(), "the operator's token", allowed_in=output)

    async def rename(self, old: str, create: str) -> None:
        """Rename tables while the server runs."""
        if self.owner_url is None:
            with closing(apsw.Connection(str(self.folder / FILE_NAME))) as connection:
                for name in BROKEN:
                    connection.execute(f"ALTER TABLE {old.format(name)} RENAME TO {create.format(name)}")
            return
        owner = await asyncpg.connect(self.owner_url)
        try:
            for name in BROKEN:
                await owner.execute(f"ALTER TABLE ingot.{old.format(name)} RENAME TO {create.format(name)}")
        finally:
            await owner.close()

    async def add_outputs(self, canaries: Canaries) -> None:
        """Add all files and tables."""
        for file in self.folder.rglob("*") if self.folder.exists() else ():
            if file.is_file() and file.name not in (TOKEN_FILE, SECRET_FILE):
                canaries.add_output(f"the file {file.name}", file.read_bytes())
        if self.owner_url is None:
            return
        owner = await asyncpg.connect(self.owner_url)
        try:
            tables = await owner.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'ingot'")
            for (table,) in tables:
                rows = await owner.fetch(f"SELECT t::text FROM ingot.{table} AS t")
                canaries.add_output(f"the table {table}", "\n".join(text for (text,) in rows).encode())
        finally:
            await owner.close()


@asynccontextmanager
async def running_server(canaries: Canaries, environment: dict[str, str]) -> AsyncIterator[str]:
    """Run a server that logs at the level `debug`, yield its URL, and add its log at the end."""
    environment = {**os.environ, **environment}
    command = [
        *PYTHON_INGOT,
        "serve",
        "--port",
        "0",
    ]  # Started as a new process, because its command line is searched too.
    async with started_async(*command, stderr=asyncio.subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None
        lines: list[str] = []
        url_logged: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def read(written: asyncio.StreamReader) -> None:
            async for line in written:
                lines.append(line.decode())
                if not url_logged.done() and "serving" in lines[-1]:
                    url_logged.set_result(URL.findall(lines[-1])[0])

        reader = asyncio.create_task(read(process.stderr))
        try:
            yield await asyncio.wait_for(url_logged, 30)
            canaries.add_output("the command line", _command_line(process.pid))
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 30) == 0, lines[-20:]
        finally:
            if process.returncode is None:
                process.kill()
            await reader
    assert len(lines) > 200
    canaries.add_output("the log", "".join(lines).encode())


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def with_password(url: str, password: str) -> str:
    """Return the URL with a password for its role, which the test server does not check."""
    scheme, remainder = url.split("://", 1)
    role, _, server = remainder.partition("@")
    return url if ":" in role else f"{scheme}://{role}:{quote(password, safe='')}@{server}"


@pytest.mark.long
@pytest.mark.parametrize(("engine", "form"), [("sqlite", "json"), ("sqlite", "text"), ("postgres", "json")])
async def test_a_server_exposes_none_of_the_planted_secrets(tmp_path: Path, engine: str, form: str) -> None:
    canaries = Canaries()
    data = StoredData(tmp_path / "data", None)
    environment = {"INGOT_DATA": str(data.folder), "INGOT_LOG_LEVEL": "debug", "INGOT_LOG_FORMAT": form}
    environment["INGOT_TRUSTED_PROXIES"] = "127.0.0.1"
    if form == "json":
        environment["INGOT_OPERATOR_TOKEN"] = canaries.add(
            credential_secrets.new_token(new_id()), "the operator's token"
        )
    environment["INGOT_OIDC_CLIENT_SECRET"] = canaries.add(f"canary/+{new_id()}", "the secret of the client")
    if engine == "postgres":
        database = await database_for(data.folder)
        data.owner_url = database.owner_url
        for name, url in (("URL", database.server_url), ("OWNER_URL", database.owner_url)):
            environment[f"INGOT_DATABASE_{name}"] = with_password(
                url, canaries.create(f"the password in DATABASE_{name}")
            )
    with receiving() as received:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = received.url
        environment["OTEL_EXPORTER_OTLP_HEADERS"] = f"x-api-key={canaries.create('the key for spans')}"
        async with open_fake_provider() as idp:
            environment |= {"INGOT_OIDC_ISSUER": idp.issuer, "INGOT_OIDC_CLIENT_ID": "ingot"}
            environment |= {"INGOT_OIDC_REDIRECT_URL": CALLBACK, "INGOT_OIDC_ADMIN_GROUPS": "staff"}
            async with running_server(canaries, environment) as url:
                operator = environment.get("INGOT_OPERATOR_TOKEN") or data.operator(canaries)
                server = ProbedServer(url, canaries, idp, operator)
                async with server.client:
                    await plant_secrets(server, data)
                await data.add_outputs(canaries)
    await data.add_outputs(canaries)
    assert len(received.spans) > 100
    canaries.add_output("the spans", "\n".join(map(str, received.spans)).encode())
    assert len(canaries.planted) >= PLANTED_MIN
    assert canaries.leaks() == []


async def plant_secrets(server: ProbedServer, data: StoredData) -> None:
    """Plant secrets everywhere, and request everything."""
    await fail_to_find_provider(server)
    tokens, workers = await make_tokens(server), await make_workers(server)
    headers = await use_links(server)
    await use_session(server, headers)
    headers = await sign_in(server)
    await use_session(server, headers)
    await fail_to_sign_in(server)
    unknown_secrets = {
        "a token that nobody made": credential_secrets.new_token(new_id()),
        "a worker's secret that nobody made": credential_secrets.new_secret(credential_secrets.WORKER_PREFIX),
        "a session that nobody made": credential_secrets.new_secret(credential_secrets.SESSION_PREFIX),
        "a link that nobody made": credential_secrets.new_secret(credential_secrets.LOGIN_PREFIX),
    }
    unknown = [server.canaries.add(secret, case) for case, secret in unknown_secrets.items()]
    for secret in (*unknown, tokens[0], workers[1]):
        await send_in_wrong_fields(server, secret)
    await request_all_pages(server, headers)
    await cause_server_errors(server, [*unknown, tokens[-1]], data.rename)
    signed_out, _ = await server.request("POST", "/auth/logout", headers)
    assert signed_out.status_code == 303
    await server.request("GET", "/api/v1/me", headers)


BAD_SETTINGS: dict[str, dict[str, str]] = {
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


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_a_failed_start_prints_no_secret(tmp_path: Path, case: str) -> None:
    canaries = Canaries()
    secret = canaries.create("a secret")
    variables = {name: value.format(secret, secret) for name, value in BAD_SETTINGS[case].items()}
    if (token := variables.get("INGOT_OPERATOR_TOKEN")) is not None:
        canaries.add(token, "the operator's token")
    environment = {**os.environ, "INGOT_DATA": str(tmp_path / "data"), "INGOT_LOG_LEVEL": "debug", **variables}
    environment["INGOT_DATABASE_WAIT_SECONDS"] = "0"
    done = run_ingot("serve", "--port", "0", env=environment)
    assert done.code != 0
    assert done.stderr
    canaries.add_output("the output", (done.stdout + done.stderr).encode())
    assert canaries.leaks() == []
