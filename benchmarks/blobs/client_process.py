"""The process that asks, from the side of who gives the orders; and curl, which is one for each order."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from benchmarks.blobs.socket_client import TransferRequest, TransferResult
from benchmarks.queue.adapter import MissingDependency
from benchmarks.queue.folders import REPOSITORY

TOLD: Final = "%{http_code} %{time_total} %{size_download} %{size_upload}"


class ClientProcess:
    """A process that does one thing after the other."""

    def __init__(self, running: subprocess.Popen[bytes]) -> None:
        assert running.stdin is not None
        assert running.stdout is not None
        self._orders: IO[bytes] = running.stdin
        self._answers: IO[bytes] = running.stdout

    def do(self, order: TransferRequest) -> TransferResult:
        """What an order took."""
        self._orders.write(msgspec.json.encode(order) + b"\n")
        self._orders.flush()
        if not (line := self._answers.readline()):
            sys.exit(f"benchmark: {order.what} of {order.url or order.path} failed")
        return msgspec.json.decode(line, type=TransferResult)


@contextmanager
def started(module: str = "socket_client") -> Iterator[ClientProcess]:
    """Such a process, ended at the end of the block."""
    command = [sys.executable, "-m", f"benchmarks.blobs.{module}"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        try:
            yield ClientProcess(running)
        finally:
            running.terminate()


@contextmanager
def bare(path: Path) -> Iterator[str]:
    """A bare intake that writes to this file, ended at the end of the block; its address."""
    command = [sys.executable, "-m", "benchmarks.blobs.bare_put_server", str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(running.stdout.readline())}"
        finally:
            running.terminate()


def curl(url: str, headers: Mapping[str, str], *, send: str = "", more: tuple[str, ...] = ()) -> TransferResult:
    """What curl says that it took: to read what is at an address, or to send a file to it. Raises `Missing`."""
    program = shutil.which("curl")
    if program is None:
        raise MissingDependency("there is no curl; install Debian's package of that name")
    given = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    given += ["-T", send] if send else []
    command = [program, "-sS", "-o", "/dev/null", "-w", TOLD, *more, *given, url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    status, seconds, down, up = text.split()
    if status not in ("200", "201"):
        sys.exit(f"benchmark: curl {'-T ' if send else ''}{url} was answered {status}")
    return TransferResult(seconds=float(seconds), bytes=int(up if send else down))
