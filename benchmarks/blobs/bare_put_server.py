"""The process of a bare PUT server, which does only what a PUT needs at least. It prints its port.

One thread reads from the socket, one computes the SHA-256, one the BLAKE3 and the part checksums, and one writes. Then
the file and its folder are synced. There is no database and no application, and one client at a time.
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

from benchmarks.blobs.socket_client import content_length

PART_BYTES: Final = 1024 * 1024
BUFFERS: Final = 6
STEPS: Final = 3
HEAD_BYTES_MAX: Final = 64 * 1024
RESPONSE: Final = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class PartBuffer:
    """Memory for a part. It is free again after all steps have processed the part."""

    def __init__(self, free: SimpleQueue[PartBuffer]) -> None:
        self._free = free
        self._steps_left = 0
        self._lock = threading.Lock()
        self._memory = memoryview(bytearray(PART_BYTES))
        self.part = self._memory

    def fill(self, connection: socket.socket, beginning: bytes, size: int) -> None:
        """Read a part of this size, whose beginning has been read already."""
        self.part = self._memory[:size]
        self.part[: len(beginning)] = beginning
        received = len(beginning)
        while received < size and (count := connection.recv_into(self.part[received:])):
            received += count
        self._steps_left = STEPS

    def done(self) -> None:
        """Record that one step has processed the part."""
        with self._lock:
            self._steps_left -= 1
            if not self._steps_left:
                self._free.put(self)


def receive(connection: socket.socket, path: Path) -> None:
    """Write the body of a request to a file, and respond when it is durable."""
    head, _, beginning = connection.recv(HEAD_BYTES_MAX).partition(b"\r\n\r\n")
    bytes_left = content_length(head)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.posix_fallocate(file, 0, bytes_left)
    sha256, blake3_hasher, offset = hashlib.sha256(), blake3.blake3(), 0

    def hash_part(part: memoryview) -> None:
        blake3_hasher.update(part)
        xxhash.xxh3_128_digest(part)

    def write(part: memoryview) -> None:
        nonlocal offset
        offset += os.pwrite(file, part, offset)

    free: SimpleQueue[PartBuffer] = SimpleQueue()
    for _ in range(BUFFERS):
        free.put(PartBuffer(free))
    queues = [SimpleQueue[PartBuffer | None]() for _ in range(STEPS)]
    steps: list[Callable[[memoryview], None]] = [sha256.update, hash_part, write]
    threads = [threading.Thread(target=run, args=pair) for pair in zip(queues, steps, strict=True)]
    for thread in threads:
        thread.start()
    while bytes_left:
        buffer, size = free.get(), min(bytes_left, PART_BYTES)
        buffer.fill(connection, beginning[:size], size)
        beginning, bytes_left = beginning[size:], bytes_left - size
        for queue in queues:
            queue.put(buffer)
    for queue in queues:
        queue.put(None)
    for thread in threads:
        thread.join()
    os.fdatasync(file)
    os.close(file)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    connection.sendall(RESPONSE)


def run(queue: SimpleQueue[PartBuffer | None], step: Callable[[memoryview], None]) -> None:
    """Run one step for each part."""
    while (buffer := queue.get()) is not None:
        step(buffer.part)
        buffer.done()


def serve(path: Path) -> None:
    """Receive one body after the other, until SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            with closing(connection):
                receive(connection, path)
            path.unlink()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
