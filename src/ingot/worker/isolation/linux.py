"""What processes ask of Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
from collections.abc import Container
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_JOB_UIDS: Final = range(61_184, 65_520)  # Those that systemd gives to services which have none of their own.
_libc: Final = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Have what descends from this process be its child when the parent between them has ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, and at once when it has. A new user begins without this."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def disable_new_privileges() -> None:
    """Have no program that this process begins give it rights that it does not have."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def job_uid(pid: int) -> int:
    """The user of a job's process: none has that of another that runs, unless very many do."""
    return _JOB_UIDS[pid % len(_JOB_UIDS)]


def is_mapped_uid(uid: int) -> bool:
    """Whether there is such a user here: a container may have a few only."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    spans = [tuple(map(int, line.split())) for line in lines]
    return any(inside <= uid < inside + length for inside, _, length in spans)


def stray_children(known: Container[int], live: Container[int]) -> list[int]:
    """Children of this process that are not known, and whose user is that of a job which is not live."""
    found = []
    with suppress(OSError):
        for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
            uid = Path(f"/proc/{pid}").stat().st_uid
            if pid not in known and uid in _JOB_UIDS and uid not in live:
                found.append(pid)
    return found


def open_pidfd(pid: int) -> int | None:
    """What can be read when a process has ended; `None` where there is no such thing, or no such process."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def fork_obstacle(known: set[int]) -> str | None:
    """What this process has that a copy of it would not have whole, or would share with others; `None` for nothing.

    A thread is not copied. What a socket, a pipe or a file that is written says reaches whoever reads it first. These
    descriptors are known.
    """
    if (threads := _count_threads_after_fork()) > 1:
        return f"{threads - 1} threads run"
    for descriptor in _open_descriptors() - known:
        with suppress(OSError):  # What the list itself was read from is closed by now.
            mode = os.fstat(descriptor).st_mode
            reads = fcntl(descriptor, F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if not (stat.S_ISCHR(mode) or (reads and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)))):
                return f"descriptor {descriptor} is open ({_describe_descriptor(descriptor)})"
    return None


def _count_threads_after_fork() -> int:
    """How many threads there are once this process has been copied: some libraries end theirs then, by themselves."""
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task"))


def _open_descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def _describe_descriptor(descriptor: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    return "a file that is gone"
