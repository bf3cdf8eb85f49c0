"""Checkpoints of finished pages, from which the next attempt resumes.

They are saved in parts; each part contains the pages that were finished since the previous one. The interval between
parts grows, so that an hour of work has fewer than a hundred parts.
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
SAVE_SECONDS: Final = 0.5  # Working time before the first part is saved.
SAVE_SECONDS_GROWTH: Final = 1.07
PART_FULL_BYTES: Final = 32 * 1024 * 1024  # A part of this size is saved at once.
PART_BYTES_MAX: Final = 512 * 1024 * 1024


class PagePicture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture on a page: its file name, the text above it, and its bytes unless an earlier page has them."""

    name: str
    above: str = ""
    data: bytes | None = None


class FinishedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A finished page. `sizes` are the font sizes of its headings.

    `was_read` is true if the text comes from OCR. `unread` is the reason why OCR was needed but not done. `left_out` is
    the number of pictures that were omitted.
    """

    number: int
    text: str
    sizes: tuple[float, ...] = ()
    was_read: bool = False
    unread: str = ""
    figures: tuple[PagePicture, ...] = ()
    left_out: int = 0


class CheckpointHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the input and options of a conversion. Checkpoints with a different header are ignored."""

    source: str
    options: str
    converter: str
    format: int = FORMAT_VERSION


class CheckpointPart(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a checkpoint. `first` is the number of pages that were finished before it."""

    header: CheckpointHeader
    first: int
    pages: list[FinishedPage]


class PageCheckpoints:
    """The finished pages of a document, from this attempt and earlier ones."""

    def __init__(
        self, progress: ConversionProgress, header: CheckpointHeader, save_seconds: float = SAVE_SECONDS
    ) -> None:
        self._progress, self._header = progress, header
        self.pages: list[FinishedPage] = []
        self._is_saving = True
        self._saved_page_count = 0
        self._saved_part_count = 0
        self._unsaved_bytes = 0
        self._save_seconds = save_seconds
        self._saved_at = time.monotonic()

    def load(self) -> int:
        """Load the pages of earlier attempts and return their number."""
        while (saved := self._progress.saved(str(self._saved_part_count))) is not None:
            part = _decode_part(saved)
            if part is None or part.header != self._header or part.first != len(self.pages):
                break
            self.pages += part.pages
            self._saved_part_count += 1
        self._saved_page_count = len(self.pages)
        self._saved_at = time.monotonic()
        return self._saved_page_count

    def add(self, page: FinishedPage) -> None:
        """Add a finished page, and save a part if enough time has passed or the part is full."""
        self.pages.append(page)
        self._unsaved_bytes += len(page.text) + sum(len(figure.data or b"") for figure in page.figures)
        if self._is_saving and (
            time.monotonic() - self._saved_at >= self._save_seconds or self._unsaved_bytes >= PART_FULL_BYTES
        ):
            self._save()

    def _save(self) -> None:
        """Save the pages since the last part. If that fails, save no more parts and continue without them."""
        part = CheckpointPart(
            header=self._header, first=self._saved_page_count, pages=self.pages[self._saved_page_count :]
        )
        compressed = zlib.compress(msgspec.msgpack.encode(part), 1)
        if len(compressed) > CHECKPOINT_BYTES_MAX:
            self._is_saving = False
            return
        try:
            self._progress.save(compressed, str(self._saved_part_count))
        except (QuotaExceeded, StorageFull):
            self._is_saving = False
            return
        self._saved_part_count += 1
        self._saved_page_count = len(self.pages)
        self._unsaved_bytes = 0
        self._save_seconds *= SAVE_SECONDS_GROWTH
        self._saved_at = time.monotonic()


def _decode_part(data: bytes) -> CheckpointPart | None:
    """Decode a part. Return `None` if it is invalid, as when another version has saved it."""
    try:
        decompressor = zlib.decompressobj()
        packed = decompressor.decompress(data, PART_BYTES_MAX)  # Limited, because the checkpoint may be damaged.
        return msgspec.msgpack.decode(packed, type=CheckpointPart)
    except (zlib.error, msgspec.DecodeError):
        return None
