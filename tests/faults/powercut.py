"""Power cuts: a disk that knows which writes were synced, and so what it may contain after a loss of power.

All writes of the store pass through a `Disk` on top of the real files. For each file, the disk records the bytes at the
last sync and every write since. One run yields any number of cuts. Each is a possible state of the disk at that moment,
with a random part of the unsynced writes lost, torn at sectors, in any order.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec

from tests.faults.history import History, Line
from tests.faults.watched_files import WatchedFile, WatchingVFS

SECTOR = 512
SYNC_SECONDS = 0.0005


class Write(msgspec.Struct, frozen=True):
    """Bytes that were written and not synced."""

    offset: int
    data: bytes


class Resize(msgspec.Struct, frozen=True):
    """A change of a file's size that was not synced."""

    size: int


class Content(msgspec.Struct, eq=False):
    """A file: its synced bytes, and the changes since."""

    synced: bytearray
    unsynced: list[Write | Resize]
    syncs: int = 0

    def sync(self, changes: int) -> None:
        """Make the first `changes` durable."""
        for change in self.unsynced[:changes]:
            apply(self.synced, change)
        del self.unsynced[:changes]
        self.syncs += 1

    def copy(self) -> Content:
        """Return a copy that later changes do not affect."""
        return Content(self.synced.copy(), self.unsynced.copy(), self.syncs)


class PowerCut(msgspec.Struct, frozen=True):
    """A loss of power: what each name in the folder may refer to, and how much of the history had been written."""

    names: dict[str, list[Content | None]]
    acked_lines: int
    invoked_lines: int

    def build(self, folder: Path, random_source: random.Random) -> None:
        """Write a possible content of the disk into a new folder."""
        folder.mkdir(parents=True)
        for name, contents in sorted(self.names.items()):
            content = random_source.choice(contents)
            if content is not None:
                (folder / name).write_bytes(after_loss(content, random_source))

    def history(self, lines: list[Line]) -> list[Line]:
        """Return the history up to the cut. Calls that were under way are indeterminate."""
        under_way = lines[self.acked_lines : self.invoked_lines]
        return lines[: self.acked_lines] + [line for line in under_way if line[0] == "invoke"]


def apply(data: bytearray, change: Write | Resize) -> None:
    """Apply a change to the bytes of a file."""
    if isinstance(change, Resize):
        del data[change.size :]
        data.extend(bytes(change.size - len(data)))
    else:
        data.extend(bytes(max(0, change.offset - len(data))))
        data[change.offset : change.offset + len(change.data)] = change.data


def after_loss(content: Content, random_source: random.Random) -> bytes:
    """Return possible bytes of a file after the cut: everything that was synced, and any part of the other changes."""
    data = content.synced.copy()
    changes = content.unsynced
    match random_source.choice(("nothing", "everything", "first", "any", "any")):
        case "nothing":
            changes = []
        case "first":
            changes = changes[: random_source.randrange(len(changes) + 1)]
        case "any":
            share = random_source.choice((0.1, 0.5, 0.9))
            changes = [
                piece for change in changes for piece in pieces(change, random_source) if random_source.random() < share
            ]
    for change in changes:
        apply(data, change)
    return bytes(data)


def pieces(change: Write | Resize, random_source: random.Random) -> Iterator[Write | Resize]:
    """Yield the sectors of a write. A sector that was being written may contain anything in the written range."""
    if isinstance(change, Resize):
        yield change
        return
    start = 0
    while start < len(change.data):
        end = min(start + SECTOR - (change.offset + start) % SECTOR, len(change.data))
        data = change.data[start:end]
        yield Write(
            change.offset + start, random_source.randbytes(len(data)) if random_source.random() < 0.02 else data
        )
        start = end


class Disk(WatchingVFS):
    """Files in one folder, and the cuts taken while they were written. `lines` is the history of the calls."""

    def __init__(self, folder: Path, lines: list[Line], *, seed: int, cuts: int, steps_between: int) -> None:
        super().__init__()
        self.cuts: list[PowerCut] = []
        self._folder = folder
        self._lines = lines
        self._random = random.Random(seed)
        self._cuts_max = cuts
        self._steps_between = steps_between
        self._steps = self._random.randrange(2 * steps_between)
        existing = [path for path in folder.iterdir() if path.is_file()] if folder.exists() else []
        self._names: dict[str, Content] = {path.name: Content(bytearray(path.read_bytes()), []) for path in existing}
        self._synced_names = self._names.copy()

    @contextmanager
    def watching_folder(self) -> Iterator[None]:
        """Also observe syncs of the folder, which do not pass through SQLite."""
        fsync = os.fsync

        def record_fsync(handle: int) -> None:
            fsync(handle)
            if self._folder.exists() and os.path.samestat(os.fstat(handle), self._folder.stat()):
                with self.lock:
                    self._sync_names()

        with patch("os.fsync", record_fsync):
            yield

    # -- calls of SQLite ------------------------------------------------------------------------------------

    def opened(self, file: WatchedFile) -> None:
        if file.may_create and file.name not in self._names:
            self._names[file.name] = Content(bytearray(), [])
        self._step()

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        super().write(file, data, offset)
        self._names[file.name].unsynced.append(Write(offset, data))
        self._step()

    def truncate(self, file: WatchedFile, size: int) -> None:
        super().truncate(file, size)
        self._names[file.name].unsynced.append(Resize(size))
        self._step()

    def sync(self, file: WatchedFile, flags: int) -> None:
        with self.lock:
            changes = len(self._names[file.name].unsynced)
        # The real sync is not needed. Its duration lets callers receive their results meanwhile.
        time.sleep(SYNC_SECONDS)
        with self.lock:
            self._step()
            content = self._names[file.name]
            content.sync(changes)
            # The system's VFS syncs the folder with the first sync of a new log or journal.
            if content.syncs == 1 and not file.is_database:
                self._sync_names()
            self._step()

    def delete(self, filename: str, sync_folder: bool) -> None:
        super().delete(filename, sync_folder)
        self._names.pop(Path(filename).name, None)
        if sync_folder:
            self._sync_names()
        self._step()

    # -- cuts -----------------------------------------------------------------------------------------------

    def _sync_names(self) -> None:
        self._synced_names = self._names.copy()

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0 and len(self.cuts) < self._cuts_max:
            self._steps = self._random.randrange(2 * self._steps_between)
            self.cuts.append(self._cut())

    def _cut(self) -> PowerCut:
        acked_lines = len(self._lines)
        names: dict[str, list[Content | None]] = {}
        for name in self._names.keys() | self._synced_names.keys():
            targets = [self._synced_names.get(name), self._names.get(name)]
            if targets[0] is targets[1]:
                del targets[1]
            names[name] = [None if content is None else content.copy() for content in targets]
        return PowerCut(names, acked_lines, len(self._lines))


def history_of(lines: list[Line]) -> History:
    """Return a history of these lines."""
    history = History()
    history.add(lines)
    return history
