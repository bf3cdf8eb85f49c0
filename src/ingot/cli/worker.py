"""`ingot worker`: run handlers."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Final

import typer
import uvloop

from ingot.cli.context import ServerOption, TenantOption, TokenFileOption, read_token_file
from ingot.cli.notices import print_or_log
from ingot.kernel.errors import IngotError, InvalidInput
from ingot.kernel.hangup import survive_hangup
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
PACKAGE: Final = Path(__file__).parents[1]
APP_HINT: Final = (
    "Use MODULE:NAME, such as app:worker for `worker` in app.py. Modules are searched in the current folder first. "
    "To run a handler that comes with Ingot, use --handlers, such as --handlers pdf."
)


AppOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME",
        help="Module and variable of the Worker with your handlers. Default: app:worker, or none with --handlers.",
    ),
]
HandlersOption = Annotated[
    str | None,
    typer.Option(
        metavar="TYPES", help=f"Handlers that come with Ingot, separated by commas: {', '.join(BUILT_IN_HANDLERS)}."
    ),
]


def worker(
    app: AppOption = None,
    handlers: HandlersOption = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0, help="Time in seconds that running jobs have to finish after TERM, before they are released."
        ),
    ] = DRAIN_SECONDS,
    hours: Annotated[
        str | None,
        typer.Option(
            help="Working hours in which to claim jobs, such as 22:00-06:00, separated by commas. Default: always."
        ),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option(help="Time zone of --hours, such as Europe/Zurich. Default: the time zone of this machine."),
    ] = None,
    server: ServerOption = None,
    token_file: TokenFileOption = None,
    tenant: TenantOption = None,
) -> None:
    """Run handlers for the jobs of a server until TERM or Ctrl-C.

    A second signal stops the worker at once.

    The worker authenticates with INGOT_WORKER_ID and INGOT_WORKER_SECRET, or with a token. On the server's own machine
    it finds the operator token automatically. `Client()` in a handler connects to the same server with the token, never
    with the worker credential; isolated handlers have no token. The worker waits until the server is reachable.

    With INGOT_DATABASE_URL, which must name a worker role, the worker claims jobs in that PostgreSQL database directly.
    It then needs a server only for files and for `Client()` in handlers. Without INGOT_SERVER_URL and a token, it
    leaves jobs with files to other workers.
    """
    survive_hangup()
    settings = read_client_settings()
    configure_server_logs(settings.log_level, settings.log_format)
    if timezone is not None and hours is None:
        raise InvalidInput("--timezone requires --hours", hint="Add --hours, or remove --timezone.")
    working_hours = None if hours is None else parse_hours(hours, timezone)
    token = None if token_file is None else read_token_file(token_file)
    export_client_settings(server_url=server, token=token, tenant=tenant)
    loaded = load_worker(app, handlers)
    runner = worker_runner.build_runner(
        loaded, read_client_settings(), drain_seconds=drain_seconds, hours=working_hours
    )
    types = ", ".join(sorted(loaded.handlers))
    hours_text = "" if hours is None else f" Working hours: {hours}."
    print_or_log("working", f"Running handlers: {types}.{hours_text} Press Ctrl-C to stop.", types=types)
    uvloop.run(worker_runner.run_until_signal(runner))


def load_worker(app: str | None, handlers: str | None) -> Worker:
    """Load the worker of an app, or create an empty one, and add built-in handlers. Raises `InvalidInput`."""
    worker = Worker() if app is None and handlers is not None else _load_app(app or DEFAULT_APP)
    worker.include(*(type for part in (handlers or "").split(",") if (type := part.strip())))
    return worker


def _load_app(app: str) -> Worker:
    module, _, name = app.partition(":")
    sys.path.insert(0, "")
    try:
        worker = getattr(_import_app_module(module), name or "worker")
    except (AttributeError, ValueError) as error:
        raise InvalidInput(f"{app} cannot be loaded: {error}", hint=APP_HINT) from error
    if not isinstance(worker, Worker):
        raise InvalidInput(
            f"{app} must be a Worker, got a {type(worker).__name__}", hint="Create it with ingot.Worker()."
        )
    return worker


def _import_app_module(module: str) -> ModuleType:
    """Import a module. Raises `InvalidInput` with the traceback of an error in the module, which is its cause."""
    try:
        return import_module(module)
    except IngotError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise InvalidInput(f"module {module} not found", hint=APP_HINT) from error
        if isinstance(error, ValueError) and not module:
            raise
        _, _, trace = locate_error(error)
        raise InvalidInput(
            f"{module} cannot be imported: {type(error).__name__}: {error}\n{trace}".rstrip(),
            hint=f"Fix the error in the module. `python -c 'import {module}'` reproduces it.",
        ) from error


def locate_error(error: BaseException) -> tuple[str | None, int | None, str]:
    """Return the file and the line in the code of an app that raised an error, and the frames that lead there as text.

    Code in the current folder comes before other code. The file is `None` if no code of the app was involved.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_of_import_system(frame.filename)]
    trace = "".join(traceback.format_list([frame for frame in frames if frame.filename != __file__]))
    if isinstance(error, SyntaxError) and error.filename is not None:
        return _short_path(error.filename), error.lineno, trace + "".join(traceback.format_exception_only(error)[:-1])
    places = [
        (_short_path(frame.filename), frame.lineno)
        for frame in frames
        if not Path(frame.filename).is_relative_to(PACKAGE) and "site-packages" not in frame.filename
    ]
    if not places:
        return None, None, trace
    file, line = ([place for place in places if not os.path.isabs(place[0])] or places)[-1]
    return file, line, trace


def _is_of_import_system(file: str) -> bool:
    return file.startswith("<frozen") or file == import_module.__code__.co_filename


def _short_path(file: str) -> str:
    """Return a path relative to the current folder, if the file is in it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
