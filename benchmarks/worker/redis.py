"""The Redis that is measured on: Debian's, fresh for every run, durable or with its own settings."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.queue.adapter import Missing
from tests.postgres import install_debian

PROGRAM: Final = "redis-server"
DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
START_SECONDS_MAX: Final = 10.0


def program() -> str:
    """The server, installed when it is missing and we may. Raises `Missing`."""
    found = shutil.which(PROGRAM)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian(PROGRAM)
        found = shutil.which(PROGRAM)
    if found is None:
        raise Missing(f"there is no {PROGRAM}; install Debian's package of that name")
    return found


def version() -> str:
    """As it says itself."""
    text = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout
    return text.partition("v=")[2].partition(" ")[0]


@contextmanager
def serving(folder: Path, *, durable: bool) -> Iterator[str]:
    """A server in this folder, ended at the end of the block; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with subprocess.Popen([*command, *(DURABLE if durable else ())], stdout=subprocess.DEVNULL) as running:
        try:
            _await(port, running)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            running.kill()


def _await(port: int, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if running.poll() is not None or time.monotonic() > deadline:
                raise Missing(f"{PROGRAM} does not start") from None
            time.sleep(0.02)
