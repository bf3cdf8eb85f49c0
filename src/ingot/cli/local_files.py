"""Local files: walk folders, compare files with blobs, and report operating system errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ingot.client.upload_source import Digests, UploadSource
from ingot.kernel.errors import Conflict, InvalidInput

CONFLICT_HINT: Final = "Use --replace to overwrite it, or choose another folder."
VERSION_CONTROL_FOLDERS: Final = frozenset({"CVS", "_darcs"})  # Only those that are not hidden by a leading dot.


class FileRefused(InvalidInput):
    """A local file cannot be read or written."""

    code = "file_refused"


@contextmanager
def translate_os_errors(message: str) -> Iterator[None]:
    """Raise an `OSError` of the block as `FileRefused`, with this message."""
    try:
        yield
    except OSError as error:
        raise FileRefused(
            f"{message}: {error.strerror or error}", hint="Check the path, the permissions and the free disk space."
        ) from None


def walk_files(
    folder: Path,
    *,
    include_hidden: bool = True,
    depth_max: int | None = None,
    on_error: Callable[[OSError], object] | None = None,
) -> Iterator[Path]:
    """Yield all files of a folder in order, its own before those of its subfolders. Links to folders are not followed.

    Without `include_hidden`, names that begin with a dot and folders of version control are skipped. `depth_max` limits
    the levels of subfolders. `on_error` is called for each folder that cannot be read.
    """
    for parent, folders, names in os.walk(folder, onerror=on_error):
        current = Path(parent)
        if depth_max is not None and len(current.parts) - len(folder.parts) >= depth_max:
            folders.clear()
        folders[:] = sorted(
            name for name in folders if include_hidden or not (name.startswith(".") or name in VERSION_CONTROL_FOLDERS)
        )
        for name in sorted(names):
            if include_hidden or not name.startswith("."):
                yield current / name


def matches_blob(path: Path, blob_id: str, size: int) -> bool:
    """Return whether a file has the content of a blob."""
    with UploadSource(path) as source:
        if source.size != size:
            return False
        digests = Digests()
        while digests.hashed_bytes < size:
            digests.hash_more(source)
        return digests.blob_id == blob_id


def is_downloaded(target: Path, blob_id: str, size: int, *, replace: bool) -> bool:
    """Return whether the target already has the content of a blob.

    Raises `Conflict` if the target has other content and `replace` is not set.
    """
    if not target.exists():
        return False
    if target.is_file() and matches_blob(target, blob_id, size):
        return True
    if not replace or not target.is_file():
        raise Conflict(f"{target} exists already, with different content", hint=CONFLICT_HINT)
    return False
