"""`ingot dev`: server and worker in one process, begun anew whenever the code of the app changes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer
import uvloop

from ingot.cli.notices import print_or_log
from ingot.cli.serve import serve_on_socket
from ingot.cli.worker import AppOption, HandlersOption, load_worker
from ingot.http.server import Server, listen, url_of
from ingot.http.server_thread import ServerThread
from ingot.kernel.errors import IngotError
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
FileStates = dict[str, tuple[int, int]]
NextStep = Literal["end", "again"]
AppAndHandlers = tuple[str | None, str | None]  # An app, and handlers of ours.


def dev(
    app: AppOption = None,
    handlers: HandlersOption = None,
    data: Annotated[Path | None, typer.Option(help="The data folder (INGOT_DATA, ./data).")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=PORT_MAX, help="The port; 0 is any that is free (INGOT_PORT, 8080).")
    ] = None,
    drain_seconds: Annotated[
        float, typer.Option(min=0, help="How long what runs may go on after a change, before it is given back.")
    ] = DRAIN_SECONDS,
    listening: Annotated[int | None, typer.Option(SOCKET_OPTION, hidden=True)] = None,
) -> None:
    """Serve, and run the handlers of an app, in one process for this machine, until Ctrl-C.

    When a Python file below the working folder changes, the worker finishes or gives back what runs, and the process
    begins anew with the same address. What cannot be loaded is told; the server goes on until the next change.
    """
    files = python_files(Path())
    given = {name: value for name, value in (("data", data), ("port", port)) if value is not None}
    settings = msgspec.structs.replace(read_settings(), host=HOST, **given)
    configure_server_logs(settings.log_level, settings.log_format)
    door = listen(HOST, settings.port) if listening is None else socket.socket(fileno=listening)
    with door:
        serve = partial(_serve, settings, door.dup(), first=listening is None)
        serving = ServerThread(serve, name="ingot-server")
        serving.start()
        try:
            then = uvloop.run(_work_until_change((app, handlers), settings, url_of(door), files, drain_seconds))
        finally:
            serving.stop()
        if then == "again":
            door.set_inheritable(True)  # Those who come meanwhile wait at it.
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *restart_arguments(sys.orig_argv[1:], door.fileno())])


def restart_arguments(words: list[str], listening: int) -> list[str]:
    """The words that this process was started with, for the next one."""
    if SOCKET_OPTION in words:
        words = words[: words.index(SOCKET_OPTION)]
    return [*words, SOCKET_OPTION, str(listening)]


async def _serve(
    settings: Settings, listening: socket.socket, started: Callable[[Server], None], *, first: bool
) -> None:
    with listening:
        await serve_on_socket(settings, listening, None, announce=first, on_started=started)


# -- working ----------------------------------------------------------------------------------------------------------


async def _work_until_change(
    wanted: AppAndHandlers, settings: Settings, url: str, files: FileStates, drain_seconds: float
) -> NextStep:
    """Run the handlers until a file changes or somebody ends it."""
    told, stopping = asyncio.Event(), asyncio.Event()
    _install_signal_handlers(told)
    ending = asyncio.create_task(told.wait())
    changing = asyncio.create_task(_wait_for_change(files))
    export_client_settings(server_url=url, data=settings.data)
    place = ClientSettings(server_url=url, token=settings.operator_token, data=settings.data)
    runner = _create_runner(wanted, place, drain_seconds)
    running = asyncio.create_task(_run_worker(runner, stopping)) if runner is not None else None
    try:
        await asyncio.wait({ending, changing}, return_when=asyncio.FIRST_COMPLETED)
        if changing.done() and not told.is_set():
            print_or_log("changed", f"{changing.result()} has changed: beginning anew.", file=changing.result())
        stopping.set()
        if running is not None:
            await running
        return "end" if told.is_set() else "again"
    finally:
        ending.cancel()
        changing.cancel()


def _install_signal_handlers(told: asyncio.Event) -> None:
    """The first signal lets what runs finish; a second one ends the process at once."""
    loop = asyncio.get_running_loop()

    def hear() -> None:
        if told.is_set():
            os._exit(worker_runner.FORCED_EXIT_CODE)
        told.set()

    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, hear)


def _create_runner(wanted: AppAndHandlers, place: ClientSettings, drain_seconds: float) -> Runner | None:
    """What runs the handlers that are wanted, or nothing, and why."""
    # Python compares bytecode with the size and the second of its source, and would miss a quick change.
    sys.dont_write_bytecode = True
    try:
        worker = load_worker(*wanted)
        runner = worker_runner.build_runner(worker, place, drain_seconds=drain_seconds, echo=True)
    except IngotError as error:
        print_or_log("app_failed", f"{error.detail}\n{error.hint}\nWaiting for a change.", error=error.detail)
    else:
        types = ", ".join(sorted(worker.handlers))
        print_or_log("working", f"Handlers are at work: {types}.", types=types)
        return runner
    return None


async def _run_worker(runner: Runner, stopping: asyncio.Event) -> None:
    try:
        await runner.run(stopping)
    except Exception as error:
        why = "".join(traceback.format_exception_only(error))
        print_or_log("worker_failed", f"The worker has ended:\n{why}Waiting for a change.", error=why)
        return
    if not stopping.is_set():
        print_or_log("drained", "The worker was told to drain. It begins again with the next change.")


# -- looking for changes ----------------------------------------------------------------------------------------------


async def _wait_for_change(files: FileStates) -> str:
    """Wait until a Python file is not what it was, and answer its name."""
    while True:
        await asyncio.sleep(POLL_SECONDS)
        now = await asyncio.to_thread(python_files, Path())
        if different := sorted(name for name in files.keys() | now.keys() if files.get(name) != now.get(name)):
            return different[0]


def python_files(folder: Path) -> FileStates:
    """The Python files below a folder, when they were written and how long they are; those of environments are not."""
    found: FileStates = {}
    for path in _python_paths(folder):
        try:
            known = path.stat()
        except OSError:
            continue
        found[str(path)] = (known.st_mtime_ns, known.st_size)
        if len(found) == WATCHED_FILES_MAX:
            break
    return found


def _python_paths(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if VENV_MARKER in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in IGNORED_FOLDERS and not name.startswith("."))
        yield from (Path(place, name) for name in sorted(names) if name.endswith(".py"))
