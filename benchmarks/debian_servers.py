"""Servers from Debian packages that benchmarks start for each run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from typing import Final

from benchmarks.queue.adapter import MissingDependency
from tests.postgres import install_debian

SEARCH_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"
START_SECONDS_MAX: Final = 10.0


def program(name: str, *, package: str) -> str:
    """Return the path of a program, and install its package if it is missing and we are root.

    Raises `MissingDependency`.
    """
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian(package)
        path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise MissingDependency(f"{name} was not found; install Debian's package {package}")
    return path


def free_port() -> int:
    """Return a TCP port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server accepts connections. Raises `MissingDependency` if it ends or is too slow."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise MissingDependency(f"the server on port {port} did not start") from None
            time.sleep(0.02)
