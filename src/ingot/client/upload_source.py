"""Bytes that are sent: of a file, of something that can be read, or in memory."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import IO, Final, Self

import blake3
import msgspec

from ingot.kernel.errors import InvalidInput

READ_BYTES: Final = 1024 * 1024
HASH_BYTES: Final = 8 * 1024 * 1024  # A hop to a thread for each.

Sendable = str | os.PathLike[str] | IO[bytes] | bytes | bytearray | memoryview
ProgressCallback = Callable[[int, int], None]


class UploadSource:
    """What is sent, from where it stands to its end. It can be read anywhere and from any thread, when `size` is known.

    `size` is `None` for what can be read only once, as a pipe. A file that we opened is closed at the end.
    """

    def __init__(self, source: Sendable) -> None:
        self.name: str | None = None
        self._owns_file = False
        self._lock = Lock()
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            self._file: IO[bytes] = path.open("rb")
            self._owns_file = True
            self.name = path.name
        elif isinstance(source, bytes | bytearray | memoryview):
            self._file = io.BytesIO(source)
        elif hasattr(source, "read"):
            self._file = source
        else:
            raise InvalidInput(
                f"a {type(source).__name__} cannot be sent", hint="Give a path, an open binary file, or bytes."
            )
        self._start, self.size = _start_and_size(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns_file:
            self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes from there. Raises `InvalidInput` when they are not there any more."""
        with self._lock:
            self._file.seek(self._start + offset)
            data = self._read_bytes(size)
        if len(data) != size:
            raise InvalidInput(
                "the file has become shorter while it was sent", hint="Send it again when nobody writes to it."
            )
        return data

    def read_next(self) -> bytes:
        """Some more bytes of what is read only once; none at its end."""
        return self._read_bytes(READ_BYTES)

    def _read_bytes(self, size: int) -> bytes:
        data = self._file.read(size)
        if not isinstance(data, bytes | bytearray):
            raise InvalidInput("the file was not opened for its bytes", hint='Open it with mode "rb".')
        return bytes(data)


class Digests:
    """The digests of what is sent, as it is read from its beginning on."""

    def __init__(self) -> None:
        self.hashed_bytes = 0
        self._blake3 = blake3.blake3()
        self._sha256 = hashlib.sha256()

    def hash_more(self, outgoing: UploadSource) -> None:
        """Read some more of it."""
        assert outgoing.size is not None
        until = min(self.hashed_bytes + HASH_BYTES, outgoing.size)
        while self.hashed_bytes < until:
            data = outgoing.read(self.hashed_bytes, min(READ_BYTES, until - self.hashed_bytes))
            self._blake3.update(data)
            self._sha256.update(data)
            self.hashed_bytes += len(data)

    @property
    def blob_id(self) -> str:
        """The BLAKE3, in hex."""
        return self._blake3.hexdigest()

    @property
    def sha256(self) -> str:
        """The SHA-256, in hex."""
        return self._sha256.hexdigest()


def part_digest(outgoing: UploadSource, offset: int, size: int) -> str:
    """The SHA-256 of a part, in hex."""
    found = hashlib.sha256()
    for at in range(offset, offset + size, READ_BYTES):
        found.update(outgoing.read(at, min(READ_BYTES, offset + size - at)))
    return found.hexdigest()


class CombinedProgress:
    """How much is sent of several parts at once, told to who wants to know; from any thread."""

    def __init__(self, total: int, progress: ProgressCallback | None) -> None:
        self._total = total
        self._callback = progress
        self._sent_by_part: dict[int, int] = {}
        self._lock = Lock()

    def report(self, part: int, done: int) -> None:
        """So much of this part is sent."""
        if self._callback is None:
            return
        with self._lock:
            self._sent_by_part[part] = done
            self._callback(sum(self._sent_by_part.values()), self._total)


def _start_and_size(file: IO[bytes]) -> tuple[int, int | None]:
    """Where it stands, and how much there is from there; `None` when it can be read only once."""
    try:
        if not file.seekable():
            return 0, None
        start = file.tell()
        return start, max(0, file.seek(0, os.SEEK_END) - start)
    except (AttributeError, OSError):
        return 0, None


class UnfinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that can be gone on with, by who remembers this of it."""

    id: str
    part_bytes: int | None = None
