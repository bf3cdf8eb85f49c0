"""`ingot serve`: run the server."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop

from ingot.api.ops import VERSION
from ingot.api.people import link_url
from ingot.cli.notices import print_or_log, print_or_log_warning
from ingot.http.server import Server, collect_garbage_less_often, connections_within, listen, url_of
from ingot.http.tracing import Tracer, open_tracer
from ingot.identity.grants import GRANT_ALL
from ingot.kernel.hangup import survive_hangup
from ingot.kernel.logs import configure_server_logs
from ingot.kernel.open_files import raise_open_files_limit
from ingot.settings import PORT_MAX, Settings, SettingsError, read_settings
from ingot.wiring import api_server, services

EXAMPLES: Final = ("ingot serve", "ingot serve --data /srv/ingot --host 0.0.0.0 --port 80")
TOKEN_FILE: Final = "operator.token"


def serve(
    data: Annotated[Path | None, typer.Option(help="Data folder. Default: INGOT_DATA, or ./data.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: INGOT_HOST, or 127.0.0.1.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=PORT_MAX, help="Port. 0 selects a free port. Default: INGOT_PORT, or 8080."),
    ] = None,
    new_token: Annotated[
        bool,
        typer.Option("--new-token", help="Create an additional operator token; existing tokens stay valid."),
    ] = False,
    new_secret_key: Annotated[
        bool,
        typer.Option(
            "--new-secret-key", help="Make this INGOT_SECRET_KEY the one that all servers of the database must use."
        ),
    ] = False,
) -> None:
    """Run the server until TERM or Ctrl-C.

    The first start creates the data folder, the tenant `default`, and an operator token in the file `operator.token` of
    the data folder. With INGOT_DATABASE_URL, the server waits up to INGOT_DATABASE_WAIT_SECONDS for a database that is
    unavailable.
    """
    survive_hangup()
    if host == "":
        raise SettingsError("--host must not be empty", hint="Omit it for 127.0.0.1, or use 0.0.0.0 for all addresses.")
    overrides = {name: value for name, value in (("data", data), ("host", host), ("port", port)) if value is not None}
    settings = msgspec.structs.replace(read_settings(), **overrides)
    configure_server_logs(settings.log_level, settings.log_format)
    settings = limit_connections(settings)
    tracer = None if settings.otel_endpoint is None else open_tracer(settings.otel_endpoint, version=VERSION)
    try:
        with listen(settings.host, settings.port) as server_socket:
            uvloop.run(
                serve_on_socket(settings, server_socket, tracer, new_token=new_token, new_secret_key=new_secret_key)
            )
    finally:
        if tracer is not None:
            tracer.close()


def limit_connections(settings: Settings) -> Settings:
    """Raise the limit of open files. If it is still too low for `connections_max`, warn, and lower that setting."""
    limit = raise_open_files_limit()
    if (enough_for := connections_within(limit)) >= settings.connections_max:
        return settings
    print_or_log_warning(
        "open_files_limited",
        f"The limit of {limit} open files is too low for {settings.connections_max} connections. Clients beyond "
        f"{enough_for} connections get 503. Raise the hard limit (ulimit -Hn, or LimitNOFILE of systemd), or set "
        f"INGOT_CONNECTIONS_MAX to {enough_for}.",
        open_files_limit=limit,
        enough_for=enough_for,
        connections_max=settings.connections_max,
    )
    return msgspec.structs.replace(settings, connections_max=enough_for)


async def serve_on_socket(
    settings: Settings,
    server_socket: socket.socket,
    tracer: Tracer | None,
    *,
    new_token: bool = False,
    new_secret_key: bool = False,
    announce: bool = True,
    on_started: Callable[[Server], None] = lambda _: None,
) -> None:
    """Serve on a listening socket until a signal or the caller stops the server.

    With `announce`, print the URL of the server, and a sign-in link if stderr is a terminal.
    """
    async with services.open(settings=settings, reserve=True, wait_seconds=settings.database_wait_seconds) as ingot:
        await services.require_same_secret_key(ingot, replace=new_secret_key)
        await services.define_built_in_types(ingot)
        created_token = await ingot.credentials.ensure_operator_token(settings.operator_token)
        if settings.operator_token is not None:
            created_token = None  # The token comes from the settings, so it is not written to a file.
        if created_token is None and new_token:
            created_token = await ingot.credentials.create_token(
                None, description="another operator", grants=[GRANT_ALL]
            )
        if created_token is not None:
            path = _write_token_file(settings.data, created_token.text)
            print_or_log(
                "operator_token_created",
                f"The operator token was written to {path}. It is shown nowhere else.",
                path=str(path),
            )
        if announce:
            await _announce(ingot, settings, url_of(server_socket))
        collect_garbage_less_often()
        server = api_server.build_server(ingot, settings, tracer=tracer)
        on_started(server)
        await server.serve(sockets=[server_socket])


async def _announce(ingot: services.Ingot, settings: Settings, url: str) -> None:
    message = f"Ingot is serving {url} ({ingot.engine}). API documentation: {url}/docs. Press Ctrl-C to stop."
    print_or_log("serving", message, url=url, docs=f"{url}/docs", engine=ingot.engine)
    if sys.stderr.isatty() and ingot.provider is None:  # The link is a credential and must not be stored in a log.
        link = link_url(settings.public_url or url, (await ingot.sessions.create_link()).secret)
        print_or_log("sign_in_link_created", f"Sign in as operator (once, within 15 minutes): {link}")


def _write_token_file(folder: Path, token: str) -> Path:
    """Write the token to a file that only its owner can read."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TOKEN_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(descriptor)
    return path
