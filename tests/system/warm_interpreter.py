"""An interpreter that has imported `ingot` and forks a process for each command, which saves the time of the imports.

Its standard input is a socket. Each byte on the socket comes with a connection for one request: a line of JSON, and the
three standard streams. The response is the process ID, and later the exit code. When the socket is closed, the
interpreter kills all processes that still run, and ends.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import multiprocessing.process
import os
import selectors
import signal
import socket
import sys
import termios
import threading
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from typing import Any, Final, NoReturn

import ingot.cli
from ingot.kernel.msgspec_warmup import prepare_structs
from ingot.worker.isolation.linux import adopt_orphans

# Modules that commands import late.
LATE_IMPORTS: Final = (
    *(f"ingot.cli.{name}" for name in ingot.cli.COMMANDS),
    "ingot.engines.sqlite",
    "ingot.engines.sqlite.store_folder",
    "ingot.engines.postgres",
    "ingot.engines.postgres.store",
    "ingot.worker.http_job_source",
    "ingot.worker.postgres_job_source",
    "certifi",
    "encodings.idna",
    "httpcore",
)
REQUEST_BYTES: Final = 64 * 1024


class Forks:
    """The forked processes, and the connections on which their exit codes are reported."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._connections: dict[int, socket.socket] = {}
        self._woken, self._wake = socket.socketpair()
        for one in (self._woken, self._wake):
            one.setblocking(False)

    def run(self) -> None:
        """Fork until the control socket is closed."""
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    self._woken.recv(REQUEST_BYTES)
                    self._reap()
                if self._control in ready:
                    _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
                    if not descriptors:
                        break
                    self._fork(socket.socket(fileno=descriptors[0]))
        for pid in self._connections:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def _fork(self, connection: socket.socket) -> None:
        text, streams, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
        while not text.endswith(b"\n"):
            text += connection.recv(REQUEST_BYTES)
        request = json.loads(text)
        if (pid := os.fork()) == 0:
            for one in (self._control, self._woken, self._wake, connection, *self._connections.values()):
                one.detach()  # The child closes all descriptors itself.
            run_command(request, streams)
        for stream in streams:
            os.close(stream)
        self._connections[pid] = connection
        connection.sendall(f"{pid}\n".encode())

    def _reap(self) -> None:
        """Report processes that have ended. Orphans of forked processes become children of this one, and are reaped."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (connection := self._connections.pop(ended[0], None)) is not None:
                    with connection, suppress(OSError):
                        connection.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())


def run_command(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run a command like `python -m ingot`, in its own session, and exit like an interpreter."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if request["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        _set_up_process(request)
        ingot.cli.main()
        code = 0
    except SystemExit as end:
        code = _exit_code(end)
    except KeyboardInterrupt:
        traceback.print_exc()
        _finish()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
    _finish()
    os._exit(code)


def _set_up_process(request: dict[str, Any]) -> None:
    """Set the folder, environment, arguments and streams of the command."""
    sys.stdin = sys.__stdin__ = open(0)  # type: ignore[misc] # noqa: SIM115 - open until the process ends
    sys.stdout = sys.__stdout__ = open(1, "w")  # type: ignore[misc] # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace")  # type: ignore[misc] # noqa: SIM115
    os.chdir(request["folder"])
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined] # Templates start in this folder.
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = ["ingot", *request["arguments"]]
    sys.path[:1] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _finish() -> None:
    """Do what an interpreter does at exit, except clearing its modules."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    with suppress(Exception):  # The reader may have closed the pipe.
        sys.stdout.flush()
        sys.stderr.flush()


def warm_up() -> None:
    """Run a command that fails before it connects, to import everything that typer needs to parse one."""
    sys.argv = ["ingot", "jobs", "list", "--server", "nowhere"]
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), suppress(SystemExit):
        ingot.cli.main()


if __name__ == "__main__":
    for name in LATE_IMPORTS:
        import_module(name)
    warm_up()
    prepare_structs()
    adopt_orphans()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=os.dup(0)) as control:
        Forks(control).run()
