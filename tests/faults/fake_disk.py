"""A disk in memory that knows what was synced, and lists every state in which a power loss may leave it.

A file keeps what was synced. Each later change may be kept, lost, or replaced by zeros; the last one may also be kept
by half. A folder keeps the names that were synced, or each of them as it was at any time since. A rename removes the
old name only if the new one exists; until both folders are synced, both may exist.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ingot.objects.syscalls import Syscalls

OUTCOMES_MAX = 512  # If there are more outcomes, a few are chosen at random.
RANDOM_OUTCOMES = 4


@dataclass
class Change:
    """A change of a file: bytes at an offset, or a new size if `data` is `None`."""

    offset: int
    data: bytes | None

    def apply(self, data: bytearray, mode: str = "all") -> None:
        """Apply the change to the bytes of a file: all of it, half of it, or zeros instead."""
        if self.data is None:
            del data[self.offset :]
            data.extend(bytes(self.offset - len(data)))
        else:
            new = {"all": self.data, "zeros": bytes(len(self.data)), "half": self.data[: len(self.data) // 2]}[mode]
            data.extend(bytes(max(0, self.offset - len(data))))
            data[self.offset : self.offset + len(new)] = new


@dataclass(eq=False)
class File:
    """The bytes of a file."""

    synced: bytes = b""
    changes: list[Change] = field(default_factory=list)

    def now(self) -> bytearray:
        """Return the bytes that the running system sees."""
        data = bytearray(self.synced)
        for change in self.changes:
            change.apply(data)
        return data

    def outcomes(self) -> list[bytes]:
        """Return the bytes that a power loss may leave."""
        choices = [("none", "all") if change.data is None else ("none", "all", "zeros") for change in self.changes]
        if choices and self.changes[-1].data is not None:
            choices[-1] = (*choices[-1], "half")
        contents = set()
        for selected in combinations(choices):
            data = bytearray(self.synced)
            for change, mode in zip(self.changes, selected, strict=True):
                if mode != "none":
                    change.apply(data, mode)
            contents.add(bytes(data))
        return sorted(contents)


class Folder:
    """Names: as the running system sees them, as they were synced, and the changes since.

    A change that is part of a rename has the number of the rename.
    """

    def __init__(self, names: dict[str, Node] | None = None) -> None:
        self.names = names or {}
        self.synced = self.names.copy()
        self.changes: dict[str, list[tuple[Node | None, int | None]]] = {}

    def change(self, name: str, node: Node | None, rename: int | None = None) -> None:
        """Let a name refer to another node, or remove it."""
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.changes.setdefault(name, []).append((node, rename))

    def sync(self) -> None:
        """Make the names durable."""
        self.synced, self.changes = self.names.copy(), {}


Node = File | Folder


def combinations(choices: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield every combination; if there are too many, the first, the last, and some random ones."""
    count = 1
    for choice in choices:
        count *= len(choice)
    if count <= OUTCOMES_MAX:
        yield from itertools.product(*choices)
        return
    random_source = random.Random(count)
    yield tuple(choice[0] for choice in choices)
    yield tuple(choice[-1] for choice in choices)
    for _ in range(RANDOM_OUTCOMES):
        yield tuple(random_source.choice(choice) for choice in choices)


class FakeDisk(Syscalls):
    """Files in memory."""

    def __init__(self, root: Folder | None = None) -> None:
        super().__init__()
        self.root = root or Folder()
        self.steps = 0
        self._open: dict[int, File] = {}
        self._renames = itertools.count()
        self._handles = itertools.count(1000)

    def changed(self) -> None:
        """Called after each change."""
        self.steps += 1

    # -- calls of the store --------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        try:
            folder, name = self._find(path)
        except FileNotFoundError:
            return False
        return not name or name in folder.names

    def make_folder(self, path: str) -> None:
        folder, name = self._new(path)
        folder.change(name, Folder())
        self.changed()

    def sync_folder(self, path: str) -> None:
        self._folder(path).sync()
        self.changed()

    def list_names(self, path: str) -> list[str]:
        return sorted(self._folder(path).names)

    def modified_at(self, path: str) -> int:
        self._file(path)
        return 0

    def rename(self, path: str, to: str) -> None:
        node, number = self._file(path), next(self._renames)
        folder, name = self._find(to)
        folder.change(name, node, number)
        folder, name = self._find(path)
        folder.change(name, None, number)
        self.changed()

    def unlink(self, path: str) -> None:
        self._file(path)
        folder, name = self._find(path)
        folder.change(name, None)
        self.changed()

    def lock(self, path: str) -> int:
        if not self.exists(path):
            self.close(self.create(path))
        return next(self._handles)

    def unlock(self, handle: int) -> None:
        """Do nothing: no lock is held."""

    def create(self, path: str) -> int:
        folder, name = self._new(path)
        folder.change(name, File())
        self.changed()
        return self.open(path)

    def open(self, path: str, *, writing: bool = False) -> int:
        file, handle = self._file(path), next(self._handles)
        self._open[handle] = file
        return handle

    def close(self, handle: int) -> None:
        self._open.pop(handle, None)

    def size(self, handle: int) -> int:
        return len(self._open[handle].now())

    def allocate(self, handle: int, size: int) -> None:
        self._open[handle].changes.append(Change(max(size, self.size(handle)), None))
        self.changed()

    def truncate(self, handle: int, size: int) -> None:
        self._open[handle].changes.append(Change(size, None))
        self.changed()

    def write(self, handle: int, data: memoryview, offset: int) -> int:
        self._open[handle].changes.append(Change(offset, bytes(data)))
        self.changed()
        return len(data)

    def start_sync(self, handle: int, offset: int, count: int) -> None:
        """Do nothing: this makes no promise."""

    def sync(self, handle: int) -> None:
        file = self._open[handle]
        file.synced, file.changes = bytes(file.now()), []
        self.changed()

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        data = self._open[handle].now()[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def read_cached(self, handle: int, buffer: memoryview, offset: int) -> int:
        return self.read(handle, buffer, offset)

    def link(self, path: str, to: str) -> None:
        """Give a file a second name, which is durable."""
        folder, name = self._find(to)
        folder.names[name] = folder.synced[name] = self._file(path)

    # -- names ----------------------------------------------------------------------------------------------

    def _find(self, path: str) -> tuple[Folder, str]:
        parent, name = os.path.split(path)
        return (self._folder(parent) if name else self.root), name

    def _folder(self, path: str) -> Folder:
        node: Node = self.root
        for name in path.strip("/").split("/"):
            if name:
                contents = node.names.get(name) if isinstance(node, Folder) else None
                if contents is None:
                    raise FileNotFoundError(errno.ENOENT, "no such folder", path)
                node = contents
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a folder", path)
        return node

    def _file(self, path: str) -> File:
        folder, name = self._find(path)
        node = folder.names.get(name)
        if not isinstance(node, File):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _new(self, path: str) -> tuple[Folder, str]:
        folder, name = self._find(path)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, "the file exists", path)
        return folder, name


Tree = tuple[
    tuple[str, int, bytes | None], ...
]  # Path, number of the file, and its bytes, which are None for a folder.


def outcomes(root: Folder) -> Iterator[Tree]:
    """Yield every state in which a power loss may leave the disk, each once."""
    seen = set[Tree]()
    for names in _outcomes_of_names(root):
        numbers: dict[int, int] = {}  # Two names of one file have the same number.
        files = list[File]()
        for _, node in names:
            if isinstance(node, File) and id(node) not in numbers:
                numbers[id(node)] = len(files)
                files.append(node)
        for contents in itertools.product(*(file.outcomes() for file in files)):
            tree = tuple(
                (path, numbers[id(node)], contents[numbers[id(node)]]) if isinstance(node, File) else (path, -1, None)
                for path, node in names
            )
            if tree not in seen:
                seen.add(tree)
                yield tree


def disk_of(tree: Tree) -> FakeDisk:
    """Return a disk in this state."""
    folders, files = {"": Folder()}, dict[int, File]()
    for path, number, data in tree:
        parent, _, name = path.rpartition("/")
        if data is None:
            node: Node = folders.setdefault(path, Folder())
        else:
            node = files.setdefault(number, File(data))
        folders[parent].names[name] = folders[parent].synced[name] = node
    return FakeDisk(folders[""])


def _outcomes_of_names(root: Folder) -> Iterator[list[tuple[str, Node]]]:
    folders = [("", root), *_folders_below("", root)]
    changed = [(path, folder, name) for path, folder in folders for name in folder.changes]
    choices = [tuple(range(len(folder.changes[name]) + 1)) for _, folder, name in changed]
    for selected in combinations(choices):
        resolved, added, removed = dict[tuple[int, str], Node | None](), set[int](), set[int]()
        for (_, folder, name), steps in zip(changed, selected, strict=True):
            resolved[id(folder), name] = folder.changes[name][steps - 1][0] if steps else folder.synced.get(name)
            for node, rename in folder.changes[name][:steps]:
                if rename is not None:
                    (removed if node is None else added).add(rename)
        if not _is_impossible(removed - added, folders):
            yield list(_names_below("", root, resolved))


def _is_impossible(renames: set[int], folders: list[tuple[str, Folder]]) -> bool:
    """Whether an old name is gone without the new one, which cannot happen on a file system with a journal."""
    pending = {
        rename
        for _, folder in folders
        for steps in folder.changes.values()
        for node, rename in steps
        if node is not None and rename is not None
    }
    return bool(renames & pending)


def _folders_below(path: str, folder: Folder) -> Iterator[tuple[str, Folder]]:
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            yield f"{path}/{name}", node
            yield from _folders_below(f"{path}/{name}", node)


def _names_below(path: str, folder: Folder, resolved: dict[tuple[int, str], Node | None]) -> Iterator[tuple[str, Node]]:
    for name in sorted(folder.synced.keys() | folder.changes.keys()):
        node = resolved.get((id(folder), name), folder.synced.get(name))
        if node is not None:
            yield f"{path}/{name}", node
            if isinstance(node, Folder):
                yield from _names_below(f"{path}/{name}", node, resolved)
