"""A ZIP archive of all outputs. The same files always give the same bytes."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FIXED_TIMESTAMP: Final = (1980, 1, 1, 0, 0, 0)
COMPRESSED_SUFFIXES: Final = frozenset({".png", ".jpg"})  # Already compressed.
FILE_ATTRIBUTES: Final = 0o644 << 16


def write_archive(files: Iterable[Path], to: Path) -> Path:
    """Write files to an archive under their own names, and return its path."""
    with zipfile.ZipFile(to, "w") as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.name, FIXED_TIMESTAMP)
            entry.external_attr = FILE_ATTRIBUTES
            entry.compress_type = zipfile.ZIP_STORED if file.suffix in COMPRESSED_SUFFIXES else zipfile.ZIP_DEFLATED
            entry.file_size = file.stat().st_size
            with file.open("rb") as source, archive.open(entry, "w") as sink:
                while part := source.read(1024 * 1024):
                    sink.write(part)
    return to
