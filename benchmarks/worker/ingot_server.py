"""`ingot serve` on an empty folder or database."""

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
    """A running server, its URL and its operator token."""

    def __init__(self, process: subprocess.Popen[str], url: str, token: str) -> None:
        super().__init__(process)
        self.url, self.token = url, token


@contextmanager
def serving(
    folder: Path, *, owner_url: str = "", server_url: str = "", more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[IngotServer]:
    """Run a server until the end of the block, on PostgreSQL if the URLs are given. `more` are further settings."""
    environment = {**os.environ, **RATES, **more}
    if server_url:
        environment |= {"INGOT_DATABASE_OWNER_URL": owner_url, "INGOT_DATABASE_URL": server_url}
    command = [sys.executable, "-m", "ingot", "serve", "--data", str(folder / "data"), "--port", "0"]
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=output, text=True)
    try:
        url = _read_url(log, process)
        yield IngotServer(process, url, (folder / "data" / TOKEN_FILE).read_text().strip())
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _read_url(log: Path, process: subprocess.Popen[str]) -> str:
    """Return the URL that the server logs when it is ready."""
    while process.poll() is None:
        if match := re.search(r"http://[^\s\"]+", log.read_text()):
            return match[0]
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    sys.exit(f"benchmark: the server ended early: {log.read_text()[-1000:]}")
