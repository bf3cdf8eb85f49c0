"""`ingot` as a process: how tests start servers, workers and commands.

Most are forked from an interpreter that has already imported Ingot (`warm_interpreter.py`), in a tenth of the time that
a cold start takes. With `cold=True` the installed program is started.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from signal import SIGKILL, SIGTERM
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple

import pytest

from tests.processes import FORKED, Process, ending, keep
from tests.time_report import record_python

ROOT: Final = Path(__file__).parents[2]
INGOT: Final = str(Path(sys.executable).with_name("ingot"))
PYTHON_INGOT: Final = [sys.executable, "-m", "ingot"]
WARM: Final = Path(__file__).with_name("warm_interpreter.py")
EXIT_SECONDS: Final = 30.0
RUN_SECONDS: Final = 50.0

Stream = int | IO[Any] | None


class ForkedProcess:
    """A command that was forked from the warm interpreter, with the interface of a `subprocess.Popen` in text mode."""

    def __init__(self, arguments: list[str], streams: list[int], folder: Path, environment: Mapping[str, str]) -> None:
        self.args = ["ingot", *arguments]
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self.returncode: int | None = None
        self._connection, theirs = socket.socketpair()
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": dict(environment),
            "terminal": os.isatty(streams[0]),
        }
        with theirs:
            socket.send_fds(warm_interpreter().control, [b"+"], [theirs.fileno()])
        socket.send_fds(self._connection, [json.dumps(request).encode() + b"\n"], streams)
        self._answers = self._connection.makefile("r", encoding="ascii")
        self.pid = int(self._answers.readline())
        FORKED[self.pid] = self.args

    def poll(self) -> int | None:
        """Return the exit code, or `None` while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            readable = select.poll()
            readable.register(self._connection, select.POLLIN)
            if not readable.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            line = self._answers.readline()
            assert line, "the warm interpreter has ended"
            self.returncode = int(line)
            del FORKED[self.pid]
            self._answers.close()
            self._connection.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send a signal to this process only."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # It was reaped after it was polled.
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(SIGTERM)

    def kill(self) -> None:
        """Kill this process only."""
        self.send_signal(SIGKILL)

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Read its pipes to the end, and wait until it ends. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        read: dict[str, str] = {}

        def collect(name: str, pipe: IO[str]) -> None:
            read[name] = pipe.read()

        pipes = {"stdout": self.stdout, "stderr": self.stderr}
        readers = [
            threading.Thread(target=collect, args=(name, pipe), daemon=True)
            for name, pipe in pipes.items()
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return read.get("stdout", ""), read.get("stderr", "")


class WarmInterpreter:
    """The process that commands are forked from. It ends when the control socket is closed."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(WARM)],
                cwd=ROOT,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        keep(self._process.pid, with_children=False)

    def close(self) -> None:
        """End the interpreter and everything that was forked from it."""
        record_python(self._process.pid)
        self.control.close()
        try:
            self._process.wait(timeout=EXIT_SECONDS)
        finally:
            self._process.kill()


@cache
def warm_interpreter() -> WarmInterpreter:
    """Return the interpreter of this test process, started at the first call."""
    return WarmInterpreter()


def end_warm_interpreter() -> None:
    """End the interpreter, if it was started."""
    if warm_interpreter.cache_info().currsize:
        warm_interpreter().close()
        warm_interpreter.cache_clear()


@contextmanager
def ingot(
    *arguments: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    cold: bool = False,
) -> Iterator[Process]:
    """Run a command of `ingot` in the background; at the end of the block it is killed with its process group."""
    process = start_ingot(*arguments, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, cold=cold)
    with ending(process):
        yield process


def start_ingot(
    *arguments: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    cold: bool = False,
) -> Process:
    """Start a command of `ingot` in its own session. The caller ends it with `tests.processes.end`."""
    if cold:
        return subprocess.Popen(
            [*PYTHON_INGOT, *arguments],
            cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True, start_new_session=True,
        )  # fmt: skip
    with ExitStack() as stack:
        own: list[IO[str] | None] = []
        theirs: list[int] = []
        for number, stream in enumerate((stdin, stdout, stderr)):
            pipe, descriptor = _stream(number, stream, stack)
            own.append(pipe)
            theirs.append(descriptor)
        process = ForkedProcess(list(arguments), theirs, cwd, os.environ if env is None else env)
    process.stdin, process.stdout, process.stderr = own
    return process


def _stream(number: int, stream: Stream, stack: ExitStack) -> tuple[IO[str] | None, int]:
    """Return our end of a pipe, if there is one, and the file descriptor for the process."""
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        ours, theirs = (writing, reading) if number == 0 else (reading, writing)
        stack.callback(os.close, theirs)
        return open(ours, "w" if number == 0 else "r", encoding="utf-8"), theirs
    if stream == subprocess.DEVNULL or (stream is None and number == 0):
        descriptor = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, descriptor)
        return None, descriptor
    if stream is None:
        return None, number
    return None, stream if isinstance(stream, int) else stream.fileno()


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str


def run_ingot(
    *arguments: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    stdin_text: str = "",
    seconds: float = RUN_SECONDS,
    cold: bool = False,
) -> CommandResult:
    """Run a command without a terminal until it ends."""
    with TemporaryFile("w+") as stdin, TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        stdin.write(stdin_text)
        stdin.seek(0)
        with ingot(*arguments, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, cold=cold) as process:
            code = process.wait(timeout=seconds)
        for file in (stdout, stderr):
            file.seek(0)
        return CommandResult(code, stdout.read(), stderr.read())


def run_on_terminal(*arguments: str, cwd: Path, env: Mapping[str, str], answer: str = "") -> tuple[str, int]:
    """Run a command on a terminal, answer its question, and return the output and the exit code."""
    ours, theirs = pty.openpty()
    try:
        with ingot(*arguments, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            seen = b""
            with suppress(OSError):  # Raised at the end of the output.
                while part := os.read(ours, 65_536):
                    seen += part
                    if answer and b"[y/N]" in seen:
                        os.write(ours, f"{answer}\n".encode())
                        answer = ""
            return seen.decode(errors="replace"), process.wait(timeout=EXIT_SECONDS)
    finally:
        os.close(ours)


# -- servers and workers ------------------------------------------------------------------------------------


@contextmanager
def served(
    folder: Path, *options: str, cold: bool = False, env: Mapping[str, str] | None = None
) -> Iterator[tuple[Process, str]]:
    """Start a server on a free port, and yield it with its URL. It is killed at the end of the block."""
    arguments = ("serve", "--data", str(folder), "--port", "0", *options)
    with ingot(*arguments, env=env, stderr=subprocess.PIPE, cold=cold) as process:
        yield process, wait_for_url(process)


def wait_for_url(process: Process) -> str:
    """Wait until a server logs its URL, and return it."""
    assert process.stderr is not None
    output = ""
    for line in process.stderr:
        output += line
        if found := re.search(r"http://[^\s\"]+", line):
            return found[0]
    pytest.fail(f"the server did not start: {output}")


@contextmanager
def worker(
    *options: str,
    url: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    stderr: Stream = subprocess.PIPE,
    cold: bool = False,
) -> Iterator[Process]:
    """Start a worker. At the end of the block it gets SIGTERM; after a failure it is killed."""
    variables = {**(os.environ if env is None else env), "INGOT_SERVER_URL": url}
    with ingot("worker", *options, cwd=cwd, env=variables, stderr=stderr, cold=cold) as process:
        yield process
        if process.poll() is None:
            process.send_signal(SIGTERM)
            process.communicate(timeout=EXIT_SECONDS)
