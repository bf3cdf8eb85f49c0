"""How the blob folder is laid out, and how it is opened.

blobs/store.lock   held by the one process that uses the folder
blobs/store.id     which folder this is: a database remembers it, and is not served with another
blobs/database.id  whose objects these are
blobs/uploads/     objects on their way in
blobs/00 … ff/     objects that are whole; the folder is the end of the place
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ingot.kernel.errors import StoreError, StoreLocked, StoreMisconfigured
from ingot.kernel.ids import is_id, new_id
from ingot.objects.syscalls import Syscalls

BLOBS_FOLDER: Final = "blobs"
UPLOADS_FOLDER: Final = "uploads"
LOCK_FILE: Final = "store.lock"
ID_FILE: Final = "store.id"
OWNER_FILE: Final = "database.id"
ID_BYTES_MAX: Final = 64
SHARD_FOLDERS: Final = tuple(f"{number:02x}" for number in range(256))


class Layout(msgspec.Struct, frozen=True):
    """Where things are. `root` is the blob folder."""

    root: str

    @property
    def uploads_folder(self) -> str:
        """The folder of what is on its way in."""
        return f"{self.root}/{UPLOADS_FOLDER}"

    def shard_folder(self, storage_key: str) -> str:
        """The folder of an object that is whole."""
        return f"{self.root}/{storage_key[-2:]}"

    def upload_path(self, storage_key: str) -> str:
        """The name of an object on its way in."""
        return f"{self.root}/{UPLOADS_FOLDER}/{check_storage_key(storage_key)}"

    def object_path(self, storage_key: str) -> str:
        """The name of an object that is whole."""
        return f"{self.shard_folder(storage_key)}/{check_storage_key(storage_key)}"


class OpenFolder(msgspec.Struct, frozen=True):
    """A blob folder that is ours until its lock is let go."""

    layout: Layout
    store_id: str
    lock: int


def check_storage_key(storage_key: str) -> str:
    """A place, which is part of a path: nothing but what `new_id` makes."""
    if not is_id(storage_key):
        raise StoreError("There is no such place in a blob folder.")
    return storage_key


def open_folder(files: Syscalls, folder: Path) -> OpenFolder:
    """Open or make the blob folder in a data folder.

    Raises `StoreLocked`, or `StoreMisconfigured` when it cannot be used.
    """
    try:
        return _lock_folder(files, Layout(os.fspath(folder.absolute() / BLOBS_FOLDER)))
    except OSError as error:
        raise StoreMisconfigured(
            f"The data folder {folder.absolute()} cannot be used: {error.strerror or error}.",
            hint="Name a folder that this user may make and write to (INGOT_DATA).",
        ) from error


def _lock_folder(files: Syscalls, layout: Layout) -> OpenFolder:
    _make_folders(files, layout.root)
    try:
        lock = files.lock(f"{layout.root}/{LOCK_FILE}")
    except BlockingIOError:
        raise StoreLocked(f"Another Ingot process holds the folder {layout.root}.") from None
    try:
        present = set(files.list_names(layout.root))
        for name in (UPLOADS_FOLDER, *SHARD_FOLDERS):
            if name not in present:
                files.make_folder(f"{layout.root}/{name}")
        store_id = _read_store_id(files, layout) if ID_FILE in present else _create_store_id(files, layout)
        # Also when all was there: who made it may have died before it was durable.
        files.sync_folder(layout.root)
    except BaseException:
        files.unlock(lock)
        raise
    return OpenFolder(layout, store_id, lock)


def register_owner(files: Syscalls, layout: Layout, database: str) -> str:
    """Whose objects are in this folder: this database's, unless there are those of another."""
    path = f"{layout.root}/{OWNER_FILE}"
    owner = _read_text_file(files, path) if files.exists(path) else None
    if owner is None or (owner != database and _is_empty(files, layout)):
        _write_text_file(files, path, database)
        files.sync_folder(layout.root)
        return database
    return owner


def _is_empty(files: Syscalls, layout: Layout) -> bool:
    return not any(files.list_names(f"{layout.root}/{name}") for name in (UPLOADS_FOLDER, *SHARD_FOLDERS))


def _make_folders(files: Syscalls, path: str) -> None:
    """Make a folder and those above it that are missing, and make each one's name durable."""
    if not files.exists(path):
        above = os.path.dirname(path)
        _make_folders(files, above)
        with suppress(FileExistsError):  # Another process was faster; one of us gets the lock.
            files.make_folder(path)
        files.sync_folder(above)


def _create_store_id(files: Syscalls, layout: Layout) -> str:
    """Name the folder. The name is never there in part: a server that comes up with half of it would be refused."""
    store_id = new_id()
    _write_text_file(files, f"{layout.root}/{ID_FILE}", store_id)
    return store_id


def _read_store_id(files: Syscalls, layout: Layout) -> str:
    store_id = _read_text_file(files, f"{layout.root}/{ID_FILE}")
    if not is_id(store_id):
        raise StoreMisconfigured(
            f"The file {layout.root}/{ID_FILE} is damaged: it does not tell which blob folder this is.",
            hint="Restore it from a backup; the database remembers what it has to say.",
        )
    return store_id


def _write_text_file(files: Syscalls, path: str, line: str) -> None:
    """Make a file that is never there in part. Its name is not durable yet."""
    new = f"{path}.new"
    if files.exists(new):
        files.unlink(new)
    handle = files.create(new)
    try:
        text = f"{line}\n".encode()
        if files.write(handle, memoryview(text), 0) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(new, path)


def _read_text_file(files: Syscalls, path: str) -> str:
    data = memoryview(bytearray(ID_BYTES_MAX))
    handle = files.open(path)
    try:
        count = files.read(handle, data, 0)
    finally:
        files.close(handle)
    return bytes(data[:count]).decode("ascii", "replace").strip()
