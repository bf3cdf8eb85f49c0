"""`ingot worker`: runs handlers."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from types import ModuleType
from typing import Annotated, Final

import typer
import uvloop

from ingot.cli.context import ServerOption, TenantOption, TokenFileOption, read_token_file
from ingot.cli.notices import print_or_log
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.logs import configure_server_logs
from ingot.settings import export_client_settings, read_client_settings
from ingot.wiring import worker_runner
from ingot.worker.app import Worker
from ingot.worker.handlers import BUILT_IN_HANDLERS
from ingot.worker.hours import parse_hours
from ingot.worker.runner import DRAIN_SECONDS

EXAMPLES: Final = (
    "ingot worker --app app:worker",
    "ingot worker --handlers pdf,ocr",
    "ingot worker --server https://ingot.example.com --hours 22:00-06:00 --timezone Europe/Zurich",
)
DEFAULT_APP: Final = "app:worker"
APP_HINT: Final = (
    "Name a module and what it calls the worker, as in app:worker; it is looked for in this folder first. "
    "Handlers that come with Ingot are run with --handlers pdf."
)


AppOption = Annotated[
    str | None, typer.Option(help="Where your handlers are: module:name. app:worker, unless --handlers is given.")
]
HandlersOption = Annotated[
    str | None,
    typer.Option(metavar="TYPES", help=f"Handlers that come with Ingot, with commas: {', '.join(BUILT_IN_HANDLERS)}."),
]


def worker(
    app: AppOption = None,
    handlers: HandlersOption = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long what runs may go on after TERM, before it is given back.")
    ] = DRAIN_SECONDS,
    hours: Annotated[
        str | None, typer.Option(help="When to take work, as in 22:00-06:00; several with commas. Always, without.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="The time zone of the hours, as in Europe/Zurich. The machine's, without.")
    ] = None,
    server: ServerOption = None,
    token_file: TokenFileOption = None,
    tenant: TenantOption = None,
) -> None:
    """Run the handlers of an app for the jobs of a server until TERM or Ctrl-C; a second one ends it at once.

    The worker comes with INGOT_WORKER_ID and INGOT_WORKER_SECRET, or with a token; on the machine of the server it
    finds the operator's by itself. Clients that handlers make come to the same server, with the token; isolated
    handlers have none. A server that does not answer yet is waited for.

    With INGOT_DATABASE_URL, which names a role of its own, it works on that PostgreSQL database itself; a server is
    then for files, and for clients that handlers make.
    """
    configure_server_logs("info", None)
    if timezone is not None and hours is None:
        raise InvalidInput("--timezone is given, and --hours is not", hint="It is the time zone of the hours.")
    kept = None if hours is None else parse_hours(hours, timezone)
    token = None if token_file is None else read_token_file(token_file)
    export_client_settings(server_url=server, token=token, tenant=tenant)
    found = load_worker(app, handlers)
    runner = worker_runner.build_runner(found, read_client_settings(), drain_seconds=drain_seconds, hours=kept)
    types = ", ".join(sorted(found.handlers))
    when = "" if hours is None else f" It takes work {hours}."
    print_or_log("working", f"Handlers: {types}.{when} Ctrl-C ends the worker.", types=types)
    uvloop.run(worker_runner.run_until_signal(runner))


def load_worker(app: str | None, handlers: str | None) -> Worker:
    """The worker that an app names, with these handlers of ours. Raises `InvalidInput`."""
    found = Worker() if app is None and handlers is not None else _load_app(app or DEFAULT_APP)
    found.include(*(type for part in (handlers or "").split(",") if (type := part.strip())))
    return found


def _load_app(app: str) -> Worker:
    module, _, name = app.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(_import_app_module(module), name or "worker")
    except (AttributeError, ValueError) as error:
        raise InvalidInput(f"there is no {app}: {error}", hint=APP_HINT) from error
    if not isinstance(found, Worker):
        raise InvalidInput(f"{app} is a {type(found).__name__}, not a Worker", hint="It is made with ingot.Worker().")
    return found


def _import_app_module(module: str) -> ModuleType:
    """The module, run. What goes wrong in it is shown with the lines that led there."""
    try:
        return import_module(module)
    except IngotError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise InvalidInput(f"there is no module {module} here", hint=APP_HINT) from error
        if isinstance(error, ValueError) and not module:
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__]
        told = "".join(traceback.format_list(own[1:]))
        raise InvalidInput(
            f"{module} cannot be imported: {type(error).__name__}: {error}\n{told}".rstrip(),
            hint=f"Correct it there; `python -c 'import {module}'` shows the same.",
        ) from error
