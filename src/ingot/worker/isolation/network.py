"""Cutting a process off from the network.

A seccomp filter makes the kernel refuse new sockets to this process and to all programs that it starts. It needs no
privileges and works in containers. Pipes and pairs of connected stream sockets still work.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
from typing import Any, Final, NamedTuple

NO_NETWORK_TEXT: Final = "an isolated handler has no network; pass network=True to worker.handler to allow it"
REFUSED_EVENTS: Final = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})

_SET_MODE_FILTER: Final = 1
_GET_ACTION_AVAILABLE: Final = 2
_ALL_THREADS: Final = 1  # SECCOMP_FILTER_FLAG_TSYNC
_RETURN_ALLOW: Final = 0x7FFF_0000
_RETURN_ERRNO: Final = 0x0005_0000
# Instructions of classic BPF.
_LOAD, _AND, _JUMP_IF_EQUAL, _JUMP_IF_GREATER_OR_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
# In `struct seccomp_data` of little-endian machines. The last two are the first two arguments of the system call.
_SYSCALL_OFFSET, _ARCHITECTURE_OFFSET, _DOMAIN_OFFSET, _TYPE_OFFSET = 0, 4, 16, 24
_SOCKET_TYPE_MASK: Final = 0xF  # The other bits are flags.
_X32_SYSCALLS: Final = 0x4000_0000  # Numbers from here on are a second set of system calls of x86_64.
# Requests in an io_uring are not filtered, and could open sockets.
_IO_URING_SETUP: Final = 425


class _SystemCalls(NamedTuple):
    architecture: int
    socket: int
    socketpair: int
    connect: int
    seccomp: int


_SYSTEM_CALLS: Final = {
    "x86_64": _SystemCalls(0xC000_003E, socket=41, socketpair=53, connect=42, seccomp=317),
    "aarch64": _SystemCalls(0xC000_00B7, socket=198, socketpair=199, connect=203, seccomp=277),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def network_obstacle() -> str | None:
    """Return why this system cannot cut processes off from the network, or `None` if it can."""
    if sys.platform != "linux":
        return f"{platform.system()} has no seccomp"
    if (calls := _SYSTEM_CALLS.get(platform.machine())) is None:
        return f"it is not implemented for {platform.machine()}"
    action = ctypes.c_uint32(_RETURN_ERRNO)
    if _seccomp(calls, _GET_ACTION_AVAILABLE, 0, ctypes.byref(action)) != 0:
        return f"the kernel does not support seccomp filters ({os.strerror(ctypes.get_errno())})"
    return None


def block_network() -> None:
    """Refuse new sockets to this process from now on. Requires `disable_new_privileges`. Raises `OSError`."""
    calls = _SYSTEM_CALLS[platform.machine()]
    instructions = _filter_of(calls)
    buffer = ctypes.create_string_buffer(instructions)
    program = _Program(len(instructions) // 8, ctypes.addressof(buffer))
    if (result := _seccomp(calls, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(program))) != 0:
        number = ctypes.get_errno() if result < 0 else errno.ESRCH  # Positive: the thread that cannot be filtered.
        raise OSError(number, f"the seccomp filter cannot be installed: {os.strerror(number)}")
    sys.addaudithook(_refuse_connections)


def _filter_of(calls: _SystemCalls) -> bytes:
    """Return a program that refuses these system calls, and all calls in the format of another architecture.

    Of the pairs of sockets, it allows those that are connected for good. A local datagram socket can send to any other
    one, such as that of syslog, and can receive open sockets from other processes.
    """
    refused = ((calls.socket, errno.EACCES), (calls.connect, errno.EACCES), (_IO_URING_SETUP, errno.ENOSYS))
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_IF_EQUAL, 1, 0, calls.architecture),
        (_RETURN, 0, 0, _RETURN_ERRNO | errno.EPERM),
        (_LOAD, 0, 0, _SYSCALL_OFFSET),
        (_JUMP_IF_GREATER_OR_EQUAL, 0, 1, _X32_SYSCALLS),
        (_RETURN, 0, 0, _RETURN_ERRNO | errno.EPERM),
    ]
    for number, error in refused:
        program += [(_JUMP_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _RETURN_ERRNO | error)]
    program += [
        (_JUMP_IF_EQUAL, 0, 7, calls.socketpair),
        (_LOAD, 0, 0, _DOMAIN_OFFSET),
        (_JUMP_IF_EQUAL, 0, 4, socket.AF_UNIX),
        (_LOAD, 0, 0, _TYPE_OFFSET),
        (_AND, 0, 0, _SOCKET_TYPE_MASK),
        (_JUMP_IF_EQUAL, 2, 0, socket.SOCK_STREAM),
        (_JUMP_IF_EQUAL, 1, 0, socket.SOCK_SEQPACKET),
        (_RETURN, 0, 0, _RETURN_ERRNO | errno.EACCES),
        (_RETURN, 0, 0, _RETURN_ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _seccomp(calls: _SystemCalls, operation: int, flags: int, argument: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(ctypes.c_long(calls.seccomp), operation, flags, argument))


def _refuse_connections(event: str, _arguments: tuple[object, ...]) -> None:
    """Explain to Python code why it cannot connect. The filter is what prevents it."""
    if event in REFUSED_EVENTS:
        raise PermissionError(errno.EACCES, NO_NETWORK_TEXT)
