"""Servers of Debian's that are measured beside, fresh for every run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from typing import Final

from benchmarks.queue.adapter import MissingDependency
from tests.postgres import install_debian

PLACES: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"
START_SECONDS_MAX: Final = 10.0


def program(name: str, *, package: str) -> str:
    """Where a server is, installed when it is missing and we may. Raises `Missing`."""
    found = shutil.which(name, path=PLACES)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian(package)
        found = shutil.which(name, path=PLACES)
    if found is None:
        raise MissingDependency(f"there is no {name}; install Debian's package {package}")
    return found


def free_port() -> int:
    """A port that nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def await_port(port: int, running: subprocess.Popen[bytes]) -> None:
    """Return when a server answers. Raises `Missing` when it does not."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if running.poll() is not None or time.monotonic() > deadline:
                raise MissingDependency(f"what should answer at port {port} does not start") from None
            time.sleep(0.02)
