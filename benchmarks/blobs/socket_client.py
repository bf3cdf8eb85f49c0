"""The process that asks: one blob at a time over a plain socket, or a copy of it on the disk. Prints what each took.

An order is a line of JSON on its input, the answer a line on its output.
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
    """What to do: with `url`, or from `path` to `to`. A body is `path`, `times` over."""

    what: str
    url: str = ""
    headers: Mapping[str, str] = {}
    path: str = ""
    to: str = ""
    times: int = 1
    body: str = ""


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """How long it took, and how much came back."""

    seconds: float
    bytes: int = 0
    body: str = ""


class UnexpectedResponse(Exception):
    """An answer that was not expected."""


def head_of(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def connected(url: str) -> tuple[socket.socket, str, str]:
    """A connection to a server; what to ask it for, and its name."""
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection = socket.create_connection((parts.hostname or "", parts.port or 80))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection, target, parts.netloc


def get(order: TransferRequest) -> TransferResult:
    """Read all of an answer, and throw it away."""
    connection, target, host = connected(order.url)
    room = memoryview(bytearray(READ_BYTES))
    with closing(connection):
        began = time.perf_counter()
        connection.sendall(head_of("GET", target, {"host": host, "connection": "close", **order.headers}))
        count = connection.recv_into(room)
        text, _, rest = bytes(room[:count]).partition(b"\r\n\r\n")
        size = length_of(text)
        left = size - len(rest)
        while left and (count := connection.recv_into(room)):
            left -= count
        took = time.perf_counter() - began
    if left or not text.startswith(b"HTTP/1.1 200"):
        raise UnexpectedResponse(bytes(room[:500]).decode(errors="replace"))
    return TransferResult(seconds=took, bytes=size)


def put(order: TransferRequest) -> TransferResult:
    """Send a file, and wait for the answer."""
    connection, target, host = connected(order.url)
    with closing(connection), Path(order.path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        headers = {"host": host, "connection": "close", "content-length": str(size * order.times), **order.headers}
        began = time.perf_counter()
        connection.sendall(head_of("PUT", target, headers))
        for _ in range(order.times):
            connection.sendfile(file)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        body = answer.read().decode()
        took = time.perf_counter() - began
    if answer.status not in (200, 201):
        raise UnexpectedResponse(body)
    return TransferResult(seconds=took, bytes=size * order.times, body=body)


def ask(order: TransferRequest) -> TransferResult:
    """Ask for what fits into memory, and answer it: with `body` by POST."""
    parts = urlsplit(order.url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        connection.connect()
        began = time.perf_counter()
        connection.request("POST" if order.body else "GET", target, order.body or None, dict(order.headers))
        answer = connection.getresponse()
        body = answer.read().decode()
        took = time.perf_counter() - began
    if answer.status not in (200, 201):
        raise UnexpectedResponse(body)
    return TransferResult(seconds=took, bytes=len(body), body=body)


def length_of(head: bytes) -> int:
    """How long an answer says it is."""
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name == b"content-length"), 0)


def copy(order: TransferRequest) -> TransferResult:
    """Copy a file, with a sync of the copy and of its folder."""
    room = bytearray(COPY_BYTES)
    target = Path(order.to)
    began = time.perf_counter()
    with Path(order.path).open("rb", buffering=0) as source, target.open("xb", buffering=0) as file:
        while count := source.readinto(room):
            file.write(memoryview(room)[:count])
        os.fsync(file.fileno())
    folder = os.open(target.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    took = time.perf_counter() - began
    size = target.stat().st_size
    target.unlink()
    return TransferResult(seconds=took, bytes=size)


def digests(order: TransferRequest) -> TransferResult:
    """Only make the digests of a file: with one thread, in parts as the server does it."""
    data = memoryview(Path(order.path).read_bytes())
    hasher = Hasher()
    began = time.perf_counter()
    for start in range(0, len(data), COPY_BYTES):
        hasher.update_sync(data[start : start + COPY_BYTES])
    hasher.content()
    return TransferResult(seconds=time.perf_counter() - began, bytes=len(data))


def stamp(order: TransferRequest) -> TransferResult:
    """Make a file's bytes ones that nobody has seen."""
    with Path(order.path).open("r+b") as file:
        file.write(os.urandom(STAMP_BYTES))
    return TransferResult(seconds=0.0)


WAYS: Final[Mapping[str, Callable[[TransferRequest], TransferResult]]] = {
    "get": get,
    "put": put,
    "ask": ask,
    "copy": copy,
    "digests": digests,
    "stamp": stamp,
}


def serve(ways: Mapping[str, Callable[[TransferRequest], TransferResult]]) -> None:
    """Do what is ordered until there are no more orders."""
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=TransferRequest)
        print(msgspec.json.encode(ways[order.what](order)).decode(), flush=True)


if __name__ == "__main__":
    serve(WAYS)
