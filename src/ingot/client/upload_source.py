"""The bytes of an upload: from a path, an open file, or memory."""

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
HASH_BYTES: Final = 8 * 1024 * 1024  # Hashed in one call, which runs in a thread.

Sendable = str | os.PathLike[str] | IO[bytes] | bytes | bytearray | memoryview
ProgressCallback = Callable[[int, int], None]


class UploadSource:
    """The bytes to upload: those of `source` from its current position to its end.

    `size` is `None` if the source can be read only once, such as a pipe. Otherwise the bytes can be read at any offset
    and from any thread. On exit, a file that was passed as a path is closed, and an open file is not.
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
                f"a {type(source).__name__} cannot be uploaded", hint="Pass a path, an open binary file, or bytes."
            )
        self._start, self.size = _start_and_size(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owns_file:
            self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`. Raises `InvalidInput` if the file has become shorter."""
        with self._lock:
            self._file.seek(self._start + offset)
            data = self._read_bytes(size)
        if len(data) != size:
            raise InvalidInput(
                "the file became shorter during the upload", hint="Upload it again while no other program writes to it."
            )
        return data

    def read_next(self) -> bytes:
        """Return the next bytes of a source that can be read only once; none at its end."""
        return self._read_bytes(READ_BYTES)

    def _read_bytes(self, size: int) -> bytes:
        data = self._file.read(size)
        if not isinstance(data, bytes | bytearray):
            raise InvalidInput("the file was opened in text mode", hint='Open it with mode "rb".')
        return bytes(data)


class Digests:
    """The digests of a source, computed from its beginning on."""

    def __init__(self) -> None:
        self.hashed_bytes = 0
        self._blake3 = blake3.blake3()
        self._sha256 = hashlib.sha256()

    def hash_more(self, source: UploadSource) -> None:
        """Read and hash up to `HASH_BYTES` more."""
        assert source.size is not None
        end = min(self.hashed_bytes + HASH_BYTES, source.size)
        while self.hashed_bytes < end:
            data = source.read(self.hashed_bytes, min(READ_BYTES, end - self.hashed_bytes))
            self._blake3.update(data)
            self._sha256.update(data)
            self.hashed_bytes += len(data)

    @property
    def blob_id(self) -> str:
        """The BLAKE3 of the bytes hashed so far, in hexadecimal."""
        return self._blake3.hexdigest()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes hashed so far, in hexadecimal."""
        return self._sha256.hexdigest()


def part_digest(source: UploadSource, offset: int, size: int) -> str:
    """Return the SHA-256 of a part, in hexadecimal."""
    hasher = hashlib.sha256()
    for position in range(offset, offset + size, READ_BYTES):
        hasher.update(source.read(position, min(READ_BYTES, offset + size - position)))
    return hasher.hexdigest()


class CombinedProgress:
    """Progress of several parts, which is reported as one number. It can be used from any thread."""

    def __init__(self, total: int, progress: ProgressCallback | None) -> None:
        self._total = total
        self._callback = progress
        self._done_by_part: dict[int, int] = {}
        self._lock = Lock()

    def report(self, part: int, done: int) -> None:
        """Set how many bytes of a part are done, and report the sum."""
        if self._callback is None:
            return
        with self._lock:
            self._done_by_part[part] = done
            self._callback(sum(self._done_by_part.values()), self._total)


def _start_and_size(file: IO[bytes]) -> tuple[int, int | None]:
    """Return the current position and the number of bytes after it, or `None` if the file can be read only once."""
    try:
        if not file.seekable():
            return 0, None
        start = file.tell()
        return start, max(0, file.seek(0, os.SEEK_END) - start)
    except (AttributeError, OSError):
        return 0, None


class UnfinishedUpload(msgspec.Struct, frozen=True, kw_only=True):
    """The state with which a client can resume an upload later."""

    id: str
    part_bytes: int | None = None
