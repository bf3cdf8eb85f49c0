"""The templates of a worker: one for each module with isolated handlers, started when it is first needed."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
from contextlib import suppress
from multiprocessing import spawn, util
from threading import Lock
from typing import Any, Final

import msgspec
import structlog

from ingot.settings import environment_without_secrets
from ingot.worker.app import Function, Handler
from ingot.worker.isolation.messages import KILL_SECONDS, READ_BYTES, TemplateStart, TemplateStatus
from ingot.worker.isolation.process import IsolatedProcess, TemplateGone, fork_process

START_SECONDS_MAX: Final = 120.0  # Maximum time for the import of a handler.
START_TRIES_MAX: Final = 3
MAIN_MODULE: Final = "__main__"
PREPARATION_KEYS: Final = ("sys_path", "sys_argv", "orig_dir", "dir")
MAIN_PREPARATION_KEYS: Final = ("init_main_from_name", "init_main_from_path")
TEMPLATE_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from ingot.worker.isolation.template import main; main()"
)
NOT_SHARED_HINT: Final = (
    "Each job imports the module again. Start threads and open connections in the handler instead of at import."
)
log = structlog.get_logger("ingot.worker")


class ProcessNotStarted(Exception):
    """The process for a job could not be started."""


class Templates:
    """Starts processes for jobs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._templates_by_module: dict[str, _TemplateHandle] = {}

    def start_process(self, handler: Handler) -> IsolatedProcess:
        """Start a process that waits for its task. Raises `ProcessNotStarted` and `OSError`."""
        module = _module_of(handler.function)
        with self._lock:
            if (template := self._templates_by_module.get(module)) is None:
                template = self._templates_by_module[module] = _TemplateHandle(handler.function)
        return template.start_process()

    def close(self) -> None:
        """Stop all templates and kill their processes."""
        with self._lock:
            for template in self._templates_by_module.values():
                template.close()


class _TemplateHandle:
    """The template of a module, identified by one of its functions. It is restarted if it ends."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._lock = Lock()
        self._is_import_shared = True
        self._closed = False
        self._template_socket: socket.socket | None = None
        self._subprocess: subprocess.Popen[bytes] | None = None

    def start_process(self) -> IsolatedProcess:
        """See `Templates`."""
        for _ in range(START_TRIES_MAX):
            template_socket = self._ensure_started()
            with suppress(TemplateGone):
                return fork_process(template_socket)
            self._discard(template_socket)
        raise ProcessNotStarted("the template process keeps exiting")

    def close(self) -> None:
        """Stop the template for good."""
        self._closed = True
        self._disconnect()  # Without the lock, which another thread holds while a template starts.
        with self._lock:
            self._stop()

    def _ensure_started(self) -> socket.socket:
        with self._lock:
            if self._closed:
                raise ProcessNotStarted("the worker is shutting down")
            if self._template_socket is None:
                try:
                    self._start()
                except BaseException:
                    self._stop()
                    raise
            assert self._template_socket is not None
            return self._template_socket

    def _start(self) -> None:
        status = self._launch()
        if status.not_shared_reason is not None:
            log.warning(
                "import_not_shared",
                module=_module_of(self._function),
                why=status.not_shared_reason,
                hint=NOT_SHARED_HINT,
            )
            self._stop()
            self._is_import_shared = False
            status = self._launch()
        if status.import_error is not None:
            raise ProcessNotStarted(f"importing the handler failed: {status.import_error}")

    def _launch(self) -> TemplateStatus:
        """Start the template and wait until it is ready."""
        self._template_socket, remote_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote_socket:
            start_message = TemplateStart(
                socket_descriptor=remote_socket.fileno(),
                worker_pid=os.getpid(),
                preparation_data=_preparation_data(self._function),
                function=pickle.dumps(self._function),
                share_import=self._is_import_shared,
            )
            self._subprocess = subprocess.Popen(
                [*_interpreter_command(), "-c", TEMPLATE_PROGRAM],
                stdin=subprocess.PIPE,
                env=environment_without_secrets(),
                pass_fds=[remote_socket.fileno()],
                start_new_session=True,  # Ctrl-C must reach only the worker.
            )
        assert self._subprocess.stdin is not None
        with suppress(BrokenPipeError), self._subprocess.stdin as stdin:
            stdin.write(
                json.dumps(start_message.preparation_data["sys_path"]).encode()
                + b"\n"
                + msgspec.json.encode(start_message)
            )
        self._template_socket.settimeout(START_SECONDS_MAX)
        try:
            data = self._template_socket.recv(READ_BYTES)
        except TimeoutError:
            raise ProcessNotStarted(f"importing the handler took longer than {START_SECONDS_MAX:g} seconds") from None
        self._template_socket.settimeout(None)
        if not data:
            raise ProcessNotStarted(f"importing the handler ended the process with exit code {self._stop()}")
        return msgspec.json.decode(data, type=TemplateStatus)

    def _discard(self, template_socket: socket.socket) -> None:
        """Stop a template that has ended, unless another thread has replaced it already."""
        with self._lock:
            if self._template_socket is template_socket:
                log.warning("template_ended", module=_module_of(self._function))
                self._stop()

    def _disconnect(self) -> None:
        """Shut the socket down. This ends the template even if a forked process has a copy of our end."""
        if (template_socket := self._template_socket) is not None:
            with suppress(OSError):
                template_socket.shutdown(socket.SHUT_RDWR)

    def _stop(self) -> int | None:
        """Stop the template if it runs, wait for its end, and return its exit code."""
        self._disconnect()
        if self._template_socket is not None:
            self._template_socket.close()
            self._template_socket = None
        template_process, self._subprocess = self._subprocess, None
        if template_process is None:
            return None
        try:
            return template_process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            template_process.kill()
            return template_process.wait()


def _interpreter_command() -> list[str]:
    """Return the command for another interpreter with the options of this one."""
    options: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined] # multiprocessing uses it too.
    return [os.fsdecode(spawn.get_executable()), *options]


def _module_of(function: Function) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _preparation_data(function: Function) -> dict[str, Any]:
    """Return what another interpreter needs to import a function.

    The main program is imported there only if the function is defined in it.
    """
    names = (*PREPARATION_KEYS, *MAIN_PREPARATION_KEYS) if _module_of(function) == MAIN_MODULE else PREPARATION_KEYS
    preparation_data = spawn.get_preparation_data("ingot")
    return {name: preparation_data[name] for name in names if name in preparation_data}
