"""`ingot serve`: the server."""

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
from ingot.cli.notices import print_or_log
from ingot.http.server import Server, collect_garbage_less_often, listen, raise_open_files_limit, url_of
from ingot.http.tracing import Tracer, open_tracer
from ingot.identity.grants import GRANT_ALL
from ingot.kernel.logs import configure_server_logs
from ingot.settings import PORT_MAX, Settings, SettingsError, read_settings
from ingot.wiring import api_server, services

EXAMPLES: Final = ("ingot serve", "ingot serve --data /srv/ingot --host 0.0.0.0 --port 80")
TOKEN_FILE: Final = "operator.token"


def serve(
    data: Annotated[Path | None, typer.Option(help="The data folder (INGOT_DATA, ./data).")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at (INGOT_HOST, 127.0.0.1).")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=PORT_MAX, help="The port; 0 is any that is free (INGOT_PORT, 8080).")
    ] = None,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Make another operator's token; those that there are still hold.")
    ] = False,
    new_secret_key: Annotated[
        bool, typer.Option("--new-secret-key", help="Servers of this database have this INGOT_SECRET_KEY from now on.")
    ] = False,
) -> None:
    """Serve the HTTP API until TERM or Ctrl-C.

    The first start makes the data folder, the tenant `default` and the operator's token, which is written to
    `operator.token` there.
    """
    if host == "":
        raise SettingsError("--host is empty", hint="Leave it out for 127.0.0.1, or write 0.0.0.0 for all addresses.")
    given = {name: value for name, value in (("data", data), ("host", host), ("port", port)) if value is not None}
    settings = msgspec.structs.replace(read_settings(), **given)
    configure_server_logs(settings.log_level, settings.log_format)
    if (enough_for := raise_open_files_limit(settings.connections_max)) < settings.connections_max:
        said = f"The limit of open files is enough for {enough_for} connections, not for {settings.connections_max}; "
        hint = "raise it (ulimit -n), or lower INGOT_CONNECTIONS_MAX."
        print_or_log("open_files_limited", said + hint, enough_for=enough_for, connections_max=settings.connections_max)
        settings = msgspec.structs.replace(settings, connections_max=max(1, enough_for))
    spans = None if settings.otel_endpoint is None else open_tracer(settings.otel_endpoint, version=VERSION)
    try:
        with listen(settings.host, settings.port) as listening:
            uvloop.run(serve_on_socket(settings, listening, spans, new_token=new_token, new_secret_key=new_secret_key))
    finally:
        if spans is not None:
            spans.close()


async def serve_on_socket(
    settings: Settings,
    listening: socket.socket,
    spans: Tracer | None,
    *,
    new_token: bool = False,
    new_secret_key: bool = False,
    announce: bool = True,
    on_started: Callable[[Server], None] = lambda _: None,
) -> None:
    """Serve at a socket until it is told to end. `greet` says where, with a link on a terminal."""
    async with services.open(settings=settings) as ingot:
        await services.require_same_secret_key(ingot, replace=new_secret_key)
        await services.define_built_in_types(ingot)
        made = await ingot.credentials.ensure_operator_token(settings.operator_token)
        if settings.operator_token is not None:
            made = None  # Who gave it has it.
        if made is None and new_token:
            made = await ingot.credentials.create_token(None, description="another operator", grants=[GRANT_ALL])
        if made is not None:
            path = _write_token_file(settings.data, made.text)
            print_or_log(
                "operator_token_made", f"The operator's token is in {path}; it is shown nowhere else.", path=str(path)
            )
        if announce:
            await _announce(ingot, settings, url_of(listening))
        collect_garbage_less_often()
        server = api_server.build_server(ingot, settings, tracer=spans)
        on_started(server)
        await server.serve(sockets=[listening])


async def _announce(ingot: services.Ingot, settings: Settings, url: str) -> None:
    sentence = f"Ingot serves {url} ({ingot.engine}); {url}/docs says how to use it, Ctrl-C ends it."
    print_or_log("serving", sentence, url=url, docs=f"{url}/docs", engine=ingot.engine)
    if sys.stderr.isatty() and ingot.provider is None:  # A log keeps what it is told; a link is for one who reads.
        link = link_url(settings.public_url or url, (await ingot.sessions.create_link()).secret)
        print_or_log("link_made", f"Sign in as operator, once, within 15 minutes: {link}")


def _write_token_file(folder: Path, token: str) -> Path:
    """Write the token where only its owner reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TOKEN_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(token + "\n")
        file.flush()
        os.fsync(descriptor)
    return path
