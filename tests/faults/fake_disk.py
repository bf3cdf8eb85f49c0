"""A disk that is only thought: it knows what was synced, and tells every way it may look after the power has gone.

What survives, at the least and at the most: of a file what was synced, and of each change since then all, nothing, or
zeros where its bytes should be; the last one also by half. Of a folder what was synced, and any of its names as it was
at any time since. A rename takes the old name away only when the new one is there; until both folders are synced there
may be both.
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

WAYS_MAX = 512  # Where there are more ways in which things may have gone, a few by chance stand for all.
WAYS_BY_CHANCE = 4


@dataclass
class Change:
    """What was done to a file: bytes at an offset, or with `None` a new size."""

    offset: int
    data: bytes | None

    def make(self, data: bytearray, how: str = "all") -> None:
        """Do it, or do it badly."""
        if self.data is None:
            del data[self.offset :]
            data.extend(bytes(self.offset - len(data)))
        else:
            new = {"all": self.data, "zeros": bytes(len(self.data)), "half": self.data[: len(self.data) // 2]}[how]
            data.extend(bytes(max(0, self.offset - len(data))))
            data[self.offset : self.offset + len(new)] = new


@dataclass(eq=False)
class File:
    """The bytes of a file."""

    synced: bytes = b""
    changes: list[Change] = field(default_factory=list)

    def now(self) -> bytearray:
        """As the running system sees it."""
        data = bytearray(self.synced)
        for change in self.changes:
            change.make(data)
        return data

    def outcomes(self) -> list[bytes]:
        """What it may hold after the power has gone."""
        ways = [("none", "all") if change.data is None else ("none", "all", "zeros") for change in self.changes]
        if ways and self.changes[-1].data is not None:
            ways[-1] = (*ways[-1], "half")
        found = set()
        for chosen in some(ways):
            data = bytearray(self.synced)
            for change, how in zip(self.changes, chosen, strict=True):
                if how != "none":
                    change.make(data, how)
            found.add(bytes(data))
        return sorted(found)


class Folder:
    """Names: as the running system sees them, as they were synced, and for each what it led to since.

    With a change goes the number of the rename that made it.
    """

    def __init__(self, names: dict[str, Node] | None = None) -> None:
        self.names = names or {}
        self.synced = self.names.copy()
        self.changes: dict[str, list[tuple[Node | None, int | None]]] = {}

    def change(self, name: str, node: Node | None, rename: int | None = None) -> None:
        """A name leads to something else now, or to nothing."""
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.changes.setdefault(name, []).append((node, rename))

    def sync(self) -> None:
        """The names are durable."""
        self.synced, self.changes = self.names.copy(), {}


Node = File | Folder


def some(ways: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Every choice of one from each; when that is too much, the first and the last of all, and some by chance."""
    count = 1
    for way in ways:
        count *= len(way)
    if count <= WAYS_MAX:
        yield from itertools.product(*ways)
        return
    chance = random.Random(count)
    yield tuple(way[0] for way in ways)
    yield tuple(way[-1] for way in ways)
    for _ in range(WAYS_BY_CHANCE):
        yield tuple(chance.choice(way) for way in ways)


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

    # -- what the store calls -------------------------------------------------------------------------------

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
        """It was no real one."""

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
        """Promises nothing."""

    def sync(self, handle: int) -> None:
        file = self._open[handle]
        file.synced, file.changes = bytes(file.now()), []
        self.changed()

    def read(self, handle: int, into: memoryview, offset: int) -> int:
        data = self._open[handle].now()[offset : offset + len(into)]
        into[: len(data)] = data
        return len(data)

    def read_cached(self, handle: int, into: memoryview, offset: int) -> int:
        return self.read(handle, into, offset)

    def link(self, path: str, to: str) -> None:
        """Give a file a second name, which is durable."""
        folder, name = self._find(to)
        folder.names[name] = folder.synced[name] = self._file(path)

    # -- names ----------------------------------------------------------------------------------------------

    def _find(self, path: str) -> tuple[Folder, str]:
        above, name = os.path.split(path)
        return (self._folder(above) if name else self.root), name

    def _folder(self, path: str) -> Folder:
        node: Node = self.root
        for name in path.strip("/").split("/"):
            if name:
                found = node.names.get(name) if isinstance(node, Folder) else None
                if found is None:
                    raise FileNotFoundError(errno.ENOENT, "no such folder", path)
                node = found
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
            raise FileExistsError(errno.EEXIST, "there is one", path)
        return folder, name


Tree = tuple[tuple[str, int, bytes | None], ...]  # Path, number of the file, its bytes; `None` for a folder.


def outcomes(root: Folder) -> Iterator[Tree]:
    """Every way the disk may look when the power goes now, each once."""
    seen = set[Tree]()
    for names in _outcomes_of_names(root):
        numbers: dict[int, int] = {}  # Two names of one file have the same.
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
    """A disk that looks like this, after the power came back."""
    folders, files = {"": Folder()}, dict[int, File]()
    for path, number, data in tree:
        above, _, name = path.rpartition("/")
        if data is None:
            node: Node = folders.setdefault(path, Folder())
        else:
            node = files.setdefault(number, File(data))
        folders[above].names[name] = folders[above].synced[name] = node
    return FakeDisk(folders[""])


def _outcomes_of_names(root: Folder) -> Iterator[list[tuple[str, Node]]]:
    folders = [("", root), *_folders_below("", root)]
    changed = [(path, folder, name) for path, folder in folders for name in folder.changes]
    ways = [tuple(range(len(folder.changes[name]) + 1)) for _, folder, name in changed]
    for chosen in some(ways):
        done, made, lost = dict[tuple[int, str], Node | None](), set[int](), set[int]()
        for (_, folder, name), steps in zip(changed, chosen, strict=True):
            done[id(folder), name] = folder.changes[name][steps - 1][0] if steps else folder.synced.get(name)
            for node, rename in folder.changes[name][:steps]:
                if rename is not None:
                    (lost if node is None else made).add(rename)
        if not _lost_for_good(lost - made, folders):
            yield list(_names_below("", root, done))


def _lost_for_good(renames: set[int], folders: list[tuple[str, Folder]]) -> bool:
    """Whether an old name went without the new one, which no file system does that keeps a journal."""
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


def _names_below(path: str, folder: Folder, done: dict[tuple[int, str], Node | None]) -> Iterator[tuple[str, Node]]:
    for name in sorted(folder.synced.keys() | folder.changes.keys()):
        node = done.get((id(folder), name), folder.synced.get(name))
        if node is not None:
            yield f"{path}/{name}", node
            if isinstance(node, Folder):
                yield from _names_below(f"{path}/{name}", node, done)
