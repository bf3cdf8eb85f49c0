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
from ingot.worker.handlers.documents.ports import ConversionProgress

FORMAT_VERSION: Final = 1
SAVE_SECONDS: Final = 0.5  # Of work, before the first part.
SAVE_SECONDS_GROWTH: Final = 1.07
PART_FULL_BYTES: Final = 32 * 1024 * 1024  # A part that has so much is saved at once.
PART_BYTES_MAX: Final = 512 * 1024 * 1024


class PagePicture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of a page: its name, the text above it, and its bytes where it comes up first."""

    name: str
    above: str = ""
    data: bytes | None = None


class FinishedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page that is done. `was_read` says by OCR; `unread` why there was text that was not read.

    So many of its pictures were `left_out`.
    """

    number: int
    text: str
    sizes: tuple[float, ...] = ()
    was_read: bool = False
    unread: str = ""
    figures: tuple[PagePicture, ...] = ()
    left_out: int = 0


class CheckpointHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What pages are of; those of something else are of no use."""

    source: str
    options: str
    converter: str
    format: int = FORMAT_VERSION


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True):
    """Pages as they are kept: so many were done before them."""

    header: CheckpointHeader
    first: int
    pages: list[FinishedPage]


class PageCheckpoints:
    """The pages of one document that are done, in this attempt and before it."""

    def __init__(self, watch: ConversionProgress, header: CheckpointHeader, save_seconds: float = SAVE_SECONDS) -> None:
        self._progress, self._header = watch, header
        self.pages: list[FinishedPage] = []
        self._is_saving = True
        self._saved_page_count = 0  # Pages that are in parts.
        self._saved_part_count = 0
        self._unsaved_bytes = 0
        self._save_seconds = save_seconds
        self._saved_at = time.monotonic()

    def load(self) -> int:
        """Take in what earlier attempts kept, and answer how many pages that is."""
        while (found := self._progress.saved(str(self._saved_part_count))) is not None:
            part = _decode_part(found)
            if part is None or part.header != self._header or part.first != len(self.pages):
                break
            self.pages += part.pages
            self._saved_part_count += 1
        self._saved_page_count = len(self.pages)
        self._saved_at = time.monotonic()
        return self._saved_page_count

    def add(self, page: FinishedPage) -> None:
        """A page is done; keep it and those before it when it is time."""
        self.pages.append(page)
        self._unsaved_bytes += len(page.text) + sum(len(figure.data or b"") for figure in page.figures)
        if self._is_saving and (
            time.monotonic() - self._saved_at >= self._save_seconds or self._unsaved_bytes >= PART_FULL_BYTES
        ):
            self._save()

    def _save(self) -> None:
        """Keep what is done. Where that cannot be, nothing more is kept: the work goes on, and is only not resumed."""
        part = CheckpointPart(
            header=self._header, first=self._saved_page_count, pages=self.pages[self._saved_page_count :]
        )
        packed = zlib.compress(msgspec.msgpack.encode(part), 1)
        if len(packed) > CHECKPOINT_BYTES_MAX:
            self._is_saving = False
            return
        try:
            self._progress.save(packed, str(self._saved_part_count))
        except (QuotaExceeded, StorageFull):
            self._is_saving = False
            return
        self._saved_part_count += 1
        self._saved_page_count = len(self.pages)
        self._unsaved_bytes = 0
        self._save_seconds *= SAVE_SECONDS_GROWTH
        self._saved_at = time.monotonic()


def _decode_part(data: bytes) -> CheckpointPart | None:
    """A part, or `None` for what is none: another version may have kept it."""
    try:
        packer = zlib.decompressobj()
        plain = packer.decompress(data, PART_BYTES_MAX)
        return msgspec.msgpack.decode(plain, type=CheckpointPart)
    except (zlib.error, msgspec.DecodeError):
        return None
