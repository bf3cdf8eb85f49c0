"""Controls the client process, and runs curl, which is one process per request."""

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

CURL_OUTPUT: Final = "%{http_code} %{time_total} %{size_download} %{size_upload}"


class ClientProcess:
    """A process that runs requests one after the other."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._requests: IO[bytes] = process.stdin
        self._results: IO[bytes] = process.stdout

    def do(self, request: TransferRequest) -> TransferResult:
        """Run a request and return its result."""
        self._requests.write(msgspec.json.encode(request) + b"\n")
        self._requests.flush()
        if not (line := self._results.readline()):
            sys.exit(f"benchmark: {request.what} of {request.url or request.path} failed")
        return msgspec.json.decode(line, type=TransferResult)


@contextmanager
def started(module: str = "socket_client") -> Iterator[ClientProcess]:
    """Run a client process until the end of the block."""
    command = [sys.executable, "-m", f"benchmarks.blobs.{module}"]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield ClientProcess(process)
        finally:
            process.terminate()


@contextmanager
def bare_put_server(path: Path) -> Iterator[str]:
    """Run the bare PUT server, which writes to this file, until the end of the block. Yield its URL."""
    command = [sys.executable, "-m", "benchmarks.blobs.bare_put_server", str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def curl(url: str, headers: Mapping[str, str], *, send: str = "", more: tuple[str, ...] = ()) -> TransferResult:
    """Download a URL with curl, or upload the file `send` to it, and return its result. Raises `MissingDependency`."""
    program = shutil.which("curl")
    if program is None:
        raise MissingDependency("curl was not found; install Debian's package curl")
    options = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    options += ["-T", send] if send else []
    command = [program, "-sS", "-o", "/dev/null", "-w", CURL_OUTPUT, *more, *options, url]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    status, seconds, down, up = text.split()
    if status not in ("200", "201"):
        sys.exit(f"benchmark: curl {'-T ' if send else ''}{url} got a response with status {status}")
    return TransferResult(seconds=float(seconds), bytes=int(up if send else down))
