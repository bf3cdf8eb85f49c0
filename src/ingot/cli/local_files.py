"""Files on this machine: those below a folder, what they hold, and what the machine says when it refuses one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ingot.client.upload_source import Digests, UploadSource
from ingot.kernel.errors import Conflict, InvalidInput

CONFLICT_HINT: Final = "Say --replace to write over it, or name another folder."
VERSION_CONTROL_FOLDERS: Final = frozenset({"CVS", "_darcs"})  # Those whose names do not begin with a dot.


class FileRefused(InvalidInput):
    """The machine does not let us read or write a file."""

    code = "file_refused"


@contextmanager
def translate_os_errors(what: str) -> Iterator[None]:
    """Say what the machine refuses. Raises `FileRefused`."""
    try:
        yield
    except OSError as error:
        raise FileRefused(
            f"{what}: {error.strerror or error}", hint="Check its name, its rights and the disk."
        ) from None


def walk_files(
    folder: Path,
    *,
    include_hidden: bool = True,
    depth_max: int | None = None,
    on_error: Callable[[OSError], object] | None = None,
) -> Iterator[Path]:
    """All files in a folder, in order: its own, then those of its folders. Links to folders are not followed.

    Without `hidden`, what begins with a dot and what belongs to version control is left out. `deepest` is how many
    folders down it goes. `refused` is told of a folder that cannot be read.
    """
    for place, folders, names in os.walk(folder, onerror=on_error):
        here = Path(place)
        if depth_max is not None and len(here.parts) - len(folder.parts) >= depth_max:
            folders.clear()
        folders[:] = sorted(
            name for name in folders if include_hidden or not (name.startswith(".") or name in VERSION_CONTROL_FOLDERS)
        )
        for name in sorted(names):
            if include_hidden or not name.startswith("."):
                yield here / name


def matches_blob(path: Path, blob_id: str, size: int) -> bool:
    """Whether a file holds the bytes of this blob."""
    with UploadSource(path) as outgoing:
        if outgoing.size != size:
            return False
        digests = Digests()
        while digests.hashed_bytes < size:
            digests.hash_more(outgoing)
        return digests.blob_id == blob_id


def is_downloaded(target: Path, blob_id: str, size: int, *, replace: bool) -> bool:
    """Whether a file need not be fetched. Raises `Conflict` when another is in its way, unless it is to be replaced."""
    if not target.exists():
        return False
    if target.is_file() and matches_blob(target, blob_id, size):
        return True
    if not replace or not target.is_file():
        raise Conflict(f"{target} is there already, and is something else", hint=CONFLICT_HINT)
    return False
