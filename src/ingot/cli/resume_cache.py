"""Uploads that were not finished, remembered in the cache folder of the user: the same file goes on with its own."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ingot.client.upload_source import UnfinishedUpload
from ingot.kernel.clock import MICROS, SystemClock
from ingot.settings import cache_folder

RETENTION_SECONDS: Final = 86_400.0  # As long as a server keeps an upload of which it hears nothing.


class ResumeEntry:
    """What is remembered of sending one file, as it is now, to one key of one server."""

    def __init__(self, path: Path, *, server: str, tenant: str, key: str) -> None:
        folder = cache_folder()
        self._path: Path | None = None
        with suppress(OSError):
            found = path.stat()
            known = msgspec.json.encode([server, tenant, key, str(path.resolve()), found.st_size, found.st_mtime_ns])
            if folder is not None:
                self._path = folder / "uploads" / f"{hashlib.sha256(known).hexdigest()}.json"

    def read(self) -> UnfinishedUpload | None:
        """The upload that was begun, if one was."""
        with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            if self._path is not None:
                return msgspec.json.decode(self._path.read_bytes(), type=UnfinishedUpload)
        return None

    def write(self, unfinished: UnfinishedUpload) -> None:
        """Remember an upload, and forget those that no server remembers. Where that cannot be, it is not."""
        with suppress(OSError):
            if self._path is not None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._path.write_bytes(msgspec.json.encode(unfinished))
                past = SystemClock().micros() / MICROS - RETENTION_SECONDS
                for other in self._path.parent.glob("*.json"):
                    if other.stat().st_mtime < past:
                        other.unlink(missing_ok=True)

    def delete(self) -> None:
        """It is over."""
        with suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)
