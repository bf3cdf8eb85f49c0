"""`ingot dev`: run a server and a worker in one process, and restart when the code changes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import structlog
import typer
import uvloop

from ingot.cli.notices import print_or_log
from ingot.cli.serve import limit_connections, serve_on_socket
from ingot.cli.worker import AppOption, HandlersOption, load_worker, locate_error
from ingot.http.server import Server, listen, url_of
from ingot.http.server_thread import ServerThread
from ingot.kernel.errors import IngotError
from ingot.kernel.hangup import log_hangups, survive_hangup
from ingot.kernel.logs import configure_server_logs
from ingot.settings import PORT_MAX, ClientSettings, Settings, export_client_settings, read_settings
from ingot.wiring import worker_runner
from ingot.worker.runner import Runner

EXAMPLES: Final = ("ingot dev", "ingot dev --handlers pdf", "ingot dev --app press.handlers:worker --port 8090")
HOST: Final = "127.0.0.1"
POLL_SECONDS: Final = 0.3
WATCHED_FILES_MAX: Final = 20_000
DRAIN_SECONDS: Final = 5.0
IGNORED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
VENV_MARKER: Final = "pyvenv.cfg"
SOCKET_OPTION: Final = "--listening"
WAITING: Final = "Waiting for a change."
log = structlog.get_logger("ingot.cli")
FileStates = dict[str, tuple[int, int]]
NextStep = Literal["exit", "restart"]
AppAndHandlers = tuple[str | None, str | None]  # The values of --app and --handlers.


def dev(
    app: AppOption = None,
    handlers: HandlersOption = None,
    data: Annotated[Path | None, typer.Option(help="Data folder. Default: INGOT_DATA, or ./data.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=PORT_MAX, help="Port. 0 selects a free port. Default: INGOT_PORT, or 8080.")
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0, help="Time in seconds that running jobs have to finish after a change, before they are released."
        ),
    ] = DRAIN_SECONDS,
    socket_fd: Annotated[int | None, typer.Option(SOCKET_OPTION, hidden=True)] = None,
) -> None:
    """Run a server and the handlers of an app in one process on this machine.

    It runs until Ctrl-C, or until its terminal is closed.

    When a Python file below the current folder changes, the worker finishes or releases its running jobs, and the
    process restarts with the same port. If the code cannot be loaded, the error is printed and the server keeps running
    until the next change.
    """
    survive_hangup()
    files = python_files(Path())
    overrides = {name: value for name, value in (("data", data), ("port", port)) if value is not None}
    settings = msgspec.structs.replace(read_settings(), host=HOST, **overrides)
    configure_server_logs(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # Each restart would log its steps.
    settings = limit_connections(settings)
    server_socket = listen(HOST, settings.port) if socket_fd is None else socket.socket(fileno=socket_fd)
    with server_socket:
        serve = partial(_serve, settings, server_socket.dup(), announce=socket_fd is None)
        server_thread = ServerThread(serve, name="ingot-server")
        server_thread.start()
        try:
            next_step = uvloop.run(
                _work_until_change((app, handlers), settings, url_of(server_socket), files, drain_seconds)
            )
        finally:
            server_thread.stop()
        if next_step == "restart":
            server_socket.set_inheritable(True)  # Connections made during the restart wait in its backlog.
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *restart_arguments(sys.orig_argv[1:], server_socket.fileno())])


def restart_arguments(arguments: list[str], socket_fd: int) -> list[str]:
    """Return the arguments of this process with the file descriptor of its listening socket appended or replaced."""
    if SOCKET_OPTION in arguments:
        arguments = arguments[: arguments.index(SOCKET_OPTION)]
    return [*arguments, SOCKET_OPTION, str(socket_fd)]


async def _serve(
    settings: Settings, server_socket: socket.socket, on_started: Callable[[Server], None], *, announce: bool
) -> None:
    with server_socket:
        await serve_on_socket(settings, server_socket, None, announce=announce, on_started=on_started)


# -- worker ------------------------------------------------------------------------------------------------------------


async def _work_until_change(
    app_and_handlers: AppAndHandlers, settings: Settings, url: str, files: FileStates, drain_seconds: float
) -> NextStep:
    """Run the handlers until a file changes, a signal arrives, or the terminal is closed."""
    signaled, stopping = asyncio.Event(), asyncio.Event()
    _install_signal_handlers(signaled)
    signal_task = asyncio.create_task(signaled.wait())
    change_task = asyncio.create_task(_wait_for_change(files))
    export_client_settings(server_url=url, data=settings.data)
    client_settings = ClientSettings(server_url=url, token=settings.operator_token, data=settings.data)
    runner = _create_runner(app_and_handlers, client_settings, drain_seconds)
    worker_task = asyncio.create_task(_run_worker(runner, stopping)) if runner is not None else None
    try:
        with log_hangups(on_terminal_closed=signaled.set):
            await asyncio.wait({signal_task, change_task}, return_when=asyncio.FIRST_COMPLETED)
        if change_task.done() and not signaled.is_set():
            file = change_task.result()
            print_or_log("changed", f"{file} has changed. Restarting.", file=file)
        stopping.set()
        if worker_task is not None:
            await worker_task
        return "exit" if signaled.is_set() else "restart"
    finally:
        signal_task.cancel()
        change_task.cancel()


def _install_signal_handlers(signaled: asyncio.Event) -> None:
    """Set the event on the first SIGTERM or SIGINT, and exit at once on the second."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if signaled.is_set():
            os._exit(worker_runner.FORCED_EXIT_CODE)
        signaled.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)


def _create_runner(
    app_and_handlers: AppAndHandlers, client_settings: ClientSettings, drain_seconds: float
) -> Runner | None:
    """Load the handlers and build their runner. Report an error and return `None` if they cannot be loaded."""
    # Python checks cached bytecode by the size and the second of its source, and would miss a quick change.
    sys.dont_write_bytecode = True
    try:
        worker = load_worker(*app_and_handlers)
        runner = worker_runner.build_runner(worker, client_settings, drain_seconds=drain_seconds, echo=True)
    except IngotError as error:
        _log_broken_code(error)
    else:
        types = ", ".join(sorted(worker.handlers))
        print_or_log("working", f"Running handlers: {types}.", types=types)
        return runner
    return None


def _log_broken_code(error: IngotError) -> None:
    """Log why the code cannot be loaded. If its import failed, the cause has the place of the error."""
    cause = error.__cause__ or error
    file, line, trace = locate_error(cause)
    if file is None:
        log.error("app_failed", text=f"{error.detail}. {WAITING}", error=error.detail, hint=error.hint)
        return
    fields = {"hint": error.hint}
    description = error.detail
    if cause is not error:
        message = cause.msg if isinstance(cause, SyntaxError) else cause
        description, fields = f"{type(cause).__name__}: {message}", {"traceback": trace}
    text = f"{file}:{line}: {description}. {WAITING}"
    log.error("app_failed", text=text, file=file, line=line, error=description, **fields)


async def _run_worker(runner: Runner, stopping: asyncio.Event) -> None:
    try:
        await runner.run(stopping)
    except IngotError as error:
        text = f"The worker has failed: {error.detail}. {WAITING}"
        log.error("worker_failed", text=text, error=error.detail, hint=error.hint)
        return
    except Exception:
        log.exception("worker_failed", text=f"The worker has failed. {WAITING}")
        return
    if not stopping.is_set():
        print_or_log("drained", "The worker was drained. It starts again after the next change.")


# -- detecting changes ------------------------------------------------------------------------------------------------


async def _wait_for_change(files: FileStates) -> str:
    """Wait until a Python file is created, changed or deleted, and return its path."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        current = await asyncio.to_thread(python_files, Path())
        changed = sorted(path for path in files.keys() | current.keys() if files.get(path) != current.get(path))
        if changed:
            return changed[0]


def python_files(folder: Path) -> FileStates:
    """Return modification time and size of the Python files below a folder, except those in virtual environments."""
    files: FileStates = {}
    for path in _python_paths(folder):
        try:
            status = path.stat()
        except OSError:
            continue
        files[str(path)] = (status.st_mtime_ns, status.st_size)
        if len(files) == WATCHED_FILES_MAX:
            break
    return files


def _python_paths(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        if VENV_MARKER in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in IGNORED_FOLDERS and not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".py"))
