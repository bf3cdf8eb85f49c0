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

from ingot.settings import without_secrets
from ingot.worker.app import Function, Handler
from ingot.worker.isolation.process import Process, TemplateGone, new_process
from ingot.worker.isolation.words import KILL_SECONDS, READ_BYTES, Beginning, Hello

BEGIN_SECONDS: Final = 120.0  # That the import of a handler may take.
TRIES: Final = 3
MAIN: Final = "__main__"
PREPARES: Final = ("sys_path", "sys_argv", "orig_dir", "dir")
PREPARES_MAIN: Final = ("init_main_from_name", "init_main_from_path")
PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from ingot.worker.isolation.template import main; main()"
)
NOT_SHARED_HINT: Final = "Each job imports it anew: begin threads and open connections in the handler, not at import."
log = structlog.get_logger("ingot.worker")


class NotBegun(Exception):
    """There is no process for a job."""


class Templates:
    """Makes processes for jobs. From any thread."""

    def __init__(self) -> None:
        self._door = Lock()
        self._known: dict[str, _Template] = {}

    def process(self, handler: Handler) -> Process:
        """A process that has imported the handler, and waits for its task. Raises `NotBegun` and `OSError`."""
        module = _module(handler.function)
        with self._door:
            if (template := self._known.get(module)) is None:
                template = self._known[module] = _Template(handler.function)
        return template.process()

    def close(self) -> None:
        """End all of them, and every process of theirs."""
        with self._door:
            for template in self._known.values():
                template.close()


class _Template:
    """The template of a module, by one of its functions; another one is begun where one has ended."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._door = Lock()
        self._shared = True
        self._closed = False
        self._control: socket.socket | None = None
        self._running: subprocess.Popen[bytes] | None = None

    def process(self) -> Process:
        """See `Templates`."""
        for _ in range(TRIES):
            control = self._begun()
            with suppress(TemplateGone):
                return new_process(control)
            self._forget(control)
        raise NotBegun("its template ends again and again")

    def close(self) -> None:
        """End it, for good."""
        self._closed = True
        self._hang_up()  # Also where one begins at this moment: that may take its time.
        with self._door:
            self._end()

    def _begun(self) -> socket.socket:
        with self._door:
            if self._closed:
                raise NotBegun("the worker goes")
            if self._control is None:
                try:
                    self._begin()
                except BaseException:
                    self._end()
                    raise
            assert self._control is not None
            return self._control

    def _begin(self) -> None:
        hello = self._greeted()
        if hello.not_shared is not None:
            log.warning("import_not_shared", module=_module(self._function), why=hello.not_shared, hint=NOT_SHARED_HINT)
            self._end()
            self._shared = False
            hello = self._greeted()
        if hello.failed is not None:
            raise NotBegun(f"it cannot be imported in a process of its own: {hello.failed}")

    def _greeted(self) -> Hello:
        """Start the template, and hear whether it is ready."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            beginning = Beginning(
                control=theirs.fileno(),
                worker=os.getpid(),
                prepares=_prepares(self._function),
                function=pickle.dumps(self._function),
                shared=self._shared,
            )
            self._running = subprocess.Popen(
                [*_interpreter(), "-c", PROGRAM],
                stdin=subprocess.PIPE,
                env=without_secrets(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # A Ctrl-C is for the worker.
            )
        assert self._running.stdin is not None
        with suppress(BrokenPipeError), self._running.stdin as told:
            told.write(json.dumps(beginning.prepares["sys_path"]).encode() + b"\n" + msgspec.json.encode(beginning))
        self._control.settimeout(BEGIN_SECONDS)
        try:
            said = self._control.recv(READ_BYTES)
        except TimeoutError:
            raise NotBegun(f"its import takes longer than {BEGIN_SECONDS:g} seconds") from None
        self._control.settimeout(None)
        if not said:
            raise NotBegun(f"its import ended the process, with {self._end()}")
        return msgspec.json.decode(said, type=Hello)

    def _forget(self, control: socket.socket) -> None:
        """This one has ended; others may have seen it too."""
        with self._door:
            if self._control is control:
                log.warning("template_ended", module=_module(self._function))
                self._end()

    def _hang_up(self) -> None:
        """Let the template know that the worker goes, whoever else has a copy of our end."""
        if (control := self._control) is not None:
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)

    def _end(self) -> int | None:
        """See the template, if there is one, to its end, and answer how that was."""
        self._hang_up()
        if self._control is not None:
            self._control.close()
            self._control = None
        running, self._running = self._running, None
        if running is None:
            return None
        try:
            return running.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            return running.wait()


def _interpreter() -> list[str]:
    """Another interpreter as this one is, with its options."""
    options: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined] # As multiprocessing does it.
    return [os.fsdecode(spawn.get_executable()), *options]


def _module(function: Function) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _prepares(function: Function) -> dict[str, Any]:
    """What another interpreter needs to find a function; the main program is run there only for one that is in it."""
    names = (*PREPARES, *PREPARES_MAIN) if _module(function) == MAIN else PREPARES
    found = spawn.get_preparation_data("ingot")
    return {name: found[name] for name in names if name in found}
