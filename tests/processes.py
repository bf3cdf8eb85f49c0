"""Processes that tests start: each is ended with its test, with everything that it started, and none is left over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

RUN_VARIABLE: Final = "INGOT_TEST_RUN"
END_SECONDS: Final = 60.0
LEFTOVER_SECONDS: Final = 30.0  # How long a process may take to end before it counts as left over.
HINT: Final = "Start programs with `started` in tests/processes.py: it ends them with the test."
# Processes of Python itself, which live as long as the process that started them.
HELPERS: Final = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


class Process(Protocol):
    """A process that was started: `subprocess.Popen`, or one that was forked from a warm interpreter."""

    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None
    returncode: Any

    def poll(self) -> int | None:
        """Return the exit code, or `None` while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to it alone."""

    def kill(self) -> None:
        """Kill it alone."""

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Read its pipes to their end, and wait for it. Raises `subprocess.TimeoutExpired`."""


@contextmanager
def started(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a session of its own. At the end of the block it is killed with its process group."""
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True, start_new_session=True,
    )  # fmt: skip
    with ending(process):
        yield process


@asynccontextmanager
async def started_async(
    *command: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    user: str | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program as `started` does, for tests that await what it writes in bytes."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, user=user, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


@contextmanager
def ending(process: Process) -> Iterator[None]:
    """Kill a process that leads its group at the end of the block, with the group, whatever happens in the block."""
    try:
        yield
    finally:
        end(process)


def end(process: Process) -> None:
    """Kill a process and its group, wait for it, and close its pipes."""
    with suppress(ProcessLookupError, PermissionError):  # Nobody is left, or only those whose user is another.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=END_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):  # There is something left to write.
                pipe.close()


# -- what is left over --------------------------------------------------------------------------------------


def mark_this_run() -> None:
    """Name this process in its environment, so that what descends from it can be found when its parent has ended."""
    os.environ[RUN_VARIABLE] = f"{os.getpid()}-{uuid.uuid4().hex}"


def keep(pid: int, *, with_children: bool = True) -> None:
    """Let a process live as long as the test run, because tests of many modules use it."""
    _lasting[pid] = with_children


def descendants() -> dict[int, str]:
    """The command lines of the processes that descend from this one, or were started by one that did, by their IDs."""
    mark = f"{RUN_VARIABLE}={os.environ[RUN_VARIABLE]}".encode()
    parents: dict[int, int] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError):  # It has ended.
            parents[pid] = parent_of(pid)
    found = {pid for pid in parents if _descends(pid, parents) or _has_mark(pid, mark)}
    lines = {pid: _command_line(pid) for pid in found if pid != os.getpid()}
    return {pid: line for pid, line in lines.items() if line}  # A zombie has none.


def is_running(pid: int) -> bool:
    """Whether there is such a process; a zombie does not count."""
    return _command_line(pid) != ""


def parent_of(pid: int) -> int:
    """The parent of a process. Raises `OSError` when that has ended."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


def _descends(pid: int, parents: Mapping[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) > 1:
        if pid == os.getpid():
            return True
    return False


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


@contextmanager
def nothing_left_over(*, seconds: float = LEFTOVER_SECONDS) -> Iterator[None]:
    """Around the tests of a module: fail when a process that one of them started still runs, and kill it."""
    before = descendants()
    yield
    deadline = time.monotonic() + seconds
    while left := _left_over(before):
        if time.monotonic() > deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            listed = "; ".join(f"{line} (pid {pid})" for pid, line in left.items())
            raise AssertionError(f"These processes were left running by tests of this module: {listed}. {HINT}")
        time.sleep(0.02)


def _left_over(before: Mapping[int, str]) -> dict[int, str]:
    found = {pid: line for pid, line in descendants().items() if pid not in before and not _may_last(pid, line)}
    return {pid: " ".join(FORKED.get(pid, [line])) for pid, line in found.items()}


def _may_last(pid: int, line: str) -> bool:
    try:
        parent = parent_of(pid)
    except OSError:  # It has just ended.
        return True
    is_helper = parent == os.getpid() and any(name in line for name in HELPERS)
    return pid in _lasting or _lasting.get(parent, False) or is_helper


_lasting: Final[dict[int, bool]] = {}  # Whether the children of a process may last too, by its ID.
FORKED: Final[dict[int, Sequence[str]]] = {}  # What runs in processes that share the command line of the warm one.
