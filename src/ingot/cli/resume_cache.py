"""Remember unfinished uploads in the user's cache folder, so that the same file can resume its upload."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ingot.client.upload_source import UnfinishedUpload
from ingot.kernel.clock import MICROS, SystemClock
from ingot.settings import cache_folder

RETENTION_SECONDS: Final = 86_400.0  # A server keeps an inactive upload for the same time.


class ResumeEntry:
    """The cache entry for uploading one file, with its current size and modification time, to one key of one server.

    Errors of the file system are ignored: without a cache folder, nothing is remembered.
    """

    def __init__(self, path: Path, *, server: str, tenant: str, key: str) -> None:
        folder = cache_folder()
        self._path: Path | None = None
        with suppress(OSError):
            status = path.stat()
            identity = msgspec.json.encode(
                [server, tenant, key, str(path.resolve()), status.st_size, status.st_mtime_ns]
            )
            if folder is not None:
                self._path = folder / "uploads" / f"{hashlib.sha256(identity).hexdigest()}.json"

    def read(self) -> UnfinishedUpload | None:
        """Return the unfinished upload of this file, if there is one."""
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            if self._path is not None:
                return msgspec.json.decode(self._path.read_bytes(), type=UnfinishedUpload)
        return None

    def write(self, unfinished: UnfinishedUpload) -> None:
        """Remember an unfinished upload, and delete entries that are older than `RETENTION_SECONDS`."""
        with suppress(OSError):
            if self._path is not None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.write_bytes(msgspec.json.encode(unfinished))
                oldest = SystemClock().micros() / MICROS - RETENTION_SECONDS
                for entry in self._path.parent.glob("*.json"):
                    if entry.stat().st_mtime < oldest:
                        entry.unlink(missing_ok=True)

    def delete(self) -> None:
        """Forget the upload, which is finished."""
        with suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)
