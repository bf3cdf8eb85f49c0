"""Where bytes land that are fetched: a file beside the one they are for, until all are there and right."""

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
OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # Others may write to the folder too.
PARTIAL_ID_CHARS: Final = 16


class PartialFile:
    """A file in which the bytes of one blob gather. What is there of it from before counts, once it is hashed.

    Raises `DownloadUnderWay` while another one has it.
    """

    def __init__(self, to: Path, blob_id: str, size: int) -> None:
        self.path = partial_path(to, blob_id)
        self.offset = 0
        self._target = to
        self._hasher = blake3.blake3()
        self._file = open(_open_locked(self.path), "r+b")  # noqa: SIM115 - closed at exit
        self.existing_bytes = self._file.seek(0, os.SEEK_END)
        if self.existing_bytes > size:
            self.clear()
        self._file.seek(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def hash_more(self) -> None:
        """Read some more of what was there before, up to `there`."""
        until = min(self.offset + HASH_BYTES, self.existing_bytes)
        while self.offset < until:
            data = self._file.read(min(READ_BYTES, until - self.offset))
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
        """Begin again."""
        self._file.seek(0)
        self._file.truncate()
        self._hasher = blake3.blake3()
        self.offset = self.existing_bytes = 0

    @property
    def blob_id(self) -> str:
        """The BLAKE3 of what is there, in hex."""
        return self._hasher.hexdigest()

    def finish(self) -> None:
        """All is there and right: be the file that it is for."""
        self._file.flush()
        try:  # While it is locked: who opens it now finds that it is another file.
            self.path.replace(self._target)
        except FileNotFoundError:
            if not self._target.exists():  # Somebody else has fetched the same bytes into the same file meanwhile.
                raise


def _open_locked(path: Path) -> int:
    """Open the file at a path, and lock it. Raises `DownloadUnderWay` when somebody else has it."""
    while True:
        handle = os.open(path, OPEN_FLAGS, 0o666)
        try:
            lock_descriptor(handle)
            if _is_same_file(handle, path):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise DownloadUnderWay(f"somebody else is fetching into {path.name}") from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # Who had it has finished meanwhile: it has its own name now.


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def partial_path(to: Path, blob_id: str) -> Path:
    """The file beside `to` in which the bytes of this blob gather. Its name is that of no other target or blob."""
    known = blake3.blake3(os.fsencode(to.name) + b"\0" + blob_id.encode()).hexdigest()
    return to.with_name(f"{to.name[:NAME_CHARS_MAX]}.{known[:PARTIAL_ID_CHARS]}.part")


def target_path(to: str | os.PathLike[str], name: str) -> Path:
    """Where a file of this name goes: into a folder under its name, and to any other path."""
    path = Path(to)
    return path / file_name(name, name="name") if path.is_dir() else path
