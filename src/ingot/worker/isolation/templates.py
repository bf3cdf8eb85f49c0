"""The templates of a worker: one for each module that has isolated handlers, begun when it is first needed."""

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

START_SECONDS_MAX: Final = 120.0  # That the import of a handler may take.
START_TRIES_MAX: Final = 3
MAIN_MODULE: Final = "__main__"
PREPARATION_KEYS: Final = ("sys_path", "sys_argv", "orig_dir", "dir")
MAIN_PREPARATION_KEYS: Final = ("init_main_from_name", "init_main_from_path")
TEMPLATE_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from ingot.worker.isolation.template import main; main()"
)
NOT_SHARED_HINT: Final = "Each job imports it anew: begin threads and open connections in the handler, not at import."
log = structlog.get_logger("ingot.worker")


class ProcessNotStarted(Exception):
    """There is no process for a job."""


class Templates:
    """Makes processes for jobs. From any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._templates_by_module: dict[str, _TemplateHandle] = {}

    def start_process(self, handler: Handler) -> IsolatedProcess:
        """A process that has imported the handler, and waits for its task. Raises `NotBegun` and `OSError`."""
        module = _module_of(handler.function)
        with self._lock:
            if (template := self._templates_by_module.get(module)) is None:
                template = self._templates_by_module[module] = _TemplateHandle(handler.function)
        return template.start_process()

    def close(self) -> None:
        """End all of them, and every process of theirs."""
        with self._lock:
            for template in self._templates_by_module.values():
                template.close()


class _TemplateHandle:
    """The template of a module, by one of its functions; another one is begun where one has ended."""

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
            control = self._ensure_started()
            with suppress(TemplateGone):
                return fork_process(control)
            self._discard(control)
        raise ProcessNotStarted("its template ends again and again")

    def close(self) -> None:
        """End it, for good."""
        self._closed = True
        self._disconnect()  # Also where one begins at this moment: that may take its time.
        with self._lock:
            self._stop()

    def _ensure_started(self) -> socket.socket:
        with self._lock:
            if self._closed:
                raise ProcessNotStarted("the worker goes")
            if self._template_socket is None:
                try:
                    self._start()
                except BaseException:
                    self._stop()
                    raise
            assert self._template_socket is not None
            return self._template_socket

    def _start(self) -> None:
        hello = self._launch()
        if hello.not_shared is not None:
            log.warning(
                "import_not_shared", module=_module_of(self._function), why=hello.not_shared, hint=NOT_SHARED_HINT
            )
            self._stop()
            self._is_import_shared = False
            hello = self._launch()
        if hello.failed is not None:
            raise ProcessNotStarted(f"it cannot be imported in a process of its own: {hello.failed}")

    def _launch(self) -> TemplateStatus:
        """Start the template, and hear whether it is ready."""
        self._template_socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            beginning = TemplateStart(
                control=theirs.fileno(),
                worker=os.getpid(),
                prepares=_preparation_data(self._function),
                function=pickle.dumps(self._function),
                shared=self._is_import_shared,
            )
            self._subprocess = subprocess.Popen(
                [*_interpreter_command(), "-c", TEMPLATE_PROGRAM],
                stdin=subprocess.PIPE,
                env=environment_without_secrets(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # A Ctrl-C is for the worker.
            )
        assert self._subprocess.stdin is not None
        with suppress(BrokenPipeError), self._subprocess.stdin as told:
            told.write(json.dumps(beginning.prepares["sys_path"]).encode() + b"\n" + msgspec.json.encode(beginning))
        self._template_socket.settimeout(START_SECONDS_MAX)
        try:
            said = self._template_socket.recv(READ_BYTES)
        except TimeoutError:
            raise ProcessNotStarted(f"its import takes longer than {START_SECONDS_MAX:g} seconds") from None
        self._template_socket.settimeout(None)
        if not said:
            raise ProcessNotStarted(f"its import ended the process, with {self._stop()}")
        return msgspec.json.decode(said, type=TemplateStatus)

    def _discard(self, control: socket.socket) -> None:
        """This one has ended; others may have seen it too."""
        with self._lock:
            if self._template_socket is control:
                log.warning("template_ended", module=_module_of(self._function))
                self._stop()

    def _disconnect(self) -> None:
        """Let the template know that the worker goes, whoever else has a copy of our end."""
        if (control := self._template_socket) is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)

    def _stop(self) -> int | None:
        """See the template, if there is one, to its end, and answer how that was."""
        self._disconnect()
        if self._template_socket is not None:
            self._template_socket.close()
            self._template_socket = None
        running, self._subprocess = self._subprocess, None
        if running is None:
            return None
        try:
            return running.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            return running.wait()


def _interpreter_command() -> list[str]:
    """Another interpreter as this one is, with its options."""
    options: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined] # As multiprocessing does it.
    return [os.fsdecode(spawn.get_executable()), *options]


def _module_of(function: Function) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _preparation_data(function: Function) -> dict[str, Any]:
    """What another interpreter needs to find a function; the main program is run there only for one that is in it."""
    names = (*PREPARATION_KEYS, *MAIN_PREPARATION_KEYS) if _module_of(function) == MAIN_MODULE else PREPARATION_KEYS
    found = spawn.get_preparation_data("ingot")
    return {name: found[name] for name in names if name in found}
