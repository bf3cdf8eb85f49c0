"""Finished pages, kept in parts so that the next attempt goes on where this one stopped.

A part holds the pages since the last one. It is saved after a while of work, and that while grows, so that an hour of
work has about a hundred parts.
"""

from __future__ import annotations

import time
import zlib
from typing import Final

import msgspec

from ingot.blobs.errors import QuotaExceeded
from ingot.jobs.files import CHECKPOINT_BYTES_MAX
from ingot.kernel.errors import StorageFull
from ingot.worker.handlers.documents.ports import Watch

FORMAT: Final = 1
SAVE_SECONDS: Final = 0.5  # Of work, before the first part.
GROWTH: Final = 1.07
PART_BYTES: Final = 32 * 1024 * 1024  # A part that has so much is saved at once.
PART_BYTES_MAX: Final = 512 * 1024 * 1024


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of a page: its name, the text above it, and its bytes where it comes up first."""

    name: str
    above: str = ""
    data: bytes | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page that is done. `was_read` says by OCR; `unread` why there was text that was not read.

    So many of its pictures were `left_out`.
    """

    number: int
    text: str
    sizes: tuple[float, ...] = ()
    was_read: bool = False
    unread: str = ""
    figures: tuple[Figure, ...] = ()
    left_out: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What pages are of; those of something else are of no use."""

    source: str
    options: str
    converter: str
    format: int = FORMAT


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Pages as they are kept: so many were done before them."""

    header: Header
    first: int
    pages: list[Page]


class Pages:
    """The pages of one document that are done, in this attempt and before it."""

    def __init__(self, watch: Watch, header: Header, save_seconds: float = SAVE_SECONDS) -> None:
        self._watch, self._header = watch, header
        self.done: list[Page] = []
        self._keeps = True
        self._kept = 0  # Pages that are in parts.
        self._parts = 0
        self._bytes = 0
        self._wait = save_seconds
        self._since = time.monotonic()

    def load(self) -> int:
        """Take in what earlier attempts kept, and answer how many pages that is."""
        while (found := self._watch.saved(str(self._parts))) is not None:
            part = _unpacked(found)
            if part is None or part.header != self._header or part.first != len(self.done):
                break
            self.done += part.pages
            self._parts += 1
        self._kept = len(self.done)
        self._since = time.monotonic()
        return self._kept

    def add(self, page: Page) -> None:
        """A page is done; keep it and those before it when it is time."""
        self.done.append(page)
        self._bytes += len(page.text) + sum(len(figure.data or b"") for figure in page.figures)
        if self._keeps and (time.monotonic() - self._since >= self._wait or self._bytes >= PART_BYTES):
            self._save()

    def _save(self) -> None:
        """Keep what is done. Where that cannot be, nothing more is kept: the work goes on, and is only not resumed."""
        part = Part(header=self._header, first=self._kept, pages=self.done[self._kept :])
        packed = zlib.compress(msgspec.msgpack.encode(part), 1)
        if len(packed) > CHECKPOINT_BYTES_MAX:
            self._keeps = False
            return
        try:
            self._watch.save(packed, str(self._parts))
        except (QuotaExceeded, StorageFull):
            self._keeps = False
            return
        self._parts += 1
        self._kept = len(self.done)
        self._bytes = 0
        self._wait *= GROWTH
        self._since = time.monotonic()


def _unpacked(data: bytes) -> Part | None:
    """A part, or `None` for what is none: another version may have kept it."""
    try:
        packer = zlib.decompressobj()
        plain = packer.decompress(data, PART_BYTES_MAX)
        return msgspec.msgpack.decode(plain, type=Part)
    except (zlib.error, msgspec.DecodeError):
        return None
