"""`ingot worker`: runs handlers."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer
import uvloop

from ingot import wiring
from ingot.kernel.errors import InvalidInput
from ingot.kernel.logs import configure_server_logs
from ingot.settings import read_client_settings
from ingot.worker.app import Worker
from ingot.worker.hours import read_hours
from ingot.worker.runner import DRAIN_SECONDS


def worker(
    app: Annotated[str, typer.Option(help="Where the handlers are: module:name, as in app:worker.")] = "app:worker",
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long what runs may go on after TERM, before it is given back.")
    ] = DRAIN_SECONDS,
    hours: Annotated[
        str | None, typer.Option(help="When to take work, as in 22:00-06:00; several with commas. Always, without.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="The time zone of the hours, as in Europe/Zurich. The machine's, without.")
    ] = None,
) -> None:
    """Run the handlers of an app for the jobs of a server until TERM or Ctrl-C; a second one ends it at once.

    The server is INGOT_SERVER_URL. It comes with INGOT_WORKER_ID and INGOT_WORKER_SECRET, or with INGOT_TOKEN; beside
    the server, the operator's token is found.

    With INGOT_DATABASE_URL, which names a role of its own, it works on that PostgreSQL database itself.
    """
    configure_server_logs("info", None)
    if timezone is not None and hours is None:
        raise InvalidInput("--timezone is given, and --hours is not", hint="It is the time zone of the hours.")
    kept = None if hours is None else read_hours(hours, timezone)
    runner = wiring.runner_of(load(app), read_client_settings(), drain_seconds=drain_seconds, hours=kept)
    uvloop.run(wiring.run_until_told(runner))


def load(app: str) -> Worker:
    """The worker that an app names. Raises `InvalidInput`."""
    module, _, name = app.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), name or "worker")
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"there is no {app}: {error}", hint="Name a module and what it calls the worker.") from error
    if not isinstance(found, Worker):
        raise InvalidInput(f"{app} is a {type(found).__name__}, not a Worker", hint="It is made with ingot.Worker().")
    return found
