"""`ingot serve`: the server."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import uvloop
from rich.console import Console

from ingot import wiring
from ingot.http.server import listen, url_of
from ingot.settings import Settings, read_settings

TOKEN_FILE: Final = "operator.token"


def serve(
    data: Annotated[Path | None, typer.Option(help="The data folder (INGOT_DATA, ./data).")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen at (INGOT_HOST, 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="The port; 0 is any that is free (INGOT_PORT, 8080).")] = None,
) -> None:
    """Serve the HTTP API until TERM or Ctrl-C.

    The first start makes the data folder, the tenant `default` and the operator's token, which is written to
    `operator.token` there.
    """
    given = {name: value for name, value in (("data", data), ("host", host), ("port", port)) if value is not None}
    settings = msgspec.structs.replace(read_settings(), **given)
    with listen(settings.host, settings.port) as listening:
        uvloop.run(_serve(settings, listening))


async def _serve(settings: Settings, listening: socket.socket) -> None:
    tell = Console(stderr=True, highlight=False, soft_wrap=True)
    async with wiring.open(settings=settings) as ingot:
        made = await ingot.credentials.ensure_operator(settings.operator_token)
        if made is not None and settings.operator_token is None:
            path = _keep(settings.data, made.text)
            tell.print(f"The operator's token is in {path}; it is shown nowhere else.", markup=False)
        tell.print(f"Ingot serves {url_of(listening)} ({ingot.engine}); Ctrl-C ends it.", markup=False)
        await wiring.server_of(ingot).serve(sockets=[listening])


def _keep(folder: Path, token: str) -> Path:
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
