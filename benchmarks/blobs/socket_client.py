"""The client process: transfers one blob at a time over a plain socket, or copies a file on the disk.

It reads one request per line of JSON from its input, and prints one result per line.
"""

from __future__ import annotations

import http.client
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ingot.blobs.hashing import Hasher

READ_BYTES: Final = 1024 * 1024
SOCKET_BYTES: Final = 1024 * 1024
COPY_BYTES: Final = 1024 * 1024
STAMP_BYTES: Final = 16


class TransferRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An operation on `url`, or from `path` to `to`. An uploaded body is the file `path`, repeated `times` times."""

    what: str
    url: str = ""
    headers: Mapping[str, str] = {}
    path: str = ""
    to: str = ""
    times: int = 1
    body: str = ""


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """The duration of an operation, and the number of bytes."""

    seconds: float
    bytes: int = 0
    body: str = ""


class UnexpectedResponse(Exception):
    """A response is not the expected one."""


def request_head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Return the head of an HTTP request."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def connect(url: str) -> tuple[socket.socket, str, str]:
    """Open a connection. Return it with the request target and the host."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection = socket.create_connection((parts.hostname or "", parts.port or 80))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection, target, parts.netloc


def get(request: TransferRequest) -> TransferResult:
    """Download a URL and discard the bytes."""
    connection, target, host = connect(request.url)
    buffer = memoryview(bytearray(READ_BYTES))
    with closing(connection):
        began = time.perf_counter()
        connection.sendall(request_head("GET", target, {"host": host, "connection": "close", **request.headers}))
        count = connection.recv_into(buffer)
        head, _, beginning = bytes(buffer[:count]).partition(b"\r\n\r\n")
        size = content_length(head)
        bytes_left = size - len(beginning)
        while bytes_left and (count := connection.recv_into(buffer)):
            bytes_left -= count
        seconds = time.perf_counter() - began
    if bytes_left or not head.startswith(b"HTTP/1.1 200"):
        raise UnexpectedResponse(bytes(buffer[:500]).decode(errors="replace"))
    return TransferResult(seconds=seconds, bytes=size)


def put(request: TransferRequest) -> TransferResult:
    """Upload a file, and wait for the response."""
    connection, target, host = connect(request.url)
    with closing(connection), Path(request.path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        headers = {"host": host, "connection": "close", "content-length": str(size * request.times), **request.headers}
        began = time.perf_counter()
        connection.sendall(request_head("PUT", target, headers))
        for _ in range(request.times):
            connection.sendfile(file)
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read().decode()
        seconds = time.perf_counter() - began
    if response.status not in (200, 201):
        raise UnexpectedResponse(body)
    return TransferResult(seconds=seconds, bytes=size * request.times, body=body)


def call(request: TransferRequest) -> TransferResult:
    """Send a GET, or a POST with `body`, and return the body of the response."""
    parts = urlsplit(request.url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        connection.connect()
        began = time.perf_counter()
        connection.request("POST" if request.body else "GET", target, request.body or None, dict(request.headers))
        response = connection.getresponse()
        body = response.read().decode()
        seconds = time.perf_counter() - began
    if response.status not in (200, 201):
        raise UnexpectedResponse(body)
    return TransferResult(seconds=seconds, bytes=len(body), body=body)


def content_length(head: bytes) -> int:
    """Return the content length in the head of a message."""
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


def copy(request: TransferRequest) -> TransferResult:
    """Copy a file, and sync the copy and its folder."""
    buffer = bytearray(COPY_BYTES)
    target = Path(request.to)
    began = time.perf_counter()
    with Path(request.path).open("rb", buffering=0) as source, target.open("xb", buffering=0) as file:
        while count := source.readinto(buffer):
            file.write(memoryview(buffer)[:count])
        os.fsync(file.fileno())
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    seconds = time.perf_counter() - began
    size = target.stat().st_size
    target.unlink()
    return TransferResult(seconds=seconds, bytes=size)


def digests(request: TransferRequest) -> TransferResult:
    """Compute the digests of a file in one thread, in parts of the same size as in the server."""
    data = memoryview(Path(request.path).read_bytes())
    hasher = Hasher()
    began = time.perf_counter()
    for start in range(0, len(data), COPY_BYTES):
        hasher.update_sync(data[start : start + COPY_BYTES])
    hasher.content()
    return TransferResult(seconds=time.perf_counter() - began, bytes=len(data))


def stamp(request: TransferRequest) -> TransferResult:
    """Change the beginning of a file to random bytes, so that its content is new."""
    with Path(request.path).open("r+b") as file:
        file.write(os.urandom(STAMP_BYTES))
    return TransferResult(seconds=0.0)


OPERATIONS: Final[Mapping[str, Callable[[TransferRequest], TransferResult]]] = {
    "get": get,
    "put": put,
    "call": call,
    "copy": copy,
    "digests": digests,
    "stamp": stamp,
}


def serve(operations: Mapping[str, Callable[[TransferRequest], TransferResult]]) -> None:
    """Run the requested operations until the end of the input."""
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=TransferRequest)
        print(msgspec.json.encode(operations[request.what](request)).decode(), flush=True)


if __name__ == "__main__":
    serve(OPERATIONS)
