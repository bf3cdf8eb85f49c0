"""Processes that tests start: each is killed with its children at the end of the test, and leftovers are reported."""

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
LEFTOVER_SECONDS: Final = 30.0  # Time for a process to end before it counts as left over.
HINT: Final = "Start programs with `started` in tests/processes.py: it ends them with the test."
# Helper processes of Python, which run as long as their parent.
HELPERS: Final = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


class Process(Protocol):
    """A started process: a `subprocess.Popen`, or one that was forked from the warm interpreter."""

    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None
    returncode: Any

    def poll(self) -> int | None:
        """Return the exit code, or `None` while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it ends. Raises `subprocess.TimeoutExpired`."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to this process only."""

    def kill(self) -> None:
        """Kill this process only."""

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Read its pipes to the end, and wait until it ends. Raises `subprocess.TimeoutExpired`."""


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
    """Start a program in its own session. At the end of the block it is killed with its process group."""
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
    """Start a program like `started`, with asynchronous pipes of bytes."""
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
    """Kill a process with its group at the end of the block, also after an error."""
    try:
        yield
    finally:
        end(process)


def end(process: Process) -> None:
    """Kill a process and its group, wait for it, and close its pipes."""
    with suppress(
        ProcessLookupError, PermissionError
    ):  # No process of the group is left, or only those of another user.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=END_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):  # Unwritten data in the pipe.
                pipe.close()


# -- leftover processes -------------------------------------------------------------------------------------


def mark_this_run() -> None:
    """Set a mark in the environment, which identifies all descendants, even after their parent has ended."""
    os.environ[RUN_VARIABLE] = f"{os.getpid()}-{uuid.uuid4().hex}"


def keep(pid: int, *, with_children: bool = True) -> None:
    """Allow a process to run until the end of the test run, because several modules use it."""
    _lasting[pid] = with_children


def descendants() -> dict[int, str]:
    """Return the command lines of all descendants by process ID, also of those whose parent has ended."""
    mark = f"{RUN_VARIABLE}={os.environ[RUN_VARIABLE]}".encode()
    parents: dict[int, int] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(OSError):  # It has ended.
            parents[pid] = parent_of(pid)
    pids = {pid for pid in parents if _descends(pid, parents) or _has_mark(pid, mark)}
    lines = {pid: _command_line(pid) for pid in pids if pid != os.getpid()}
    return {pid: line for pid, line in lines.items() if line}  # A zombie has no command line.


def is_running(pid: int) -> bool:
    """Whether a process is running and not a zombie."""
    return _command_line(pid) != ""


def parent_of(pid: int) -> int:
    """Return the parent of a process. Raises `OSError` if the process has ended."""
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
    """Fail if a process that was started in the block still runs at its end, and kill it."""
    known = descendants()
    yield
    deadline = time.monotonic() + seconds
    while leftovers := _left_over(known):
        if time.monotonic() > deadline:
            for pid in leftovers:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            listed = "; ".join(f"{line} (pid {pid})" for pid, line in leftovers.items())
            raise AssertionError(f"These processes were left running by tests of this module: {listed}. {HINT}")
        time.sleep(0.02)


def _left_over(known: Mapping[int, str]) -> dict[int, str]:
    pids = {pid: line for pid, line in descendants().items() if pid not in known and not _may_last(pid, line)}
    return {pid: " ".join(FORKED.get(pid, [line])) for pid, line in pids.items()}


def _may_last(pid: int, line: str) -> bool:
    try:
        parent = parent_of(pid)
    except OSError:  # It has just ended.
        return True
    is_helper = parent == os.getpid() and any(name in line for name in HELPERS)
    return pid in _lasting or _lasting.get(parent, False) or is_helper


_lasting: Final[dict[int, bool]] = {}  # Process IDs, and whether their children may last too.
FORKED: Final[dict[int, Sequence[str]]] = {}  # The real arguments of processes forked from the warm interpreter.
