"""The files and folders of the blob folder, and how it is opened and locked.

blobs/store.lock   locked by the one process that uses the folder
blobs/store.id     the ID of this folder; a database records it and cannot be used with another folder
blobs/database.id  the ID of the database that the objects belong to
blobs/uploads/     unfinished objects
blobs/00 … ff/     finished objects; the folder is the last two characters of the storage key
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
    """The paths in the blob folder `root`."""

    root: str

    @property
    def uploads_folder(self) -> str:
        """The folder of unfinished objects."""
        return f"{self.root}/{UPLOADS_FOLDER}"

    def shard_folder(self, storage_key: str) -> str:
        """Return the folder of a finished object."""
        return f"{self.root}/{storage_key[-2:]}"

    def upload_path(self, storage_key: str) -> str:
        """Return the path of an unfinished object."""
        return f"{self.root}/{UPLOADS_FOLDER}/{check_storage_key(storage_key)}"

    def object_path(self, storage_key: str) -> str:
        """Return the path of a finished object."""
        return f"{self.shard_folder(storage_key)}/{check_storage_key(storage_key)}"


class OpenFolder(msgspec.Struct, frozen=True):
    """A blob folder that this process has locked. `lock` is the handle of its lock file."""

    layout: Layout
    store_id: str
    lock: int


def check_storage_key(storage_key: str) -> str:
    """Return a storage key that is safe as part of a path: one that `new_id` could have made."""
    if not is_id(storage_key):
        raise StoreError("The storage key is not valid in a blob folder.")
    return storage_key


def open_folder(syscalls: Syscalls, folder: Path) -> OpenFolder:
    """Open and lock the blob folder in a data folder, and create it if it is missing.

    Raises `StoreLocked`, or `StoreMisconfigured` if the folder cannot be used.
    """
    try:
        return _lock_folder(syscalls, Layout(os.fspath(folder.absolute() / BLOBS_FOLDER)))
    except OSError as error:
        raise StoreMisconfigured(
            f"The data folder {folder.absolute()} cannot be used: {error.strerror or error}.",
            hint="Set INGOT_DATA to a folder that this user can create and write to.",
        ) from error


def _lock_folder(syscalls: Syscalls, layout: Layout) -> OpenFolder:
    _make_folders(syscalls, layout.root)
    try:
        lock = syscalls.lock(f"{layout.root}/{LOCK_FILE}")
    except BlockingIOError:
        raise StoreLocked(f"Another Ingot process uses the folder {layout.root}.") from None
    try:
        present = set(syscalls.list_names(layout.root))
        for name in (UPLOADS_FOLDER, *SHARD_FOLDERS):
            if name not in present:
                syscalls.make_folder(f"{layout.root}/{name}")
        store_id = _read_store_id(syscalls, layout) if ID_FILE in present else _create_store_id(syscalls, layout)
        # Also sync an existing folder: the process that created it may have died before it did.
        syscalls.sync_folder(layout.root)
    except BaseException:
        syscalls.unlock(lock)
        raise
    return OpenFolder(layout, store_id, lock)


def read_store_id(syscalls: Syscalls, folder: Path) -> str | None:
    """Return the ID of the blob folder in a data folder without locking it, or `None` if there is none yet."""
    layout = Layout(os.fspath(folder.absolute() / BLOBS_FOLDER))
    return _read_store_id(syscalls, layout) if syscalls.exists(f"{layout.root}/{ID_FILE}") else None


def register_owner(syscalls: Syscalls, layout: Layout, database: str) -> str:
    """Record `database` as the owner of the folder, unless it has objects of another one, and return the owner."""
    path = f"{layout.root}/{OWNER_FILE}"
    owner = _read_text_file(syscalls, path) if syscalls.exists(path) else None
    if owner is None or (owner != database and _is_empty(syscalls, layout)):
        _write_text_file(syscalls, path, database)
        syscalls.sync_folder(layout.root)
        return database
    return owner


def _is_empty(syscalls: Syscalls, layout: Layout) -> bool:
    return not any(syscalls.list_names(f"{layout.root}/{name}") for name in (UPLOADS_FOLDER, *SHARD_FOLDERS))


def _make_folders(syscalls: Syscalls, path: str) -> None:
    """Create a folder and its missing parents, and make each name durable."""
    if not syscalls.exists(path):
        parent = os.path.dirname(path)
        _make_folders(syscalls, parent)
        with suppress(FileExistsError):  # Another process was faster. Only one of them gets the lock afterwards.
            syscalls.make_folder(path)
        syscalls.sync_folder(parent)


def _create_store_id(syscalls: Syscalls, layout: Layout) -> str:
    """Create the ID of the folder and its file. The file is never incomplete: a server could not start with it."""
    store_id = new_id()
    _write_text_file(syscalls, f"{layout.root}/{ID_FILE}", store_id)
    return store_id


def _read_store_id(syscalls: Syscalls, layout: Layout) -> str:
    store_id = _read_text_file(syscalls, f"{layout.root}/{ID_FILE}")
    if not is_id(store_id):
        raise StoreMisconfigured(
            f"The file {layout.root}/{ID_FILE} is damaged: it does not contain the ID of the blob folder.",
            hint="Restore the file from a backup. The database has a copy of the ID.",
        )
    return store_id


def _write_text_file(syscalls: Syscalls, path: str, line: str) -> None:
    """Write a file that is never incomplete. Its name is not durable until the caller syncs the folder."""
    temporary_path = f"{path}.new"
    if syscalls.exists(temporary_path):
        syscalls.unlink(temporary_path)
    handle = syscalls.create(temporary_path)
    try:
        text = f"{line}\n".encode()
        if syscalls.write(handle, memoryview(text), 0) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        syscalls.sync(handle)
    finally:
        syscalls.close(handle)
    syscalls.rename(temporary_path, path)


def _read_text_file(syscalls: Syscalls, path: str) -> str:
    data = memoryview(bytearray(ID_BYTES_MAX))
    handle = syscalls.open(path)
    try:
        count = syscalls.read(handle, data, 0)
    finally:
        syscalls.close(handle)
    return bytes(data[:count]).decode("ascii", "replace").strip()
