"""Linux system calls and `/proc` lookups for process isolation."""

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
_JOB_UIDS: Final = range(61_184, 65_520)  # The range that systemd uses for DynamicUser=.
_libc: Final = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent has ended."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent ends, or now if it has ended already. Changing the user resets this."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def disable_new_privileges() -> None:
    """Prevent programs that this process starts from gaining privileges, such as through setuid bits."""
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def job_uid(pid: int) -> int:
    """Return the user ID for the process of a job. It is unique unless thousands of jobs run at once."""
    return _JOB_UIDS[pid % len(_JOB_UIDS)]


def is_mapped_uid(uid: int) -> bool:
    """Whether this user ID exists in the user namespace: a container may have only a few."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    ranges = [tuple(map(int, line.split())) for line in lines]
    return any(first <= uid < first + length for first, _, length in ranges)


def stray_children(known_pids: Container[int], live_uids: Container[int]) -> list[int]:
    """Return children of this process that are not known and run as the user of a job that has ended."""
    strays = []
    with suppress(OSError):
        for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
            uid = Path(f"/proc/{pid}").stat().st_uid
            if pid not in known_pids and uid in _JOB_UIDS and uid not in live_uids:
                strays.append(pid)
    return strays


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends.

    Returns `None` if the process does not exist or the kernel does not support this.
    """
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def fork_obstacle(known_descriptors: set[int]) -> str | None:
    """Return why this process cannot be forked safely, or `None` if it can.

    A fork does not copy threads. It shares sockets and pipes with the original process, and also files that are open
    for writing. `known_descriptors` are allowed.
    """
    if (threads := _count_threads_after_fork()) > 1:
        return f"{threads - 1} threads are running"
    for descriptor in _open_descriptors() - known_descriptors:
        with suppress(OSError):  # The descriptor with which the list was read is closed by now.
            mode = os.fstat(descriptor).st_mode
            is_read_only = fcntl(descriptor, F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if not (stat.S_ISCHR(mode) or (is_read_only and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)))):
                return f"descriptor {descriptor} is open ({_describe_descriptor(descriptor)})"
    return None


def _count_threads_after_fork() -> int:
    """Fork once and count the threads of this process afterwards: some libraries stop their threads at a fork."""
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return len(os.listdir("/proc/self/task"))


def _open_descriptors() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}


def _describe_descriptor(descriptor: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    return "unknown"
