"""Power cuts: a disk that knows what was synced, and what it may hold when the power goes.

Everything the store writes passes by a `Disk` on top of the real files. The disk remembers for each file what was there
at its last sync, and every write since. Any number of cuts can be taken from one run: each is what a disk may hold at
that moment, with a random part of the unsynced writes lost, torn at sectors, in any order.
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
from tests.faults.watched_files import WatchedFile, Watcher

SECTOR = 512
SYNC_SECONDS = 0.0005


class Write(msgspec.Struct, frozen=True):
    """Bytes that were written and not synced."""

    offset: int
    data: bytes


class Cut(msgspec.Struct, frozen=True):
    """A change of a file's size that was not synced."""

    size: int


class Content(msgspec.Struct, eq=False):
    """A file: what is surely there, and what may be."""

    synced: bytearray
    unsynced: list[Write | Cut]
    syncs: int = 0

    def sync(self, changes: int) -> None:
        """The first so many changes are durable now."""
        for change in self.unsynced[:changes]:
            apply(self.synced, change)
        del self.unsynced[:changes]
        self.syncs += 1

    def copy(self) -> Content:
        """The same, for later."""
        return Content(self.synced.copy(), self.unsynced.copy(), self.syncs)


class PowerCut(msgspec.Struct, frozen=True):
    """The moment at which the power went: what each name in the folder may lead to, and what had been said by then."""

    names: dict[str, list[Content | None]]
    acked_lines: int
    invoked_lines: int

    def build(self, folder: Path, chance: random.Random) -> None:
        """Put in a new folder what the disk holds afterwards."""
        folder.mkdir(parents=True)
        for name, contents in sorted(self.names.items()):
            content = chance.choice(contents)
            if content is not None:
                (folder / name).write_bytes(after_loss(content, chance))

    def history(self, lines: list[Line]) -> list[Line]:
        """What had been said: answers before the cut count, calls that were under way are indeterminate."""
        under_way = lines[self.acked_lines : self.invoked_lines]
        return lines[: self.acked_lines] + [line for line in under_way if line[0] == "invoke"]


def apply(data: bytearray, change: Write | Cut) -> None:
    """Make a change to the bytes of a file."""
    if isinstance(change, Cut):
        del data[change.size :]
        data.extend(bytes(change.size - len(data)))
    else:
        data.extend(bytes(max(0, change.offset - len(data))))
        data[change.offset : change.offset + len(change.data)] = change.data


def after_loss(content: Content, chance: random.Random) -> bytes:
    """What is left of a file: all that was synced, and any part of the rest."""
    data = content.synced.copy()
    changes = content.unsynced
    match chance.choice(("nothing", "everything", "first", "any", "any")):
        case "nothing":
            changes = []
        case "first":
            changes = changes[: chance.randrange(len(changes) + 1)]
        case "any":
            share = chance.choice((0.1, 0.5, 0.9))
            changes = [piece for change in changes for piece in pieces(change, chance) if chance.random() < share]
    for change in changes:
        apply(data, change)
    return bytes(data)


def pieces(change: Write | Cut, chance: random.Random) -> Iterator[Write | Cut]:
    """The sectors of a write; a sector that was being written may hold anything where it was written."""
    if isinstance(change, Cut):
        yield change
        return
    start = 0
    while start < len(change.data):
        end = min(start + SECTOR - (change.offset + start) % SECTOR, len(change.data))
        data = change.data[start:end]
        yield Write(change.offset + start, chance.randbytes(len(data)) if chance.random() < 0.02 else data)
        start = end


class Disk(Watcher):
    """Files in one folder, and the cuts taken while they were written. `lines` is the history that acks go to."""

    def __init__(self, folder: Path, lines: list[Line], *, seed: int, cuts: int, steps_between: int) -> None:
        super().__init__()
        self.cuts: list[PowerCut] = []
        self._folder = folder
        self._lines = lines
        self._random = random.Random(seed)
        self._cuts_max = cuts
        self._steps_between = steps_between
        self._steps = self._random.randrange(2 * steps_between)
        there = [path for path in folder.iterdir() if path.is_file()] if folder.exists() else []
        self._names: dict[str, Content] = {path.name: Content(bytearray(path.read_bytes()), []) for path in there}
        self._synced_names = self._names.copy()

    @contextmanager
    def watching_folder(self) -> Iterator[None]:
        """See the syncs of the folder too, which do not go by way of SQLite."""
        fsync = os.fsync

        def seen(handle: int) -> None:
            fsync(handle)
            if self._folder.exists() and os.path.samestat(os.fstat(handle), self._folder.stat()):
                with self.lock:
                    self._sync_names()

        with patch("os.fsync", seen):
            yield

    # -- what SQLite does -----------------------------------------------------------------------------------

    def opened(self, file: WatchedFile) -> None:
        if file.made and file.name not in self._names:
            self._names[file.name] = Content(bytearray(), [])
        self._step()

    def write(self, file: WatchedFile, data: bytes, offset: int) -> None:
        super().write(file, data, offset)
        self._names[file.name].unsynced.append(Write(offset, data))
        self._step()

    def truncate(self, file: WatchedFile, size: int) -> None:
        super().truncate(file, size)
        self._names[file.name].unsynced.append(Cut(size))
        self._step()

    def sync(self, file: WatchedFile, flags: int) -> None:
        with self.lock:
            changes = len(self._names[file.name].unsynced)
        # The real sync would make real what is only to be thought; its time lets callers hear what they are told.
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
            leads_to = [self._synced_names.get(name), self._names.get(name)]
            if leads_to[0] is leads_to[1]:
                del leads_to[1]
            names[name] = [None if content is None else content.copy() for content in leads_to]
        return PowerCut(names, acked_lines, len(self._lines))


def history_of(lines: list[Line]) -> History:
    """A history of these lines."""
    history = History()
    history.add(lines)
    return history
