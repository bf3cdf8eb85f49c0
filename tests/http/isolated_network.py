"""Isolated handlers that try to use the network, with and without permission."""

from __future__ import annotations

import ctypes
import errno
import socket
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from ingot.worker import Worker, WorkerJob

worker = Worker()
IO_URING_SETUP = 425


def attempts(port: int) -> dict[str, str]:
    """The outcome of every way to reach a port or another process."""
    families = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6, "unix": socket.AF_UNIX, "netlink": socket.AF_NETLINK}
    tries: dict[str, Callable[[], Any]] = {
        "connect": lambda: socket.create_connection(("127.0.0.1", port), 5),
        "lookup": lambda: socket.getaddrinfo("localhost", port),
        "program": lambda: subprocess.run(["/bin/bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"], check=True),
        # A datagram socket of a pair could send to any other local socket, and receive a connected one from it.
        "datagram pair": partial(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM),
        **{name: partial(socket.socket, family, socket.SOCK_DGRAM) for name, family in families.items()},
    }
    return {name: outcome(attempt) for name, attempt in tries.items()}


def outcome(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except (OSError, subprocess.CalledProcessError) as error:
        return type(error).__name__
    return "done"


@worker.handler("offline", isolate=True)
def offline(job: WorkerJob) -> Any:
    left, right = socket.socketpair()
    left.send(b"x")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(IO_URING_SETUP, 1, None)
    return {**attempts(job.payload), "pair": right.recv(1).decode(), "io_uring": errno.errorcode[ctypes.get_errno()]}


@worker.handler("online", isolate=True, network=True)
def online(job: WorkerJob) -> Any:
    return attempts(job.payload)


@worker.handler("connect", isolate=True)
def connect(job: WorkerJob) -> None:
    socket.create_connection(("127.0.0.1", job.payload), 5)


@worker.handler("copy", isolate=True)
def copy(job: WorkerJob) -> Any:
    path = job.download()
    job.save(path, "middle")
    saved = job.saved("middle")
    assert saved == path.read_bytes()
    return job.upload(path, "copy.bin").size
