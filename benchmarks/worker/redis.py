"""The Redis server of a run: Debian's package, on an empty folder, durable or with its default settings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.debian_servers import await_port, free_port, program

PROGRAM: Final = "redis-server"
DURABLE: Final = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


def version() -> str:
    """Return the version of the installed Redis server."""
    text = subprocess.run(
        [program(PROGRAM, package=PROGRAM), "--version"], capture_output=True, text=True, check=True
    ).stdout
    return text.partition("v=")[2].partition(" ")[0]


@contextmanager
def serving(folder: Path, *, durable: bool) -> Iterator[str]:
    """Run a server in this folder until the end of the block, and yield its URL."""
    port = free_port()
    command = [program(PROGRAM, package=PROGRAM), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with subprocess.Popen([*command, *(DURABLE if durable else ())], stdout=subprocess.DEVNULL) as process:
        try:
            await_port(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.kill()
