"""`ingot serve`, as people run it, on a new folder or a new database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.queue.folders import REPOSITORY
from benchmarks.server.processes import MeasuredProcess
from ingot.client.server_address import TOKEN_FILE
from ingot.settings import RATE_MAX

RATES: Final = {f"INGOT_RATE_{name}": str(RATE_MAX) for name in ("READ", "WRITE", "WAIT")}
END_SECONDS_MAX: Final = 30.0


class IngotServer(MeasuredProcess):
    """A server that runs, where it is, and the operator's token."""

    def __init__(self, running: subprocess.Popen[str], url: str, token: str) -> None:
        super().__init__(running)
        self.url, self.token = url, token


@contextmanager
def serving(
    folder: Path, *, owner_url: str = "", server_url: str = "", more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[IngotServer]:
    """A server, on a database when its addresses are given, ended at the end of the block; `more` are settings."""
    environment = {**os.environ, **RATES, **more}
    if server_url:
        environment |= {"INGOT_DATABASE_OWNER_URL": owner_url, "INGOT_DATABASE_URL": server_url}
    command = [sys.executable, "-m", "ingot", "serve", "--data", str(folder / "data"), "--port", "0"]
    log = folder / "server.log"
    with log.open("w") as output:
        running = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=output, text=True)
    try:
        url = _found(log, running)
        yield IngotServer(running, url, (folder / "data" / TOKEN_FILE).read_text().strip())
    finally:
        running.terminate()
        try:
            running.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _found(log: Path, running: subprocess.Popen[str]) -> str:
    """Where it says that it serves."""
    while running.poll() is None:
        if found := re.search(r"http://[^\s\"]+", log.read_text()):
            return found[0]
        try:
            running.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    sys.exit(f"benchmark: the server ended early: {log.read_text()[-1000:]}")
