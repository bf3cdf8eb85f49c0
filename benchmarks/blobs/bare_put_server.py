"""The process of a bare intake: what a PUT has to do at least, and nothing else. Prints its port.

A thread reads from the socket, one makes the SHA-256, one the BLAKE3 and the checks, one writes; then the file and its
folder are synced. No database, no application, and one sender at a time.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import blake3
import xxhash

from benchmarks.blobs.socket_client import length_of

PART_BYTES: Final = 1024 * 1024
ROOMS: Final = 6  # Parts that are under way.
STEPS: Final = 3
HEAD_BYTES_MAX: Final = 64 * 1024
ANSWER: Final = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class PartBuffer:
    """Memory for a part, free again when all steps are done with it."""

    def __init__(self, free: SimpleQueue[PartBuffer]) -> None:
        self._free = free
        self._left = 0
        self._lock = threading.Lock()
        self._memory = memoryview(bytearray(PART_BYTES))
        self.part = self._memory

    def fill(self, connection: socket.socket, begun: bytes, size: int) -> None:
        """Read a part of this size, of which the beginning is here."""
        self.part = self._memory[:size]
        self.part[: len(begun)] = begun
        done = len(begun)
        while done < size and (count := connection.recv_into(self.part[done:])):
            done += count
        self._left = STEPS

    def done(self) -> None:
        """One step more is done."""
        with self._lock:
            self._left -= 1
            if not self._left:
                self._free.put(self)


def take(connection: socket.socket, path: Path) -> None:
    """Take one body in, and answer when it is safe."""
    head, _, rest = connection.recv(HEAD_BYTES_MAX).partition(b"\r\n\r\n")
    left = length_of(head)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(file, 0, left)
    sha256, whole, offset = hashlib.sha256(), blake3.blake3(), 0

    def name(part: memoryview) -> None:
        whole.update(part)
        xxhash.xxh3_128_digest(part)

    def write(part: memoryview) -> None:
        nonlocal offset
        offset += os.pwrite(file, part, offset)

    free: SimpleQueue[PartBuffer] = SimpleQueue()
    for _ in range(ROOMS):
        free.put(PartBuffer(free))
    queues = [SimpleQueue[PartBuffer | None]() for _ in range(STEPS)]
    steps: list[Callable[[memoryview], None]] = [sha256.update, name, write]
    threads = [threading.Thread(target=run, args=pair) for pair in zip(queues, steps, strict=True)]
    for thread in threads:
        thread.start()
    while left:
        room, size = free.get(), min(left, PART_BYTES)
        room.fill(connection, rest[:size], size)
        rest, left = rest[size:], left - size
        for queue in queues:
            queue.put(room)
    for queue in queues:
        queue.put(None)
    for thread in threads:
        thread.join()
    os.fdatasync(file)
    os.close(file)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    connection.sendall(ANSWER)


def run(queue: SimpleQueue[PartBuffer | None], step: Callable[[memoryview], None]) -> None:
    """Do one step with each part."""
    while (room := queue.get()) is not None:
        step(room.part)
        room.done()


def serve(path: Path) -> None:
    """Take one body after the other, until TERM."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            connection, _ = listening.accept()
            with closing(connection):
                take(connection, path)
            path.unlink()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
