"""The file in which a download gathers beside its target, until all bytes are there and verified."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Self

import blake3

from ingot.blobs.checks import file_name
from ingot.client.errors import DownloadUnderWay
from ingot.kernel.file_locks import lock_descriptor

READ_BYTES: Final = 1024 * 1024
HASH_BYTES: Final = 8 * READ_BYTES
NAME_CHARS_MAX: Final = 40
OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # Another user could put a link there.
PARTIAL_ID_CHARS: Final = 16


class PartialFile:
    """A file in which the bytes of one blob gather. Bytes of an earlier download are used once they are hashed.

    Raises `DownloadUnderWay` while another download writes to it.
    """

    def __init__(self, to: Path, blob_id: str, size: int) -> None:
        self.path = partial_path(to, blob_id)
        self.offset = 0
        self._target = to
        self._hasher = blake3.blake3()
        self._file = open(_open_locked(self.path), "r+b")  # noqa: SIM115 - closed by `__exit__`
        self.existing_bytes = self._file.seek(0, os.SEEK_END)
        if self.existing_bytes > size:
            self.clear()
        self._file.seek(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def hash_more(self) -> None:
        """Hash up to `HASH_BYTES` more of the bytes of an earlier download."""
        end = min(self.offset + HASH_BYTES, self.existing_bytes)
        while self.offset < end:
            data = self._file.read(min(READ_BYTES, end - self.offset))
            if not data:
                self.existing_bytes = self.offset
                break
            self._hasher.update(data)
            self.offset += len(data)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        self._file.write(data)
        self._hasher.update(data)
        self.offset += len(data)

    def clear(self) -> None:
        """Discard all bytes."""
        self._file.seek(0)
        self._file.truncate()
        self._hasher = blake3.blake3()
        self.offset = self.existing_bytes = 0

    @property
    def blob_id(self) -> str:
        """The BLAKE3 of the bytes up to `offset`, in hexadecimal."""
        return self._hasher.hexdigest()

    def finish(self) -> None:
        """Move the complete and verified file to the target."""
        self._file.flush()
        # The file is still locked. A download that opens it now fails to lock it, or finds that it was moved.
        try:
            self.path.replace(self._target)
        except FileNotFoundError:
            if not self._target.exists():  # Another download has moved the same bytes there meanwhile.
                raise


def _open_locked(path: Path) -> int:
    """Open and lock a file. Raises `DownloadUnderWay` if another download has locked it."""
    while True:
        descriptor = os.open(path, OPEN_FLAGS, 0o666)
        try:
            lock_descriptor(descriptor)
            if _is_same_file(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise DownloadUnderWay(f"another download is writing to {path.name}") from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # Another download has moved it to its target meanwhile.


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def partial_path(to: Path, blob_id: str) -> Path:
    """Return the path of the partial file beside `to`. It is different for each target and each blob."""
    digest = blake3.blake3(os.fsencode(to.name) + b"\0" + blob_id.encode()).hexdigest()
    return to.with_name(f"{to.name[:NAME_CHARS_MAX]}.{digest[:PARTIAL_ID_CHARS]}.part")


def target_path(to: str | os.PathLike[str], name: str) -> Path:
    """Return the path for a file with this name: in the folder `to`, or `to` itself if it is not a folder."""
    path = Path(to)
    return path / file_name(name, name="name") if path.is_dir() else path
